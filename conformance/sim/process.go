package sim

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/paceline-sched/paceline/core/driver"
	"github.com/paceline-sched/paceline/core/scheduler"
	"github.com/paceline-sched/paceline/core/shard"
	"github.com/paceline-sched/paceline/core/workload"
	"github.com/paceline-sched/paceline/hostmanagers/simulated"
)

// How a failed call of the driver is tried again, as hostmanagers/shard does.
const (
	firstBackoff = 100 * time.Millisecond
	maxBackoff   = 10 * time.Second
	maxAttempts  = 8
)

// process is one life of a shard: a machine with its connection to the cluster. It does what hostmanagers/shard does, in one goroutine.
type process struct {
	c       *cluster
	w       *world
	machine *shard.Machine
	out     shard.Output
	conn    *simulated.Driver
	cancel  context.CancelFunc
	heard   link // from the driver
	told    link // to the core
	calls   []*job
	calling bool
	retry   []*job // wait for the driver to be back
	lost    bool   // the driver is out of contact
	dead    bool
	wakes   int
}

// job is a call on its way to the driver.
type job struct {
	call    shard.Call
	attempt int
}

var errCall = errors.New("the cluster did not take the call")

func newProcess(c *cluster) *process {
	machine, err := shard.New(shard.Config{ID: c.id, Cluster: c.name, Reconciles: true})
	c.w.must(err)
	ctx, cancel := context.WithCancel(context.Background())
	p := &process{
		c: c, w: c.w, machine: machine, conn: c.world.Driver(), cancel: cancel,
		heard: c.w.link(c.jitter, c.name+"/heard"), told: c.w.link(c.jitter, c.name+"/told"),
	}
	c.w.trace("shard %s starts", c.id)
	c.w.must(p.conn.Start(ctx, p))
	return p
}

// die ends the process. The call that is on the wire may happen nevertheless, with nobody left to hear of it.
func (p *process) die() {
	if p.calling && p.c.jitter.IntN(2) == 0 {
		_ = p.make(p.calls[0].call) // nobody is left to care
	}
	p.dead = true
	p.cancel()
}

// Inventory implements driver.Sink.
func (p *process) Inventory(i driver.Inventory) {
	p.w.judge.heard(p.c, i.Runs)
	p.hear(shard.InventoryArrived{Inventory: i})
}

// HostsChanged implements driver.Sink.
func (p *process) HostsChanged(changed []driver.Host, removed []string) {
	p.hear(shard.HostsUpdated{Changed: changed, Removed: removed})
}

// Statuses implements driver.Sink.
func (p *process) Statuses(list []driver.Status) {
	p.w.judge.heard(p.c, list)
	p.hear(shard.StatusesArrived{Statuses: p.reorder(list)})
}

// reorder has statuses of different runs change places at times. Those of one run keep their order: so much a driver promises.
func (p *process) reorder(list []driver.Status) []driver.Status {
	list = slices.Clone(list)
	first := func(a driver.Status) bool { return a.Run != list[0].Run }
	if !slices.ContainsFunc(list, first) {
		return list
	}
	how, is := p.w.strikes(place{reordered, p.c.name}, p.w.opts.Faults.ReorderStatus, func() int64 { return p.w.random.Int64() })
	if !is {
		return list
	}
	// Every run draws a place; sorting by it is stable.
	rank := map[workload.RunID]int64{}
	r := newRandom(uint64(how))
	for n := range list {
		if _, drawn := rank[list[n].Run]; !drawn {
			rank[list[n].Run] = r.Int64()
		}
	}
	slices.SortStableFunc(list, func(a, b driver.Status) int { return cmp.Compare(rank[a.Run], rank[b.Run]) })
	return list
}

// Disconnected implements driver.Sink.
func (p *process) Disconnected(reason error) { p.hear(shard.DriverLost{Reason: reason.Error()}) }

func (p *process) hear(m shard.Message) {
	p.heard.send(func() {
		if p.dead {
			return
		}
		switch m.(type) {
		case shard.DriverLost:
			p.lost = true
		case shard.InventoryArrived:
			p.lost = false
			for _, j := range p.retry {
				j.attempt = 0
				p.calls = append(p.calls, j)
			}
			p.retry = nil
			p.pump()
		}
		p.handle(m)
	})
}

// handle gives the machine a message and passes on what it says.
func (p *process) handle(m shard.Message) {
	if p.w.opts.Trace != nil {
		p.w.trace("    %s <- %s", p.c.id, traceMessage(m))
	}
	p.machine.Handle(p.w.now, m, &p.out)
	epoch := p.out.Epoch
	for _, r := range p.out.Replies {
		r = p.misname(r)
		p.told.sendLate(p.heldUp(r), func() {
			if p.w.opts.Trace != nil {
				p.w.trace("    %s -> %s under %v", p.c.id, traceReply(r), epoch)
			}
			p.w.cell.replied(scheduler.ShardReplied{Shard: p.c.id, Epoch: epoch, Reply: r})
		})
	}
	for _, call := range p.out.Calls {
		p.calls = append(p.calls, &job{call: call})
	}
	p.pump()
	p.armWake(p.out.NextWake)
}

