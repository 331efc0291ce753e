package sim

import (
	"fmt"
	"math"
	"runtime/debug"
	"slices"
	"time"

	"github.com/paceline-sched/paceline/core/scheduler"
)

// maxMoments bounds the things that happen in one run: beyond, the cell is taken to run in circles.
const maxMoments = 4_000_000

// origin is when virtual time begins: late enough that times in records are not taken for zero.
const origin = int64(1_000_000 * time.Second)

// world is one run.
type world struct {
	opts     Options
	random   random // of the generators
	script   *script
	plans    []clusterPlan
	now      int64
	moments  int
	agenda   agenda
	calm     bool // nothing goes wrong any more
	cell     *cell
	clusters []*cluster
	users    *users
	disturb  func() // what an answer rests on that is held up; nil: nobody does
	rooms    *rooms // that are made by preemption
	policies *policies
	judge    *judge // of what is durable
	truth    *truth // of what really runs
	watchers []*watcher
	report   Report
}

// Failure is a broken promise of the system under test, with the moment it was seen.
type Failure struct {
	Options  Options
	Checker  Checker
	At       time.Duration // of virtual time
	Message  string
	Scenario *Scenario // the run, spelled out
}

// Checker names what found a broken promise.
type Checker string

// The checkers.
const (
	CheckHosts       Checker = "hosts"       // no host, device or port serves more than it has
	CheckRuns        Checker = "runs"        // every run and instance lives once, where its record says, as its spec says
	CheckGangs       Checker = "gangs"       // gangs are admitted, bound and launched whole, in one generation
	CheckPools       Checker = "pools"       // the pools' books are those of their instances, within limit, entitlement and reservation
	CheckEntitlement Checker = "entitlement" // entitlements are what a naive computation gives, and add up
	CheckQueues      Checker = "queues"      // nobody takes what the first in line waits for
	CheckRecords     Checker = "records"     // the records give the state, and the disk holds them
	CheckDurability  Checker = "durability"  // nothing leaves before it is durable
	CheckAnswers     Checker = "answers"     // users are answered once, truly
	CheckWatches     Checker = "watches"     // every change is seen once, in order
	CheckVictims     Checker = "victims"     // who makes room may go, and for whom he does
	CheckRooms       Checker = "rooms"       // room that is made serves whom it was made for, and is kept for nobody else
	CheckLending     Checker = "lending"     // in quiet everybody comes to what he is entitled to, and nobody goes in circles
	CheckConvergence Checker = "convergence" // what can run runs, what is stopped leaves nothing
	CheckProgram     Checker = "program"     // no panic, no error where there can be none
)

func (f *Failure) Error() string {
	return fmt.Sprintf("%v\nafter %v, by the checker of %s: %s", f.Options.String(), f.At, f.Checker, f.Message)
}

// Run simulates one cell. A broken promise is a *Failure.
func Run(opts Options) (Report, error) { return run(opts, nil) }

// Run plays the scenario once more. A broken promise is a *Failure.
func (s *Scenario) Run() (Report, error) { return run(s.Options, s) }

// run is generated, or follows a scenario.
func run(opts Options, from *Scenario) (Report, error) { return newWorld(opts, from).play(from) }

func newWorld(opts Options, from *Scenario) *world {
	w := &world{opts: opts, random: newRandom(opts.Seed), now: origin, script: newScript(from)}
	w.report.Faults, w.report.Rooms, w.report.Policies = map[string]int{}, map[string]int{}, map[string]int{}
	return w
}

// play has a new world go through all its phases.
func (w *world) play(from *Scenario) (report Report, err error) {
	defer func() {
		w.report.Virtual = time.Duration(w.now - origin)
		w.countStruck()
		report = w.report
		switch r := recover().(type) {
		case nil:
		case *Failure:
			w.trace("FAILED: %s", r.Message)
			err = r
		default: // a broken invariant of the program itself
			w.trace("FAILED: panic: %v", r)
			err = w.failure(CheckProgram, fmt.Sprintf("panic: %v\n%s", r, debug.Stack()))
		}
	}()
	w.build(from)
	w.suffer(from)
	w.mend()
	w.finish()
	return report, nil
}

// countStruck adds what the clusters did by themselves to the faults.
func (w *world) countStruck() {
	for _, c := range w.clusters {
		s := c.world.Struck()
		for kind, n := range map[string]int{
			"status-lost": s.LostStatuses, "status-duplicated": s.DuplicatedStatuses, "status-delayed": s.DelayedStatuses,
			"launch-failed": s.FailedLaunches,
		} {
			if n > 0 {
				w.report.Faults[kind] += n
			}
		}
	}
}

