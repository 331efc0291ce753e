package store

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"slices"

	"github.com/paceline-sched/paceline/core/workload"
)

// Kind is the part of a key that says what lies there.
type Kind string

// The kinds of the schema. Adding one needs no migration; changing what lies under one does.
const (
	KindMeta        Kind = "meta"        // one key a name: schema version, incarnation, sequences
	KindCell        Kind = "cell"        // the cell's own record and its settings, by name
	KindPool        Kind = "pool"        // by pool id
	KindJob         Kind = "job"         // by job id
	KindSpec        Kind = "spec"        // by job id, config version
	KindTask        Kind = "task"        // by job id, instance
	KindRun         Kind = "run"         // by job id, instance, run number
	KindHost        Kind = "host"        // by host id
	KindIdempotency Kind = "idempotency" // by digest of principal, method and key
	KindEvent       Kind = "event"       // by commit sequence
	KindAccount     Kind = "account"     // by pool id, digest of owner
	KindBalance     Kind = "balance"     // by pool id
	KindSample      Kind = "sample"      // by time, pool id
	KindRules       Kind = "rules"       // by digest of the bundle's name
	KindArchive     Kind = "archive"     // by digest
	KindPolicies    Kind = "policies"    // one key
	KindCluster     Kind = "cluster"     // by digest of the cluster's name
)

var kinds = []Kind{
	KindMeta, KindCell, KindPool, KindJob, KindSpec, KindTask, KindRun, KindHost, KindIdempotency, KindEvent, KindAccount, KindBalance, KindSample,
	KindRules, KindArchive, KindPolicies, KindCluster,
}

const (
	keyRoot       = "/v1/"
	maxCellLength = 63
	idBytes       = len(workload.ID{})
)

// Keyspace makes and reads the keys of one cell: "/v1/<cell>/<kind>/<id>". The id is the last part, in a fixed-width big-endian
// form, so keys of a kind sort as their ids do, any byte may stand in it, and the keys of one job's tasks or runs lie together.
// The zero value is not usable. A Keyspace is immutable and safe for concurrent use.
type Keyspace struct {
	cell string
	root []byte // "/v1/<cell>/"
}

// NewKeyspace accepts a cell named by 1 to 63 lower-case letters, digits and dashes, with a letter or digit first.
func NewKeyspace(cell string) (Keyspace, error) {
	ok := len(cell) > 0 && len(cell) <= maxCellLength && cell[0] != '-'
	for i := 0; ok && i < len(cell); i++ {
		c := cell[i]
		ok = c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '-'
	}
	if !ok {
		return Keyspace{}, fmt.Errorf("cell name %.80q must have 1 to %d characters of a-z, 0-9 and -, and not begin with -", cell, maxCellLength)
	}
	return Keyspace{cell: cell, root: []byte(keyRoot + cell + "/")}, nil
}

// Cell is the cell's name.
func (k Keyspace) Cell() string { return k.cell }

// Root is the prefix of all keys of the cell.
func (k Keyspace) Root() []byte { return slices.Clone(k.root) }

// Prefix is the prefix of all keys of a kind.
func (k Keyspace) Prefix(kind Kind) []byte { return k.key(kind, nil, 0) }

// key leaves room for what the caller appends.
func (k Keyspace) key(kind Kind, id []byte, room int) []byte {
	b := make([]byte, 0, len(k.root)+len(kind)+1+len(id)+room)
	b = append(b, k.root...)
	b = append(b, kind...)
	b = append(b, '/')
	return append(b, id...)
}

// Meta is the key of a named value of the store itself.
func (k Keyspace) Meta(name string) []byte { return k.key(KindMeta, []byte(name), 0) }

// CellRecord is the key of a named record of the cell.
func (k Keyspace) CellRecord(name string) []byte { return k.key(KindCell, []byte(name), 0) }

// Pool is the key of a pool.
func (k Keyspace) Pool(id workload.PoolID) []byte { return k.key(KindPool, id[:], 0) }

// Job is the key of a job.
func (k Keyspace) Job(id workload.JobID) []byte { return k.key(KindJob, id[:], 0) }

// Host is the key of a host.
func (k Keyspace) Host(id workload.HostID) []byte { return k.key(KindHost, id[:], 0) }

