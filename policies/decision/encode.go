package decision

import (
	"bytes"
	"compress/flate"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"hash/crc32"

	"github.com/paceline-sched/paceline/core/host"
	"github.com/paceline-sched/paceline/core/placement"
	"github.com/paceline-sched/paceline/core/workload"
)

// magic begins a segment; its last byte is the version of the format.
const magic = "PLDECLG\x03"

// older begin segments of version 1, which know neither priorities nor revocable work, and of version 2, which hold no questions.
var older = []string{"PLDECLG\x01", "PLDECLG\x02"}

// The kinds of records.
const (
	recordHeader byte = iota + 1
	recordState
	recordText
	recordClass
	recordOccupant
	recordChanges
	recordDecision
	recordEnd
	recordMix
	recordQuestion
)

// frameBytes stand before every payload.
const frameBytes = 8

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// encoder writes one segment into b. What it has named once it calls by its number.
type encoder struct {
	b         []byte
	at        int64 // of the last record with a time
	texts     map[string]uint64
	classes   map[placement.ClassID]uint64
	occupants map[occupantKey]uint64
	mixes     map[*placement.Share]uint64 // by the first of them
}

func newEncoder(h *Header, s *host.State) (*encoder, error) {
	e := &encoder{b: []byte(magic), at: h.Began, texts: map[string]uint64{}, classes: map[placement.ClassID]uint64{}, occupants: map[occupantKey]uint64{}, mixes: map[*placement.Share]uint64{}}
	if err := e.json(recordHeader, h); err != nil {
		return nil, err
	}
	return e, e.state(s)
}

// record appends a record whose payload write appends.
func (e *encoder) record(kind byte, write func([]byte) []byte) {
	at := len(e.b)
	e.b = append(e.b, 0, 0, 0, 0, 0, 0, 0, 0, kind)
	e.b = write(e.b)
	payload := e.b[at+frameBytes:]
	binary.LittleEndian.PutUint32(e.b[at:], uint32(len(payload))) //nolint:gosec // within maxRecord
	binary.LittleEndian.PutUint32(e.b[at+4:], crc32.Checksum(payload, castagnoli))
}

func (e *encoder) json(kind byte, v any) error {
	text, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode a record of kind %d: %w", kind, err)
	}
	e.record(kind, func(b []byte) []byte { return append(b, text...) })
	return nil
}

func (e *encoder) state(s *host.State) error {
	var out bytes.Buffer
	w, err := flate.NewWriter(&out, flate.BestSpeed)
	if err != nil {
		return err
	}
	if err := json.NewEncoder(w).Encode(newStateForm(s)); err != nil {
		return fmt.Errorf("encode a table: %w", err)
	}
	if err := w.Close(); err != nil {
		return err
	}
	e.record(recordState, func(b []byte) []byte { return append(b, out.Bytes()...) })
	return nil
}

func (e *encoder) end() { e.record(recordEnd, func(b []byte) []byte { return b }) }

// text returns the number of a string, which it has written before.
func (e *encoder) text(s string) uint64 {
	n, known := e.texts[s]
	if !known {
		n = uint64(len(e.texts))
		e.texts[s] = n
		e.record(recordText, func(b []byte) []byte { return append(b, s...) })
	}
	return n
}

func (e *encoder) class(c *placement.Class) (uint64, error) {
	n, known := e.classes[c.ID]
	if !known {
		n = uint64(len(e.classes))
		e.classes[c.ID] = n
		return n, e.json(recordClass, newClassForm(c))
	}
	return n, nil
}

func (e *encoder) occupant(o *host.Occupant) (uint64, error) {
	key := keyOf(o)
	n, known := e.occupants[key]
	if !known {
		n = uint64(len(e.occupants))
		e.occupants[key] = n
		return n, e.json(recordOccupant, newOccupantForm(o))
	}
	return n, nil
}

