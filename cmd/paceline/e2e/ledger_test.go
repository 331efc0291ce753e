package e2e_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"

	pacelinev1 "github.com/paceline-sched/paceline/sdk/gen/paceline/v1"
)

// ledger is the books of somebody who has followed a cell's event log from its first moment on, over all crashes, and holds every
// event against those before. Nothing that it was once told may be otherwise later.
type ledger struct {
	mu        sync.Mutex
	revision  uint64
	told      map[string]bool     // of that revision
	instances map[string]*history // by job id and instance
	jobs      map[string]pacelinev1.JobState
	born      map[string]uint64 // job id -> the revision that made it
	findings  []string
}

// history is what one instance went through.
type history struct {
	state     pacelinev1.InstanceState
	run       string // its latest
	runState  pacelinev1.RunState
	runs      int
	lost      int
	failed    int
	succeeded int
	past      []moment
}

// moment is how an instance stood from a revision on.
type moment struct {
	revision uint64
	standing string
}

// standing is what a record says of an instance. Whether a waiting one is admitted is not recorded.
func standing(state pacelinev1.InstanceState, run string, runState pacelinev1.RunState) string {
	if state == pacelinev1.InstanceState_INSTANCE_STATE_ADMITTED {
		state = pacelinev1.InstanceState_INSTANCE_STATE_PENDING
	}
	return fmt.Sprint(state, run, runState)
}

// maxFindings bounds what a ledger keeps of what is wrong.
const maxFindings = 20

// follow begins a ledger. It goes on until the test ends.
func (c *cell) follow() *ledger {
	c.t.Helper()
	l := &ledger{told: map[string]bool{}, instances: map[string]*history{}, jobs: map[string]pacelinev1.JobState{}, born: map[string]uint64{}}
	cursor := c.cursor()
	ctx, cancel := context.WithCancel(context.Background())
	var done sync.WaitGroup
	c.t.Cleanup(done.Wait)
	c.t.Cleanup(cancel)
	done.Go(func() {
		for ctx.Err() == nil {
			next, err := l.read(ctx, c, cursor)
			cursor = next
			if code := connect.CodeOf(err); err != nil && (code == connect.CodeOutOfRange || code == connect.CodeInvalidArgument) {
				l.find("the watch from %q: %v", cursor, err)
				return
			}
			select {
			case <-ctx.Done():
			case <-time.After(pause):
			}
		}
	})
	return l
}

// read follows the server that is there now until it is gone, and returns where to go on.
func (l *ledger) read(ctx context.Context, c *cell, cursor string) (string, error) {
	conn, err := c.dial()
	if err != nil {
		return cursor, err
	}
	defer conn.Close()
	stream, err := conn.Events.WatchEvents(ctx, connect.NewRequest(&pacelinev1.WatchEventsRequest{Cursor: cursor}))
	if err != nil {
		return cursor, err
	}
	defer stream.Close()
	for stream.Receive() {
		l.enter(stream.Msg().GetEvents())
		cursor = stream.Msg().GetCursor()
	}
	return cursor, stream.Err()
}

// reached is the revision up to which the ledger has come.
func (l *ledger) reached() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.revision
}

func (l *ledger) find(format string, arguments ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.findLocked(format, arguments...)
}

func (l *ledger) findLocked(format string, arguments ...any) {
	if len(l.findings) < maxFindings {
		l.findings = append(l.findings, fmt.Sprintf(format, arguments...))
	}
}

// enter takes in the events of a message at once: whoever sees that a job has ended finds what its tasks did at that, too.
func (l *ledger) enter(events []*pacelinev1.Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range events {
		l.enterLocked(e)
	}
}

