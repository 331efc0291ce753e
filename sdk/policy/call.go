package policy

import (
	"github.com/paceline-sched/paceline/sdk/policyabi"
)

// Call is one call for placement.
type Call struct {
	in       *Instance
	table    *Table
	requests []Request // of which asked are those of the call
	asked    int
	results  []byte
	n        int // results written
	at       int // the request that the last of them is for

	// What the policy implements, nil where it does not.

	by       []int32 // of ByColumn: the column
	ordered  bool
	order    string
	largest  bool // of ByColumn: it descends
	scorer   Scorer
	block    BlockScorer
	filter   Filter
	preparer Preparer
	chooser  DeviceChooser
	placer   Placer

	search  search
	memory  memory
	current *Request // that is being served; nil: none yet
	took    []step   // for it
}

// step is room that was taken for one task.
type step struct {
	row     int32
	devices Devices
}

func (c *Call) bind(in *Instance) {
	c.in, c.table = in, &in.table
	if by, ok := in.policy.(ByColumn); ok {
		c.ordered = true
		c.order, c.largest = by.Order()
	}
	c.scorer, _ = in.policy.(Scorer)
	c.block, _ = in.policy.(BlockScorer)
	c.filter, _ = in.policy.(Filter)
	c.preparer, _ = in.policy.(Preparer)
	c.chooser, _ = in.policy.(DeviceChooser)
	c.placer, _ = in.policy.(Placer)
	if c.filter != nil && c.scorer == nil && c.block == nil && !c.ordered {
		c.ordered, c.order = true, "leftover"
	}
}

// serve answers a call for placement.
func (c *Call) serve(h *policyabi.Header, n int) (int, error) {
	if c.placer == nil && c.scorer == nil && c.block == nil && !c.ordered {
		return 0, errUnsupported
	}
	if n > int(h.RequestCount) {
		return 0, errUnsupported
	}
	if err := c.table.open(h); err != nil {
		return 0, err
	}
	for len(c.requests) < n {
		c.requests = append(c.requests, Request{})
	}
	for i := range n {
		c.requests[i].decode(c.in.arena, h, i)
	}
	c.results = c.in.arena[h.Results : h.Results+h.ResultCapacity*policyabi.ResultBytes]
	c.n, c.at, c.current, c.asked = 0, 0, nil, n
	if c.placer != nil {
		if err := c.placer.Place(c); err != nil {
			return 0, err
		}
		return c.n, nil
	}
	if c.ordered {
		if c.by = c.table.Column(c.order); c.by == nil {
			return 0, errUnsupported
		}
	}
	for i := range n {
		r := &c.requests[i]
		c.begin(r)
		if c.preparer != nil {
			c.preparer.Prepare(c.table, r)
		}
		c.place(r)
	}
	return c.n, nil
}

// Table is the hosts, without what the call took so far.
func (c *Call) Table() *Table { return c.table }

// Requests are what is asked for.
func (c *Call) Requests() []Request { return c.requests[:c.asked] }

// Fits reports whether a host has room for one task of a request, counting what the call took so far.
func (c *Call) Fits(r *Request, row int) bool {
	c.begin(r)
	return c.fits(r, row)
}

// begin turns to a request. A gang before it that is not complete gives back what it took, as the scheduler will do.
func (c *Call) begin(r *Request) {
	if c.current == r {
		return
	}
	if c.current != nil && c.current.Gang() && len(c.took) < c.current.count {
		c.undo(c.current)
	}
	c.current, c.took = r, c.took[:0]
	c.search.conditions = c.table.conditions(r, c.search.conditions)
	if c.in.program.remember {
		c.memory.turn(c.table, r)
	}
}

// Take takes room for one task, on the devices that the policy, or else the usual rule, chooses. It reports false when there is none. Requests
// are served in their order: a task for an earlier one than the last is a mistake in the policy, and panics.
func (c *Call) Take(r *Request, row int) bool {
	return c.Fits(r, row) && c.take(r, row, 0)
}

