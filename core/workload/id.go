package workload

import (
	"bytes"
	"encoding/base32"
	"encoding/binary"
	"fmt"
	"strconv"
	"strings"
)

// ID is an immutable 128-bit identity, drawn at the API edge. Names and paths are indexes over ids.
type ID [16]byte

// The identities of a cell's objects. They are distinct types so that one is never passed for another.
type (
	JobID  ID
	PoolID ID
	HostID ID
)

// base32Lower is RFC 4648 base32hex in lower case, without padding: it sorts as the bytes do and is legal in pod names and
// Mesos task ids.
var base32Lower = base32.NewEncoding("0123456789abcdefghijklmnopqrstuv").WithPadding(base32.NoPadding)

const encodedIDLength = 26

func (id ID) String() string     { return base32Lower.EncodeToString(id[:]) }
func (id JobID) String() string  { return ID(id).String() }
func (id PoolID) String() string { return ID(id).String() }
func (id HostID) String() string { return ID(id).String() }

// Compare orders ids as their bytes.
func (id ID) Compare(o ID) int { return bytes.Compare(id[:], o[:]) }

// IsZero reports whether the id was never set.
func (id ID) IsZero() bool { return id == ID{} }

// ParseID reads an id as String writes it.
func ParseID(s string) (ID, error) {
	var id ID
	if len(s) != encodedIDLength {
		return id, fmt.Errorf("id %q must have %d characters, not %d", clip(s), encodedIDLength, len(s))
	}
	raw, err := base32Lower.DecodeString(s)
	if err != nil {
		return id, fmt.Errorf("id %q must consist of 0-9 and a-v", s)
	}
	copy(id[:], raw)
	if id.String() != s {
		return ID{}, fmt.Errorf("id %q has stray bits in its last character", s)
	}
	return id, nil
}

// MaxInstances bounds the instances of one job. With resource.MaxQuantity it keeps the sum over one job inside int64.
const MaxInstances = 1 << 22

// RunID names one run of one instance. Generation counts the lives of its gang or job, Run the runs of the instance over all
// generations; both start at 1. It is written job-instance-generation-run, at most 63 characters, so that it is a legal name in
// every cluster and the cluster itself refuses a duplicate.
type RunID struct {
	Job        JobID
	Instance   uint32
	Generation uint32
	Run        uint32
}

func (id RunID) String() string {
	b := make([]byte, 0, 63)
	b = base32Lower.AppendEncode(b, id.Job[:])
	for _, n := range [...]uint32{id.Instance, id.Generation, id.Run} {
		b = append(b, '-')
		b = strconv.AppendUint(b, uint64(n), 32)
	}
	return string(b)
}

// ParseRunID reads a run id as String writes it.
func ParseRunID(s string) (RunID, error) {
	parts := strings.Split(s, "-")
	if len(parts) != 4 {
		return RunID{}, fmt.Errorf("run id %q must have the form job-instance-generation-run", clip(s))
	}
	job, err := ParseID(parts[0])
	if err != nil {
		return RunID{}, fmt.Errorf("run id %q: %w", clip(s), err)
	}
	var n [3]uint32
	for i, part := range parts[1:] {
		v, err := strconv.ParseUint(part, 32, 32)
		if err != nil {
			return RunID{}, fmt.Errorf("run id %q: %q is not a base-32 number", clip(s), clip(part))
		}
		n[i] = uint32(v)
	}
	id := RunID{Job: JobID(job), Instance: n[0], Generation: n[1], Run: n[2]}
	if id.String() != s {
		return RunID{}, fmt.Errorf("run id %q is not in its shortest lower-case form", clip(s))
	}
	return id, nil
}

// AppendKey appends the fixed-width big-endian form, which sorts by job, instance, generation and run.
func (id RunID) AppendKey(b []byte) []byte {
	b = append(b, id.Job[:]...)
	b = binary.BigEndian.AppendUint32(b, id.Instance)
	b = binary.BigEndian.AppendUint32(b, id.Generation)
	return binary.BigEndian.AppendUint32(b, id.Run)
}

// clip keeps hostile input out of messages.
func clip(s string) string {
	if len(s) > 80 {
		return s[:80] + "..."
	}
	return s
}
