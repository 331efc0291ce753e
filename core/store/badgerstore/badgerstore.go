// Package badgerstore is the store on a local disk: Badger, with every Commit on stable storage before it returns.
//
// It owns the data directory: its lock, the verification of every file before Badger sees it, the reserve of free disk space,
// maintenance and restore. It never repairs damage and never drops records: what cannot be read whole is refused, with the file
// and the way out named. A sync that fails, also in the background, is the store's end: nothing is acknowledged or tried again after
// it, and the next Open takes back what it left half done.
//
// Store is safe for concurrent use as store.Store says. It starts one goroutine for maintenance, which Close stops and waits for;
// Badger's own goroutines end with Close as well, except after a failed sync: then they stay where they are until the process ends,
// and the directory stays locked. All values lie in the LSM tree: a group is at most 1 MiB, and all that a commit writes is in one log.
// Badger syncs its value log with it, in which there is nothing.
package badgerstore

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	badger "github.com/dgraph-io/badger/v4"
	"github.com/dgraph-io/badger/v4/options"

	"github.com/paceline-sched/paceline/core/store"
)

const (
	// memTableBytes sizes the write buffer. Badger keeps up to memTables of them, so it is most of what the store holds in memory.
	// A transaction holds at most 15 % of one, which must take a whole group: it is the smallest that does. At 10 MB/s of writes
	// one is flushed about every 0.8 s; twice the size commits a quarter faster at that and more, for 150 MiB.
	memTableBytes = 8 << 20
	memTables     = 3
	// valueInTree keeps every value in the LSM tree; it is Badger's highest.
	valueInTree = 1 << 20
	// valueLogBytes sizes the value log, which stays empty, but whose file Badger maps.
	valueLogBytes = 1 << 20

	// MaxSnapshots bounds the snapshots that are open at once: each keeps old versions of what has changed since.
	MaxSnapshots = 1024
	// DefaultReserve is the default of Config.Reserve: twice what a store that is told to stop may still write, which is its
	// buffers, all of level 0 merged with the level under it (15 tables of a buffer each and 64 MiB), and one compaction below.
	DefaultReserve = 512 << 20
	// DefaultMaintenance is how often maintenance looks for work when Config.Ticks is nil.
	DefaultMaintenance = time.Minute

	// opOverhead is more than Badger adds to the size of an operation; txnOverhead leaves room for its end marker.
	opOverhead  = 32
	txnOverhead = 1 << 10
)

// Config of a Store. Dir and Cell are required.
type Config struct {
	Dir  string // the data directory; made with mode 0700 when it is absent
	Cell string // whose state it holds; a directory of another cell is refused

	// Reserve is how many bytes of the disk must stay free: below it, Open and Commit fail with ErrFull. Default DefaultReserve.
	// Badger writes through memory maps, where a full disk is a fatal signal and not an error; the reserve is what keeps it from
	// getting there, and holds what flushes and compactions still write. It may be as low as the store is large, but no lower.
	Reserve uint64
	Logger  *slog.Logger     // Badger's messages; discarded when nil
	Entropy io.Reader        // for the incarnation; crypto/rand when nil
	Ticks   <-chan time.Time // when to look for maintenance; every DefaultMaintenance when nil
}