// mix returns the number of a list of shares, from 1; 0 stands for none.
func (e *encoder) mix(list []placement.Share) (uint64, error) {
	if len(list) == 0 {
		return 0, nil
	}
	n, known := e.mixes[&list[0]]
	if known {
		return n, nil
	}
	form := make([]shareForm, len(list))
	for i, s := range list {
		class, err := e.class(s.Class)
		if err != nil {
			return 0, err
		}
		form[i] = shareForm{class, s.Weight}
	}
	n = uint64(len(e.mixes)) + 1
	e.mixes[&list[0]] = n
	return n, e.json(recordMix, form)
}

// since is the time since the last record that has one.
func (e *encoder) since(b []byte, at int64) []byte {
	b = binary.AppendVarint(b, at-e.at)
	e.at = at
	return b
}

// changes writes what happened between two decisions.
func (e *encoder) changes(list []Change) error {
	if len(list) == 0 {
		return nil
	}
	numbers := make([]uint64, len(list))
	hosts := map[int][]byte{}
	for i := range list {
		var err error
		switch list[i].Kind {
		case Took, Released:
			numbers[i], err = e.occupant(&list[i].Occupant)
		case Upserted:
			hosts[i], err = json.Marshal(newHostForm(list[i].Host, true))
		case Removed, Drained, Undrained:
		}
		if err != nil {
			return fmt.Errorf("encode a change: %w", err)
		}
	}
	e.record(recordChanges, func(b []byte) []byte {
		b = binary.AppendUvarint(b, uint64(len(list)))
		row := host.Row(0)
		for i := range list {
			c := &list[i]
			b = e.since(append(b, byte(c.Kind)), c.At)
			b = binary.AppendVarint(b, int64(c.Row-row))
			row = c.Row
			switch c.Kind {
			case Took, Released:
				b = binary.AppendUvarint(b, numbers[i])
				b = binary.AppendUvarint(b, uint64(c.Occupant.Devices))
				b = appendPorts(b, c.Occupant.Ports)
			case Upserted:
				b = append(binary.AppendUvarint(b, uint64(len(hosts[i]))), hosts[i]...)
			case Removed, Drained, Undrained:
			}
		}
		return b
	})
	return nil
}

func appendPorts(b []byte, ports []uint16) []byte {
	b = binary.AppendUvarint(b, uint64(len(ports)))
	for _, p := range ports {
		b = binary.AppendUvarint(b, uint64(p))
	}
	return b
}

// The flags of a request.
const (
	flagGang = 1 << iota
	flagHost
	flagWithin
	flagRequired
	flagPriority
	flagRevocable
)

// named is the numbers that a decision refers to.
type named struct {
	strategy uint64
	served   [][2]uint64 // policy, digest
	mixes    [][]uint64  // by stretch and call
	classes  []uint64
	within   [][2]uint64 // key, domain
	pools    []uint64
	domains  []uint64 // of the reasons
}

func (e *encoder) name(d *Decision) (n named, err error) {
	n.strategy = e.text(d.Strategy)
	for i := range d.Served {
		n.served = append(n.served, [2]uint64{e.text(d.Served[i].By), e.text(d.Served[i].Digest)})
		mixes := make([]uint64, len(d.Served[i].Calls))
		for c := range mixes {
			if mixes[c], err = e.mix(d.Served[i].Calls[c].Mix); err != nil {
				return n, err
			}
		}
		n.mixes = append(n.mixes, mixes)
	}
	n.classes, n.within = make([]uint64, len(d.Requests)), make([][2]uint64, len(d.Requests))
	n.domains, n.pools = make([]uint64, len(d.Results)), make([]uint64, len(d.Requests))
	for i := range d.Requests {
		r := &d.Requests[i]
		if n.classes[i], err = e.class(r.Class); err != nil {
			return n, err
		}
		n.pools[i] = e.text(r.Pool)
		if r.Within.Key != "" {
			n.within[i] = [2]uint64{e.text(r.Within.Key), e.text(r.Within.Domain)}
		}
	}
	for i := range d.Results {
		n.domains[i] = e.text(d.Results[i].Reasons.GangDomain)
	}
	return n, nil
}

