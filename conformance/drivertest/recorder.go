package drivertest

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/paceline-sched/paceline/core/driver"
	"github.com/paceline-sched/paceline/core/workload"
)

// maxComplaints bounds what a recorder takes down of a driver that does everything wrong.
const maxComplaints = 20

// overlapYields is how often a call lets others run before it goes on, so that calls that may overlap do.
const overlapYields = 4

// recorder is a sink that remembers everything and holds the driver to the order of its calls.
type recorder struct {
	busy atomic.Bool

	mu       sync.Mutex
	wake     chan struct{} // closed and replaced with every call
	seen     []driver.Inventory
	lost     int  // calls of Disconnected
	apart    bool // the last word was Disconnected
	removed  []string
	statuses map[workload.RunID][]driver.Status
	tokens   map[driver.Token]driver.Status
	newest   driver.Token
	passed   []driver.Token // of statuses that are no ends, not taken yet
	wrong    []string
	closed   bool
}

func newRecorder() *recorder {
	return &recorder{wake: make(chan struct{}), statuses: map[workload.RunID][]driver.Status{}, tokens: map[driver.Token]driver.Status{}}
}

// enter notes a call; the driver must make one at a time.
func (r *recorder) enter(call string) {
	if !r.busy.CompareAndSwap(false, true) {
		r.mu.Lock()
		r.complain("%s was called during another call", call)
		r.mu.Unlock()
	}
	for range overlapYields {
		runtime.Gosched() // another call that is not kept waiting comes now
	}
	r.mu.Lock()
	if r.closed {
		r.complain("%s was called after Wait returned", call)
	}
	if call != "Inventory" && (len(r.seen) == 0 || r.apart && call != "Disconnected") {
		r.complain("%s was called before the inventory", call)
	}
}

func (r *recorder) leave() {
	close(r.wake)
	r.wake = make(chan struct{})
	r.mu.Unlock()
	r.busy.Store(false)
}

// complain needs r.mu.
func (r *recorder) complain(format string, args ...any) {
	if len(r.wrong) < maxComplaints {
		r.wrong = append(r.wrong, fmt.Sprintf(format, args...))
	}
}

func (r *recorder) Inventory(inventory driver.Inventory) {
	r.enter("Inventory")
	defer r.leave()
	r.apart = false
	r.seen = append(r.seen, inventory)
	names := map[string]bool{}
	for _, h := range inventory.Hosts {
		if h.Name == "" || names[h.Name] {
			r.complain("the inventory has two hosts, or a nameless one, called %q", h.Name)
		}
		names[h.Name] = true
	}
	runs := map[workload.RunID]bool{}
	for _, status := range inventory.Runs {
		if runs[status.Run] {
			r.complain("the inventory has run %s twice", status.Run)
		}
		runs[status.Run] = true
		r.note(status)
	}
}

func (r *recorder) HostsChanged(_ []driver.Host, removed []string) {
	r.enter("HostsChanged")
	defer r.leave()
	r.removed = append(r.removed, removed...)
}

func (r *recorder) Statuses(statuses []driver.Status) {
	r.enter("Statuses")
	defer r.leave()
	for _, status := range statuses {
		r.note(status)
	}
}

func (r *recorder) Disconnected(error) {
	r.enter("Disconnected")
	defer r.leave()
	r.lost++
	r.apart = true
}

// progress orders the states of a run. Equal ones may alternate.
func progress(s workload.RunState) int {
	switch {
	case s.Traits().Terminal:
		return 3
	case s == workload.RunRunning, s == workload.RunKilling, s == workload.RunUnreachable:
		return 2
	case s == workload.RunStarting:
		return 1
	}
	return 0
}

// note takes down a status. r.mu is held.
func (r *recorder) note(status driver.Status) {
	if progress(status.State) == 0 {
		r.complain("run %s was reported %s, which is not a driver's to say", status.Run, status.State)
	}
	if old, ok := r.tokens[status.Token]; ok && status.Token != 0 && (old.Run != status.Run || old.State != status.State) {
		r.complain("token %d stands for run %s %s and for run %s %s", status.Token, old.Run, old.State, status.Run, status.State)
	} else if !ok && status.Token != 0 && status.Token < r.newest {
		r.complain("token %d of run %s came after %d", status.Token, status.Run, r.newest)
	}
	if status.Token != 0 && !status.State.Traits().Terminal {
		r.passed = append(r.passed, status.Token)
	}
	r.tokens[status.Token] = status
	r.newest = max(r.newest, status.Token)
	history := r.statuses[status.Run]
	if n := len(history); n > 0 {
		last := history[n-1]
		if progress(status.State) < progress(last.State) {
			r.complain("run %s went back from %s to %s", status.Run, last.State, status.State)
		}
		if last.State.Traits().Terminal && status.State != last.State && !vanished(status) {
			r.complain("run %s ended as %s and then as %s", status.Run, last.State, status.State)
		}
	}
	r.statuses[status.Run] = append(history, status)
}

// vanished reports whether a status says that the cluster knows nothing of the run: true of one whose end was acknowledged, too.
func vanished(s driver.Status) bool {
	return s.State == workload.RunLost && s.Reason == workload.ReasonNotFound
}

func (r *recorder) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
}

func (r *recorder) complaints() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.wrong)
}

// heard returns a channel that is closed by the next call.
func (r *recorder) heard() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.wake
}

func (r *recorder) inventories() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.seen)
}

func (r *recorder) inventory() driver.Inventory {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.seen[len(r.seen)-1]
}

func (r *recorder) disconnections() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.lost
}

func (r *recorder) lostHost(name string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Contains(r.removed, name)
}

// progress returns the tokens of statuses that are no ends, once each time that they are heard.
func (r *recorder) progress() []driver.Token {
	r.mu.Lock()
	defer r.mu.Unlock()
	passed := r.passed
	r.passed = nil
	return passed
}

// last returns the last status of a run; the zero one if there was none.
func (r *recorder) last(id workload.RunID) driver.Status {
	r.mu.Lock()
	defer r.mu.Unlock()
	history := r.statuses[id]
	if len(history) == 0 {
		return driver.Status{}
	}
	return history[len(history)-1]
}

func (r *recorder) count(id workload.RunID) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.statuses[id])
}

func (r *recorder) history(id workload.RunID) []driver.Status {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.statuses[id])
}

// String tells what was heard, for messages.
func (r *recorder) String() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var b strings.Builder
	fmt.Fprintf(&b, "%d inventories, %d disconnections", len(r.seen), r.lost)
	shown := 0
	for id, history := range r.statuses {
		if shown++; shown > maxComplaints {
			b.WriteString("\n  ...")
			break
		}
		fmt.Fprintf(&b, "\n  %s:", id)
		for _, s := range history {
			fmt.Fprintf(&b, " %s %s", s.State, s.Reason)
		}
	}
	return b.String()
}
