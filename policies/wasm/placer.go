package wasm

import (
	"fmt"
	"time"

	"github.com/paceline-sched/paceline/core/host"
	"github.com/paceline-sched/paceline/core/placement"
	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/workload"
	"github.com/paceline-sched/paceline/sdk/policyabi"
)

// PlacerConfig is what a Placer is made of.
type PlacerConfig struct {
	Slot *Slot
	// Names of the resources of the tables that are served, for policies that want named ones. Default nil: there are none.
	Names *resource.Names
	// Fallback serves what a faulty policy did not, and everything while the slot is empty. Default: a native placer.
	Fallback placement.Placer
	// OnFault is told of every fault, by the goroutine that asked for placement, before the fallback serves.
	OnFault func(*Fault)
	// OnCall is told of every call that succeeded.
	OnCall func(Call)
	// CallWork fixes how much work one call holds, in rows looked at, a task counting for 64. Default 0: as much as takes half a millisecond.
	CallWork int64
	// Seed and Time of a batch, for policies that draw or look at the clock: Place has neither. Default nil: always 0.
	Moment func() (seed uint64, now time.Time)
	// Expected is the class mix that policies are told, weights above 0 whose sum need not be 1; of more than policyabi.MaxMix classes the heaviest. Default nil: what was asked for lately.
	Expected []placement.Share
}

// Call is one call of a policy.
type Call struct {
	Digest   Digest
	Requests int
	Tasks    int // asked for
	Placed   int
	Fuel     int64 // that it might have used
	Used     int64 // that it used
	Took     time.Duration
	// Computed is how much of it the call had a processor, as far as that can be told: on a busy machine a call may wait for one.
	Computed time.Duration
	Memory   int    // bytes of the instance's memory, after the call
	Results  []byte // as the policy wrote them; good until OnCall returns
}

// Placer serves a shard's table with the policy in a slot. It implements placement.Placer, and Plan for trying out.
type Placer struct {
	config   PlacerConfig
	native   *placement.Native
	fallback placement.Placer
	mix      mix

	version  *Version // counted
	instance *Instance
	image    *image
	restore  []host.Row // rows named in the last results
	taken    []uint64   // by row: the epoch of the call that took room there last
	call     call
	planning bool // nothing of it will be done
	record   record
}

var _ placement.Placer = (*Placer)(nil)

// NewPlacer returns a placer without an instance; the first batch makes one.
func NewPlacer(config PlacerConfig) *Placer {
	p := &Placer{config: config, native: placement.NewNative(), fallback: config.Fallback}
	if p.fallback == nil {
		p.fallback = p.native
	}
	if config.Expected != nil {
		p.mix.fix(config.Expected)
	}
	return p
}

// Settle lets go of a version that is in force no more, before the next batch would.
func (p *Placer) Settle() {
	if p.version != nil {
		p.enter()
	}
}

// Close lets go of the version that the placer works with.
func (p *Placer) Close() { p.leave() }

func (p *Placer) leave() {
	p.discard()
	if p.version != nil {
		p.version.release()
		p.version = nil
	}
}

func (p *Placer) discard() {
	if p.instance != nil {
		p.instance.close()
		p.instance = nil
	}
	p.image = nil
}

// enter moves to the version in force. It reports false when there is none.
func (p *Placer) enter() bool {
	v := p.config.Slot.acquire()
	if v == nil {
		p.leave()
		return false
	}
	if v == p.version {
		v.release() // it is counted once for the placer
		return true
	}
	p.leave()
	p.version = v
	return true
}

