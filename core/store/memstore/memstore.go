// Package memstore is the store of tests and of the simulator: a Disk outlives the processes that are simulated on it, fails and
// crashes where it is told to, and is otherwise held to the same kit as the store on a real disk.
//
// It owns no files and starts no goroutines; time and randomness come from its caller. A Disk and the stores on it may be used
// concurrently.
package memstore

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/paceline-sched/paceline/core/store"
)

// ErrCrashed is what a Commit answers when the Disk was told to crash in it.
var ErrCrashed = errors.New("the simulated machine went down")

// Disk is what stays when a Store is closed or its process is taken to be dead. The zero value is an empty disk.
type Disk struct {
	mu       sync.Mutex
	durable  tree
	lock     *Store // who has it open
	groups   uint64 // that became durable
	writes   uint64 // that were tried
	commits  uint64
	crashAt  uint64 // crash once so many groups are durable; 0 is never
	tearAt   uint64 // crash in the place of this write; 0 is never
	failAt   uint64 // fail this commit before its first group; 0 is never
	failWith error
}

// Groups is how many groups ever became durable.
func (d *Disk) Groups() uint64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.groups
}

// CrashAfter makes the Commit that has n more groups durable, counted from now, stop there with ErrCrashed: its later groups are
// lost, and so is the open Store. n is at least 1.
func (d *Disk) CrashAfter(n uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.crashAt = d.groups + max(n, 1)
}

// CrashAtWrite makes the Commit that has the n-th write from now to do stop there with ErrCrashed: the group of that write is lost as a
// whole, with all behind it, and so is the open Store. n is at least 1; a group that writes nothing cannot be hit.
func (d *Disk) CrashAtWrite(n uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.tearAt = d.writes + max(n, 1)
}

// FailCommit makes the n-th Commit from now fail with err before its first group. n is at least 1.
func (d *Disk) FailCommit(n uint64, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.failAt, d.failWith = d.commits+max(n, 1), err
}

// Kill takes the process that has the disk open to be dead: its Store answers ErrClosed, and the disk may be opened again.
func (d *Disk) Kill() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.lock != nil {
		d.lock.down = true
		d.lock = nil
	}
}

// Config of a Store.
type Config struct {
	Cell    string
	Entropy io.Reader // for the incarnation; crypto/rand when nil, a seeded source in simulations
}

func (c Config) keys() (store.Keyspace, io.Reader, error) {
	keys, err := store.NewKeyspace(c.Cell)
	if c.Entropy == nil {
		c.Entropy = rand.Reader
	}
	return keys, c.Entropy, err
}

// Store is a store.Store on a Disk.
type Store struct {
	disk *Disk
	keys store.Keyspace

	writer sync.Mutex // serialises Commit, as on a real disk
	failed error      // the first failure of Commit; under writer

	down bool // closed or killed; under disk.mu
}

var _ store.Store = (*Store)(nil)

// Open opens the disk for one process at a time and prepares it.
func Open(ctx context.Context, disk *Disk, config Config) (*Store, error) {
	s, err := Attach(disk, config)
	if err != nil {
		return nil, err
	}
	_, entropy, err := config.keys()
	if err == nil {
		err = store.Prepare(ctx, s, s.keys, entropy)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open the simulated disk: %w", err), s.Close())
	}
	return s, nil
}

// Attach opens the disk as it is, whatever its schema: for tests of what Prepare does.
func Attach(disk *Disk, config Config) (*Store, error) {
	keys, _, err := config.keys()
	if err != nil {
		return nil, err
	}
	disk.mu.Lock()
	defer disk.mu.Unlock()
	if disk.lock != nil {
		return nil, fmt.Errorf("open the simulated disk: %w", store.ErrLocked)
	}
	s := &Store{disk: disk, keys: keys}
	disk.lock = s
	return s, nil
}

// Restore fills an empty disk from a backup of any backend.
func Restore(ctx context.Context, disk *Disk, entropy io.Reader, r io.Reader) error {
	if entropy == nil {
		entropy = rand.Reader
	}
	disk.mu.Lock()
	defer disk.mu.Unlock()
	switch {
	case disk.lock != nil:
		return fmt.Errorf("restore to the simulated disk: %w", store.ErrLocked)
	case disk.durable.root != nil:
		return fmt.Errorf("restore to the simulated disk: %w", store.ErrNotEmpty)
	}
	in, err := store.NewBackupReader(r)
	if err != nil {
		return err
	}
	var t tree
	for {
		key, value, err := in.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err == nil {
			err = context.Cause(ctx)
		}
		if err != nil {
			return err
		}
		t = t.put(key, value)
	}
	last, err := store.EndRestore(in.Keys(), entropy)
	if err != nil {
		return err
	}
	disk.durable = t.apply(last)
	return nil
}

