package decision

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/paceline-sched/paceline/core/host"
	"github.com/paceline-sched/paceline/core/placement"
	"github.com/paceline-sched/paceline/core/shard"
)

// The bounds of a world.
const (
	// aheadFor is how long what only a contender placed waits to be asked for again, nanoseconds of recorded time.
	aheadFor = int64(time.Minute)
	// maxRetries bounds the requests that are tried again before one batch.
	maxRetries = 64
	// shownHosts bounds the hosts that a difference names.
	shownHosts = 4
)

// seatState says where a task is in a world.
type seatState uint8

const (
	gone seatState = iota
	seated
	waiting
)

// seat is a task's place in a world.
type seat struct {
	state   seatState
	row     host.Row // where it sits, or sat last; host.NoRow: nowhere yet
	devices placement.DeviceSet
	ports   []uint16
	since   int64 // seated: since when; waiting: likewise
	group   *group
}

// group is tasks that wait for each other: a gang, or what is left of one request.
type group struct {
	requests []placement.Request // Count is that of the tasks
	tasks    [][]*task
	left     int
	served   placement.Served // by whom the request was answered when it was recorded
	own      bool             // the policy is asked
}

// answer is what a world made of one request: seats for its tasks, those that stood ahead first.
type answer struct {
	seats []seat
	asked int // tasks
}

// world is a shard as it would be with another policy.
type world struct {
	index  int // in task.seats
	table  *host.Table
	placer placement.Placer
	native placement.Placer // for what the contender is not asked
	out    *comparison

	rows    residents
	waiting []*group
	freed   bool // room came free since waiting tasks were tried
	ahead   map[placement.ClassID][]seat
	asked   map[placement.ClassID]asked
	swept   int64
	fresh   map[uint32]*group // by unit: of the batch that is being matched
	queued  []*group          // likewise
	own     bool              // likewise: the policy was asked
}

// asked is when a class was asked for last.
type asked struct {
	at    int64
	class *placement.Class
}

func newWorld(c *Contender, out *comparison, index int, s *host.State) (*world, error) {
	w := &world{
		index: index, out: out, native: newStrategist(""), rows: residents{}, ahead: map[placement.ClassID][]seat{},
		asked: map[placement.ClassID]asked{}, fresh: map[uint32]*group{},
	}
	var err error
	if w.table, err = host.Restore(shard.MaxRows, s); err != nil {
		return nil, err
	}
	if w.placer, err = c.New(w.table.Names()); err != nil {
		return nil, fmt.Errorf("policy %s: %w", c.Name, err)
	}
	return w, nil
}

func (w *world) close() {
	if c, ok := w.placer.(interface{ Close() }); ok {
		c.Close()
	}
}

// abandon ends a world: what waits was never placed.
func (w *world) abandon(at int64) {
	for _, g := range w.waiting {
		w.never(g, at)
	}
	w.waiting = nil
}

func (w *world) never(g *group, at int64) {
	for _, tasks := range g.tasks {
		for _, t := range tasks {
			if t != nil {
				w.out.Waits.Never++
				w.waited(at - t.seats[w.index].since)
			}
		}
	}
}

func (w *world) waited(nanos int64) {
	w.out.waits = append(w.out.waits, float64(max(nanos, 0))/1e9)
}

// upsert repeats that a host changed.
func (w *world) upsert(h *host.Host) {
	_, _ = w.table.Upsert(*h) // the recorded table, whose hosts are the same, took it
	w.freed = true
}

// remove repeats that a host left. Tasks that stood there in this world wait for another one.
func (w *world) remove(row host.Row, at int64) {
	for _, t := range w.rows.of(row) {
		w.rows.remove(row, t)
		s := &t.seats[w.index]
		if t.aside || t.request.Class == nil { // the recorded cell lost it as well, or nobody knows how to place it
			s.state = gone
			continue
		}
		w.out.Displaced++
		s.state, s.since, s.group = waiting, at, &group{requests: []placement.Request{t.request}, tasks: [][]*task{{t}}, left: 1, served: t.served, own: t.own}
		w.waiting = append(w.waiting, s.group)
	}
	for class, seats := range w.ahead { // each on its own
		w.ahead[class] = slices.DeleteFunc(seats, func(s seat) bool { return s.row == row })
	}
	w.table.Remove(row)
	w.freed = true
}

// back puts a task where it was, after its host was entered anew.
func (w *world) back(t *task, row host.Row) {
	s := &t.seats[w.index]
	if s.state != gone || s.row != row {
		return
	}
	w.seat(t, row, s.devices, s.ports, s.since)
}

