// Package record is the form of a cell's records in its store: which key each has, and the bytes of its value.
//
// It owns the protobuf schema in proto/, which is internal and apart from the public API, and the mapping between it and the
// scheduler's records. It never decides and never touches a store but through the snapshot that it is handed. Values are
// deterministic protobuf inside store's frame. Text may be any bytes. Empty maps and lists are read as nil, as core/api makes
// them, so that specs can be compared. A field that this build does not know is dropped: one that must not be lost raises the
// schema version of the store, which older builds refuse.
//
// A Codec reuses its buffers: one goroutine at a time. Decoding never panics, whatever the bytes.
package record

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/paceline-sched/paceline/core/scheduler"
	"github.com/paceline-sched/paceline/core/store"
	"github.com/paceline-sched/paceline/core/store/record/recordpb"
	"github.com/paceline-sched/paceline/core/usage"
	"github.com/paceline-sched/paceline/core/workload"
)

const (
	cellName     = "cell"     // under store.KindCell
	sequenceName = "sequence" // under store.KindMeta

	maxRoom = 64 << 10 // bytes that are set aside for the values of a group before they are known
)

// errRestore ends every error about a record that cannot be read.
var errRestore = errors.New("move the data directory away and restore the store from a backup")

// Codec encodes and decodes the records of one cell.
type Codec struct {
	keys store.Keyspace

	raw  []byte           // scratch: the marshalled message
	room int              // bytes that the values of the last group took, so of the next one, or so
	task recordpb.Task    // scratch
	run  recordpb.Run     // scratch
	part recordpb.Changes // scratch
}

// NewCodec returns a codec for the cell of keys.
func NewCodec(keys store.Keyspace) *Codec { return &Codec{keys: keys} }

// EncodeGroup turns a group into operations of the store, with the sequence among them.
func (c *Codec) EncodeGroup(g scheduler.Group) (store.Group, error) {
	out := store.Group{Ops: make([]store.Op, 0, len(g.Writes)+1)}
	values := make([]byte, 0, c.room) // of the whole group; where it grows, what was cut from it before stays as it is
	for _, w := range g.Writes {
		op := store.Op{Key: c.key(w.Record)}
		if op.Key == nil {
			return store.Group{}, fmt.Errorf("a %T has no place in the store", w.Record)
		}
		if !w.Delete {
			from := len(values)
			var err error
			if values, err = c.appendValue(values, w.Record); err != nil {
				return store.Group{}, fmt.Errorf("encode %T: %w", w.Record, err)
			}
			op.Value = values[from:len(values):len(values)]
		}
		out.Ops = append(out.Ops, op)
	}
	c.room = min(len(values), maxRoom)
	out.Ops = append(out.Ops, store.Op{Key: c.keys.Meta(sequenceName), Value: binary.BigEndian.AppendUint64(nil, g.Sequence)})
	return out, nil
}

func (c *Codec) key(r scheduler.Record) []byte {
	switch r := r.(type) {
	case scheduler.CellRecord:
		return c.keys.CellRecord(cellName)
	case scheduler.PoolRecord:
		return c.keys.Pool(r.Pool.ID)
	case scheduler.SpecRecord:
		return c.keys.Spec(r.Job, r.Config)
	case scheduler.JobRecord:
		return c.keys.Job(r.ID)
	case scheduler.TaskRecord:
		return c.keys.Task(r.Job, r.Instance)
	case scheduler.RunRecord:
		return c.keys.Run(r.ID)
	case scheduler.HostRecord:
		return c.keys.Host(r.ID)
	case scheduler.IdempotencyRecord:
		return c.keys.Idempotency(idempotencyDigest(r.Key))
	case scheduler.ChangesRecord:
		return c.keys.Event(r.Sequence)
	case scheduler.AccountRecord:
		return c.keys.Account(r.Pool, sha256.Sum256([]byte(r.Owner)))
	case scheduler.BalanceRecord:
		return c.keys.Balance(r.Pool)
	case scheduler.SampleRecord:
		return c.keys.Sample(r.At, r.Pool)
	case scheduler.RulesRecord:
		return c.keys.Rules(sha256.Sum256([]byte(r.Name)))
	case scheduler.ArchiveRecord:
		return c.keys.Archive(r.Digest)
	case scheduler.PoliciesRecord:
		return c.keys.Policies()
	case scheduler.ClusterRecord:
		return c.keys.Cluster(sha256.Sum256([]byte(r.Spec.Name)))
	}
	return nil
}