func (w *world) failure(by Checker, message string) *Failure {
	played := w.opts
	played.Faults, played.CallEvery, played.Hosts = Faults{}, 0, 0 // a scenario draws none of that
	return &Failure{
		Options: w.opts, Checker: by, At: time.Duration(w.now - origin), Message: message,
		Scenario: &Scenario{Checker: by, Options: played, Clusters: w.plans, Events: w.script.recorded},
	}
}

// fail ends the run.
func (w *world) fail(by Checker, format string, args ...any) {
	panic(w.failure(by, fmt.Sprintf(format, args...)))
}

func (w *world) must(err error) {
	if err != nil {
		w.fail(CheckProgram, "%v", err)
	}
}

func (w *world) trace(format string, args ...any) {
	if w.opts.Trace != nil {
		_, _ = fmt.Fprintf(w.opts.Trace, "%12v  %s\n", time.Duration(w.now-origin), fmt.Sprintf(format, args...))
	}
}

// fault counts and tells that something goes wrong.
func (w *world) fault(kind, format string, args ...any) {
	w.report.Faults[kind]++
	w.trace("*** "+kind+": "+format, args...)
}

func (w *world) after(d time.Duration, do func()) { w.agenda.add(w.now+int64(d), do) }

// again has something happen every so often, until the world is calm.
func (w *world) again(mean time.Duration, do func()) {
	if mean == 0 {
		return
	}
	w.after(w.random.around(mean), func() {
		if !w.calm {
			do()
			w.again(mean, do)
		}
	})
}

// link carries messages in order.
type link struct {
	w      *world
	jitter random
	place  place // of the fault that makes a message slow
	last   int64
}

func (w *world) link(jitter random, name string) link {
	return link{w: w, jitter: jitter, place: place{slowMessage, name}}
}

func (l *link) send(do func()) { l.sendLate(0, do) }

// sendLate sends something that is held up on its way, with all that comes after it.
func (l *link) sendLate(late time.Duration, do func()) {
	took := l.jitter.between(20*time.Microsecond, 2*time.Millisecond)
	if slow, is := l.w.strikes(l.place, l.w.opts.Faults.SlowMessage, l.w.lasting(0, 5*time.Second)); is {
		took = time.Duration(slow)
	}
	l.last = max(l.w.now+int64(took+late), l.last)
	l.w.agenda.add(l.last, do)
}

// runUntil lets everything happen that is due up to a time.
func (w *world) runUntil(end int64) {
	for {
		next := int64(math.MaxInt64)
		if at, ok := w.agenda.next(); ok {
			next = at
		}
		var due *cluster
		for _, c := range w.clusters {
			if at, ok := c.world.Next(); ok && at.UnixNano() < next {
				next, due = at.UnixNano(), c
			}
		}
		if next > end {
			w.now = max(w.now, end)
			return
		}
		if w.moments++; w.moments > maxMoments {
			w.fail(CheckConvergence, "the cell does not come to rest in %d moments", maxMoments)
		}
		w.now = max(w.now, next)
		if due != nil {
			due.advance()
		} else {
			w.agenda.pop().do()
		}
	}
}

func (w *world) build(from *Scenario) {
	w.trace("%v", &w.opts)
	w.judge, w.truth, w.rooms, w.policies = newJudge(w), newTruth(w), newRooms(w), newPolicies(w)
	if from != nil {
		w.plans = from.Clusters
	} else {
		for n := range w.opts.Clusters {
			w.plans = append(w.plans, w.drawCluster(n))
		}
	}
	for n := range w.plans {
		w.clusters = append(w.clusters, newCluster(w, n))
	}
	w.cell = newCell(w)
	w.users = newUsers(w)
	for _, watcher := range []*watcher{{name: "quick", every: 500 * time.Millisecond, page: 1000}, {name: "slow", every: 20 * time.Second, page: 7}} {
		watcher.w, watcher.jitter = w, newJitter(w.opts.Seed, watcher.name)
		w.watchers = append(w.watchers, watcher)
	}
	w.cell.start()
}