// outside repeats that room was taken on a host, whether it is free here or not.
func (w *world) outside(t *task, row host.Row) {
	free := w.table.Free(row)
	if !t.occupant.Needs.FitsIn(&free) {
		w.out.Overfull++
	}
	w.seat(t, row, t.occupant.Devices, t.occupant.Ports, t.at)
}

func (w *world) occupant(t *task, devices placement.DeviceSet, ports []uint16) host.Occupant {
	o := t.occupant
	o.Devices, o.Ports = devices, ports
	return o
}

// seat takes room for a task.
func (w *world) seat(t *task, row host.Row, devices placement.DeviceSet, ports []uint16, at int64) {
	s := &t.seats[w.index]
	if w.table.Take(row, w.occupant(t, devices, ports)) != nil {
		s.state = gone
		return
	}
	*s = seat{state: seated, row: row, devices: devices, ports: ports, since: at}
	w.rows.add(row, t)
}

// end repeats that a task ended.
func (w *world) end(t *task, at int64) {
	s := &t.seats[w.index]
	switch s.state {
	case seated:
		w.rows.remove(s.row, t)
		o := w.occupant(t, s.devices, s.ports)
		w.release(s.row, &o)
	case waiting:
		w.out.Waits.Never++
		w.waited(at - s.since)
		w.unqueue(t)
	case gone:
	}
	s.state = gone
}

func (w *world) release(row host.Row, o *host.Occupant) {
	if w.table.Release(row, *o) == nil { // it is gone with its host, where that left here too
		w.freed = true
	}
}

// unqueue takes a task out of those that wait.
func (w *world) unqueue(t *task) {
	s := &t.seats[w.index]
	g := s.group
	s.state, s.group = gone, nil
	for i, tasks := range g.tasks {
		if n := slices.Index(tasks, t); n >= 0 {
			g.tasks[i] = slices.Delete(tasks, n, n+1)
			g.requests[i].Count--
			g.left--
		}
	}
	if g.left == 0 {
		w.waiting = slices.DeleteFunc(w.waiting, func(o *group) bool { return o == g })
	}
}

// serve answers a batch: first those are tried again that wait, then what does not stand ahead is asked of the policy.
func (w *world) serve(d *Decision, own bool) []answer {
	w.own = own
	w.sweep(d.At)
	w.retry(d.At)
	answers := make([]answer, len(d.Requests))
	requests := make([]placement.Request, 0, len(d.Requests))
	at := make([]int, 0, len(d.Requests))
	for i := range d.Requests {
		r := d.Requests[i]
		w.asked[r.Class.ID] = asked{d.At, r.Class}
		answers[i].asked = r.Count
		w.takeAhead(&r, &answers[i])
		if r.Count > 0 {
			requests = append(requests, r)
			at = append(at, i)
		}
	}
	if len(requests) == 0 {
		w.same(d, answers, nil)
		return answers
	}
	results := w.place(d, requests, own)
	for n, i := range at {
		for _, a := range results[n].Assignments {
			answers[i].seats = append(answers[i].seats, seat{state: seated, row: a.Row, devices: a.Devices, ports: a.Ports, since: d.At})
		}
	}
	w.same(d, answers, results)
	return answers
}

// asker is the policy, or who stands in for it.
func (w *world) asker(own bool) placement.Placer {
	if own {
		return w.placer
	}
	return w.native
}

// place asks the policy, or who stands in for it.
func (w *world) place(d *Decision, requests []placement.Request, own bool) []placement.Result {
	placer := w.asker(own)
	began := time.Now()
	var results []placement.Result
	fuel := int64(0)
	for _, stretch := range stretches(d, len(requests)) {
		if f, ok := placer.(placement.Follower); ok {
			f.Follow(stretch)
		}
		found := placer.Place(w.table, requests[len(results):len(results)+stretch.Requests])
		for len(found) < stretch.Requests {
			found = append(found, placement.Result{})
		}
		results = append(results, found[:stretch.Requests]...)
		if witness, ok := placer.(placement.Witness); ok {
			for _, served := range witness.Served() {
				fuel += served.Fuel
				w.out.Faults += served.Faults
			}
		}
	}
	w.out.gather.batch(time.Since(began), fuel)
	return results
}

// stretches is how a batch is cut: as it was recorded, or not at all when this world asks for something else.
func stretches(d *Decision, requests int) []placement.Served {
	total := 0
	for i := range d.Served {
		total += d.Served[i].Requests
	}
	if len(d.Requests) == requests && total == requests {
		return d.Served
	}
	return []placement.Served{{Requests: requests}}
}

