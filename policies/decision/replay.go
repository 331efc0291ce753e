package decision

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/paceline-sched/paceline/core/fragment"
	"github.com/paceline-sched/paceline/core/host"
	"github.com/paceline-sched/paceline/core/placement"
	"github.com/paceline-sched/paceline/core/shard"
	"github.com/paceline-sched/paceline/core/workload"
)

// Options say what is replayed.
type Options struct {
	Range
	Contenders []Contender // one or more
	// Only limits the contenders to batches that asked for one of these strategies or policies; others are answered as recorded, by the built-in placer. Empty: all.
	Only []string
	// Differences bounds those that are listed for each contender.
	Differences int
}

// samples is how often tables are measured, over the whole time that is replayed.
const samples = 100

// Replay has the recorded cell and the contenders live through the wanted part of a log. Each contender has a table of its own for each shard, which begins as the recorded one did:
//   - a batch is given to all of them. Tasks are matched by class and batch, those on the same host first; when a recorded task ends, its match ends;
//   - what a contender places and the recorded cell did not stands ahead: it is taken for the task when that is asked for again, and given back when that does not
//     happen within a minute, as when another shard took it;
//   - what a contender does not place waits, and is tried again when room came free;
//   - hosts come, change and go alike, and room that was taken outside of batches is taken on the same hosts.
//
// The log does not say which of several tasks of one class on one host ended: the one that stands there longest is taken.
func Replay(ctx context.Context, dir string, o Options) (*Report, error) {
	if len(o.Contenders) == 0 {
		return nil, errors.New("a replay needs a policy")
	}
	all, err := Segments(dir)
	if err != nil {
		return nil, err
	}
	r := &replay{options: o, report: &Report{}, compared: make([]comparison, len(o.Contenders))}
	if len(o.Contenders) > 1 {
		r.report.Pair = &Agreement{}
	}
	defer r.close()
	chosen := o.choose(all)
	for _, segments := range chosen {
		r.report.Shards++
		r.report.Segments += len(segments)
		r.step = max((lastMoment(segments)-segments[0].Began)/samples, 1)
		if err := r.shard(ctx, segments); err != nil {
			return nil, err
		}
	}
	if r.report.Batches == 0 {
		return nil, fmt.Errorf("%s holds no batch in the time that is asked for: %d segments of %d shards were read", dir, r.report.Segments, r.report.Shards)
	}
	r.finish()
	return r.report, nil
}

// lastMoment is when the last segment ends, as far as is known without reading it.
func lastMoment(segments []Segment) int64 {
	last := segments[len(segments)-1]
	if at, err := lastTime(&last); err == nil {
		return at
	}
	return last.Began
}

func lastTime(s *Segment) (at int64, err error) {
	_, err = s.read(func(e Event) error {
		switch {
		case e.Decision != nil:
			at = e.Decision.At
		case e.Change != nil:
			at = e.Change.At
		}
		return nil
	})
	return at, err
}

// replay is the state of a Replay.
type replay struct {
	options  Options
	report   *Report
	compared []comparison
	recorded gather

	// Of the shard that is replayed.
	name      string
	table     *host.Table // as recorded
	worlds    []*world
	mix       fragment.Measure // of what was placed
	here      map[seatKey][]*task
	rows      residents
	aside     map[workload.HostID][]*task // recorded tasks of hosts that left the table, until the next batch
	occupants map[occupantKey]int
	tasks     uint64 // number of the next
	step      int64
	now       int64
	sampled   int64 // when the tables were measured last
}

// comparison is a Comparison in the making.
type comparison struct {
	Comparison
	gather gather
	waits  []float64 // seconds, of those that waited
	sooner float64   // seconds
}

// seatKey is what tasks on a host have in common that the log does not tell apart.
type seatKey struct {
	row      host.Row
	occupant int
	devices  placement.DeviceSet
	ports    string
}

// task is a recorded task, or room that was taken outside of batches.
type task struct {
	number   uint64
	request  placement.Request // for one task; Class is nil outside of batches
	served   placement.Served  // by whom it was placed
	own      bool              // a policy under test is asked for it
	occupant host.Occupant
	row      host.Row // as recorded
	aside    bool     // in replay.aside
	at       int64
	seats    []seat // by contender
}

// close ends the worlds of a shard.
func (r *replay) close() {
	for _, w := range r.worlds {
		w.abandon(r.now)
		w.close()
	}
	r.worlds = nil
}

// shard replays the segments of one shard.
func (r *replay) shard(ctx context.Context, segments []Segment) error {
	r.close()
	r.name, r.table, r.mix, r.sampled = segments[0].Shard, nil, fragment.Measure{}, 0
	for i := range segments {
		if err := ctx.Err(); err != nil {
			return err
		}
		if i > 0 && segments[i].Number != segments[i-1].Number+1 {
			r.table = nil // one is missing between them
			r.report.Gaps++
		}
		tail, err := segments[i].read(func(e Event) error { return r.event(ctx, e) })
		if errors.Is(err, errEnough) {
			break
		}
		if err != nil {
			return fmt.Errorf("%s: %w", segments[i].Path, err)
		}
		if tail.Err != nil {
			r.report.Torn++
		}
	}
	r.close()
	return nil
}