// idempotencyDigest keeps user-chosen strings of any length out of keys.
func idempotencyDigest(k scheduler.IdempotencyKey) [32]byte {
	var b []byte
	for _, part := range []string{k.Principal, k.Method, k.Key} {
		b = binary.AppendUvarint(b, uint64(len(part)))
		b = append(b, part...)
	}
	return sha256.Sum256(b)
}

// SpecSize is the number of bytes that a spec takes as a record, before compression: what scheduler.MaxSpecBytes bounds.
func SpecSize(spec *workload.JobSpec) int { return proto.Size(specToProto(spec)) }

func (c *Codec) appendValue(values []byte, r scheduler.Record) ([]byte, error) {
	raw, err := proto.MarshalOptions{Deterministic: true}.MarshalAppend(c.raw[:0], c.message(r))
	if err != nil {
		return values, err
	}
	c.raw = raw
	return store.AppendFrame(values, raw)
}

func (c *Codec) message(r scheduler.Record) proto.Message {
	switch r := r.(type) {
	case scheduler.CellRecord:
		return &recordpb.Cell{Epoch: r.Epoch, Named: r.Named, Now: r.Now}
	case scheduler.PoolRecord:
		return poolToProto(&r.Pool)
	case scheduler.SpecRecord:
		return specToProto(r.Spec)
	case scheduler.JobRecord:
		return jobToProto(&r)
	case scheduler.TaskRecord:
		taskToProto(&r, &c.task)
		return &c.task
	case scheduler.RunRecord:
		runToProto(&r, &c.run)
		return &c.run
	case scheduler.HostRecord:
		return hostToProto(&r)
	case scheduler.IdempotencyRecord:
		return &recordpb.Idempotency{
			Principal: r.Key.Principal, Method: r.Key.Method, Key: r.Key.Key, Hash: r.Hash[:], Job: r.Job[:], Expires: r.Expires,
		}
	case scheduler.ChangesRecord:
		changesToProto(&r, &c.part)
		return &c.part
	case scheduler.AccountRecord:
		return &recordpb.Account{Owner: r.Owner, Since: r.Since, Held: secondsToProto(&r.Held)}
	case scheduler.BalanceRecord:
		return balanceToProto(&r.Balance)
	case scheduler.SampleRecord:
		return sampleToProto(&r.Sample)
	case scheduler.RulesRecord:
		return rulesToProto(&r)
	case scheduler.ArchiveRecord:
		return &recordpb.Archive{Archive: r.Archive}
	case scheduler.PoliciesRecord:
		return policiesToProto(&r)
	case scheduler.ClusterRecord:
		return clusterToProto(&r)
	}
	return nil
}

// Decode reads one record. What it refuses, keys of the store's own among it, is store.ErrCorrupt.
func (c *Codec) Decode(key, value []byte) (scheduler.Write, error) {
	w, err := c.decode(key, value)
	if err == nil {
		return w, nil
	}
	if !errors.Is(err, store.ErrCorrupt) {
		err = fmt.Errorf("%w: %w", store.ErrCorrupt, err)
	}
	return scheduler.Write{}, fmt.Errorf("record %.120q: %w: %w", key, err, errRestore)
}

func (c *Codec) decode(key, value []byte) (scheduler.Write, error) {
	kind, _, err := c.keys.Split(key)
	if err != nil {
		return scheduler.Write{}, err
	}
	raw, err := store.OpenFrame(value)
	if err != nil {
		return scheduler.Write{}, err
	}
	d := decoder{keys: c.keys, key: key, raw: raw}
	var r scheduler.Record
	switch kind {
	case store.KindCell:
		r = d.cell()
	case store.KindPool:
		r = d.pool()
	case store.KindSpec:
		r = d.spec()
	case store.KindJob:
		r = d.job()
	case store.KindTask:
		r = d.task()
	case store.KindRun:
		r = d.run()
	case store.KindHost:
		r = d.host()
	case store.KindIdempotency:
		r = d.idempotency()
	case store.KindEvent:
		r = d.changes()
	case store.KindAccount:
		r = d.account()
	case store.KindBalance:
		r = d.balance()
	case store.KindSample:
		r = d.sample()
	case store.KindRules:
		r = d.rules()
	case store.KindArchive:
		r = d.archive()
	case store.KindPolicies:
		r = d.policies()
	case store.KindCluster:
		r = d.cluster()
	default:
		return scheduler.Write{}, fmt.Errorf("a %s key holds no record", kind)
	}
	return scheduler.Write{Record: r}, d.err
}

