package decision

import (
	"bytes"
	"compress/flate"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math"
	"slices"
	"time"

	"github.com/paceline-sched/paceline/core/host"
	"github.com/paceline-sched/paceline/core/placement"
	"github.com/paceline-sched/paceline/core/shard"
	"github.com/paceline-sched/paceline/core/workload"
)

// What a record may be at most. A writer stays far below.
const (
	maxRecord = 64 << 20
	maxState  = 512 << 20 // inflated
	maxNamed  = 1 << 22   // texts, classes, occupants
)

// Tail is how a segment ends.
type Tail struct {
	Closed bool  // in order
	Good   int64 // bytes up to the end of the last good record
	Err    error // why reading stopped there; nil: nothing follows
}

// ErrNoSegment is returned for what is no segment of a version that is known.
var ErrNoSegment = errors.New("no segment of decisions")

// Read reads a segment and calls visit for every entry, in order. An error of visit ends it and is returned; what is wrong with the segment is told by its Tail, after
// what is good was visited.
func Read(r io.Reader, visit func(Event) error) (Tail, error) {
	var head [len(magic)]byte
	if _, err := io.ReadFull(r, head[:]); err != nil || string(head[:]) != magic && !slices.Contains(older, string(head[:])) {
		return Tail{}, fmt.Errorf("%w: it begins with %q", ErrNoSegment, head)
	}
	d := &decoder{visit: visit}
	tail := Tail{Good: int64(len(magic))}
	for {
		payload, err := readRecord(r)
		if errors.Is(err, io.EOF) {
			return tail, nil
		}
		if err == nil {
			err = d.record(payload[0], payload[1:])
		}
		if d.stop != nil {
			return tail, d.stop
		}
		if err != nil {
			tail.Err = err
			return tail, nil //nolint:nilerr // the tail has it
		}
		tail.Good += frameBytes + int64(len(payload))
		tail.Closed = payload[0] == recordEnd
	}
}

// readRecord returns a payload of at least one byte; io.EOF where nothing follows.
func readRecord(r io.Reader) ([]byte, error) {
	var frame [frameBytes]byte
	if _, err := io.ReadFull(r, frame[:]); err != nil {
		if errors.Is(err, io.ErrUnexpectedEOF) {
			return nil, errors.New("a record is cut off")
		}
		return nil, err
	}
	n := binary.LittleEndian.Uint32(frame[:])
	if n == 0 || n > maxRecord {
		return nil, fmt.Errorf("a record of %d bytes, they have 1 to %d", n, maxRecord)
	}
	var payload bytes.Buffer // grows with what is there, not with what is said
	if _, err := io.CopyN(&payload, r, int64(n)); err != nil {
		return nil, errors.New("a record is cut off")
	}
	if sum := crc32.Checksum(payload.Bytes(), castagnoli); sum != binary.LittleEndian.Uint32(frame[4:]) {
		return nil, errors.New("a record fails its sum")
	}
	return payload.Bytes(), nil
}

// decoder is what a segment has named so far.
type decoder struct {
	visit     func(Event) error
	stop      error // of visit
	begun     bool
	stated    bool
	at        int64
	texts     []string
	classes   []*placement.Class
	occupants []host.Occupant
	mixes     [][]placement.Share
}

func (d *decoder) tell(e Event) error {
	d.stop = d.visit(e)
	return d.stop
}

func (d *decoder) record(kind byte, payload []byte) error {
	switch {
	case d.begun == (kind == recordHeader):
		return fmt.Errorf("a record of kind %d where the header is due, or a second one", kind)
	case kind == recordHeader:
		h := &Header{}
		if err := json.Unmarshal(payload, h); err != nil {
			return fmt.Errorf("read the header: %w", err)
		}
		d.begun, d.at = true, h.Began
		return d.tell(Event{Header: h})
	case kind == recordState:
		return d.state(payload)
	case !d.stated:
		return fmt.Errorf("a record of kind %d before the table", kind)
	case len(d.texts)+len(d.classes)+len(d.occupants)+len(d.mixes) > maxNamed:
		return fmt.Errorf("more than %d names", maxNamed)
	}
	switch kind {
	case recordText:
		d.texts = append(d.texts, string(payload))
	case recordClass:
		return d.class(payload)
	case recordOccupant:
		return d.occupant(payload)
	case recordMix:
		return d.mix(payload)
	case recordChanges:
		return d.changes(&cursor{b: payload})
	case recordQuestion:
		return d.question(payload)
	case recordDecision:
		return d.decision(&cursor{b: payload})
	}
	return nil // the end, or a kind of a later version
}