func (r *replay) event(ctx context.Context, e Event) error {
	switch {
	case e.Header != nil:
		if e.Header.Fresh || e.Header.Gap {
			r.table = nil
		}
		if e.Header.Gap {
			r.report.Gaps++
		}
		r.report.Dropped += e.Header.Dropped
	case e.State != nil:
		return r.state(e.State)
	case e.Change != nil:
		return r.change(e.Change)
	case e.Decision != nil:
		if r.options.Until != 0 && e.Decision.At > r.options.Until {
			return errEnough
		}
		if e.Decision.Sequence%256 == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		r.decide(e.Decision)
	}
	return nil
}

// state begins with a table, or compares it with the one that the segments before led to.
func (r *replay) state(s *host.State) error {
	if r.table != nil {
		for _, name := range s.Names {
			if _, err := r.table.Names().Intern(name); err != nil {
				return err
			}
		}
		same, err := sameState(r.table.State(), s)
		if err != nil || same {
			return err
		}
		r.report.Mismatches++
	}
	r.close()
	r.here, r.rows, r.aside, r.occupants = map[seatKey][]*task{}, residents{}, map[workload.HostID][]*task{}, map[occupantKey]int{}
	var err error
	if r.table, err = host.Restore(shard.MaxRows, s); err != nil {
		return err
	}
	for i := range r.options.Contenders {
		w, err := newWorld(&r.options.Contenders[i], &r.compared[i], i, s)
		if err != nil {
			return err
		}
		r.worlds = append(r.worlds, w)
	}
	return nil
}

func sameState(a, b *host.State) (bool, error) {
	left, err := json.Marshal(newStateForm(a))
	if err != nil {
		return false, err
	}
	right, err := json.Marshal(newStateForm(b))
	return bytes.Equal(left, right), err
}

func (r *replay) key(row host.Row, o *host.Occupant) seatKey {
	k := keyOf(o)
	n, known := r.occupants[k]
	if !known {
		n = len(r.occupants)
		r.occupants[k] = n
	}
	key := seatKey{row: row, occupant: n, devices: o.Devices}
	if len(o.Ports) > 0 {
		key.ports = fmt.Sprint(o.Ports)
	}
	return key
}

// settle enters a task where it is recorded to be.
func (r *replay) settle(t *task, row host.Row) {
	t.row = row
	key := r.key(row, &t.occupant)
	r.here[key] = append(r.here[key], t)
	r.rows.add(row, t)
}

// leave takes out the longest there of tasks that the log does not tell apart; nil: there is none that is followed.
func (r *replay) leave(row host.Row, o *host.Occupant) *task {
	key := r.key(row, o)
	list := r.here[key]
	if len(list) == 0 {
		return nil
	}
	t := list[0]
	if r.here[key] = list[1:]; len(list) == 1 {
		delete(r.here, key)
	}
	r.rows.remove(row, t)
	return t
}

// change repeats what happened outside of batches.
func (r *replay) change(c *Change) error {
	switch c.Kind {
	case Upserted:
		if _, err := r.table.Upsert(*c.Host); err != nil {
			return fmt.Errorf("repeat a change: %w", err)
		}
		for _, w := range r.worlds {
			w.upsert(c.Host)
		}
	case Removed:
		r.remove(c)
	case Drained, Undrained:
		r.table.SetDraining(c.Row, c.Kind == Drained)
		for _, w := range r.worlds {
			w.table.SetDraining(c.Row, c.Kind == Drained)
			w.freed = true
		}
	case Took:
		r.took(c)
	case Released:
		if err := r.table.Release(c.Row, c.Occupant); err != nil {
			return fmt.Errorf("repeat a change: %w", err)
		}
		t := r.leave(c.Row, &c.Occupant)
		for _, w := range r.worlds {
			if t == nil { // it was there before the recording began, and so in every world
				w.release(c.Row, &c.Occupant)
			} else {
				w.end(t, c.At)
			}
		}
	}
	return nil
}

// remove takes a host out. Who was there is set aside: a host that is entered anew in the same moment gets them back.
func (r *replay) remove(c *Change) {
	id := r.table.ID(c.Row)
	for _, t := range r.rows.of(c.Row) {
		key := r.key(c.Row, &t.occupant)
		r.here[key] = slices.DeleteFunc(r.here[key], func(o *task) bool { return o == t })
		if len(r.here[key]) == 0 {
			delete(r.here, key)
		}
		r.rows.remove(c.Row, t)
		t.aside = true
		r.aside[id] = append(r.aside[id], t)
	}
	r.table.Remove(c.Row)
	for _, w := range r.worlds {
		w.remove(c.Row, c.At)
	}
}

