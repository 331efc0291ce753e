package kubefaults_test

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/paceline-sched/paceline/core/workload"
	"github.com/paceline-sched/paceline/hostmanagers/kubernetes/mirror"
)

// lag bounds how much later than the witness a cell hears of something, or the other way round, while everything is slow.
const lag = 15 * time.Second

// witness keeps books of all pods and nodes, by what the API server says and nobody else. Times are resource versions, except where they are called otherwise.
type witness struct {
	grace time.Duration // of the cell, for runs on nodes out of contact

	mu      sync.Mutex
	pods    map[string]*life // by uid
	nodes   map[string][]span
	touched map[string]string // what somebody else did to a pod, by uid
	strange []string
}

// life is what became of a pod.
type life struct {
	uid, node string
	run       workload.RunID
	created   int64
	started   int64 // its container was seen running; 0: never
	over      int64 // its phase says that it has ended
	gone      int64
	deleted   int64 // its deletion was asked for
	succeeded bool
	failed    bool // by the exit code of its own work
	stuck     bool // its image could not be had
	reason    string
}

// span is a time in which a node was out of contact or not there. to is 0 while it lasts.
type span struct {
	from, to       int64
	began, ended   time.Time // by this machine's clock
	silent, absent bool      // what it was, at some time in it
}

func newWitness() *witness {
	return &witness{pods: map[string]*life{}, nodes: map[string][]span{}, touched: map[string]string{}}
}

// touch notes that somebody else does something to a pod.
func (w *witness) touch(uid, what string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.touched[uid] = what
}

func (w *witness) node(n *corev1.Node, version int64, gone bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	down, now := gone, time.Now()
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady && c.Status != corev1.ConditionTrue {
			down = true
		}
	}
	spans := w.nodes[n.Name]
	last := len(spans) - 1
	switch lasts := last >= 0 && spans[last].to == 0; {
	case down && !lasts:
		spans = append(spans, span{from: version, began: now})
	case !down && lasts:
		spans[last].to, spans[last].ended = version, now
	}
	if down {
		s := &spans[len(spans)-1]
		s.absent, s.silent = s.absent || gone, s.silent || !gone
	}
	w.nodes[n.Name] = spans
}

func (w *witness) pod(p *corev1.Pod, version int64, gone bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if p.Labels[mirror.LabelOwner] != owner {
		return
	}
	l := w.pods[string(p.UID)]
	if l == nil {
		run, err := workload.ParseRunID(p.Name)
		if err != nil {
			w.strange = append(w.strange, fmt.Sprintf("pod %s of the owner is no run: %v", p.Name, err))
			return
		}
		l = &life{uid: string(p.UID), node: p.Spec.NodeName, run: run, created: version}
		w.pods[l.uid] = l
	}
	first := func(at *int64) {
		if *at == 0 {
			*at = version
		}
	}
	for _, s := range p.Status.ContainerStatuses {
		switch {
		case s.State.Running != nil:
			first(&l.started)
		case s.State.Terminated != nil:
			if s.State.Terminated.StartedAt.Unix() > 0 {
				first(&l.started)
			}
			l.failed = s.State.Terminated.ExitCode == ownCode
		case s.State.Waiting != nil && s.State.Waiting.Reason == "ErrImagePull":
			l.stuck = true
		}
	}
	if p.DeletionTimestamp != nil {
		first(&l.deleted)
	}
	if phase := p.Status.Phase; phase == corev1.PodSucceeded || phase == corev1.PodFailed {
		first(&l.over)
		l.succeeded, l.reason = phase == corev1.PodSucceeded, p.Status.Reason
	}
	if gone {
		first(&l.gone)
	}
}

// end is when nothing of a pod ran any more; what has not ends never.
func (l *life) end() int64 {
	if l.over > 0 {
		return l.over
	}
	return l.last()
}

// last is when nothing was known of a pod any more.
func (l *life) last() int64 {
	if l.gone > 0 {
		return l.gone
	}
	return math.MaxInt64
}

func (l *life) String() string {
	return fmt.Sprintf("pod %s on %s: created %d, started %d, deletion asked %d, over %d (%s, succeeded %v), gone %d", l.run, l.node, l.created, l.started, l.deleted, l.over, l.reason, l.succeeded, l.gone)
}

// excuse is why the cell may have lost a pod; "": there is no reason.
func (w *witness) excuse(l *life) string {
	switch {
	case w.lost(l, l.last()):
		return "its node was in trouble"
	case l.stuck: // who restarted while the pod was being given up saw it go
		return "its image could not be had"
	case l.reason != "":
		return l.reason
	}
	return w.touched[l.uid]
}

// verdict is what a comparison counts.
type verdict struct {
	pods, again, podless int
	ends                 map[string]int // by state and reason
}

