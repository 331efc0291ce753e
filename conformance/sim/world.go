package sim

import (
	"fmt"
	"math"
	"runtime/debug"
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
	random   random
	now      int64
	moments  int
	agenda   agenda
	calm     bool // nothing goes wrong any more
	cell     *cell
	clusters []*cluster
	users    *users
	judge    *judge // of what is durable
	truth    *truth // of what really runs
	watchers []*watcher
	report   Report
}

// Failure is a broken promise of the system under test, with the moment it was seen.
type Failure struct {
	Options Options
	At      time.Duration // of virtual time
	Message string
}

func (f *Failure) Error() string {
	return fmt.Sprintf("%v\nafter %v: %s", f.Options.String(), f.At, f.Message)
}

// Run simulates one cell. A broken promise is a *Failure.
func Run(opts Options) (report Report, err error) {
	w := &world{opts: opts, random: newRandom(opts.Seed), now: origin}
	w.report.Faults = map[string]int{}
	defer func() {
		w.report.Virtual = time.Duration(w.now - origin)
		report = w.report
		switch r := recover().(type) {
		case nil:
		case *Failure:
			w.trace("FAILED: %s", r.Message)
			err = r
		default: // a broken invariant of the program itself
			w.trace("FAILED: panic: %v", r)
			err = w.failure(fmt.Sprintf("panic: %v\n%s", r, debug.Stack()))
		}
	}()
	w.build()
	w.suffer()
	w.mend()
	w.finish()
	return report, nil
}

func (w *world) failure(message string) *Failure {
	return &Failure{Options: w.opts, At: time.Duration(w.now - origin), Message: message}
}

// fail ends the run.
func (w *world) fail(format string, args ...any) { panic(w.failure(fmt.Sprintf(format, args...))) }

func (w *world) must(err error) {
	if err != nil {
		w.fail("%v", err)
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

// wrong is whether a fault of that chance strikes now.
func (w *world) wrong(chance int) bool { return !w.calm && w.random.happens(chance) }

// latency is how long a message takes.
func (w *world) latency() time.Duration {
	if w.wrong(w.opts.Faults.SlowMessage) {
		w.report.Faults["slow message"]++
		return w.random.between(0, 5*time.Second)
	}
	return w.random.between(20*time.Microsecond, 2*time.Millisecond)
}

// link carries messages in order.
type link struct {
	w    *world
	last int64
}

func (l *link) send(do func()) {
	l.last = max(l.w.now+int64(l.w.latency()), l.last)
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
			w.fail("the cell does not come to rest in %d moments", maxMoments)
		}
		w.now = max(w.now, next)
		if due != nil {
			due.advance()
		} else {
			w.agenda.pop().do()
		}
	}
}

func (w *world) build() {
	w.trace("%v", &w.opts)
	w.judge, w.truth = newJudge(w), newTruth(w)
	for n := range w.opts.Clusters {
		w.clusters = append(w.clusters, newCluster(w, n))
	}
	w.cell = newCell(w)
	w.users = newUsers(w)
	w.watchers = []*watcher{
		{w: w, name: "quick", every: 500 * time.Millisecond, page: 1000},
		{w: w, name: "slow", every: 20 * time.Second, page: 7},
	}
	w.cell.start()
}

// suffer is the first phase.
func (w *world) suffer() {
	f := &w.opts.Faults
	w.again(w.opts.CallEvery, w.users.act)
	w.again(f.CoreCrashEvery, func() { w.cell.crash("the core dies") })
	w.again(f.ClockEvery, w.cell.jump)
	for _, c := range w.clusters {
		w.again(f.ShardCrashEvery, c.crashShard)
		w.again(f.ReattachEvery, c.reattach)
		w.again(f.CutEvery, c.cutLink)
		w.again(f.HostEvery, c.strikeHost)
	}
	for _, watcher := range w.watchers {
		watcher.start()
	}
	w.runUntil(origin + int64(w.opts.Safety))
}

// mend is the second phase: what went wrong is made good, and all that can run must run.
func (w *world) mend() {
	w.calm = true
	w.trace("--- faults stop")
	w.cell.mend()
	w.runUntil(w.now + int64(time.Minute))
	for _, c := range w.clusters {
		c.mend()
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
			w.fail("%s in %v:\n%s", complaint, w.opts.Mend, rest)
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