func (d *decoder) state(payload []byte) error {
	if d.stated {
		return errors.New("a second table")
	}
	inflated := flate.NewReader(bytes.NewReader(payload))
	var form stateForm
	if err := json.NewDecoder(io.LimitReader(inflated, maxState)).Decode(&form); err != nil {
		return fmt.Errorf("read the table: %w", err)
	}
	s, err := form.state()
	if err != nil {
		return fmt.Errorf("read the table: %w", err)
	}
	d.stated = true
	return d.tell(Event{State: s})
}

func (d *decoder) class(payload []byte) error {
	var form classForm
	if err := json.Unmarshal(payload, &form); err != nil {
		return fmt.Errorf("read a class: %w", err)
	}
	c, err := form.class()
	if err != nil {
		return fmt.Errorf("read a class: %w", err)
	}
	d.classes = append(d.classes, c)
	return nil
}

func (d *decoder) occupant(payload []byte) error {
	var form occupantForm
	if err := json.Unmarshal(payload, &form); err != nil {
		return fmt.Errorf("read an occupant: %w", err)
	}
	o, err := form.occupant()
	if err != nil {
		return fmt.Errorf("read an occupant: %w", err)
	}
	d.occupants = append(d.occupants, o)
	return nil
}

func (d *decoder) mix(payload []byte) error {
	var form []shareForm
	if err := json.Unmarshal(payload, &form); err != nil {
		return fmt.Errorf("read the work to come: %w", err)
	}
	list := make([]placement.Share, len(form))
	for i, s := range form {
		if s.Class >= uint64(len(d.classes)) {
			return fmt.Errorf("the work to come is of a class %d that is not known", s.Class)
		}
		list[i] = placement.Share{Class: d.classes[s.Class], Weight: s.Weight}
	}
	d.mixes = append(d.mixes, list)
	return nil
}

func (d *decoder) mixOf(c *cursor) []placement.Share {
	if n := c.number(len(d.mixes) + 1); n > 0 && c.err == nil {
		return d.mixes[n-1]
	}
	return nil
}

func (d *decoder) changes(c *cursor) error {
	n := c.count()
	row := host.Row(0)
	for range n {
		x := &Change{Kind: ChangeKind(c.byte())}
		d.at += c.signed()
		row += host.Row(c.within(-shard.MaxRows, shard.MaxRows))
		x.At, x.Row = d.at, row
		switch x.Kind {
		case Took, Released:
			if n := c.number(len(d.occupants)); c.err == nil {
				x.Occupant = d.occupants[n]
			}
			x.Occupant.Devices = placement.DeviceSet(c.number(1 << 16))
			x.Occupant.Ports = c.ports()
		case Upserted:
			var form hostForm
			if err := json.Unmarshal(c.bytes(c.count()), &form); err != nil {
				return fmt.Errorf("read a host: %w", err)
			}
			var err error
			if x.Host, err = form.host(); err != nil {
				return fmt.Errorf("read a host: %w", err)
			}
		case Removed, Drained, Undrained:
		default:
			return fmt.Errorf("a change of kind %d", x.Kind)
		}
		if row < 0 || row >= shard.MaxRows {
			return fmt.Errorf("a change of row %d", row)
		}
		if c.err != nil {
			return c.err
		}
		if err := d.tell(Event{Change: x}); err != nil {
			return err
		}
	}
	return c.end()
}

func (d *decoder) decision(c *cursor) error {
	x := &Decision{Sequence: c.unsigned()}
	d.at += c.signed()
	x.At = d.at
	x.Took, x.Revision = time.Duration(c.positive()), c.unsigned()
	x.Strategy = d.text(c)
	for range c.count() {
		x.Served = append(x.Served, d.served(c))
	}
	for range c.count() {
		x.Requests = append(x.Requests, d.request(c))
	}
	for range c.count() {
		x.Results = append(x.Results, d.result(c))
	}
	if err := c.end(); err != nil {
		return fmt.Errorf("read a decision: %w", err)
	}
	if len(x.Results) != len(x.Requests) {
		return fmt.Errorf("a decision answers %d of %d requests", len(x.Results), len(x.Requests))
	}
	return d.tell(Event{Decision: x})
}

func (d *decoder) text(c *cursor) string {
	if n := c.number(len(d.texts)); c.err == nil {
		return d.texts[n]
	}
	return ""
}

func (d *decoder) served(c *cursor) placement.Served {
	s := placement.Served{Requests: c.number(shard.MaxBatch + 1), By: d.text(c), Digest: d.text(c), Fuel: c.positive(), Faults: c.number(shard.MaxBatch + 1)}
	for range c.count() {
		s.Calls = append(s.Calls, placement.ServedCall{
			Requests: c.number(shard.MaxBatch + 1), Tasks: c.number(shard.MaxBatch + 1), Seed: c.unsigned(), Time: c.signed(), Mix: d.mixOf(c),
		})
	}
	return s
}