// Commit implements store.Store.
func (s *Store) Commit(ctx context.Context, groups []store.Group) error {
	s.writer.Lock()
	defer s.writer.Unlock()
	if s.failed != nil {
		return s.failed
	}
	if s.isDown() {
		return store.ErrClosed
	}
	err := context.Cause(ctx)
	if err == nil {
		err = s.keys.Check(groups)
	}
	if err == nil {
		err = s.apply(groups)
	}
	if err != nil {
		s.failed = fmt.Errorf("commit %d groups: %w", len(groups), err)
	}
	return s.failed
}

// apply makes one group after the other durable, so that snapshots and crashes come between them.
func (s *Store) apply(groups []store.Group) error {
	d := s.disk
	d.mu.Lock()
	d.commits++
	fail := d.failAt != 0 && d.commits == d.failAt
	err := d.failWith
	d.mu.Unlock()
	if fail {
		return err
	}
	for _, g := range groups {
		if err := s.applyOne(g); err != nil {
			return err
		}
	}
	return nil
}

func (s *Store) applyOne(g store.Group) error {
	d := s.disk
	d.mu.Lock()
	defer d.mu.Unlock()
	if s.down {
		return store.ErrClosed
	}
	if d.tearAt != 0 && d.tearAt <= d.writes+uint64(len(g.Ops)) {
		d.tearAt = 0
		s.down, d.lock = true, nil
		return ErrCrashed
	}
	d.writes += uint64(len(g.Ops))
	d.durable = d.durable.apply(g)
	d.groups++
	if d.groups == d.crashAt {
		d.crashAt = 0
		s.down, d.lock = true, nil
		return ErrCrashed
	}
	return nil
}

func (s *Store) isDown() bool {
	s.disk.mu.Lock()
	defer s.disk.mu.Unlock()
	return s.down
}

// Snapshot implements store.Store.
func (s *Store) Snapshot() (store.Snapshot, error) {
	s.disk.mu.Lock()
	defer s.disk.mu.Unlock()
	if s.down {
		return nil, store.ErrClosed
	}
	return &snapshot{store: s, tree: s.disk.durable}, nil
}

// Backup implements store.Store.
func (s *Store) Backup(ctx context.Context, w io.Writer) error {
	snap, err := s.Snapshot()
	if err != nil {
		return err
	}
	defer snap.Close()
	return store.WriteBackup(ctx, w, s.keys, snap)
}

// Close implements store.Store.
func (s *Store) Close() error {
	s.writer.Lock() // waits for a Commit under way
	defer s.writer.Unlock()
	s.disk.mu.Lock()
	defer s.disk.mu.Unlock()
	s.down = true
	if s.disk.lock == s {
		s.disk.lock = nil
	}
	return nil
}

type snapshot struct {
	store  *Store
	tree   tree
	closed bool
}

func (s *snapshot) check() error {
	if s.closed || s.store.isDown() {
		return store.ErrClosed
	}
	return nil
}

func (s *snapshot) Get(key []byte) ([]byte, error) {
	if err := s.check(); err != nil {
		return nil, err
	}
	value, ok := s.tree.get(key)
	if !ok {
		return nil, nil
	}
	return append([]byte{}, value...), nil
}

func (s *snapshot) Scan(prefix, from []byte, visit func(key, value []byte) (bool, error)) error {
	start := prefix
	if bytes.Compare(from, start) > 0 {
		start = from
	}
	var failed error
	s.tree.ascend(start, func(key, value []byte) bool {
		if !bytes.HasPrefix(key, prefix) {
			return false
		}
		if failed = s.check(); failed != nil {
			return false
		}
		more, err := visit(key, value)
		failed = err
		return more && err == nil
	})
	if failed == nil {
		failed = s.check()
	}
	return failed
}

func (s *snapshot) Close() { s.closed = true; s.tree = tree{} }