// heldUp is for how long an answer about room is held up, while the cell moves on.
func (p *process) heldUp(r shard.Reply) time.Duration {
	if _, is := r.(shard.Pledged); !is {
		return 0
	}
	late, struck := p.w.strikes(place{slowAnswer, p.c.name}, p.w.opts.Faults.SlowAnswer, p.w.lasting(100*time.Millisecond, 8*time.Second))
	if struck && p.w.disturb != nil {
		p.w.after(time.Duration(late)/2, p.w.disturb)
	}
	return time.Duration(late)
}

// misname has an answer about room name runs that have nothing to do with it, as a shard might whose books are wrong: those of one job, as far as
// they run in its cluster, or one of any. The core is to take nothing of it on trust.
func (p *process) misname(r shard.Reply) shard.Reply {
	answer, is := r.(shard.Pledged)
	if !is || p.w.cell.state == nil {
		return r
	}
	how, struck := p.w.strikes(place{wrongVictims, p.c.name}, p.w.opts.Faults.WrongVictims, func() int64 { return p.w.random.Int64() })
	if !struck {
		return r
	}
	var byJob [][]workload.RunID
	reader := p.w.cell.state.Reader()
	jobs, _ := reader.Jobs(0, 1<<20, scheduler.JobFilter{})
	for n := range jobs {
		var runs []workload.RunID
		tasks, _ := reader.Tasks(jobs[n].ID, 0, 1<<20, scheduler.TaskFilter{})
		for i := range tasks {
			if t := &tasks[i]; t.Cluster == p.c.name && t.RunState.Live() && t.RunState != workload.RunKilling {
				runs = append(runs, workload.RunID{Job: jobs[n].ID, Instance: t.Instance, Generation: t.Generation, Run: t.Run})
			}
		}
		if len(runs) > 0 {
			byJob = append(byJob, runs)
		}
	}
	random := newRandom(uint64(how))
	answer.Results = slices.Clone(answer.Results)
	for n := range answer.Results {
		if len(byJob) == 0 || len(answer.Results[n].Pledges) == 0 {
			continue
		}
		pledges := slices.Clone(answer.Results[n].Pledges)
		more := pick(random, byJob...)
		if random.IntN(2) == 0 {
			more = []workload.RunID{pick(random, more...)}
		}
		pledges[0].Victims = append(slices.Clone(pledges[0].Victims), more...)
		answer.Results[n].Pledges = pledges
	}
	return answer
}

func (p *process) armWake(at int64) {
	p.wakes++
	if at == 0 {
		return
	}
	armed := p.wakes
	p.w.agenda.add(max(at, p.w.now), func() {
		if !p.dead && p.wakes == armed {
			p.handle(shard.Wake{})
		}
	})
}

// pump makes the next call, one at a time.
func (p *process) pump() {
	if p.calling || len(p.calls) == 0 {
		return
	}
	p.calling = true
	took := p.c.jitter.between(10*time.Microsecond, 20*time.Millisecond)
	if slow, is := p.w.strikes(place{slowCall, p.c.name}, p.w.opts.Faults.SlowCall, p.w.lasting(0, 25*time.Second)); is {
		took = time.Duration(slow)
	}
	p.w.after(took, func() {
		if p.dead {
			return
		}
		p.calling = false
		j := p.calls[0]
		p.calls = p.calls[1:]
		j.attempt++
		err := errCall
		if _, fails := p.w.strikes(place{callFails, p.c.name}, p.w.opts.Faults.CallFailure, nothing); !fails {
			err = p.make(j.call)
		}
		if err != nil {
			p.failed(j, err)
		}
		p.pump()
	})
}

// failed answers for a launch, and tries everything else again.
func (p *process) failed(j *job, err error) {
	p.w.trace("%s: %T: %v", p.c.id, j.call, err)
	if l, ok := j.call.(shard.LaunchCall); ok {
		m := shard.LaunchFailed{Reason: err.Error()}
		for i := range l.Launches {
			m.Runs = append(m.Runs, l.Launches[i].Run)
		}
		p.handle(m)
		return
	}
	if j.attempt >= maxAttempts {
		return
	}
	if p.lost {
		p.retry = append(p.retry, j)
		return
	}
	p.w.after(min(firstBackoff<<(j.attempt-1), maxBackoff), func() {
		switch {
		case p.dead:
		case p.lost:
			p.retry = append(p.retry, j)
		default:
			p.calls = append(p.calls, j)
			p.pump()
		}
	})
}

// make makes one call of the driver, under the eyes of the judge.
func (p *process) make(call shard.Call) error {
	ctx := context.Background()
	hook := p.w.opts.Interpose
	if hook != nil && hook.Call != nil {
		if call = hook.Call(p, call); call == nil {
			return nil
		}
	}
	if p.w.opts.Trace != nil {
		p.w.trace("    %s calls %s", p.c.name, traceCall(call))
	}
	var err error
	switch call := call.(type) {
	case shard.LaunchCall:
		p.w.judge.launching(p.c, call.Launches)
		if err = p.conn.Launch(ctx, call.Launches); err == nil {
			p.w.judge.launchedLate(call.Launches)
			p.w.truth.launched(call.Launches)
		}
	case shard.KillCall:
		p.w.judge.killing(call.Kills)
		err = p.conn.Kill(ctx, p.c.mortal(call.Kills))
	case shard.AckCall:
		p.w.judge.acknowledging(p.c, call.Tokens)
		err = p.conn.Acknowledge(ctx, call.Tokens)
	case shard.ReconcileCall:
		err = p.conn.Reconcile(ctx, call.Runs)
	}
	p.w.truth.look(p.c)
	return err
}