func (l *ledger) enterLocked(e *pacelinev1.Event) {
	if e.GetRevision() < l.revision {
		l.findLocked("revision %d was told after %d: %v", e.GetRevision(), l.revision, e)
	}
	if e.GetRevision() != l.revision {
		clear(l.told)
		l.revision = e.GetRevision()
	}
	text := e.String()
	if l.told[text] {
		l.findLocked("told twice: %v", e)
	}
	l.told[text] = true
	switch {
	case e.GetJob() != nil:
		l.enterJob(e.GetJob())
	case e.GetTask() != nil:
		l.enterTask(e.GetTask())
	}
}

func (l *ledger) enterJob(j *pacelinev1.JobChange) {
	before := l.jobs[j.GetJobId()]
	if ended(before) && j.GetState() != before && !j.GetDeleted() {
		l.findLocked("job %s was %v and is %v", j.GetJobName(), before, j.GetState())
	}
	l.jobs[j.GetJobId()] = j.GetState()
	if l.born[j.GetJobId()] == 0 {
		l.born[j.GetJobId()] = l.revision
	}
}

func ended(s pacelinev1.JobState) bool { return s >= pacelinev1.JobState_JOB_STATE_SUCCEEDED }

// over reports whether a run has ended, which it does once.
func over(s pacelinev1.RunState) bool { return s >= pacelinev1.RunState_RUN_STATE_SUCCEEDED }

func (l *ledger) enterTask(change *pacelinev1.TaskChange) {
	key := fmt.Sprintf("%s/%d", change.GetJobId(), change.GetInstance())
	h := l.instances[key]
	if h == nil {
		h = &history{}
		l.instances[key] = h
	}
	who := fmt.Sprintf("%s/%d", change.GetJobName(), change.GetInstance())
	if h.state == pacelinev1.InstanceState_INSTANCE_STATE_DONE && change.GetState() != h.state {
		l.findLocked("%s was done and is %v", who, change.GetState())
	}
	h.state = change.GetState()
	run, state := change.GetRunId(), change.GetRunState()
	h.past = append(h.past, moment{l.revision, standing(h.state, run, state)})
	if run == "" {
		return
	}
	if run != h.run {
		if h.run != "" && !over(h.runState) {
			l.findLocked("%s: run %s began while run %s was %v", who, run, h.run, h.runState)
		}
		switch {
		case h.succeeded == 0:
		case generation(run) != generation(h.run): // a gang that failed begins anew with all its members
			h.succeeded = 0
		default:
			l.findLocked("%s: run %s began after run %s had succeeded", who, run, h.run)
		}
		h.run, h.runState, h.runs = run, pacelinev1.RunState_RUN_STATE_UNSPECIFIED, h.runs+1
	}
	if over(h.runState) && state != h.runState {
		l.findLocked("%s: run %s was %v and is %v", who, run, h.runState, state)
	}
	if state < h.runState && h.runState < pacelinev1.RunState_RUN_STATE_KILLING {
		l.findLocked("%s: run %s was %v and is %v again", who, run, h.runState, state)
	}
	if over(state) && !over(h.runState) {
		switch state { //nolint:exhaustive // the others are not counted
		case pacelinev1.RunState_RUN_STATE_SUCCEEDED:
			h.succeeded++
		case pacelinev1.RunState_RUN_STATE_FAILED:
			h.failed++
		case pacelinev1.RunState_RUN_STATE_LOST:
			h.lost++
		}
	}
	h.runState = state
}