// imageKinds are the kinds that make up an Image.
var imageKinds = []store.Kind{
	store.KindCell, store.KindPool, store.KindJob, store.KindSpec, store.KindTask, store.KindHost, store.KindIdempotency,
	store.KindAccount, store.KindBalance, store.KindRules, store.KindPolicies, store.KindCluster,
}

// LoadImage reads the whole state of the cell, without run history and event log. It costs one scan.
func (c *Codec) LoadImage(ctx context.Context, snap store.Snapshot) (*scheduler.Image, error) {
	im := scheduler.NewImage()
	sequence, err := snap.Get(c.keys.Meta(sequenceName))
	switch {
	case err != nil:
		return nil, err
	case sequence != nil && len(sequence) != 8:
		return nil, fmt.Errorf("%w: the revision is %d bytes long, not 8: %w", store.ErrCorrupt, len(sequence), errRestore)
	case sequence != nil:
		im.Sequence = binary.BigEndian.Uint64(sequence)
	}
	for _, kind := range imageKinds {
		err := snap.Scan(c.keys.Prefix(kind), nil, func(key, value []byte) (bool, error) {
			w, err := c.Decode(key, value)
			if err != nil {
				return false, err
			}
			im.Apply(w)
			return true, ctx.Err()
		})
		if err != nil {
			return nil, err
		}
	}
	if im.Sequence == 0 && im.Cell.Epoch != 0 { // the first group of every cell has a sequence
		return nil, fmt.Errorf("%w: the cell has records but no revision: %w", store.ErrCorrupt, errRestore)
	}
	return im, nil
}

// Runs returns the ended runs of an instance that are kept, newest first.
func (c *Codec) Runs(snap store.Snapshot, job workload.JobID, instance uint32) ([]scheduler.RunRecord, error) {
	var runs []scheduler.RunRecord
	err := snap.Scan(c.keys.TaskRuns(job, instance), nil, func(key, value []byte) (bool, error) {
		w, err := c.Decode(key, value)
		if r, ok := w.Record.(scheduler.RunRecord); ok {
			runs = append(runs, r)
		}
		return true, err
	})
	slices.Reverse(runs)
	return runs, err
}

// Changes returns up to limit parts of the event log, from the given sequence on, and none after those that have so many changes together.
func (c *Codec) Changes(snap store.Snapshot, from uint64, limit, changes int) ([]scheduler.ChangesRecord, error) {
	var parts []scheduler.ChangesRecord
	err := snap.Scan(c.keys.Prefix(store.KindEvent), c.keys.Event(from), func(key, value []byte) (bool, error) {
		w, err := c.Decode(key, value)
		if r, ok := w.Record.(scheduler.ChangesRecord); ok {
			parts = append(parts, r)
			changes -= len(r.Changes)
		}
		return len(parts) < limit && changes > 0, err
	})
	return parts, err
}

// Samples visits the samples of usage from a time on, in UTC nanoseconds, by time and pool, until visit returns false.
func (c *Codec) Samples(snap store.Snapshot, from int64, visit func(*usage.Sample) bool) error {
	return snap.Scan(c.keys.Prefix(store.KindSample), c.keys.Samples(from), func(key, value []byte) (bool, error) {
		w, err := c.Decode(key, value)
		if err != nil {
			return false, err
		}
		r, ok := w.Record.(scheduler.SampleRecord)
		return !ok || visit(&r.Sample), nil
	})
}

// Archive returns the bytes of a version of a bundle of rules; nil: they are not there.
func (c *Codec) Archive(snap store.Snapshot, digest [32]byte) ([]byte, error) {
	key := c.keys.Archive(digest)
	value, err := snap.Get(key)
	if err != nil || value == nil {
		return nil, err
	}
	w, err := c.Decode(key, value)
	if err != nil {
		return nil, err
	}
	r, _ := w.Record.(scheduler.ArchiveRecord)
	return r.Archive, nil
}
