package sim

import (
	"fmt"
	"strings"
	"time"

	"github.com/paceline-sched/paceline/core/driver"
	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/respool"
	"github.com/paceline-sched/paceline/core/scheduler"
	"github.com/paceline-sched/paceline/core/store/record"
	"github.com/paceline-sched/paceline/core/workload"
)

// lendEvery is how many seeds there are for one in which pools lend to one another.
const lendEvery = 3

// misnamingEvery is how many seeds there are for one whose shards name wrong victims. They lend.
const misnamingEvery = 8 * lendEvery

// lends reports whether the pools of a seed lend: its users come in tides, pool by pool, so that those who have lent want back what is theirs.
func lends(seed uint64) bool { return seed%lendEvery == 0 }

// lend makes options those of a cell whose pools lend. Faults are rarer than elsewhere, as room is made over seconds, and strike what makes
// room: kills that are slow or do nothing, and whole clusters.
func (o *Options) lend() {
	r := newRandom(o.Seed ^ 0x1e4d)
	o.Lending = true
	o.CallEvery = r.between(300*time.Millisecond, 1500*time.Millisecond)
	o.PreemptionsPerSecond = pick(r, 2, 5, 20, 500)
	f := &o.Faults
	f.StubbornKill = pick(r, 0, 30, 100)
	f.SlowAnswer = pick(r, 0, 100, 400)
	f.LoseClusterEvery = pick(r, 0, time.Minute, 3*time.Minute)
	f.HostEvery *= 3
	f.CoreCrashEvery, f.ShardCrashEvery, f.ReattachEvery, f.CutEvery = 2*f.CoreCrashEvery, 2*f.ShardCrashEvery, 2*f.ReattachEvery, 2*f.CutEvery
	if o.Seed%misnamingEvery == 0 {
		f.WrongVictims = 300
	}
	if f.SlowMessage > 0 {
		f.SlowMessage *= 2
	}
}

// maxLentJobs bounds the jobs that are not ended where pools lend.
const maxLentJobs = 45

// lenders are users who come in tides.
type lenders struct {
	w     *world
	u     *users
	pools []*lentPool // parents first
	high  map[string]bool
}

// lentPool is a pool as its users last asked for it.
type lentPool struct {
	path  string
	inner bool
	pool  respool.Pool
}

func newLenders(w *world) *lenders { return &lenders{w: w, u: w.users, high: map[string]bool{}} }

// generate has pools founded, and users come and go.
func (l *lenders) generate() {
	l.w.disturb = l.disturb
	l.u.call(scheduler.NameResources{Names: []string{licence}})
	l.found()
	for _, p := range l.pools {
		l.high[p.path] = l.w.random.IntN(2) == 0
	}
	l.w.again(l.w.opts.CallEvery, l.act)
	l.w.again(12*time.Second, l.turn)
	l.w.again(10*time.Second, l.fill)
}

// found makes a tree of pools of every kind, with reservations in parts of what the clusters have.
func (l *lenders) found() {
	r := l.w.random
	add := func(path string, percent int64, change func(*respool.Pool)) {
		p := &lentPool{path: path, pool: respool.Pool{Kind: respool.Elastic, Share: int64(1 + r.IntN(3)), Reservation: l.part(percent)}}
		if change != nil {
			change(&p.pool)
		}
		l.pools = append(l.pools, p)
		l.u.call(scheduler.ApplyPool{ID: workload.PoolID(l.u.id()), Path: path, Pool: p.pool})
	}
	add("/own", 40, nil)
	l.pools[0].inner = true
	add("/own/web", int64(10+r.IntN(15)), nil)
	add("/own/night", int64(r.IntN(16)), nil)
	add("/lab", int64(5+r.IntN(20)), func(p *respool.Pool) {
		if r.IntN(2) == 0 {
			p.Queue = respool.QueuePolicy{Order: respool.Order(r.IntN(int(respool.OrderExpress) + 1)), Backfill: respool.Backfill(r.IntN(2))}
		}
	})
	add("/free", 0, nil)
	add("/still", int64(5+r.IntN(10)), func(p *respool.Pool) { p.Kind = respool.Static })
	add("/edge", 5, func(p *respool.Pool) {
		p.Limit = p.Limit.With(resource.CPU, l.part(40)[resource.CPU])
		p.UserLimit = p.UserLimit.With(resource.CPU, l.part(15)[resource.CPU])
		p.ControllerPercent, p.RevocablePercent = uint8(20+r.IntN(80)), uint8(10+r.IntN(90))
	})
}