// suffer is the first phase.
func (w *world) suffer(from *Scenario) {
	for _, watcher := range w.watchers {
		watcher.start()
	}
	w.policies.generate()
	if from == nil {
		w.generate()
	} else {
		for _, e := range from.Events {
			if !slices.Contains(passing, e.what) {
				w.agenda.add(origin+int64(e.at), func() { w.perform(e) })
			}
		}
	}
	w.runUntil(origin + int64(w.opts.Safety))
}

// generate has users act and faults strike by chance.
func (w *world) generate() {
	f := &w.opts.Faults
	if w.opts.Lending {
		newLenders(w).generate()
	} else {
		w.again(w.opts.CallEvery, w.users.act)
	}
	w.again(f.CoreCrashEvery, func() { w.perform(event{what: coreCrash}) })
	w.again(f.ClockEvery, func() { w.perform(event{what: clockJump, value: w.drawSkew()}) })
	w.again(f.WatchEvery, func() {
		w.perform(event{what: watchStalls, who: pick(w.random, w.watchers...).name, value: int64(w.random.between(time.Second, time.Minute))})
	})
	for _, c := range w.clusters {
		w.again(f.ShardCrashEvery, func() { w.perform(event{what: shardCrash, who: c.name}) })
		w.again(f.ReattachEvery, func() { w.perform(event{what: shardReattached, who: c.name, value: int64(w.random.IntN(2))}) })
		w.again(f.CutEvery, func() {
			w.perform(event{what: clusterCut, who: c.name, value: int64(w.random.between(10*time.Millisecond, 40*time.Second))})
		})
		w.again(f.HostEvery, c.drawStrike)
		w.again(f.LoseClusterEvery, c.drawLoss)
	}
}

// drawSkew is where a clock jumps to.
func (w *world) drawSkew() int64 {
	return int64(pick(w.random, 0, w.random.between(-time.Minute, time.Minute), w.random.between(0, 2*time.Second)))
}

func (w *world) stallWatcher(name string, d time.Duration) bool {
	for _, watcher := range w.watchers {
		if watcher.name == name {
			w.fault(watchStalls, "%s for %v", name, d)
			watcher.until = w.now + int64(d)
			return true
		}
	}
	return false
}

// mend is the second phase: what went wrong is made good, and all that can run must run.
func (w *world) mend() {
	w.calm = true
	w.trace("--- faults stop")
	w.cell.mend()
	w.policies.mend()
	w.runUntil(w.now + int64(time.Minute))
	if w.opts.Lending {
		w.quieten()
	}
	for _, c := range w.clusters {
		c.heal()
		c.enlarge()
	}
	w.users.lift()
	w.settle("work does not come to its end", w.users.waitsFor)
}

// finish is the third phase: everything is stopped, and nothing may be left.
func (w *world) finish() {
	w.trace("--- everything stops")
	w.users.stopAll()
	w.settle("something is left of work that was stopped", w.remains)
	w.now += int64(time.Minute) // the watchers have their time
	w.runUntil(w.now)
	for _, watcher := range w.watchers {
		watcher.catchUp()
	}
	w.cell.compareNow()
	w.cell.compareStore()
}

// settle runs until open finds nothing more, looking every few virtual seconds.
func (w *world) settle(complaint string, open func() string) {
	end := w.now + int64(w.opts.Mend)
	for {
		w.runUntil(w.now + int64(5*time.Second))
		rest := open()
		if rest == "" {
			return
		}
		if w.now >= end {
			w.fail(CheckConvergence, "%s in %v:\n%s", complaint, w.opts.Mend, rest)
		}
	}
}

// remains is what is left in a cell where nothing is wanted.
func (w *world) remains() string {
	c := w.cell
	if c.state == nil || len(c.events) > 0 || len(c.pending) > 0 {
		return "the core is busy"
	}
	reader := c.state.Reader()
	jobs, _ := reader.Jobs(0, 1<<20, scheduler.JobFilter{})
	for _, j := range jobs {
		if !j.State.Terminal() {
			return w.describe(j)
		}
	}
	for _, p := range reader.Pools("/") {
		if !p.Usage.IsZero() || p.Waiting > 0 || p.Jobs > 0 {
			return fmt.Sprintf("pool %s: usage %v, %d waiting, %d jobs", p.Path, p.Usage, p.Waiting, p.Jobs)
		}
	}
	if v := reader.Cell(); !v.Used.IsZero() {
		return fmt.Sprintf("the cell uses %v", v.Used)
	}
	for _, c := range w.clusters {
		if rest := c.remains(); rest != "" {
			return rest
		}
	}
	return ""
}
