// Package store is the storage gateway: ordered keys, atomic groups, snapshot reads, backup. Engines of the core write through it
// and recover from it; what the bytes mean is record's.
//
// It owns the interface, the key schema and its migrations. It never caches and never retries: a failed Commit is final for the
// process that made it. Backends pass the kit in conformance/storetest.
package store

import (
	"context"
	"errors"
	"io"
)

// Bounds of one group, the same on every backend.
const (
	MaxGroupOps   = 100
	MaxGroupBytes = 1 << 20
)

// Errors that callers branch on; backends wrap them with what was attempted and how to mend it.
var (
	ErrLocked      = errors.New("the store is open in another process")
	ErrCorrupt     = errors.New("the store is damaged")
	ErrTooLarge    = errors.New("the group is over its bounds")
	ErrUnsupported = errors.New("the store was written by a newer version")
	ErrFull        = errors.New("the disk is full")
)

// Op puts Value at Key, or deletes Key when Value is nil.
type Op struct {
	Key   []byte
	Value []byte
}

// Group is applied whole or not at all.
type Group struct{ Ops []Op }

// Store is one cell's durable state. All methods may be called concurrently, but only one goroutine may Commit.
type Store interface {
	// Commit makes groups durable in order: after a crash, if a group is there, so are all before it. It returns when all are on
	// stable storage. After an error nothing is known of the groups, and every later Commit fails with the same error.
	Commit(ctx context.Context, groups []Group) error
	// Snapshot reads the state at this moment; the caller closes it.
	Snapshot() (Snapshot, error)
	// Backup writes a consistent cut of the whole store, taken while commits go on. Restore of the backend reads it.
	Backup(ctx context.Context, w io.Writer) error
	Close() error
}

// Snapshot is a consistent read-only view. It is not safe for concurrent use.
type Snapshot interface {
	// Get returns a copy of the value, or nil when the key is absent.
	Get(key []byte) ([]byte, error)
	// Scan visits keys with the prefix in order, starting at from when it is not nil, until visit returns false or an error. The
	// slices are valid during the call only.
	Scan(prefix, from []byte, visit func(key, value []byte) (bool, error)) error
	Close()
}