// part is so many hundredths of what the clusters have, in round figures.
func (l *lenders) part(percent int64) (v resource.Vector) {
	var cpu, memory int64
	for n := range l.w.plans {
		for i := range l.w.plans[n].Hosts {
			cpu += l.w.plans[n].Hosts[i].Capacity["cpu_milli"]
			memory += l.w.plans[n].Hosts[i].Capacity["memory_mib"]
		}
	}
	v[resource.CPU], v[resource.Memory] = cpu*percent/100/250*250, memory*percent/100/128*128
	return v
}

// turn turns the tide of one pool: its users come all at once, or most of them leave.
func (l *lenders) turn() {
	if l.w.cell.state == nil {
		return
	}
	r := l.w.random
	p := l.leaf()
	l.high[p.path] = !l.high[p.path]
	l.w.trace("the tide of %s turns: high %v", p.path, l.high[p.path])
	if l.high[p.path] {
		for range 2 + r.IntN(4) {
			l.submit(p.path)
		}
		return
	}
	for _, j := range l.jobsOf(p.path) {
		if r.IntN(4) > 0 {
			l.u.call(scheduler.StopJob{Job: j.ID})
		}
	}
}

func (l *lenders) leaf() *lentPool {
	for {
		if p := pick(l.w.random, l.pools...); !p.inner {
			return p
		}
	}
}

func (l *lenders) jobsOf(path string) (open []scheduler.JobView) {
	jobs, _ := l.w.cell.state.Reader().Jobs(0, 1<<20, scheduler.JobFilter{})
	for n := range jobs {
		if !jobs[n].State.Terminal() && (path == "" || jobs[n].PoolPath == path) {
			open = append(open, jobs[n])
		}
	}
	return open
}

// act is one thing that a user does.
func (l *lenders) act() {
	if l.w.cell.state == nil {
		return
	}
	r := l.w.random
	if u := l.u; len(u.unsure) > 0 {
		s := u.unsure[0]
		u.unsure = u.unsure[1:]
		u.call(s.command)
		return
	}
	switch n := r.IntN(100); {
	case n < 60:
		l.flow(l.leaf().path)
	case n < 70:
		l.moveReservation()
	case n < 74:
		l.edit()
	case n < 79:
		l.u.onSomeJob(func(j scheduler.JobView) scheduler.Command {
			return scheduler.RestartJob{Job: j.ID, Batch: uint32(r.IntN(4)), Grace: pick(r, 0, 3*time.Second)}
		})
	case n < 85:
		hosts, _ := l.w.cell.state.Reader().Hosts("", "", 1000)
		if len(hosts) > 0 {
			l.u.call(scheduler.DrainHost{Host: hosts[r.IntN(len(hosts))].ID, Draining: r.IntN(3) == 0})
		}
	case n < 88:
		l.u.call(scheduler.PlanJob{Spec: l.draw("/free")})
	case n < 94:
		l.u.onSomeJob(func(j scheduler.JobView) scheduler.Command {
			return scheduler.StopJob{Job: j.ID, Delete: r.IntN(3) == 0}
		})
	default:
		l.submit("/default")
	}
}

// flow goes with the tide of a pool.
func (l *lenders) flow(path string) {
	switch jobs := l.jobsOf(path); {
	case l.high[path]:
		l.submit(path)
	case len(jobs) > 0:
		l.u.call(scheduler.StopJob{Job: jobs[l.w.random.IntN(len(jobs))].ID})
	}
}

func (l *lenders) submit(path string) {
	if len(l.jobsOf("")) < maxLentJobs {
		l.u.call(l.u.submission(l.draw(path), l.w.random.IntN(2) == 0))
	}
}

// disturb changes what an answer that is under way rests on: whose the reservations are, who demands something, which hosts are there.
func (l *lenders) disturb() {
	r := l.w.random
	if l.w.calm || l.w.cell.state == nil {
		return
	}
	switch r.IntN(3) {
	case 0:
		for range 6 {
			l.moveReservation()
		}
	case 1:
		for range 3 {
			path := l.leaf().path
			for _, j := range l.jobsOf(path) {
				l.u.call(scheduler.StopJob{Job: j.ID})
			}
		}
	case 2:
		for _, c := range l.w.clusters {
			for range 2 {
				l.w.after(0, c.drawStrike)
			}
		}
	}
}

