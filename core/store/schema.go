package store

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
)

// Names under KindMeta that the gateway owns.
const (
	metaSchema      = "schema"
	metaIncarnation = "incarnation"
	metaRestoring   = "restoring"
)

// Migration brings the stored records from one schema version to the next. It reads from a snapshot taken before it began and
// hands its writes to emit in bounded groups, which are committed in order. A crash runs it again from its start on what was
// committed: it must be idempotent.
type Migration struct {
	Name string
	Run  func(ctx context.Context, keys Keyspace, from Snapshot, emit func(Group) error) error
}

// migrations lead from version 1, the first that was released; appending one raises the schema version. None is ever removed
// or changed: a store of any age must open.
var migrations []Migration

// SchemaVersion is the version that this build writes.
func SchemaVersion() uint64 { return schemaVersion(migrations) }

func schemaVersion(steps []Migration) uint64 { return uint64(len(steps)) + 1 }

// maxMigrationBatch bounds the groups of a migration that wait for one Commit.
const maxMigrationBatch = 64

// Incarnation names one life of a store's contents: drawn when the store is created, and again by every restore, so that a
// cursor from before the restore is never taken for one after it.
type Incarnation [16]byte

func (i Incarnation) String() string { return hex.EncodeToString(i[:]) }

// NewIncarnation draws one.
func NewIncarnation(entropy io.Reader) (Incarnation, error) {
	var i Incarnation
	if _, err := io.ReadFull(entropy, i[:]); err != nil {
		return i, fmt.Errorf("draw an incarnation: %w", err)
	}
	return i, nil
}

// Prepare makes an opened store ready: it stamps an empty one with the schema version and an incarnation, brings an older one up
// to date, and refuses a newer one (ErrUnsupported), one of another cell, and one whose restore did not end (ErrCorrupt). Backends
// call it before they hand the store out.
func Prepare(ctx context.Context, s Store, keys Keyspace, entropy io.Reader) error {
	return prepare(ctx, s, keys, entropy, migrations)
}

func prepare(ctx context.Context, s Store, keys Keyspace, entropy io.Reader, steps []Migration) error {
	version, err := inspect(s, keys)
	if err != nil {
		return err
	}
	current := schemaVersion(steps)
	switch {
	case version == 0:
		incarnation, err := NewIncarnation(entropy)
		if err != nil {
			return err
		}
		return s.Commit(ctx, []Group{{Ops: []Op{schemaOp(keys, current), incarnationOp(keys, incarnation)}}})
	case version > current:
		return fmt.Errorf("%w: its schema is %d, this build knows up to %d; start the newer build, or restore a backup that this one made",
			ErrUnsupported, version, current)
	}
	for ; version < current; version++ {
		step := steps[version-1]
		if err := migrate(ctx, s, keys, step, version+1); err != nil {
			return fmt.Errorf("migrate the store to schema %d (%s): %w", version+1, step.Name, err)
		}
	}
	return nil
}

// inspect returns the schema version, 0 for an empty store.
func inspect(s Store, keys Keyspace) (uint64, error) {
	snap, err := s.Snapshot()
	if err != nil {
		return 0, err
	}
	defer snap.Close()
	var first []byte
	if err := snap.Scan(nil, nil, func(key, _ []byte) (bool, error) {
		first = bytes.Clone(key)
		return false, nil
	}); err != nil || first == nil {
		return 0, err
	}
	if !bytes.HasPrefix(first, keys.root) {
		return 0, fmt.Errorf("the store does not belong to cell %q (its first key is %.80q); name its own cell or another directory", keys.cell, first)
	}
	restoring, err := snap.Get(keys.Meta(metaRestoring))
	if err != nil {
		return 0, err
	}
	if restoring != nil {
		return 0, fmt.Errorf("%w: a restore into it did not end; empty it and restore again", ErrCorrupt)
	}
	raw, err := snap.Get(keys.Meta(metaSchema))
	if err != nil {
		return 0, err
	}
	if len(raw) != 8 || binary.BigEndian.Uint64(raw) == 0 {
		return 0, fmt.Errorf("%w: it has records but no schema version; restore a backup", ErrCorrupt)
	}
	return binary.BigEndian.Uint64(raw), nil
}

// migrate runs one step and stamps its version in a last group.
func migrate(ctx context.Context, s Store, keys Keyspace, step Migration, to uint64) error {
	snap, err := s.Snapshot()
	if err != nil {
		return err
	}
	defer snap.Close()
	var batch []Group
	emit := func(g Group) error {
		batch = append(batch, g)
		if len(batch) < maxMigrationBatch {
			return nil
		}
		err := s.Commit(ctx, batch)
		batch = batch[:0]
		return err
	}
	if err := step.Run(ctx, keys, snap, emit); err != nil {
		return err
	}
	return s.Commit(ctx, append(batch, Group{Ops: []Op{schemaOp(keys, to)}}))
}

func schemaOp(keys Keyspace, version uint64) Op {
	return Op{Key: keys.Meta(metaSchema), Value: binary.BigEndian.AppendUint64(nil, version)}
}

func incarnationOp(keys Keyspace, i Incarnation) Op {
	return Op{Key: keys.Meta(metaIncarnation), Value: i[:]}
}

// ReadIncarnation reads the incarnation of a prepared store.
func ReadIncarnation(snap Snapshot, keys Keyspace) (Incarnation, error) {
	raw, err := snap.Get(keys.Meta(metaIncarnation))
	if err != nil {
		return Incarnation{}, err
	}
	if len(raw) != len(Incarnation{}) {
		return Incarnation{}, fmt.Errorf("%w: it has no incarnation", ErrCorrupt)
	}
	return Incarnation(raw), nil
}

// BeginRestore is the group that a backend writes first into the target of a restore: until EndRestore, Prepare refuses it.
func BeginRestore(keys Keyspace) Group {
	return Group{Ops: []Op{{Key: keys.Meta(metaRestoring), Value: []byte{1}}}}
}

// EndRestore is the last group of a restore. It gives the store its new incarnation.
func EndRestore(keys Keyspace, entropy io.Reader) (Group, error) {
	incarnation, err := NewIncarnation(entropy)
	if err != nil {
		return Group{}, err
	}
	return Group{Ops: []Op{incarnationOp(keys, incarnation), {Key: keys.Meta(metaRestoring)}}}, nil
}