// same counts batches that got the same answer.
func (w *world) same(d *Decision, answers []answer, results []placement.Result) {
	if len(results) != len(d.Results) {
		return
	}
	for i := range results {
		if len(answers[i].seats) != len(results[i].Assignments) || !sameResult(&results[i], &d.Results[i]) {
			return
		}
	}
	w.out.Identical++
}

func sameResult(a, b *placement.Result) bool {
	if a.Refused != b.Refused || (a.Refused > 0 && a.Reasons != b.Reasons) {
		return false
	}
	return slices.EqualFunc(a.Assignments, b.Assignments, func(a, b placement.Assignment) bool {
		return a.Row == b.Row && a.Devices == b.Devices && slices.Equal(a.Ports, b.Ports)
	})
}

// takeAhead answers a request with what stands ahead of it.
func (w *world) takeAhead(r *placement.Request, a *answer) {
	list := w.ahead[r.Class.ID]
	n := min(len(list), r.Count)
	if n == 0 || (r.Gang && n < r.Count) {
		return
	}
	a.seats = slices.Clone(list[:n])
	r.Count -= n
	if w.ahead[r.Class.ID] = list[n:]; len(list) == n {
		delete(w.ahead, r.Class.ID)
	}
}

// sweep gives back what stands ahead of tasks that are not asked for any more.
func (w *world) sweep(at int64) {
	if at-w.swept < int64(time.Second) {
		return
	}
	w.swept = at
	for id, last := range w.asked { // each on its own
		if at-last.at < aheadFor {
			continue
		}
		for i := range w.ahead[id] {
			s := &w.ahead[id][i]
			o := last.class.Occupant(s.devices, s.ports)
			w.release(s.row, &o)
		}
		delete(w.ahead, id)
		delete(w.asked, id)
	}
}

// retry asks for those who wait, when room came free.
func (w *world) retry(at int64) {
	if !w.freed || len(w.waiting) == 0 {
		return
	}
	w.freed = false
	refused := map[placement.ClassID]bool{}
	tries := 0
	kept := w.waiting[:0]
	for _, g := range w.waiting {
		alone := len(g.requests) == 1 && !g.requests[0].Gang
		if tries >= maxRetries || (alone && refused[g.requests[0].Class.ID]) {
			kept = append(kept, g)
			w.freed = w.freed || tries >= maxRetries // the others are tried next time
			continue
		}
		tries++
		w.try(g, at)
		if g.left > 0 {
			if alone {
				refused[g.requests[0].Class.ID] = true
			}
			kept = append(kept, g)
		}
	}
	clear(w.waiting[len(kept):])
	w.waiting = kept
}

// try asks for one group.
func (w *world) try(g *group, at int64) {
	var requests []placement.Request
	var tasks [][]*task
	for i := range g.requests {
		if g.requests[i].Count > 0 {
			requests, tasks = append(requests, g.requests[i]), append(tasks, slices.Clone(g.tasks[i]))
		}
	}
	placer := w.asker(g.own)
	if f, ok := placer.(placement.Follower); ok {
		f.Follow(g.served)
	}
	results := placer.Place(w.table, requests)
	for i := range min(len(results), len(requests)) {
		for n, a := range results[i].Assignments[:min(len(results[i].Assignments), len(tasks[i]))] {
			t := tasks[i][n]
			s := &t.seats[w.index]
			w.waited(at - s.since)
			w.drop(g, t)
			*s = seat{state: seated, row: a.Row, devices: a.Devices, ports: a.Ports, since: at} // the policy has taken the room
			w.rows.add(a.Row, t)
		}
	}
}

// drop takes a task out of its group alone.
func (w *world) drop(g *group, t *task) {
	for i, tasks := range g.tasks {
		if n := slices.Index(tasks, t); n >= 0 {
			g.tasks[i] = slices.Delete(tasks, n, n+1)
			g.requests[i].Count--
			g.left--
		}
	}
}