// fill has those who only borrow take what nobody uses.
func (l *lenders) fill() {
	if l.w.cell.state == nil {
		return
	}
	r := l.w.random
	cell := l.w.cell.state.Reader().Cell()
	idle := cell.Capacity[resource.CPU] - cell.Used[resource.CPU]
	if len(l.jobsOf("")) >= 2*maxLentJobs || idle < cell.Capacity[resource.CPU]/8 {
		return
	}
	s := l.draw(pick(r, "/free", "/free", "/lab", "/own/night"))
	s.Preemptible, s.Gang, s.MaxRunning, s.Placement = true, nil, 0, workload.Placement{}
	s.Template.Needs = resource.Vector{resource.CPU: pick(r, int64(250), 500), resource.Memory: pick(r, int64(128), 256)}
	s.Instances = uint32(min(idle/s.Template.Needs[resource.CPU]+1, 100)) //nolint:gosec // between 1 and 100
	if r.IntN(2) == 0 {
		s.Kind, s.OnPreemption, s.MaxUnavailable, s.Template.Simulation = workload.Service, workload.PreemptRestart, 1+uint32(r.IntN(4)), workload.Simulation{}
	}
	l.u.call(l.u.submission(s, false))
}

// moveReservation gives a part of one pool's reservation to another of the same parent.
func (l *lenders) moveReservation() {
	from, to := l.leaf(), l.leaf()
	if from == to || parentOf(from.path) != parentOf(to.path) {
		return
	}
	moved := from.pool.Reservation.Scale(int64(1 + l.w.random.IntN(4)))
	for k := range moved {
		moved[k] /= 4
	}
	from.pool.Reservation, to.pool.Reservation = from.pool.Reservation.Sub(moved), to.pool.Reservation.Add(moved)
	for _, p := range []*lentPool{from, to} {
		if limit := p.pool.Limit.Of(resource.CPU); limit != respool.Unlimited {
			p.pool.Limit = p.pool.Limit.With(resource.CPU, max(limit, p.pool.Reservation[resource.CPU]))
		}
		l.apply(p)
	}
}

func parentOf(path string) string { return path[:strings.LastIndexByte(path, '/')] }

// edit changes something else of a pool.
func (l *lenders) edit() {
	r := l.w.random
	switch p := l.leaf(); r.IntN(3) {
	case 0:
		p.pool.Share = int64(r.IntN(5))
		l.apply(p)
	case 1:
		p.pool.Limit = p.pool.Limit.With(resource.CPU, p.pool.Reservation[resource.CPU]+l.part(int64(r.IntN(60)))[resource.CPU])
		l.apply(p)
	case 2:
		p.pool.Limit = respool.Limits{}
		l.apply(p)
	}
}

func (l *lenders) apply(p *lentPool) {
	l.u.call(scheduler.ApplyPool{ID: workload.PoolID(l.u.id()), Path: p.path, Pool: p.pool})
}

// draw makes a job that has to do with preemption in one way or another.
func (l *lenders) draw(path string) *workload.JobSpec {
	r := l.w.random
	pool, _ := l.w.cell.state.Reader().Pool(path)
	id := pool.Pool.ID
	if id == (workload.PoolID{}) {
		id = respool.DefaultID
	}
	s := &workload.JobSpec{
		Name: fmt.Sprintf("l%d", l.u.ids), Pool: id, Owner: pick(r, "ann", "bob", "cec"), Kind: workload.Batch, Priority: int32(r.IntN(101)),
		Labels: map[string]string{"team": pick(r, "red", "blue")}, Instances: 1 + uint32(r.IntN(12)), Preemptible: r.IntN(6) > 0,
		Retry:        workload.RetryPolicy{MaxRetries: uint32(r.IntN(4)), Initial: r.between(100*time.Millisecond, 3*time.Second), Max: 10 * time.Second},
		OnPreemption: pick(r, workload.PreemptRestart, workload.PreemptRestart, workload.PreemptRestart, workload.PreemptKill),
		Template: workload.TaskTemplate{
			Command: []string{"work"}, KillGrace: pick(r, 0, time.Second, 5*time.Second, 20*time.Second),
			Needs:  resource.Vector{resource.CPU: pick(r, int64(250), 250, 500, 500, 1000, 2000), resource.Memory: pick(r, int64(0), 128, 256, 1024)},
			Labels: map[string]string{"app": pick(r, "web", "db")},
		},
	}
	if r.IntN(2) == 0 {
		s.Template.Simulation = workload.Simulation{Duration: r.between(10*time.Second, 3*time.Minute), FailurePerMille: int32(pick(r, 0, 0, 200))}
	}
	switch r.IntN(9) {
	case 0, 1:
		s.Kind, s.MaxUnavailable = workload.Service, min(uint32(pick(r, 0, 1, 1, 2, 4)), s.Instances)
		s.OnPreemption = workload.PreemptRestart
	case 2, 3:
		s.Gang = l.u.gang(s.Instances)
	case 4:
		s.MaxRunning = 1 + uint32(r.IntN(6))
	case 5:
		s.Revocable, s.Preemptible = true, true
	case 6:
		s.Controller = true
	}
	if r.IntN(3) == 0 {
		s.RunTime = time.Duration(1+r.IntN(200)) * time.Second
	}
	if r.IntN(10) == 0 {
		l.u.decorate(s)
	}
	return s
}