// check waits until the ledger has seen every job end, and compares it with what the cell says of each task. It returns how many runs
// there were, how many of them were lost and how many failed.
func (l *ledger) check(t *testing.T, c *cell) (runs, lost, failed int) {
	t.Helper()
	var jobs map[string]*pacelinev1.JobSummary
	c.await("the event log tells the end of every job", func() (err error) {
		if jobs, err = c.jobs(); err != nil {
			return err
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		for path, j := range jobs {
			if l.jobs[j.GetId()] != j.GetState() || !ended(j.GetState()) { // one whose answer was lost may have just begun
				return fmt.Errorf("%s is %v, and %v in the log (%v)", path, j.GetState(), l.jobs[j.GetId()], l.findings)
			}
		}
		return nil
	})
	for _, path := range slices.Sorted(maps.Keys(jobs)) {
		if strings.Contains(path, "/small-") {
			continue // one task each: what the log says of it is enough
		}
		tasks, err := c.tasks(path)
		if err != nil {
			t.Fatal(err)
		}
		l.compare(path, jobs[path].GetKind() == pacelinev1.JobKind_JOB_KIND_BATCH, tasks)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, text := range l.findings {
		t.Error(text)
	}
	for _, h := range l.instances {
		runs, lost, failed = runs+h.runs, lost+h.lost, failed+h.failed
	}
	return runs, lost, failed
}

func (l *ledger) compare(path string, batch bool, tasks []*pacelinev1.Task) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, task := range tasks {
		h := l.instances[fmt.Sprintf("%s/%d", task.GetJobId(), task.GetInstance())]
		switch {
		case h == nil:
			if task.GetRun() != nil {
				l.findLocked("%s %d has run %s, of which the log does not tell", path, task.GetInstance(), task.GetRun().GetId())
			}
		case h.state != task.GetState() || h.run != task.GetRun().GetId() || task.GetRun() != nil && h.runState != task.GetRun().GetState():
			l.findLocked("%s %d is %v with run %v, and in the log %+v", path, task.GetInstance(), task.GetState(), task.GetRun(), *h)
		case batch && task.GetState() == pacelinev1.InstanceState_INSTANCE_STATE_DONE && h.succeeded != 1:
			l.findLocked("%s %d is done, and in the log %d runs of it succeeded", path, task.GetInstance(), h.succeeded)
		case batch && uint32(h.failed) != task.GetFailures():
			l.findLocked("%s %d has failed %d times, and %d times in the log", path, task.GetInstance(), task.GetFailures(), h.failed)
		}
	}
}

// cut finds the revisions at which the ledger's cell stood exactly as another one does: its jobs, and each of their instances. One that
// does not is told in err; if each stood so at some time, but never all at once, there are no revisions.
func (l *ledger) cut(jobs map[string]*pacelinev1.JobSummary, tasks func(job string) ([]*pacelinev1.Task, error)) (first, beyond uint64, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	first, beyond = 0, l.revision+1
	there := map[string]bool{}
	for path, j := range jobs {
		there[j.GetId()] = true
		first = max(first, l.born[j.GetId()])
		list, err := tasks(path)
		if err != nil {
			return 0, 0, err
		}
		for _, task := range list {
			from, to, ok := l.stood(task, first, beyond)
			if !ok {
				return 0, 0, fmt.Errorf("%s %d is %v with run %v, as it never was in revisions %d to %d", path, task.GetInstance(), task.GetState(), task.GetRun(), first, beyond-1)
			}
			first, beyond = from, to
		}
	}
	for id, revision := range l.born {
		if !there[id] {
			beyond = min(beyond, revision)
		}
	}
	return first, beyond, nil
}

// stood narrows revisions to those at which a task stood as it does. An instance stands so for one stretch only, since runs are never
// resumed and a waiting one waits for its next run.
func (l *ledger) stood(task *pacelinev1.Task, first, beyond uint64) (from, to uint64, ok bool) {
	now := standing(task.GetState(), task.GetRun().GetId(), task.GetRun().GetState())
	h := l.instances[fmt.Sprintf("%s/%d", task.GetJobId(), task.GetInstance())]
	past := []moment{{0, standing(pacelinev1.InstanceState_INSTANCE_STATE_PENDING, "", 0)}}
	if h != nil {
		past = append(past, h.past...)
	}
	for i, m := range past {
		end := l.revision + 1
		if i+1 < len(past) {
			end = past[i+1].revision
		}
		if m.standing != now || m.revision >= beyond || end <= first {
			continue
		}
		if !ok {
			from = max(first, m.revision)
		}
		to, ok = min(beyond, end), true
	}
	return from, to, ok
}