// Task is the key of one instance of a job.
func (k Keyspace) Task(job workload.JobID, instance uint32) []byte {
	return binary.BigEndian.AppendUint32(k.key(KindTask, job[:], 4), instance)
}

// Tasks is the prefix of a job's instances.
func (k Keyspace) Tasks(job workload.JobID) []byte { return k.key(KindTask, job[:], 0) }

// Spec is the key of one config version of a job.
func (k Keyspace) Spec(job workload.JobID, config uint32) []byte {
	return binary.BigEndian.AppendUint32(k.key(KindSpec, job[:], 4), config)
}

// Run is the key of a run. Its generation is not part of it: the number of a run grows over all generations.
func (k Keyspace) Run(id workload.RunID) []byte {
	b := binary.BigEndian.AppendUint32(k.key(KindRun, id.Job[:], 8), id.Instance)
	return binary.BigEndian.AppendUint32(b, id.Run)
}

// JobRuns is the prefix of all runs of a job.
func (k Keyspace) JobRuns(job workload.JobID) []byte { return k.key(KindRun, job[:], 0) }

// TaskRuns is the prefix of the runs of one instance, oldest first.
func (k Keyspace) TaskRuns(job workload.JobID, instance uint32) []byte {
	return binary.BigEndian.AppendUint32(k.key(KindRun, job[:], 4), instance)
}

// Idempotency is the key of the answer that was given to a request; digest is taken over principal, method and key.
func (k Keyspace) Idempotency(digest [32]byte) []byte { return k.key(KindIdempotency, digest[:], 0) }

// Event is the key of the events of one commit sequence.
func (k Keyspace) Event(sequence uint64) []byte {
	return binary.BigEndian.AppendUint64(k.key(KindEvent, nil, 8), sequence)
}

// Account is the key of an owner's account in a pool; digest is taken over the owner's name.
func (k Keyspace) Account(pool workload.PoolID, digest [32]byte) []byte {
	return append(k.key(KindAccount, pool[:], len(digest)), digest[:]...)
}

// Balance is the key of a pool's balance.
func (k Keyspace) Balance(id workload.PoolID) []byte { return k.key(KindBalance, id[:], 0) }

// Rules is the key of a bundle of rules; digest is taken over its name.
func (k Keyspace) Rules(digest [32]byte) []byte { return k.key(KindRules, digest[:], 0) }

// Archive is the key of the bytes of a version of a bundle.
func (k Keyspace) Archive(digest [32]byte) []byte { return k.key(KindArchive, digest[:], 0) }

// Policies is the key of what is known of policies.
func (k Keyspace) Policies() []byte { return k.key(KindPolicies, nil, 0) }

// Cluster is the key of a cluster that was added, by the digest of its name.
func (k Keyspace) Cluster(digest [32]byte) []byte { return k.key(KindCluster, digest[:], 0) }

// Sample is the key of a pool's sample of a time, in UTC nanoseconds: samples sort by time.
func (k Keyspace) Sample(at int64, pool workload.PoolID) []byte {
	return append(k.Samples(at), pool[:]...)
}

// Samples is the beginning of the keys of the samples of a time.
func (k Keyspace) Samples(at int64) []byte {
	return binary.BigEndian.AppendUint64(k.key(KindSample, nil, 8+idBytes), uint64(max(at, 0))) //nolint:gosec // not negative
}

// Check refuses groups that are over their bounds (ErrTooLarge) or that write outside the cell, and names the first such. Every
// backend calls it before it writes anything.
func (k Keyspace) Check(groups []Group) error {
	for i, g := range groups {
		if err := g.Check(); err != nil {
			return fmt.Errorf("group %d of %d: %w", i, len(groups), err)
		}
		for _, op := range g.Ops {
			if !bytes.HasPrefix(op.Key, k.root) {
				return fmt.Errorf("group %d of %d: key %.120q is not of cell %q", i, len(groups), op.Key, k.cell)
			}
		}
	}
	return nil
}