// took repeats that room was taken outside of batches.
func (r *replay) took(c *Change) {
	if r.table.Take(c.Row, c.Occupant) != nil {
		return
	}
	id, key := r.table.ID(c.Row), keyOf(&c.Occupant)
	for i, t := range r.aside[id] {
		if keyOf(&t.occupant) == key && t.occupant.Devices == c.Occupant.Devices && slices.Equal(t.occupant.Ports, c.Occupant.Ports) {
			r.aside[id] = slices.Delete(r.aside[id], i, i+1)
			t.aside = false
			r.settle(t, c.Row)
			for _, w := range r.worlds {
				w.back(t, c.Row)
			}
			return
		}
	}
	r.report.Outside++
	t := r.newTask(placement.Request{}, c.Occupant, c.At)
	r.settle(t, c.Row)
	for _, w := range r.worlds {
		w.outside(t, c.Row)
	}
}

func (r *replay) newTask(request placement.Request, o host.Occupant, at int64) *task {
	r.tasks++
	return &task{number: r.tasks, request: request, occupant: o, at: at, seats: make([]seat, len(r.worlds))}
}

// decide gives a batch to everybody.
func (r *replay) decide(d *Decision) {
	for _, tasks := range r.aside { // these have ended with their host; each is judged on its own
		for _, t := range tasks {
			for _, w := range r.worlds {
				w.end(t, d.At)
			}
		}
	}
	clear(r.aside)
	r.now = d.At
	r.count(d)
	own := len(r.options.Only) == 0 || slices.Contains(r.options.Only, d.Strategy)
	answers := make([][]answer, len(r.worlds))
	for i, w := range r.worlds {
		answers[i] = w.serve(d, own)
	}
	for i := range d.Requests {
		tasks := r.place(d, i, own)
		for n, w := range r.worlds {
			if x := w.match(d, i, tasks, &answers[n][i]); x != nil && len(w.out.Differences) < r.options.Differences {
				x.Shard = r.name
				w.out.Differences = append(w.out.Differences, *x)
			}
		}
		if r.report.Pair != nil {
			r.report.Pair.add(rowsOf(answers[0][i].seats), rowsOf(answers[1][i].seats))
		}
	}
	for _, w := range r.worlds {
		w.settleWaiting()
	}
	r.sample(d.At)
}

func (r *replay) count(d *Decision) {
	p := r.report
	at := time.Unix(0, d.At).UTC()
	if p.From.IsZero() || at.Before(p.From) {
		p.From = at
	}
	if at.After(p.Until) {
		p.Until = at
	}
	asked, placed := d.Tasks()
	p.Batches++
	p.Tasks += asked
	p.Placed += placed
	r.recorded.batch(d.Took, d.Fuel())
}

// place takes the recorded room for one request.
func (r *replay) place(d *Decision, i int, own bool) []*task {
	request := d.Requests[i]
	var tasks []*task
	for _, a := range d.Results[i].Assignments {
		o := request.Class.Occupant(a.Devices, a.Ports)
		if r.table.Take(a.Row, o) != nil {
			continue // the recorded shard did not accept it either
		}
		one := request
		one.Count, one.Want, one.Gang, one.Unit = 1, 0, false, 0
		t := r.newTask(one, o, d.At)
		t.served, t.own = d.server(i), own
		r.settle(t, a.Row)
		tasks = append(tasks, t)
	}
	if len(tasks) > 0 {
		r.mix.Add(request.Class, int64(len(tasks)))
	}
	return tasks
}

// sample measures the tables from time to time.
func (r *replay) sample(at int64) {
	if at-r.sampled < r.step {
		return
	}
	r.sampled = at
	r.measure(&r.recorded, r.table)
	for _, w := range r.worlds {
		r.measure(&w.out.gather, w.table)
	}
}

func (r *replay) measure(g *gather, t *host.Table) {
	free, capacity, used := int64(0), int64(0), 0
	for row := range host.Row(t.Rows()) {
		if !t.Has(row) {
			continue
		}
		whole, total := t.Lanes(row)
		for i := range total {
			capacity += total[i]
			free += whole[i]
		}
		if t.Tasks(row) > 0 {
			used++
		}
	}
	lost := 0.0
	if capacity > 0 {
		lost = r.mix.Of(t)
	}
	g.samples++
	g.lost += lost
	g.capacity += float64(capacity)
	g.allocated += float64(capacity - free)
	g.lostEnd, g.capacityEnd = lost, float64(capacity)
	g.used += float64(used)
	g.hosts += float64(t.Len())
}

// finish makes the report.
func (r *replay) finish() {
	r.report.Recorded = r.recorded.figures()
	for i := range r.compared {
		c := &r.compared[i]
		c.Name, c.Digest = r.options.Contenders[i].Name, r.options.Contenders[i].Digest
		c.Figures = c.gather.figures()
		c.Waits.Tasks = len(c.waits)
		c.Waits.Mean, c.Waits.P99 = meanAndP99(c.waits, max(r.report.Placed, len(c.waits)))
		if c.Waits.Sooner > 0 {
			c.Waits.SoonerS = c.sooner / float64(c.Waits.Sooner)
		}
		r.report.Policies = append(r.report.Policies, c.Comparison)
	}
}