// Place implements placement.Placer:
//  1. requests that only the native placer serves, gangs that look for a domain or whose members bear on one another, go to it;
//  2. those between them go to the policy, in as few calls as their size allows;
//  3. what a fault left undone goes to the fallback.
func (p *Placer) Place(t *host.Table, requests []placement.Request) []placement.Result {
	if !p.enter() {
		p.record.served = placement.Served{Requests: len(requests)}
		return p.fallback.Place(t, requests)
	}
	p.begin(len(requests))
	results := make([]placement.Result, len(requests))
	for from := 0; from < len(requests); {
		to := from
		for to < len(requests) && p.forPolicy(t, &requests[to]) {
			if !p.planning {
				p.mix.add(&requests[to])
			}
			to++
		}
		if to > from {
			p.serve(t, requests[from:to], results[from:to])
			from = to
			continue
		}
		for to < len(requests) && !p.forPolicy(t, &requests[to]) {
			to++
		}
		p.version.counters.Native.Add(uint64(to - from))
		copy(results[from:], p.native.Place(t, requests[from:to]))
		from = to
	}
	if !p.planning {
		p.record.follow = nil
	}
	return results
}

// forPolicy reports whether a policy can serve a request: where the tasks of a gang have to find a domain together, or bear on where the others may go, that choice is the
// native placer's.
func (p *Placer) forPolicy(t *host.Table, r *placement.Request) bool {
	return r.Unit == 0 && (r.Within.Key == "" || r.Within.Domain != "") && r.Class != nil && r.Count > 0 &&
		(!r.Gang || p.native.Rows(t, r.Class).Local())
}

// Plan answers as Place would and leaves the table as it was.
func (p *Placer) Plan(t *host.Table, requests []placement.Request) []placement.Result {
	p.planning = true
	results := p.Place(t, requests)
	p.planning = false
	for i := len(results) - 1; i >= 0; i-- {
		if len(results[i].Assignments) > 0 {
			p.native.Rows(t, requests[i].Class).Undo(results[i].Assignments)
		}
	}
	return results
}

// item is a request that is being served.
type item struct {
	request *placement.Request
	result  *placement.Result
	rows    *placement.Rows
	left    int
	done    bool
}

// serve serves requests in order. Each round is one call with as many of them as it has room for.
func (p *Placer) serve(t *host.Table, requests []placement.Request, results []placement.Result) {
	items := make([]item, len(requests))
	for i := range requests {
		items[i] = item{request: &requests[i], result: &results[i], rows: p.native.Rows(t, requests[i].Class), left: requests[i].Count}
	}
	for len(items) > 0 {
		if items[0].done {
			items = items[1:]
			continue
		}
		if f := p.round(t, items); f != nil {
			p.discard()
			if !p.planning {
				p.record.served.Faults++
			}
			if p.config.OnFault != nil {
				p.config.OnFault(f)
			}
			p.fallBack(t, items)
			return
		}
	}
}

// fallBack serves what is left after a fault. A gang goes back to the beginning.
func (p *Placer) fallBack(t *host.Table, items []item) {
	for i := range items {
		it := &items[i]
		if it.done {
			continue
		}
		p.version.counters.Fallbacks.Add(1)
		if it.request.Gang {
			it.rows.Undo(it.result.Assignments)
			it.result.Assignments, it.left = nil, it.request.Count
		}
		rest := *it.request
		rest.Count = it.left
		if found := p.fallback.Place(t, []placement.Request{rest}); len(found) == 1 {
			it.result.Assignments = append(it.result.Assignments, found[0].Assignments...)
			it.result.Refused, it.result.Reasons = found[0].Refused, found[0].Reasons
		}
	}
}

// round makes one call for the first of the items and takes what it answers.
func (p *Placer) round(t *host.Table, items []item) *Fault {
	if f := p.ready(t); f != nil {
		return f
	}
	p.image.follow()
	n := p.compose(t, items)
	m, c := p.image, &p.call
	fuel := p.version.budget.fuel(c.work, p.instance.size(), p.version.limits.CallFuel)
	m.send(p.instance, p.restore, c.used)
	p.restore = p.restore[:0]
	began, thread := time.Now(), time.Duration(0)
	if p.config.OnCall != nil {
		thread = threadTime()
	}
	count, err := p.instance.call(policyabi.Place, n, fuel)
	took := time.Since(began)
	counters := &p.version.counters
	counters.Nanos.Add(uint64(took))
	p.spent(p.instance.used(fuel))
	if err != nil {
		return asFault(err)
	}
	p.version.budget.took(c.work, took)
	placed, f := p.apply(t, items[:n], count)
	if f != nil {
		return f
	}
	counters.Requests.Add(uint64(n))
	counters.Tasks.Add(uint64(placed))
	if p.config.OnCall != nil {
		p.config.OnCall(Call{
			Digest: p.version.digest, Requests: n, Tasks: c.tasks, Placed: placed, Fuel: fuel, Used: p.instance.used(fuel), Took: took, Computed: computedSince(thread, took),
			Memory: p.instance.size(), Results: m.results(p.instance, count),
		})
	}
	return nil
}