// Split takes a key of this cell apart. The id aliases key.
func (k Keyspace) Split(key []byte) (kind Kind, id []byte, err error) {
	rest, ok := bytes.CutPrefix(key, k.root)
	if !ok {
		return "", nil, fmt.Errorf("key %.120q is not of cell %q", key, k.cell)
	}
	name, id, ok := bytes.Cut(rest, []byte{'/'})
	if ok {
		for _, kind := range kinds {
			if string(name) == string(kind) {
				return kind, id, nil
			}
		}
	}
	return "", nil, fmt.Errorf("key %.120q has no kind that this version knows", key)
}

// cut returns the id of a key that must be of one kind and length.
func (k Keyspace) cut(key []byte, want Kind, length int) ([]byte, error) {
	kind, id, err := k.Split(key)
	if err != nil {
		return nil, err
	}
	if kind != want || len(id) != length {
		return nil, fmt.Errorf("key %.120q is not a %s key", key, want)
	}
	return id, nil
}

// ParsePool reads a key that Pool made.
func (k Keyspace) ParsePool(key []byte) (id workload.PoolID, err error) {
	raw, err := k.cut(key, KindPool, idBytes)
	copy(id[:], raw)
	return id, err
}

// ParseJob reads a key that Job made.
func (k Keyspace) ParseJob(key []byte) (id workload.JobID, err error) {
	raw, err := k.cut(key, KindJob, idBytes)
	copy(id[:], raw)
	return id, err
}

// ParseHost reads a key that Host made.
func (k Keyspace) ParseHost(key []byte) (id workload.HostID, err error) {
	raw, err := k.cut(key, KindHost, idBytes)
	copy(id[:], raw)
	return id, err
}

// ParseTask reads a key that Task made.
func (k Keyspace) ParseTask(key []byte) (job workload.JobID, instance uint32, err error) {
	raw, err := k.cut(key, KindTask, idBytes+4)
	if err != nil {
		return job, 0, err
	}
	copy(job[:], raw)
	return job, binary.BigEndian.Uint32(raw[idBytes:]), nil
}

// ParseSpec reads a key that Spec made.
func (k Keyspace) ParseSpec(key []byte) (job workload.JobID, config uint32, err error) {
	raw, err := k.cut(key, KindSpec, idBytes+4)
	if err != nil {
		return job, 0, err
	}
	copy(job[:], raw)
	return job, binary.BigEndian.Uint32(raw[idBytes:]), nil
}

// ParseRun reads a key that Run made; the generation stays zero.
func (k Keyspace) ParseRun(key []byte) (id workload.RunID, err error) {
	raw, err := k.cut(key, KindRun, idBytes+8)
	if err != nil {
		return id, err
	}
	copy(id.Job[:], raw)
	id.Instance = binary.BigEndian.Uint32(raw[idBytes:])
	id.Run = binary.BigEndian.Uint32(raw[idBytes+4:])
	return id, nil
}

// ParseEvent reads a key that Event made.
func (k Keyspace) ParseEvent(key []byte) (sequence uint64, err error) {
	raw, err := k.cut(key, KindEvent, 8)
	if err != nil {
		return 0, err
	}
	return binary.BigEndian.Uint64(raw), nil
}

// ParseAccount reads a key that Account made.
func (k Keyspace) ParseAccount(key []byte) (pool workload.PoolID, digest [32]byte, err error) {
	raw, err := k.cut(key, KindAccount, idBytes+len(digest))
	if err != nil {
		return pool, digest, err
	}
	copy(pool[:], raw)
	copy(digest[:], raw[idBytes:])
	return pool, digest, nil
}

// ParseBalance reads a key that Balance made.
func (k Keyspace) ParseBalance(key []byte) (id workload.PoolID, err error) {
	raw, err := k.cut(key, KindBalance, idBytes)
	copy(id[:], raw)
	return id, err
}

// ParseSample reads a key that Sample made.
func (k Keyspace) ParseSample(key []byte) (at int64, pool workload.PoolID, err error) {
	raw, err := k.cut(key, KindSample, 8+idBytes)
	if err != nil {
		return 0, pool, err
	}
	n := binary.BigEndian.Uint64(raw)
	if n > math.MaxInt64 {
		return 0, pool, fmt.Errorf("key %.120q names no time", key)
	}
	copy(pool[:], raw[8:])
	return int64(n), pool, nil
}