// judge holds the books against those of the cell.
func (w *witness) judge(t *testing.T, said *testament, tasks int) verdict {
	t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, text := range w.strange {
		t.Error(text)
	}
	if said.State != workload.JobSucceeded.String() || int(said.Done) != tasks || said.Left != "" {
		t.Errorf("the job ended as %s with %d of %d tasks done; left is %q", said.State, said.Done, tasks, said.Left)
	}
	v := verdict{pods: len(w.pods), ends: map[string]int{}}
	byRun := w.byRun(t)
	records := map[string]ending{}
	successes := map[instance]int{}
	for _, r := range said.Runs {
		records[r.Run] = r
		v.ends[r.State+" "+r.Reason]++
		id, err := workload.ParseRunID(r.Run)
		if err != nil {
			t.Fatal(err)
		}
		l := byRun[r.Run]
		if l == nil {
			v.podless++
		}
		w.judgeRun(t, &r, l)
		if r.State == workload.RunSucceeded.String() {
			successes[instance{id.Job, id.Instance}]++
		}
	}
	for n := range tasks {
		if got := successes[instance{theJob, uint32(n)}]; got != 1 { //nolint:gosec // not so many
			t.Errorf("instance %d succeeded %d times", n, got)
		}
	}
	newest := map[instance]uint32{}
	for run := range records {
		if id, err := workload.ParseRunID(run); err == nil {
			newest[instance{id.Job, id.Instance}] = max(newest[instance{id.Job, id.Instance}], id.Run)
		}
	}
	for _, l := range w.pods {
		r, known := records[l.run.String()]
		if !known && l.run.Run+maxKept > newest[instance{l.run.Job, l.run.Instance}] {
			t.Errorf("the cell knows nothing of %v", l)
		}
		if l.gone == 0 {
			t.Errorf("left over: %v", l)
		}
		if known && l.succeeded && l.run.Job == theJob && r.State != workload.RunSucceeded.String() && w.excuse(l) == "" && !w.givenUp(&r, l.node) {
			t.Errorf("the cell says %s %s of %v", r.State, r.Reason, l)
		}
	}
	v.again = w.judgeDoubles(t)
	return v
}

type instance struct {
	job    workload.JobID
	number uint32
}

// maxKept is how many runs of an instance a cell keeps.
const maxKept = 10

// byRun finds the pods of runs. A run has one; a second one is excused if others took the first away before its creation was answered, and then the one that
// succeeded counts.
func (w *witness) byRun(t *testing.T) map[string]*life {
	t.Helper()
	out := make(map[string]*life, len(w.pods))
	for _, l := range slices.SortedFunc(maps.Values(w.pods), byCreation) {
		first := out[l.run.String()]
		if first != nil && (w.excuse(first) == "" || first.last() > l.created) {
			t.Errorf("one run, two pods: %v; %v", first, l)
		}
		if first == nil || !first.succeeded {
			out[l.run.String()] = l
		}
	}
	return out
}

func byCreation(a, b *life) int { return cmp.Compare(a.created, b.created) }

// judgeRun wants a run's record to be what became of its pod.
func (w *witness) judgeRun(t *testing.T, r *ending, l *life) {
	t.Helper()
	switch r.State {
	case workload.RunSucceeded.String():
		if l == nil || !l.succeeded {
			t.Errorf("run %s is said to have succeeded: %v", r.Run, l)
		}
	case workload.RunFailed.String():
		if l == nil || !l.failed && !l.stuck {
			t.Errorf("run %s is said to have failed with %s: %v (%s)", r.Run, r.Reason, l, w.why(l))
		}
	case workload.RunKilled.String():
		// One that others end politely is KILLING first, and then KILLED by whoever it was.
		if strings.HasPrefix(r.Run, theJob.String()+"-") && (l == nil || w.excuse(l) == "") {
			t.Errorf("run %s was killed, which nobody asked for: %v", r.Run, l)
		}
	default:
		if l != nil && w.excuse(l) == "" && !w.givenUp(r, l.node) {
			t.Errorf("run %s is %s %s without a reason: %v", r.Run, r.State, r.Reason, l)
		}
	}
}

func (w *witness) why(l *life) string {
	if l == nil {
		return ""
	}
	return w.excuse(l)
}

// judgeDoubles wants no two pods of an instance to run at once, unless the first is on a node that is lost.
func (w *witness) judgeDoubles(t *testing.T) (again int) {
	t.Helper()
	of := map[instance][]*life{}
	for _, l := range w.pods {
		key := instance{l.run.Job, l.run.Instance}
		of[key] = append(of[key], l)
	}
	for _, list := range of {
		slices.SortFunc(list, byCreation)
		if len(list) > 1 {
			again++
		}
		for i, l := range list {
			for _, next := range list[i+1:] {
				if next.run.Run < l.run.Run {
					t.Errorf("an older run came after a newer one: %v; %v", l, next)
				}
				if l.started > 0 && next.started > 0 && l.started < next.end() && next.started < l.end() && !w.lost(l, next.created) {
					t.Errorf("two run at once: %v; %v (%s)", l, next, w.excuse(l))
				}
			}
		}
	}
	return again
}

// givenUp says whether a run was rightly lost with its node while its pod was being created, which then came although the node was back: the node was not there, or was out of
// contact, as the reason says, while the cell had the run. The cell may hear of all that late, so how long it was says little: the driver's own tests hold it to its grace.
func (w *witness) givenUp(r *ending, node string) bool {
	return slices.ContainsFunc(w.nodes[node], func(s span) bool {
		if s.began.After(r.Ended.Add(lag)) || s.to > 0 && s.ended.Before(r.Placed.Add(-lag)) {
			return false
		}
		switch r.Reason {
		case workload.ReasonHostLost.String():
			return s.absent
		case workload.ReasonHostUnreachable.String():
			return s.silent && !s.began.Add(w.grace).After(r.Ended.Add(lag))
		}
		return false
	})
}

// lost says whether a pod's node was in trouble up to a time, so that the pod may go on unseen.
func (w *witness) lost(l *life, until int64) bool {
	return slices.ContainsFunc(w.nodes[l.node], func(s span) bool { return s.from <= until && (s.to == 0 || s.to >= l.created) })
}

// left counts the pods that have not gone.
func (w *witness) left() (n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, l := range w.pods {
		if l.gone == 0 {
			n++
		}
	}
	return n
}