func asFault(err error) *Fault {
	if f, ok := err.(*Fault); ok { //nolint:errorlint // made in this package, never wrapped
		return f
	}
	return &Fault{Kind: FaultStart, Err: err}
}

// ready makes an image and an instance where there are none that fit.
func (p *Placer) ready(t *host.Table) *Fault {
	if p.image != nil && p.image.fits(t) {
		return nil
	}
	p.discard()
	m, err := newImage(t, p.config.Names, p.version)
	if err != nil {
		p.version.counters.fault(FaultStart)
		return &Fault{Kind: FaultStart, Policy: p.version.Name(), Digest: p.version.digest, Doing: "lay out the table", Err: err}
	}
	seed, _ := p.moment()
	in, err := p.version.start(m.b, &m.layout, seed)
	if err != nil {
		return asFault(err)
	}
	p.image, p.instance = m, in
	p.taken = make([]uint64, m.header.Capacity)
	p.restore = p.restore[:0]
	return nil
}

func (p *Placer) moment() (uint64, time.Time) {
	if p.config.Moment == nil {
		return 0, time.UnixMilli(0)
	}
	return p.config.Moment()
}

// apply takes the rows that a call returned, after a look at each. On a fault the table is as it was before the call.
func (p *Placer) apply(t *host.Table, items []item, count int) (int, *Fault) {
	if count > maxCallTasks {
		return 0, p.instance.fault(FaultResult, policyabi.ExportPlace, fmt.Errorf("it returned %d results, there is room for %d", count, maxCallTasks))
	}
	h := &p.image.header
	raw := p.image.results(p.instance, count)
	for i := range count { // a policy may have taken what it answers off its copy of the table, also where that is not taken up
		if row := le.Uint32(raw[i*policyabi.ResultBytes+policyabi.ResultHost:]); row < h.Rows {
			p.restore = append(p.restore, host.Row(row))
		}
	}
	a := applying{placer: p, table: t, items: items}
	for i := range items {
		a.before = append(a.before, len(items[i].result.Assignments))
	}
	for i := range count {
		more, err := a.row(raw[i*policyabi.ResultBytes:])
		if err != nil {
			a.rollBack()
			return 0, p.instance.fault(err.kind, policyabi.ExportPlace, fmt.Errorf("result %d: %s", i, err.why))
		}
		if !more {
			return a.placed, nil // a conflict: the rest is asked for again
		}
	}
	for a.at < len(items) {
		a.finish()
	}
	return a.placed, nil
}

// applying is the state of taking in the results of one call.
type applying struct {
	placer *Placer
	table  *host.Table
	items  []item
	before []int // assignments of each item before the call
	at     int   // the item whose results are being read
	here   int   // tasks placed for it in this call
	placed int
	gone   []int // gangs that were given back
}

// wrong is a result that cannot be.
type wrong struct {
	kind FaultKind
	why  string
}