// drawLoss has a whole cluster go out of contact, and return.
func (c *cluster) drawLoss() {
	c.w.perform(event{what: clusterLost, who: c.name})
	empty := int64(c.w.random.IntN(2))
	c.w.after(c.w.random.between(5*time.Second, 90*time.Second), func() {
		if !c.w.calm {
			c.w.perform(event{what: clusterReturns, who: c.name, value: empty})
		}
	})
}

// loseHosts takes all hosts of a cluster out of contact at once.
func (c *cluster) loseHosts() bool {
	lost := 0
	for _, h := range c.hosts {
		if c.present[h.Name] && !c.down[h.Name] {
			c.down[h.Name] = true
			c.w.must(c.world.HostDown(h.Name))
			lost++
		}
	}
	if lost == 0 {
		return false
	}
	c.w.fault(clusterLost, "%s, %d hosts", c.name, lost)
	c.w.truth.look(c)
	return true
}

// returnHosts brings all hosts of a cluster back into contact, with what they ran or without.
func (c *cluster) returnHosts(empty bool) bool {
	back := 0
	for _, h := range c.hosts {
		if c.present[h.Name] && c.down[h.Name] {
			delete(c.down, h.Name)
			c.w.must(c.world.HostUp(h.Name, empty))
			back++
		}
	}
	if back == 0 {
		return false
	}
	c.w.fault(clusterReturns, "%s, %d hosts, empty %v", c.name, back, empty)
	c.w.truth.look(c)
	return true
}

// Work that users add when everything has become quiet has ids of its own, as a scenario does not count theirs.
const quietIDs = uint64(1) << 40

// floodTask is what one task of the work takes that wants more than there is.
var floodTask = resource.Vector{resource.CPU: 250, resource.Memory: 128}

// flood makes the load one that does not change any more, with more demand in every pool than there is room: what ends by itself is
// stopped, and every pool gets work without end.
func (u *users) flood() {
	reader := u.w.cell.state.Reader()
	jobs, _ := reader.Jobs(0, 1<<20, scheduler.JobFilter{})
	for n := range jobs {
		if j := &jobs[n]; !j.State.Terminal() && j.Spec.Template.Simulation.Duration > 0 {
			u.call(scheduler.StopJob{Job: j.ID})
		}
	}
	pools := reader.Pools("/")
	at := quietIDs
	for n := range pools {
		if p := &pools[n]; p.Path != "/" && leaf(pools, p.Path) {
			at++
			var id workload.ID
			id[0], id[7] = byte(at>>40), byte(at)
			spec := &workload.JobSpec{
				Name: fmt.Sprintf("flood%d", n), Pool: p.Pool.ID, Owner: "flood", Kind: workload.Batch, Priority: int32(n%2) * 100, Instances: 400,
				Preemptible: true, Retry: workload.RetryPolicy{Initial: time.Second, Max: 2 * time.Second},
				Template: workload.TaskTemplate{Command: []string{"work"}, KillGrace: time.Second, Needs: floodTask},
			}
			u.call(scheduler.SubmitJob{ID: workload.JobID(id), Spec: spec, SpecBytes: record.SpecSize(spec)})
		}
	}
}

// ebb stops what never ends and is no service: it would be waited for in vain.
func (u *users) ebb() {
	jobs, _ := u.w.cell.state.Reader().Jobs(0, 1<<20, scheduler.JobFilter{})
	for n := range jobs {
		if j := &jobs[n]; !j.State.Terminal() && j.Spec.Kind == workload.Batch && j.Spec.Template.Simulation.Duration == 0 {
			u.call(scheduler.StopJob{Job: j.ID})
		}
	}
}

// mortal leaves out the kills that do nothing: of runs that are struck so, for a while.
func (c *cluster) mortal(kills []driver.Kill) []driver.Kill {
	w := c.w
	if w.calm {
		return kills
	}
	until, struck := w.strikes(place{stubbornKill, c.name}, w.opts.Faults.StubbornKill, w.lasting(10*time.Second, 4*time.Minute))
	heeded := make([]driver.Kill, 0, len(kills))
	for _, k := range kills {
		if _, marked := c.stubborn[k.Run]; struck && !marked {
			c.stubborn[k.Run] = w.now + until
		}
		if c.stubborn[k.Run] <= w.now {
			heeded = append(heeded, k)
		}
	}
	return heeded
}
