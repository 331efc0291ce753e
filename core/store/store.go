// Package store is the storage gateway: ordered keys, atomic groups, snapshot reads, backup. Engines of the core write through it
// and recover from it; what the bytes mean is record's.
//
// It owns the interface, the key schema and its migrations, the frame around a value and the backup format. It never caches and
// never retries: a failed Commit is final for the process that made it. Backends (badgerstore on disk, memstore in memory) pass
// the kit in conformance/storetest. The package starts no goroutines; Store says what may be called concurrently.
package store

import (
	"context"
	"errors"
	"fmt"
	"io"
)

// Bounds of one group, the same on every backend. A group's bytes are the sum over its keys and values.
const (
	MaxGroupOps   = 100
	MaxGroupBytes = 1 << 20
	// MaxKeyBytes bounds one key; the schema's longest is well under it.
	MaxKeyBytes = 512
)

// Errors that callers branch on; backends wrap them with what was attempted and how to mend it.
var (
	ErrLocked      = errors.New("the store is open in another process")
	ErrCorrupt     = errors.New("the store is damaged")
	ErrTooLarge    = errors.New("the group is over its bounds")
	ErrUnsupported = errors.New("the store was written by a newer version")
	ErrFull        = errors.New("the disk is full")
	ErrClosed      = errors.New("the store is closed")
	ErrNotEmpty    = errors.New("the target of the restore is not empty")
)

// Op puts Value at Key, or deletes Key when Value is nil. An empty value that is not nil is stored as such.
type Op struct {
	Key   []byte
	Value []byte
}

// Group is applied whole or not at all. Of two operations on one key the later one holds.
type Group struct{ Ops []Op }

// Check refuses a group that is over the bounds with ErrTooLarge, and one with an empty key.
func (g Group) Check() error {
	if len(g.Ops) > MaxGroupOps {
		return fmt.Errorf("%w: %d operations, at most %d; split it where half of it may be durable", ErrTooLarge, len(g.Ops), MaxGroupOps)
	}
	size := 0
	for i, op := range g.Ops {
		switch {
		case len(op.Key) == 0:
			return fmt.Errorf("operation %d of the group has an empty key", i)
		case len(op.Key) > MaxKeyBytes:
			return fmt.Errorf("%w: the key of operation %d has %d bytes, at most %d", ErrTooLarge, i, len(op.Key), MaxKeyBytes)
		}
		size += len(op.Key) + len(op.Value)
	}
	if size > MaxGroupBytes {
		return fmt.Errorf("%w: %d bytes, at most %d; split it where half of it may be durable", ErrTooLarge, size, MaxGroupBytes)
	}
	return nil
}

// Store is one cell's durable state. All methods may be called concurrently, but only one goroutine may Commit.
type Store interface {
	// Commit makes groups durable in order: after a crash, if a group is there, so are all before it. It returns when all are on
	// stable storage. After an error, whatever it is, nothing is known of the groups, and every later Commit fails with the same
	// error; reads go on. The slices must not change before it returns and are not kept after.
	Commit(ctx context.Context, groups []Group) error
	// Snapshot reads the state at this moment; the caller closes it. It may wait for the Commit that is under way, and it sees
	// groups whole: a prefix of those of a Commit, and all of every Commit that had returned.
	Snapshot() (Snapshot, error)
	// Backup writes a consistent cut of the whole store, taken while commits go on, in the format of BackupWriter. Restore of
	// every backend reads it.
	Backup(ctx context.Context, w io.Writer) error
	// Close waits for the calls that are under way, then for stable storage. Open snapshots answer ErrClosed from then on. Later
	// calls of Close return what the first did.
	Close() error
}

// Snapshot is a consistent read-only view. It is not safe for concurrent use.
type Snapshot interface {
	// Get returns a copy of the value, or nil when the key is absent.
	Get(key []byte) ([]byte, error)
	// Scan visits keys with the prefix in order, starting at from when it is not nil, until visit returns false or an error,
	// which it returns unchanged. The slices are valid during the call only.
	Scan(prefix, from []byte, visit func(key, value []byte) (bool, error)) error
	// Close gives the view up. Closing twice is harmless.
	Close()
}