// Place places what is left of a request on the cheapest hosts, and returns how many tasks found room. Cost is asked as that of a Scorer.
func (c *Call) Place(r *Request, s Scorer) int {
	before := c.scorer
	c.scorer = s
	n := c.place(r)
	c.scorer = before
	return n
}

// Refuse says why no more of a request can be placed: a number of the policy's own.
func (c *Call) Refuse(r *Request, reason uint16) {
	c.put(policyabi.Result{Request: uint16(r.index), Host: policyabi.NoRow, Reason: reason})
}

// take takes room on a host that fits and writes the result.
func (c *Call) take(r *Request, row int, cost int64) bool {
	devices := c.choose(r, row)
	result := policyabi.Result{Request: uint16(r.index), Count: 1, Host: uint32(row), Score: float32(cost), Devices: uint16(devices)}
	if !c.put(result) {
		return false
	}
	c.table.move(r, row, devices, 1)
	if r.flags&policyabi.RequestOneEach != 0 {
		r.open[row/64] &^= 1 << (row % 64)
	}
	c.table.taken = append(c.table.taken, int32(row))
	c.took = append(c.took, step{int32(row), devices})
	return true
}

// choose picks the devices of a task, none when it takes none or the table does not show them.
func (c *Call) choose(r *Request, row int) Devices {
	if r.devices == 0 || c.table.deviceFree == nil {
		return 0
	}
	h := Host{c.table, row}
	open := h.OpenDevices(r)
	if c.chooser != nil {
		return c.chooser.Devices(r, h, open)
	}
	return usual(r, h, open)
}

// put writes a result, or makes the last one count for a task more. It reports false when there is no room.
func (c *Call) put(r policyabi.Result) bool {
	if int(r.Request) < c.at {
		panic("policy: a result for request " + itoa(int64(r.Request)) + " after one for request " + itoa(int64(c.at)) + ": serve requests in their order")
	}
	c.at = int(r.Request)
	if last := c.n - 1; last >= 0 && r.Devices == 0 && r.Count > 0 {
		b := c.results[last*policyabi.ResultBytes:]
		same := le.Uint16(b[policyabi.ResultRequest:]) == r.Request && le.Uint32(b[policyabi.ResultHost:]) == r.Host
		if n := le.Uint16(b[policyabi.ResultCount:]); same && n > 0 && n < 1<<16-1 && le.Uint16(b[policyabi.ResultDevices:]) == 0 {
			le.PutUint16(b[policyabi.ResultCount:], n+1)
			return true
		}
	}
	if c.n >= len(c.results)/policyabi.ResultBytes {
		return false
	}
	r.Encode(c.results[c.n*policyabi.ResultBytes:])
	c.n++
	return true
}

// undo gives room back that was taken for the request being served. Its results stay: the scheduler counts them and does the same.
func (c *Call) undo(r *Request) {
	for i := len(c.took) - 1; i >= 0; i-- {
		c.table.move(r, int(c.took[i].row), c.took[i].devices, -1)
	}
	c.took = c.took[:0]
}

// move takes what a task uses off a row, or with a sign of -1 gives it back.
func (t *Table) move(r *Request, row int, devices Devices, sign int32) {
	for k := range t.kinds {
		if need := r.needs[k]; need != 0 && t.free[k] != nil {
			t.free[k][row] -= sign * need
		}
	}
	if devices != 0 && t.deviceFree != nil {
		t.moveDevices(row, devices, int16(sign*r.share))
	}
	if t.tasks != nil {
		t.tasks[row] += sign
	}
	t.rescore(row)
	t.touch(row)
}

func (t *Table) moveDevices(row int, devices Devices, milli int16) {
	lanes := t.deviceFree[row*MaxDevices:][:MaxDevices]
	for rest := devices; rest != 0; rest &= rest - 1 {
		lanes[rest.Lowest()] -= milli
	}
	var whole, largest int32
	for _, free := range lanes {
		if free >= policyabi.DeviceMilli {
			whole++
		}
		largest = max(largest, int32(free))
	}
	if t.deviceWhole != nil {
		t.deviceWhole[row] = whole
	}
	if t.deviceLargest != nil {
		t.deviceLargest[row] = largest
	}
}