func (d *decoder) request(c *cursor) placement.Request {
	var r placement.Request
	if n := c.number(len(d.classes)); c.err == nil {
		r.Class = d.classes[n]
	}
	r.Pool, r.Count = d.text(c), c.number(shard.MaxBatch+1)
	flags := c.unsigned()
	r.Gang, r.Within.Required = flags&flagGang != 0, flags&flagRequired != 0
	r.Seed, r.Unit, r.Want = c.unsigned(), uint32(c.number(1<<32)), c.number(workload.MaxInstances+1) //nolint:gosec // as read
	if flags&flagHost != 0 {
		copy(r.Host[:], c.bytes(len(r.Host)))
	}
	if flags&flagWithin != 0 {
		r.Within.Key, r.Within.Domain = d.text(c), d.text(c)
	}
	if r.Revocable = flags&flagRevocable != 0; flags&flagPriority != 0 {
		r.Priority = int32(c.within(math.MinInt32, math.MaxInt32))
	}
	return r
}

func (d *decoder) result(c *cursor) placement.Result {
	var r placement.Result
	row := host.Row(0)
	for range c.count() {
		row += host.Row(c.within(-shard.MaxRows, shard.MaxRows))
		r.Assignments = append(r.Assignments, placement.Assignment{Row: row, Devices: placement.DeviceSet(c.number(1 << 16)), Ports: c.ports()})
	}
	r.Refused = c.number(shard.MaxBatch + 1)
	if r.Refused == 0 {
		return r
	}
	x := &r.Reasons
	x.Hosts, x.NeverFits = c.number(shard.MaxRows+1), c.unsigned() == 1
	x.GangLargest, x.GangSize, x.GangDomain = c.number(workload.MaxInstances+1), c.number(workload.MaxInstances+1), d.text(c)
	for range c.count() {
		if reason := c.number(int(placement.NumReasons)); c.err == nil {
			x.Counts[reason] = int(c.within(-shard.MaxRows, shard.MaxRows))
		}
	}
	return r
}

// cursor reads a payload. After an error everything reads as zero.
type cursor struct {
	b   []byte
	err error
}

func (c *cursor) fail(format string, args ...any) {
	if c.err == nil {
		c.err = fmt.Errorf(format, args...)
	}
	c.b = nil
}

func (c *cursor) end() error {
	if c.err == nil && len(c.b) > 0 {
		c.fail("%d bytes are left over", len(c.b))
	}
	return c.err
}

func (c *cursor) byte() byte {
	if b := c.bytes(1); len(b) == 1 {
		return b[0]
	}
	return 0
}

func (c *cursor) bytes(n int) []byte {
	if n > len(c.b) {
		c.fail("%d bytes are wanted and %d left", n, len(c.b))
		return nil
	}
	b := c.b[:n]
	c.b = c.b[n:]
	return b
}

func (c *cursor) unsigned() uint64 {
	v, n := binary.Uvarint(c.b)
	if n <= 0 {
		c.fail("a number is cut off")
		return 0
	}
	c.b = c.b[n:]
	return v
}

func (c *cursor) signed() int64 {
	v, n := binary.Varint(c.b)
	if n <= 0 {
		c.fail("a number is cut off")
		return 0
	}
	c.b = c.b[n:]
	return v
}

// within reads a signed number from least to most.
func (c *cursor) within(least, most int64) int64 {
	v := c.signed()
	if v < least || v > most {
		c.fail("%d is not from %d to %d", v, least, most)
		return 0
	}
	return v
}

// number reads one from 0 to below bound.
func (c *cursor) number(bound int) int {
	v := c.unsigned()
	if v >= uint64(max(bound, 0)) { //nolint:gosec // not negative
		c.fail("%d is not below %d", v, bound)
		return 0
	}
	return int(v) //nolint:gosec // below an int
}

// positive reads one that an int64 holds.
func (c *cursor) positive() int64 {
	v := c.unsigned()
	if v > 1<<62 {
		c.fail("%d is out of range", v)
		return 0
	}
	return int64(v)
}

// count reads how many follow, each of which takes a byte at least.
func (c *cursor) count() int {
	n := c.number(len(c.b) + 1)
	if n > len(c.b) {
		c.fail("%d are to follow, %d bytes are left", n, len(c.b))
		return 0
	}
	return n
}

func (c *cursor) ports() []uint16 {
	var ports []uint16
	for range c.count() {
		ports = append(ports, uint16(c.number(1<<16))) //nolint:gosec // as read
	}
	return ports
}