// row takes in one result. It reports false when the result no longer fits, because of earlier ones of the same call.
func (a *applying) row(raw []byte) (bool, *wrong) {
	r, err := policyabi.DecodeResult(raw)
	switch {
	case err != nil:
		return false, &wrong{FaultResult, err.Error()}
	case int(r.Request) >= len(a.items) || int(r.Request) < a.at:
		return false, &wrong{FaultResult, fmt.Sprintf("it is for request %d of %d, after one for request %d", r.Request, len(a.items), a.at)}
	}
	for a.at < int(r.Request) {
		a.finish()
	}
	if r.Host == policyabi.NoRow {
		return true, nil
	}
	it := &a.items[a.at]
	asked := a.placer.call.asked[a.at]
	switch {
	case r.Host >= uint32(a.table.Rows()) || !a.table.Has(host.Row(r.Host)):
		return false, &wrong{FaultRow, fmt.Sprintf("there is no host at row %d", r.Host)}
	case r.Count == 0 || int(r.Count) > asked-a.here:
		return false, &wrong{FaultRow, fmt.Sprintf("%d tasks on row %d, request %d has %d left", r.Count, r.Host, r.Request, asked-a.here)}
	case r.Devices != 0 && r.Count != 1:
		return false, &wrong{FaultRow, fmt.Sprintf("devices for %d tasks at once", r.Count)}
	}
	row := host.Row(r.Host)
	for range r.Count {
		if ok, w := a.take(it, row, placement.DeviceSet(r.Devices)); !ok {
			return false, w
		}
	}
	return true, nil
}

// take takes room for one task.
func (a *applying) take(it *item, row host.Row, devices placement.DeviceSet) (bool, *wrong) {
	epoch := a.placer.image.header.Epoch
	fits := a.placer.call.open(a.at).Has(row) && it.rows.Fits(row)
	var got placement.Assignment
	if fits && devices != 0 {
		got, fits = it.rows.TakeOn(row, devices)
	} else if fits {
		got = it.rows.Take(row)
	}
	if !fits {
		if a.placed > 0 && (a.placer.taken[row] == epoch || !it.rows.Plain()) {
			a.placer.version.counters.Conflicts.Add(1)
			return false, nil
		}
		return false, &wrong{FaultRow, fmt.Sprintf("host %s at row %d cannot take a task of request %d", a.table.Host(row).Name, row, a.at)}
	}
	a.placer.taken[row] = epoch
	it.result.Assignments = append(it.result.Assignments, got)
	it.left--
	a.here++
	a.placed++
	return true, nil
}

// finish ends the item whose results were being read, and goes to the next.
func (a *applying) finish() {
	it := &a.items[a.at]
	asked := a.placer.call.asked[a.at]
	if it.left == 0 || a.here < asked { // all placed, or the policy finds no more
		a.settle(it)
	}
	a.at++
	a.here = 0
}

// settle makes the result of an item final.
func (a *applying) settle(it *item) {
	it.done = true
	if it.left == 0 {
		return
	}
	r := it.result
	r.Refused = it.left
	if it.request.Gang {
		a.gone = append(a.gone, a.at)
		it.rows.Undo(r.Assignments)
		r.Assignments, r.Refused = nil, it.request.Count
	}
	r.Reasons = a.placer.reasons(a.table, it)
}

// reasons says why tasks of a class find no room. A policy may refuse hosts that have room: they are in no count.
func (p *Placer) reasons(t *host.Table, it *item) placement.Reasons {
	if it.request.Host != (workload.HostID{}) || it.request.Within.Domain != "" {
		asked := *it.request
		asked.Count, asked.Gang = max(it.left, 1), false
		return p.native.Plan(t, []placement.Request{asked})[0].Reasons
	}
	reasons := p.native.Explain(t, it.request.Class)
	if it.request.Gang {
		feasible := reasons.Hosts
		for _, n := range reasons.Counts {
			feasible -= n
		}
		reasons.Counts[placement.ReasonGang] = feasible
		reasons.GangLargest, reasons.GangSize = it.request.Count-it.left, it.request.Count
	}
	return reasons
}

// rollBack makes the table what it was before the call.
func (a *applying) rollBack() {
	for _, i := range a.gone { // gangs that were given back, with what earlier calls had placed: they begin anew
		a.items[i].left, a.before[i] = a.items[i].request.Count, 0
	}
	for i := len(a.items) - 1; i >= 0; i-- {
		it := &a.items[i]
		taken := it.result.Assignments[a.before[i]:]
		it.rows.Undo(taken)
		it.left += len(taken)
		it.result.Assignments = it.result.Assignments[:a.before[i]]
		it.done = false
	}
}