func (e *encoder) decision(d *Decision) error {
	n, err := e.name(d)
	if err != nil {
		return err
	}
	e.record(recordDecision, func(b []byte) []byte {
		b = binary.AppendUvarint(b, d.Sequence)
		b = e.since(b, d.At)
		for _, v := range []uint64{uint64(max(d.Took, 0)), d.Revision, n.strategy, uint64(len(d.Served))} { //nolint:gosec // none of them is negative
			b = binary.AppendUvarint(b, v)
		}
		for i := range d.Served {
			b = appendServed(b, &d.Served[i], n.served[i], n.mixes[i])
		}
		b = binary.AppendUvarint(b, uint64(len(d.Requests)))
		for i := range d.Requests {
			b = appendRequest(b, &d.Requests[i], &n, i)
		}
		b = binary.AppendUvarint(b, uint64(len(d.Results)))
		for i := range d.Results {
			b = appendResult(b, &d.Results[i], n.domains[i])
		}
		return b
	})
	return nil
}

func appendServed(b []byte, s *placement.Served, names [2]uint64, mixes []uint64) []byte {
	for _, v := range []uint64{uint64(s.Requests), names[0], names[1], uint64(max(s.Fuel, 0)), uint64(s.Faults), uint64(len(s.Calls))} { //nolint:gosec // counts
		b = binary.AppendUvarint(b, v)
	}
	for i, c := range s.Calls {
		b = binary.AppendUvarint(binary.AppendUvarint(b, uint64(c.Requests)), uint64(c.Tasks)) //nolint:gosec // counts
		b = binary.AppendVarint(binary.AppendUvarint(b, c.Seed), c.Time)
		b = binary.AppendUvarint(b, mixes[i])
	}
	return b
}

func appendRequest(b []byte, r *placement.Request, n *named, i int) []byte {
	flags := uint64(0)
	for bit, set := range [...]bool{r.Gang, r.Host != (workload.HostID{}), r.Within.Key != "", r.Within.Required, r.Priority != 0, r.Revocable} {
		if set {
			flags |= 1 << bit
		}
	}
	for _, v := range []uint64{n.classes[i], n.pools[i], uint64(max(r.Count, 0)), flags, r.Seed, uint64(r.Unit), uint64(max(r.Want, 0))} { //nolint:gosec // not negative
		b = binary.AppendUvarint(b, v)
	}
	if flags&flagHost != 0 {
		b = append(b, r.Host[:]...)
	}
	if flags&flagWithin != 0 {
		b = binary.AppendUvarint(binary.AppendUvarint(b, n.within[i][0]), n.within[i][1])
	}
	if flags&flagPriority != 0 {
		b = binary.AppendVarint(b, int64(r.Priority))
	}
	return b
}

func appendResult(b []byte, r *placement.Result, domain uint64) []byte {
	b = binary.AppendUvarint(b, uint64(len(r.Assignments)))
	row := host.Row(0)
	for i := range r.Assignments {
		a := &r.Assignments[i]
		b = binary.AppendVarint(b, int64(a.Row-row))
		row = a.Row
		b = binary.AppendUvarint(b, uint64(a.Devices))
		b = appendPorts(b, a.Ports)
	}
	b = binary.AppendUvarint(b, uint64(max(r.Refused, 0))) //nolint:gosec // not negative
	if r.Refused <= 0 {
		return b
	}
	return appendReasons(b, &r.Reasons, domain)
}

func appendReasons(b []byte, r *placement.Reasons, domain uint64) []byte {
	never := uint64(0)
	if r.NeverFits {
		never = 1
	}
	present := 0
	for _, n := range r.Counts {
		if n != 0 {
			present++
		}
	}
	for _, v := range []uint64{uint64(r.Hosts), never, uint64(r.GangLargest), uint64(r.GangSize), domain, uint64(present)} { //nolint:gosec // counts
		b = binary.AppendUvarint(b, v)
	}
	for reason, n := range r.Counts {
		if n != 0 {
			b = binary.AppendVarint(binary.AppendUvarint(b, uint64(reason)), int64(n)) //nolint:gosec // below NumReasons
		}
	}
	return b
}