// match ties the recorded tasks of a request to the seats that this world found: those on the same host first, then one after the other. It returns the first difference.
func (w *world) match(d *Decision, i int, tasks []*task, a *answer) *Difference {
	byRow := map[host.Row][]int{} // seats, the last one is taken first
	for n := len(a.seats) - 1; n >= 0; n-- {
		byRow[a.seats[n].row] = append(byRow[a.seats[n].row], n)
	}
	used := make([]bool, len(a.seats))
	var rest []*task
	for _, t := range tasks {
		list := byRow[t.row]
		if len(list) == 0 {
			rest = append(rest, t)
			continue
		}
		n := list[len(list)-1]
		byRow[t.row], used[n] = list[:len(list)-1], true
		w.out.Same++
		w.assign(t, a.seats[n], d.At)
	}
	var free []seat
	for n, s := range a.seats {
		if !used[n] {
			free = append(free, s)
		}
	}
	if len(rest) == 0 && len(free) == 0 {
		return nil
	}
	difference := &Difference{Sequence: d.Sequence, Time: time.Unix(0, d.At).UTC(), Request: i, Tasks: max(len(rest), len(free))}
	for n := range min(shownHosts, len(rest)) {
		difference.Recorded = append(difference.Recorded, w.hostName(rest[n].row))
	}
	for n := range min(shownHosts, len(free)) {
		difference.Other = append(difference.Other, w.hostName(free[n].row))
	}
	both := min(len(rest), len(free))
	w.out.Elsewhere += both
	w.out.OnlyFirst += len(rest) - both
	w.out.OnlySecond += len(free) - both
	for n := range both {
		w.assign(rest[n], free[n], d.At)
	}
	if both < len(rest) {
		w.queue(d, i, rest[both:])
	}
	if both < len(free) {
		id := d.Requests[i].Class.ID
		w.ahead[id] = append(w.ahead[id], free[both:]...)
	}
	return difference
}

func (w *world) hostName(row host.Row) string {
	if h := w.table.Host(row); h != nil {
		return h.Name
	}
	return fmt.Sprint("row ", row)
}

// assign gives a task a seat whose room is taken.
func (w *world) assign(t *task, s seat, at int64) {
	if s.since < at {
		w.out.Waits.Sooner++
		w.out.sooner += float64(at-s.since) / 1e9
	}
	t.seats[w.index] = s
	w.rows.add(s.row, t)
}

// queue has tasks of a request wait, together with those of their unit.
func (w *world) queue(d *Decision, i int, tasks []*task) {
	left := d.Requests[i]
	g := w.fresh[left.Unit]
	if g == nil || left.Unit == 0 {
		g = &group{own: w.own, served: d.server(i)}
		w.queued = append(w.queued, g)
		if left.Unit != 0 {
			w.fresh[left.Unit] = g
		}
	}
	left.Count = len(tasks)
	g.requests = append(g.requests, left)
	g.tasks = append(g.tasks, slices.Clone(tasks))
	g.left += len(tasks)
	for _, t := range tasks {
		t.seats[w.index] = seat{state: waiting, row: host.NoRow, since: d.At, group: g}
	}
}

// server is who answered a request, without the calls that it took.
func (d *Decision) server(request int) placement.Served {
	for i := range d.Served {
		if request -= d.Served[i].Requests; request < 0 {
			return placement.Served{By: d.Served[i].By, Digest: d.Served[i].Digest}
		}
	}
	return placement.Served{}
}

// settleWaiting puts those of a batch who have to wait behind the others.
func (w *world) settleWaiting() {
	w.waiting = append(w.waiting, w.queued...)
	w.queued = w.queued[:0]
	clear(w.fresh)
}

// residents is tasks by row.
type residents map[host.Row]map[*task]struct{}

func (r residents) add(row host.Row, t *task) {
	if r[row] == nil {
		r[row] = map[*task]struct{}{}
	}
	r[row][t] = struct{}{}
}

func (r residents) remove(row host.Row, t *task) {
	if delete(r[row], t); len(r[row]) == 0 {
		delete(r, row)
	}
}

// of lists the tasks of a row in the order in which they came.
func (r residents) of(row host.Row) []*task {
	list := make([]*task, 0, len(r[row]))
	for t := range r[row] {
		list = append(list, t)
	}
	slices.SortFunc(list, func(a, b *task) int { return cmp.Compare(a.number, b.number) })
	return list
}

func rowsOf(seats []seat) []host.Row {
	rows := make([]host.Row, len(seats))
	for i := range seats {
		rows[i] = seats[i].row
	}
	return rows
}

// add counts how two lists of hosts agree.
func (a *Agreement) add(first, second []host.Row) {
	hosts := map[host.Row]int{}
	for _, row := range second {
		hosts[row]++
	}
	missing, left := 0, len(second)
	for _, row := range first {
		if hosts[row] > 0 {
			hosts[row]--
			left--
			a.Same++
		} else {
			missing++
		}
	}
	both := min(missing, left)
	a.Elsewhere += both
	a.OnlyFirst += missing - both
	a.OnlySecond += left - both
}
