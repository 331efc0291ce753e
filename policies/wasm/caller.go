package wasm

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/paceline-sched/paceline/sdk/policyabi"
)

// ErrNoPolicy says that the slot is empty: the built-in policy is in force.
var ErrNoPolicy = errors.New("no policy is in force")

// AskConfig is what a Quota, a Ranker or a Router is made of.
type AskConfig struct {
	Slot *Slot
	// OnFault is told of every fault, by the goroutine that asked, before it has its error.
	OnFault func(*Fault)
	// OnCall is told of every call that succeeded. Of Call.Tasks and Call.Placed it has what was asked about and what was answered: pools, candidates, tasks.
	OnCall func(Call)
	// Moment is the seed and the time of a call. Default nil: always 0.
	Moment func() (seed uint64, now time.Time)
}

// caller keeps one instance of the policy in a slot, for one kind of call. What it sends is small beside a table of hosts, so it is written anew for each
// call.
type caller struct {
	config AskConfig
	kind   policyabi.Kind

	version  *Version // counted
	instance *Instance
	shape    policyabi.Shape
	layout   policyabi.Layout
	b        []byte // the image up to layout.Written
	seen     uint64 // what the rows of the last call were, see question.rows
	work     int64  // of the last call
}

// question is what one call asks.
type question struct {
	shape   policyabi.Shape // without what the version itself needs
	records int             // requests or candidates: what the call is told there are
	// rows identifies what the rows are about: another number makes another generation.
	rows uint64
	work int64 // in rows looked at
	// fill writes the image; the header is written behind it. A layout has room for what shape says.
	fill func(l *policyabi.Layout, h *policyabi.Header, b []byte)
	// read reads what was answered. The error is what is wrong with it.
	read  func(l *policyabi.Layout, arena []byte, count int) *wrong
	tasks int // for Call
}

// Close lets go of the version.
func (c *caller) close() {
	c.discard()
	if c.version != nil {
		c.version.release()
		c.version = nil
	}
}

func (c *caller) discard() {
	if c.instance != nil {
		c.instance.close()
		c.instance = nil
	}
}

// enter moves to the version in force.
func (c *caller) enter() error {
	v := c.config.Slot.acquire()
	if v == nil {
		c.close()
		return ErrNoPolicy
	}
	if v == c.version {
		v.release() // it is counted once
		return nil
	}
	c.close()
	c.version = v
	return nil
}

// wants are the columns that the policy in force asks for.
func (c *caller) wants() []policyabi.Want { return c.version.module.Capability.Columns }

// ask makes one call. A fault leaves no instance; the next call makes one.
func (c *caller) ask(q *question) error {
	f := c.try(q)
	if f == nil {
		return nil
	}
	c.discard()
	if c.config.OnFault != nil {
		c.config.OnFault(f)
	}
	return f
}

func (c *caller) try(q *question) *Fault {
	if f := c.ready(q); f != nil {
		return f
	}
	v, in := c.version, c.instance
	h := c.layout.Header
	in.epoch++
	h.Epoch, h.BaseEpoch, h.Generation, h.DirtyCount = in.epoch, in.epoch-1, c.generation(q), policyabi.AllDirty
	h.Rows, h.RequestCount, h.MixCount = uint32(q.shape.Rows), uint32(q.records), 0
	if c.config.Moment != nil {
		seed, now := c.config.Moment()
		h.Seed, h.Time = seed, now.UnixMilli()
		in.clock = max(in.clock, uint64(max(now.UnixNano(), 0)))
	}
	clear(c.b[h.Config+h.ConfigBytes:])
	for i := range c.layout.Entries {
		c.layout.Entries[i].Encode(c.b[int(h.Directory)+i*policyabi.EntryBytes:])
	}
	q.fill(&c.layout, &h, c.b)
	h.Encode(c.b)
	copy(in.arena(), c.b)
	budget := &v.budgets[c.kind]
	fuel := budget.fuel(q.work, in.size(), v.limits.CallFuel)
	began := time.Now()
	count, err := in.call(c.kind, c.argument(q), fuel)
	took := time.Since(began)
	v.counters.Nanos.Add(uint64(took))
	if err != nil {
		return asFault(err)
	}
	budget.took(q.work, took)
	c.work = q.work
	if w := q.read(&c.layout, in.arena(), count); w != nil {
		return in.fault(w.kind, c.kind.Export(), errors.New(w.why))
	}
	v.counters.Requests.Add(uint64(max(q.records, 1)))
	if c.config.OnCall != nil {
		c.config.OnCall(Call{Digest: v.digest, Requests: max(q.records, 1), Tasks: q.tasks, Placed: count, Fuel: fuel, Used: in.used(fuel), Took: took, Memory: in.size()})
	}
	return nil
}