func (c Config) withDefaults() Config {
	if c.Reserve == 0 {
		c.Reserve = DefaultReserve
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Entropy == nil {
		c.Entropy = rand.Reader
	}
	return c
}

// Store is a store.Store in a directory.
type Store struct {
	dir     string
	keys    store.Keyspace
	reserve uint64
	free    func(dir string) (uint64, error) // bytes that may still be written
	db      *badger.DB
	lock    *dirLock
	log     *slog.Logger

	writer sync.Mutex // serialises Commit
	failed error      // the first failure of Commit; under writer
	health *health    // of the disk, as far as Badger says

	calls     gate
	mu        sync.Mutex
	snapshots map[*snapshot]struct{} // open ones, so that Close can end them; under mu

	deletes   atomic.Int64 // since the tree was last flattened
	commits   atomic.Int64
	stop      context.CancelFunc
	stopped   chan struct{} // closed when maintenance has ended
	closeOnce sync.Once
	closeErr  error
}

var _ store.Store = (*Store)(nil)

// Open locks, verifies, opens and prepares the directory. It answers ErrLocked, ErrCorrupt, ErrUnsupported or ErrFull, an error
// that wraps fs.ErrPermission, or another that names the directory. It never panics on the directory's contents.
func Open(ctx context.Context, config Config) (*Store, error) {
	keys, err := store.NewKeyspace(config.Cell)
	if err != nil {
		return nil, err
	}
	config = config.withDefaults()
	s, err := open(config, keys, syncEveryCommit)
	if err != nil {
		return nil, fmt.Errorf("open the store in %s: %w", config.Dir, err)
	}
	if err := store.Prepare(ctx, s, keys, config.Entropy); err != nil {
		return nil, errors.Join(fmt.Errorf("open the store in %s: %w", config.Dir, err), s.Close())
	}
	return s, nil
}

// syncMode says when Badger syncs its log: a restore syncs once, at its end.
type syncMode bool

const (
	syncEveryCommit syncMode = true
	syncOnClose     syncMode = false
)

func open(config Config, keys store.Keyspace, mode syncMode) (*Store, error) {
	lock, err := lockDir(config.Dir)
	if err != nil {
		return nil, err
	}
	s := &Store{
		dir: config.Dir, keys: keys, reserve: config.Reserve, free: freeBytes, lock: lock, log: config.Logger, health: newHealth(),
		snapshots: make(map[*snapshot]struct{}), stopped: make(chan struct{}),
	}
	if err := s.openBadger(config, mode); err != nil {
		return nil, errors.Join(err, lock.release())
	}
	s.health.watch()
	ctx, stop := context.WithCancel(context.Background())
	s.stop = stop
	go s.maintain(ctx, config.Ticks)
	return s, nil
}

func (s *Store) openBadger(config Config, mode syncMode) error {
	if err := s.checkRoom(); err != nil {
		return err
	}
	if err := verifyDir(s.dir); err != nil {
		return err
	}
	opts := badgerOptions(s.dir).WithSyncWrites(bool(mode)).WithLogger(badgerLogger{config.Logger, s.health})
	opened := make(chan error, 1)
	go func() {
		var err error
		defer func() {
			if r := recover(); r != nil {
				err = panicked(s.dir, r)
			}
			opened <- err
		}()
		if s.db, err = badger.Open(opts); err != nil {
			err = explainOpen(s.dir, err)
		}
	}()
	select {
	case err := <-opened:
		return err
	case <-s.health.broken: // Badger waits for what will not come to an end
		return explainBroken(s.dir, s.health.err())
	}
}

func badgerOptions(dir string) badger.Options {
	opts := badger.DefaultOptions(dir).
		WithMemTableSize(memTableBytes).
		WithNumMemtables(memTables).
		WithValueThreshold(valueInTree).
		WithValueLogFileSize(valueLogBytes).
		WithNumCompactors(2).
		WithBaseTableSize(4 << 20).
		WithBaseLevelSize(64 << 20).
		WithCompression(options.None). // values come compressed
		WithBlockCacheSize(0).         // blocks are read in place from the map
		WithDetectConflicts(false).    // one writer
		WithMetricsEnabled(false).
		WithNumGoroutines(1)
	opts.LmaxCompaction = true // deleted records leave the last level too
	return opts
}

// Commit implements store.Store. Consecutive groups share a transaction, and so an fsync, as far as Badger's limits go.
func (s *Store) Commit(ctx context.Context, groups []store.Group) error {
	s.writer.Lock()
	defer s.writer.Unlock()
	if s.failed != nil {
		return s.failed
	}
	if !s.calls.enter() {
		return store.ErrClosed
	}
	defer s.calls.leave()
	if err := s.commit(ctx, groups); err != nil {
		s.failed = fmt.Errorf("commit %d groups to %s: %w", len(groups), s.dir, err)
	}
	return s.failed
}

func (s *Store) commit(ctx context.Context, groups []store.Group) error {
	if err := s.keys.Check(groups); err != nil {
		return err
	}
	maxOps, maxBytes := s.db.MaxBatchCount()-2, s.db.MaxBatchSize()-txnOverhead
	for len(groups) > 0 {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err := s.checkRoom(); err != nil {
			return err
		}
		n := fitting(groups, maxOps, maxBytes)
		if err := s.commitTogether(groups[:n]); err != nil {
			return err
		}
		groups = groups[n:]
	}
	return nil
}

// fitting counts the groups that one transaction takes; at least one, which always fits.
func fitting(groups []store.Group, maxOps, maxBytes int64) int {
	var ops, size int64
	for i, g := range groups {
		ops += int64(len(g.Ops))
		for _, op := range g.Ops {
			size += int64(len(op.Key)+len(op.Value)) + opOverhead
		}
		if i > 0 && (ops > maxOps || size > maxBytes) {
			return i
		}
	}
	return len(groups)
}

func (s *Store) commitTogether(groups []store.Group) error {
	txn := s.db.NewTransaction(true)
	defer txn.Discard()
	var deletes int64
	for _, g := range groups {
		for _, op := range g.Ops {
			var err error
			if op.Value == nil {
				err = txn.Delete(op.Key)
				deletes++
			} else {
				err = txn.Set(op.Key, op.Value)
			}
			if err != nil {
				return fmt.Errorf("key %.120q: %w", op.Key, err)
			}
		}
	}
	// Not Commit: it may wait for a flush that a failing disk has ended.
	done := make(chan error, 1)
	txn.CommitWith(func(err error) { done <- err })
	select {
	case err := <-done:
		if err != nil {
			err = explainWrite(s.dir, err)
			s.health.fail(err)
			return err
		}
	case <-s.health.broken:
	}
	// What a failing disk swallowed in the background may be of this commit, too, so it is not acknowledged.
	if err := s.health.err(); err != nil {
		return explainBroken(s.dir, err)
	}
	s.deletes.Add(deletes)
	s.commits.Add(1)
	return nil
}

// Backup implements store.Store. It first verifies what lies on disk, so that damage is reported and not copied.
func (s *Store) Backup(ctx context.Context, w io.Writer) error {
	if !s.calls.enter() {
		return store.ErrClosed
	}
	defer s.calls.leave()
	snap, err := s.Snapshot()
	if err != nil {
		return err
	}
	defer snap.Close()
	if err := s.db.VerifyChecksum(); err != nil {
		return fmt.Errorf("back up %s: %w", s.dir, corrupt(s.dir, err))
	}
	return store.WriteBackup(ctx, w, s.keys, snap)
}

// Close implements store.Store. After the disk has failed it leaves Badger and the directory's lock as they are, to end with the process:
// Badger would write what it still holds, again and again until the disk takes it.
func (s *Store) Close() error {
	s.closeOnce.Do(func() {
		s.calls.close()
		s.stop()
		closed := make(chan error, 1)
		if s.health.err() == nil {
			go func() { closed <- s.closeBadger() }()
		}
		select {
		case s.closeErr = <-closed:
			s.closeErr = errors.Join(s.closeErr, s.lock.release())
		case <-s.health.broken:
			if s.failed == nil { // Commit did not tell
				s.closeErr = fmt.Errorf("close the store in %s: %w", s.dir, explainBroken(s.dir, s.health.err()))
			}
		}
	})
	return s.closeErr
}

func (s *Store) closeBadger() (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = panicked(s.dir, r)
		}
	}()
	<-s.stopped
	s.mu.Lock()
	for snap := range s.snapshots {
		snap.end()
	}
	s.mu.Unlock()
	if err := s.db.Close(); err != nil {
		return fmt.Errorf("close the store in %s: %w", s.dir, explainWrite(s.dir, err))
	}
	return nil
}

// gate counts the calls that are under way and lets none in once it is closed.
type gate struct {
	mu     sync.Mutex
	inside sync.WaitGroup
	shut   bool
}

func (g *gate) enter() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.shut {
		g.inside.Add(1)
	}
	return !g.shut
}

func (g *gate) leave() { g.inside.Done() }

func (g *gate) isShut() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.shut
}

// close waits for the calls inside.
func (g *gate) close() {
	g.mu.Lock()
	g.shut = true
	g.mu.Unlock()
	g.inside.Wait()
}