// argument is what the call is told: records, or for quota pools.
func (c *caller) argument(q *question) int {
	if c.kind == policyabi.Quota {
		return q.shape.Rows
	}
	return q.records
}

// generation grows when rows take another meaning.
func (c *caller) generation(q *question) uint64 {
	if q.rows != c.seen {
		c.seen = q.rows
		c.layout.Header.Generation++
	}
	return c.layout.Header.Generation
}

// ready makes an instance where there is none with room for the question.
func (c *caller) ready(q *question) *Fault {
	if c.instance != nil && c.fits(q) {
		return nil
	}
	c.discard()
	v := c.version
	bad := func(err error) *Fault {
		v.counters.fault(FaultStart)
		return &Fault{Kind: FaultStart, Policy: v.Name(), Digest: v.digest, Doing: "lay out the arena", Err: err}
	}
	s := q.shape
	s.Kind, s.Config = c.kind, len(v.encoded)
	s.Rows = min(s.Rows+s.Rows>>spareRows, policyabi.MaxRows)
	s.Scratch = min(v.module.Capability.Scratch+v.module.Capability.ScratchPerRow*s.Rows, policyabi.MaxScratch)
	var err error
	if c.layout, err = policyabi.Plan(s); err != nil {
		return bad(err)
	}
	c.shape, c.seen = s, 0
	c.b = make([]byte, c.layout.Written)
	copy(c.b[c.layout.Header.Config:], v.encoded)
	seed := uint64(0)
	if c.config.Moment != nil {
		seed, _ = c.config.Moment()
	}
	c.layout.Header.Encode(c.b)
	if c.instance, err = v.start(c.b, &c.layout, seed); err != nil {
		return asFault(err)
	}
	return nil
}

// fits reports whether the instance has room for a question.
func (c *caller) fits(q *question) bool {
	s, is := &q.shape, &c.shape
	if s.Rows > is.Rows || s.Requests > is.Requests || s.Results > is.Results || s.Bitmaps > is.Bitmaps || s.Extension > is.Extension || len(s.Columns) != len(is.Columns) {
		return false
	}
	for i := range s.Columns {
		if s.Columns[i] != is.Columns[i] {
			return false
		}
	}
	return true
}

// kindsWanted lists the kinds of a family of columns that a policy wants, of those that there are, by name.
func kindsWanted(wants []policyabi.Want, first policyabi.ColumnID, names []string) []bool {
	wanted := make([]bool, len(names))
	for _, w := range wants {
		if w.Column < first || w.Column >= first+policyabi.MaxKinds {
			continue
		}
		for k, name := range names {
			switch {
			case w.Every, w.Name != "" && w.Name == name, w.Name == "" && w.Column-first == policyabi.ColumnID(k):
				wanted[k] = true
			}
		}
	}
	return wanted
}

// wantsColumn reports whether a policy wants a column that stands alone.
func wantsColumn(wants []policyabi.Want, id policyabi.ColumnID) bool {
	for _, w := range wants {
		if w.Column == id {
			return true
		}
	}
	return false
}

// kindColumns appends the columns of a family that a policy wants.
func kindColumns(list []policyabi.Column, wants []policyabi.Want, first policyabi.ColumnID, names []string) []policyabi.Column {
	for k, wanted := range kindsWanted(wants, first, names) {
		if wanted {
			c := policyabi.Column{ID: first + policyabi.ColumnID(k)}
			if k >= len(policyabi.KindNames) {
				c.Key = policyabi.Hash(names[k])
			}
			list = append(list, c)
		}
	}
	return list
}

// at is where a row of a column stands.
func at(e *policyabi.Entry, row int) int { return int(e.Offset) + row*int(e.Stride) }

// identity is a number for an id of the cell, the same in every call, and never 0.
func identity(id [16]byte) uint64 { return policyabi.Hash(string(id[:])) }

func clampInt32(v int64) int32 { return int32(min(max(v, 0), math.MaxInt32)) }

func misfit(format string, args ...any) *wrong {
	return &wrong{FaultRow, fmt.Sprintf(format, args...)}
}
