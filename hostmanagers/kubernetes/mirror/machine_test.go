package mirror_test

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/paceline-sched/paceline/core/driver"
	paceline "github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/workload"
	"github.com/paceline-sched/paceline/hostmanagers/kubernetes/mirror"
)

// A run's pod is created, runs, ends, and goes only once the end was acknowledged.
func TestTheLifeOfARun(t *testing.T) {
	t.Parallel()
	w := newWorldOf(t, atOnce())
	p := w.created(1)
	w.expect(1, workload.RunStarting, 0)
	p = func() *corev1.Pod { w.statuses = map[uint32][]driver.Status{}; return w.startedFrom(p) }()
	w.expect(1, workload.RunRunning, 0)
	if !w.last(1).Healthy {
		t.Error("a ready container is not healthy")
	}
	w.exits(p, 3)
	w.expect(1, workload.RunFailed, workload.ReasonExited)
	if s := w.last(1); s.ExitCode != 3 || s.Host != "a" {
		t.Errorf("the end is %+v", s)
	}
	w.none()
	before := len(w.statuses[1])
	w.launch(1)
	w.kill(1, time.Hour)
	if got := w.statuses[1][before:]; len(got) != 2 || got[0] != got[1] || got[0].State != workload.RunFailed {
		t.Errorf("a run that is over is answered with %+v", got)
	}
	w.acknowledge(1)
	if c := w.take(); c.Launch != nil || c.UID != string(p.UID) || c.Grace != 0 || c.Namespace != "space" {
		t.Errorf("an acknowledged end is followed by %+v", c)
	}
	w.changed(p) // still there
	w.do(func(now int64) { w.m.Lost(now, errTest, &w.out) })
	w.do(func(now int64) { w.m.Connected(now, &w.out) })
	if runs := w.inventories[1].Runs; len(runs) != 0 || w.lost != 1 {
		t.Errorf("an acknowledged end is told again: %+v", runs)
	}
	w.gone(p)
	if s := w.m.Stats(); s.Runs != 0 {
		t.Errorf("what is left is %+v", s)
	}
}

func (w *world) startedFrom(p *corev1.Pod) *corev1.Pod {
	w.t.Helper()
	p.Status.Phase = corev1.PodRunning
	p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "main", Ready: true, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}
	w.changed(p)
	return p
}

// A kill deletes with grace, a shorter one again, a longer one not; at last the pod is taken away, but not before the first grace is over, to
// which its kubelet may keep.
func TestKills(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := w.started(1)
	w.changed(p)
	w.kill(1, 20*time.Second)
	first := w.take()
	if first.Grace != 20 {
		t.Fatalf("the grace is %d", first.Grace)
	}
	w.expect(1, workload.RunKilling, 0)
	w.kill(1, time.Hour)
	w.none()
	w.kill(1, 0)
	second := w.take()
	if second.Grace != 1 {
		t.Fatalf("the shortest grace is %d", second.Grace)
	}
	w.answer(first, mirror.Answer{})
	w.answer(second, mirror.Answer{})
	w.pass(20 * time.Second)
	w.none()
	w.pass(mirrorConfig.KillMargin)
	if c := w.take(); c.Grace != 0 {
		t.Fatalf("the final grace is %d", c.Grace)
	}
	p.Status.ContainerStatuses[0].State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 137, Reason: "Error"}}
	now := metav1.NewTime(time.Unix(0, int64(w.now)))
	p.DeletionTimestamp = &now
	w.gone(p)
	w.expect(1, workload.RunKilled, 0)
	if s := w.last(1); s.Signal != 9 || s.ExitCode != 0 {
		t.Errorf("the end is %+v", s)
	}
	w.acknowledge(1)
	w.none()
	w.kill(2, 0)
	w.expect(2, workload.RunLost, workload.ReasonNotFound)
}

// A kill that comes before the pod is there takes effect once it is, or never came about.
func TestAKillDuringTheCreation(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.launch(1)
	c := w.take()
	w.kill(1, 5*time.Second)
	w.none()
	if w.m.Wanted(c) {
		t.Error("the creation is still wanted")
	}
	record := mirrorConfig.ReadPod(w.pod(c))
	w.answer(c, mirror.Answer{Pod: &record})
	if d := w.take(); d.Grace != 5 || d.UID == "" {
		t.Errorf("the deletion is %+v", d)
	}
	w.expect(1, workload.RunKilling, 0)

	w.launch(2)
	c = w.take()
	w.kill(2, 0)
	w.answer(c, mirror.Answer{GivenUp: true})
	w.none()
	w.expect(2, workload.RunKilled, 0)
	w.acknowledge(2)
	if s := w.m.Stats(); s.Runs != 1 {
		t.Errorf("what is left is %+v", s)
	}
}

// A kill whose run is created only after the kill's time is over is made final as any other.
func TestAKillDuringALongCreation(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.launch(1)
	c := w.take()
	w.kill(1, 5*time.Second)
	w.pass(time.Minute)
	w.none()
	record := mirrorConfig.ReadPod(w.pod(c))
	w.answer(c, mirror.Answer{Pod: &record})
	d := w.take()
	if d.Grace != 5 {
		t.Errorf("the deletion is %+v", d)
	}
	w.pass(time.Minute)
	w.none() // its kubelet may not have been told
	w.answer(d, mirror.Answer{})
	w.pass(5 * time.Second)
	w.none()
	w.pass(mirrorConfig.KillMargin)
	if d := w.take(); d.Grace != 0 || d.UID == "" {
		t.Errorf("the final deletion is %+v", d)
	}
}

// A killed run that had ended by itself before was not killed; one that ended after was, whatever its exit code.
func TestAKillAndAnEndThatMeet(t *testing.T) {
	t.Parallel()
	for after, want := range map[time.Duration]workload.RunState{-2 * time.Second: workload.RunSucceeded, 2 * time.Second: workload.RunKilled} {
		w := newWorld(t)
		p := w.started(1)
		w.changed(p)
		w.kill(1, 30*time.Second)
		grace := int64(30)
		stamp := metav1.NewTime(time.Unix(0, int64(w.now-after)).Add(30 * time.Second))
		p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &stamp, &grace
		w.exits(p, 0)
		if got := w.last(1).State; got != want {
			t.Errorf("an end %s after the deletion comes to %s, want %s", after, got, want)
		}
	}
}

// What others do to a pod is told as what it is.
func TestADeletionBySomebodyElse(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := w.started(1)
	w.changed(p)
	now := metav1.NewTime(time.Unix(0, int64(w.now)))
	p.DeletionTimestamp = &now
	w.changed(p)
	w.expect(1, workload.RunKilling, 0)
	w.gone(p)
	w.expect(1, workload.RunLost, workload.ReasonNotFound)
}

// A task that was ended because somebody else deleted its pod has not failed by itself.
func TestADeletionBySomebodyElseThatIsSeenLate(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := w.started(1)
	grace := int64(30)
	due := metav1.NewTime(time.Unix(0, int64(w.now)).Add(30 * time.Second))
	p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &due, &grace
	w.exits(p, 143)
	w.expect(1, workload.RunLost, workload.ReasonNotFound)

	p = w.started(2)
	w.now += 2 * time.Second
	p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &due, &grace // asked for after the end
	w.now -= 4 * time.Second
	w.exits(p, 143)
	w.expect(2, workload.RunFailed, workload.ReasonSignalled)

	p = w.started(3) // or was about to be, when it was deleted
	p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &due, &grace
	p.Status.Phase = corev1.PodFailed
	p.Status.ContainerStatuses[0].State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 128, Reason: "StartError", FinishedAt: due}}
	w.changed(p)
	w.expect(3, workload.RunLost, workload.ReasonNotFound)
}

// A pod that cannot start is removed first: until it is gone it may start after all, and the run's next one would run beside it.
func TestARunThatCannotStart(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	stuck := func(i uint32) *corev1.Pod {
		p := w.started(i)
		p.Status.Phase = corev1.PodPending
		p.Status.ContainerStatuses[0].State = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "InvalidImageName"}}
		w.changed(p)
		w.expect(i, workload.RunStarting, 0)
		c := w.take()
		if c.Launch != nil || c.Grace != 1 {
			t.Fatalf("a pod that cannot start is followed by %+v", c)
		}
		w.answer(c, mirror.Answer{})
		return p
	}
	p := stuck(1)
	due := metav1.NewTime(time.Unix(0, int64(w.now)))
	p.DeletionTimestamp = &due
	w.changed(p) // it is not KILLING: nobody asked for that
	w.expect(1, workload.RunStarting, 0)
	w.pass(mirrorConfig.KillMargin + time.Second)
	if c := w.take(); c.Grace != 0 {
		t.Errorf("at last it is removed with a grace of %d", c.Grace)
	}
	w.gone(p)
	w.expect(1, workload.RunFailed, workload.ReasonLaunchFailed)

	p = stuck(2) // and it starts at the last moment
	w.exits(p, 0)
	w.expect(2, workload.RunSucceeded, workload.ReasonExited)

	p = stuck(3) // and is killed
	w.kill(3, time.Minute)
	w.take()
	w.gone(p)
	w.expect(3, workload.RunKilled, 0)
}

// A pod that is there is not created again, though the answer to its creation was lost: after its end it would run a second time.
func TestACreationWhoseAnswerIsLost(t *testing.T) {
	t.Parallel()
	w := newWorldOf(t, atOnce())
	w.launch(1)
	c := w.take()
	if !w.m.Wanted(c) {
		t.Fatal("a creation is not wanted")
	}
	p := w.pod(c)
	w.changed(p)
	if w.m.Wanted(c) {
		t.Error("what was created is to be created")
	}
	w.exits(p, 0)
	w.acknowledge(1)
	w.none() // the name is kept: an attempt may still have its effect
	record := mirrorConfig.ReadPod(p)
	w.answer(c, mirror.Answer{Pod: &record, Doubt: true})
	w.pass(mirrorConfig.LateCreation - time.Second)
	w.none()
	w.pass(2 * time.Second)
	w.take()
	w.expect(1, workload.RunSucceeded, workload.ReasonExited)
	w.gone(p)
	if s := w.m.Stats(); s.Runs != 0 {
		t.Errorf("what is left is %+v", s)
	}

	for name, a := range map[string]mirror.Answer{"found": {Pod: &record}, "refused": {Refused: mirror.RefusedByQuota}, "not there": {GivenUp: true}} {
		w.launch(2)
		c = w.take()
		p = w.pod(c)
		w.changed(p)
		w.kill(2, 5*time.Second)
		w.none()
		w.answer(c, a)
		if d := w.take(); d.Launch != nil || d.Grace != 5 {
			t.Errorf("%s: the kill is %+v", name, d)
		}
		w.gone(p)
		w.expect(2, workload.RunKilled, 0)
		w.acknowledge(2)
		w.none()
	}
}

// A node that is out of contact keeps its runs for a while.
func TestANodeOutOfContact(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := w.started(1)
	w.changed(p)
	away := aNode("a")
	away.Status.Conditions[0].Status = corev1.ConditionUnknown
	w.node(away)
	w.expect(1, workload.RunUnreachable, workload.ReasonHostUnreachable)
	if w.hosts["a"].Ready {
		t.Error("the host is ready")
	}
	w.pass(20 * time.Second)
	w.node(aNode("a"))
	w.expect(1, workload.RunRunning, 0)
	w.pass(20 * time.Second)
	w.expect(1, workload.RunRunning, 0)
	w.node(away)
	w.pass(mirrorConfig.UnreachableGrace)
	w.expect(1, workload.RunLost, workload.ReasonHostUnreachable)
	if c := w.take(); c.Grace != 0 {
		t.Errorf("the pod is ended with a grace of %d", c.Grace)
	}
}

// While the API server is out of contact, too, nobody knows whether the node has come back: the grace counts anew from when it answers.
func TestANodeAndTheAPIServerOutOfContact(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.changed(w.started(1))
	away := aNode("a")
	away.Status.Conditions[0].Status = corev1.ConditionUnknown
	w.node(away)
	w.pass(mirrorConfig.UnreachableGrace / 2)
	w.do(func(now int64) { w.m.Lost(now, errTest, &w.out) })
	w.pass(2 * mirrorConfig.UnreachableGrace)
	w.do(func(now int64) { w.m.Connected(now, &w.out) })
	w.expect(1, workload.RunUnreachable, workload.ReasonHostUnreachable)
	w.pass(mirrorConfig.UnreachableGrace - time.Second)
	w.expect(1, workload.RunUnreachable, workload.ReasonHostUnreachable)
	w.none()
	w.pass(time.Second)
	w.expect(1, workload.RunLost, workload.ReasonHostUnreachable)
}

// A node that goes takes its runs; a launch there finds none.
func TestANodeThatGoes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.changed(w.started(1))
	w.do(func(now int64) { w.m.NodeGone(now, "a", &w.out) })
	w.expect(1, workload.RunLost, workload.ReasonHostLost)
	if w.take().Launch != nil || len(w.removed) != 1 {
		t.Errorf("the removed hosts are %v", w.removed)
	}
	w.launch(2)
	w.expect(2, workload.RunLost, workload.ReasonHostLost)
	w.none()
}

// A run whose node goes while its pod is being created is lost once it is clear what became of that: with the node back, the pod would run.
func TestANodeThatGoesDuringACreation(t *testing.T) {
	t.Parallel()
	for _, watched := range []bool{false, true} {
		w := newWorld(t)
		w.launch(1)
		c := w.take()
		p := w.pod(c)
		if watched { // the watch is faster than the answer
			w.changed(p)
		}
		w.do(func(now int64) { w.m.NodeGone(now, "a", &w.out) })
		if w.last(1).State.Traits().Terminal || w.m.Wanted(c) {
			t.Errorf("the run is %s, and its creation is wanted: %v", w.last(1).State, w.m.Wanted(c))
		}
		w.node(aNode("a"))
		w.none()
		record := mirrorConfig.ReadPod(p)
		w.answer(c, mirror.Answer{Pod: &record})
		if d := w.take(); d.Launch != nil || d.Grace != 1 || w.last(1).State.Traits().Terminal { // its kubelet may have started it
			t.Errorf("the pod is followed by %+v, and the run is %s", d, w.last(1).State)
		}
		w.gone(p)
		w.expect(1, workload.RunLost, workload.ReasonHostLost)
	}
	w := newWorld(t)
	w.launch(1)
	c := w.take()
	w.do(func(now int64) { w.m.NodeGone(now, "a", &w.out) })
	w.kill(1, time.Second)
	w.answer(c, mirror.Answer{GivenUp: true})
	w.expect(1, workload.RunLost, workload.ReasonHostLost)
	w.none()
}

// After a restart the pods tell which runs there are. A list tells which are gone, but not of what was created since it was asked for.
func TestListsAfterRestarts(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	one, two := w.started(1), w.started(2)
	w.changed(one)
	w.changed(two)

	next := bareWorld(t)
	next.uids = w.uids
	next.pods(one, two)
	next.nodes(aNode("a"))
	next.do(func(now int64) { next.m.Connected(now, &next.out) })
	next.expect(1, workload.RunRunning, 0)
	next.expect(2, workload.RunRunning, 0)
	next.m.Listing()
	three := next.created(3)
	next.do(func(now int64) { next.m.Pods(now, []mirror.Pod{mirrorConfig.ReadPod(one)}, &next.out) })
	next.expect(2, workload.RunLost, workload.ReasonNotFound)
	next.expect(3, workload.RunStarting, 0)
	next.pods(one)
	next.expect(3, workload.RunLost, workload.ReasonNotFound)
	next.gone(three)
	if err := next.m.Reconcile(int64(next.now), []workload.RunID{run(1), run(9)}, &next.out); err != nil {
		t.Fatal(err)
	}
	next.do(func(int64) {})
	next.expect(9, workload.RunLost, workload.ReasonNotFound)
}

// A host is what its node may give, less what others have of it.
func TestHosts(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	h := w.hosts["a"]
	if h.Pool != "batch" || h.ID != "uid-a" || !h.Ready || h.Attributes["topology.kubernetes.io/zone"] != "z1" || h.Attributes["can/fly"] != "" {
		t.Errorf("the host is %+v", h)
	}
	for name, want := range map[string]int64{"cpu_milli": 3920, "memory_mib": 8192, "disk_mib": 102400, "gpu_milli": 2000, "example.com/widget": 5} {
		if h.Capacity[name] != want {
			t.Errorf("%s is %d, want %d", name, h.Capacity[name], want)
		}
	}
	if len(h.Capacity) != 5 || len(h.Devices) != 2 || h.Devices[0].Model != "H100" {
		t.Errorf("the host has %v and %v", h.Capacity, h.Devices)
	}
	w.changed(w.started(1)) // on the first GPU
	foreign := w.pod(&mirror.Call{Launch: &driver.Launch{Host: "a"}})
	foreign.Labels = nil
	q := resource.MustParse
	always := corev1.ContainerRestartPolicyAlways
	requests := func(r corev1.ResourceList) corev1.ResourceRequirements {
		return corev1.ResourceRequirements{Requests: r}
	}
	foreign.Spec.InitContainers = []corev1.Container{
		{Resources: requests(corev1.ResourceList{"cpu": q("100m")}), RestartPolicy: &always},
		{Resources: requests(corev1.ResourceList{"cpu": q("900m")})},
	}
	foreign.Spec.Containers = []corev1.Container{{
		Resources: requests(corev1.ResourceList{"cpu": q("500m"), "memory": q("1Gi"), "nvidia.com/gpu": q("1"), "example.com/widget": q("2")}),
		Ports:     []corev1.ContainerPort{{HostPort: 100}, {HostPort: 105}},
	}}
	foreign.Spec.Overhead = corev1.ResourceList{"memory": q("1")}
	w.changed(foreign)
	h = w.hosts["a"]
	if h.Foreign[paceline.CPU] != 1000 || h.Foreign[paceline.Memory] != 1025 || h.Capacity["example.com/widget"] != 3 {
		t.Errorf("foreign load is %v, capacity %v", h.Foreign, h.Capacity)
	}
	if h.Devices[0].Milli != 1000 || h.Devices[1].Milli != 0 || h.Capacity["gpu_milli"] != 1000 {
		t.Errorf("the devices are %v", h.Devices)
	}
	if want := []driver.PortRange{{First: 101, Last: 104}, {First: 106, Last: 109}}; len(h.Ports) != 2 || h.Ports[0] != want[0] || h.Ports[1] != want[1] {
		t.Errorf("the ports are %v", h.Ports)
	}
	for range 2 {
		more := w.pod(&mirror.Call{Launch: &driver.Launch{Host: "a"}})
		more.Labels = nil
		w.changed(more)
	}
	if h = w.hosts["a"]; h.Ready || !strings.Contains(h.Message, "pods") {
		t.Errorf("a crowded host is %+v", h)
	}
	foreign.Status.Phase = corev1.PodSucceeded
	w.changed(foreign)
	if h = w.hosts["a"]; !h.Ready || h.Foreign[paceline.CPU] != 0 || len(h.Ports) != 1 || h.Capacity["gpu_milli"] != 2000 {
		t.Errorf("after the end the host is %+v", h)
	}
}

// What keeps a node from taking pods keeps its host from taking runs, and says so.
func TestNodesThatTakeNothing(t *testing.T) {
	t.Parallel()
	taint := func(key string, effect corev1.TaintEffect) func(*corev1.Node) {
		return func(n *corev1.Node) { n.Spec.Taints = []corev1.Taint{{Key: key, Value: "v", Effect: effect}} }
	}
	for name, tc := range map[string]struct {
		change func(*corev1.Node)
		why    string
	}{
		"healthy":      {func(*corev1.Node) {}, ""},
		"cordoned":     {func(n *corev1.Node) { n.Spec.Unschedulable = true }, "cordoned"},
		"tainted":      {taint("x", corev1.TaintEffectNoSchedule), "tainted x=v:NoSchedule"},
		"evicting":     {taint("x", corev1.TaintEffectNoExecute), "tainted x=v:NoExecute"},
		"tolerated":    {taint("dedicated", corev1.TaintEffectNoExecute), ""},
		"only unloved": {taint("x", corev1.TaintEffectPreferNoSchedule), ""},
		"not ready": {func(n *corev1.Node) {
			n.Status.Conditions[0].Status, n.Status.Conditions[0].Message = "False", "runtime down"
		}, "not ready: runtime down"},
		"silent":  {func(n *corev1.Node) { n.Status.Conditions = nil }, "its kubelet has said nothing yet"},
		"leaving": {func(n *corev1.Node) { n.DeletionTimestamp = &metav1.Time{} }, "it is being deleted"},
	} {
		w := newWorld(t)
		n := aNode("a")
		tc.change(n)
		w.node(n)
		h := w.hosts["a"]
		if h.Ready != (tc.why == "") || !strings.Contains(h.Message, tc.why) {
			t.Errorf("%s: ready %v, %q", name, h.Ready, h.Message)
		}
		if name == "tolerated" && (h.Attributes["taint/dedicated"] != "v" || h.Details["taints"] == "") {
			t.Errorf("a tolerated taint is seen as %v and %v", h.Attributes, h.Details)
		}
	}
}

func TestConfigs(t *testing.T) {
	t.Parallel()
	for name, cfg := range map[string]mirror.Config{
		"no owner": {}, "a wrong owner": {Owner: "a b"}, "a negative grace": {Owner: "x", KillMargin: -1}, "ports backwards": {Owner: "x", FirstPort: 9, LastPort: 3},
	} {
		if _, err := mirror.New(cfg); err == nil {
			t.Errorf("%s is taken", name)
		}
	}
}

type testError string

func (e testError) Error() string { return string(e) }

const errTest = testError("the network is down")

// The watch may tell a run's end before its creation is answered: the end is kept all the same.
func TestAnEndBeforeTheAnswer(t *testing.T) {
	t.Parallel()
	w := newWorldOf(t, atOnce())
	w.launch(1)
	c := w.take()
	p := w.pod(c)
	created := mirrorConfig.ReadPod(p)
	w.exits(p, 0)
	w.answer(c, mirror.Answer{Pod: &created})
	w.none()
	w.expect(1, workload.RunSucceeded, workload.ReasonExited)
	w.acknowledge(1)
	if d := w.take(); d.UID != string(p.UID) {
		t.Errorf("what is deleted is %+v", d)
	}
}

// A run that is given up with a node out of contact while its pod is being created goes on if the node is back when the pod is there: nobody was told of an end.
func TestANodeThatIsBackBeforeTheCreation(t *testing.T) {
	t.Parallel()
	away := aNode("a")
	away.Status.Conditions[0].Status = corev1.ConditionUnknown
	for name, test := range map[string]func(w *world, c *mirror.Call, p *corev1.Pod){
		"it is back": func(w *world, c *mirror.Call, p *corev1.Pod) {
			w.node(aNode("a"))
			record := mirrorConfig.ReadPod(p)
			w.answer(c, mirror.Answer{Pod: &record})
			w.none()
			w.changed(w.startedFrom(p))
			w.expect(1, workload.RunRunning, 0)
		},
		"it is back, and the run was killed": func(w *world, c *mirror.Call, p *corev1.Pod) {
			w.node(aNode("a"))
			w.kill(1, 7*time.Second)
			record := mirrorConfig.ReadPod(p)
			w.answer(c, mirror.Answer{Pod: &record})
			if d := w.take(); d.Launch != nil || d.Grace != 7 {
				t.Errorf("the kill is %+v", d)
			}
			w.gone(p)
			w.expect(1, workload.RunKilled, 0)
		},
		"it is not": func(w *world, c *mirror.Call, p *corev1.Pod) {
			record := mirrorConfig.ReadPod(p)
			w.answer(c, mirror.Answer{Pod: &record})
			w.expect(1, workload.RunLost, workload.ReasonHostUnreachable)
			if d := w.take(); d.Launch != nil || d.Grace != 0 {
				t.Errorf("the pod is followed by %+v", d)
			}
		},
	} {
		w := newWorld(t)
		w.launch(1)
		c := w.take()
		w.node(away)
		w.pass(mirrorConfig.UnreachableGrace)
		if w.last(1).State.Traits().Terminal || w.m.Wanted(c) {
			t.Errorf("%s: the run is %s, and its creation is wanted: %v", name, w.last(1).State, w.m.Wanted(c))
		}
		test(w, c, w.pod(c))
	}
}

// What an API server says about a creation is not the last word as long as an attempt without an answer may still have its effect: a run that is told to be
// over is tried again, and would run twice.
func TestAPodThatComesAfterARefusal(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		answer mirror.Answer
		kill   bool
		state  workload.RunState
		reason workload.Reason
	}{
		"refused":              {mirror.Answer{Refused: "Forbidden", Message: "no", Doubt: true}, false, workload.RunFailed, workload.ReasonLaunchFailed},
		"refused, and killed":  {mirror.Answer{Refused: "Forbidden", Message: "no", Doubt: true}, true, workload.RunKilled, 0},
		"given up, and killed": {mirror.Answer{GivenUp: true, Doubt: true}, true, workload.RunKilled, 0},
	} {
		begin := func() (*world, *mirror.Call) {
			w := newWorld(t)
			w.launch(1)
			call := w.take()
			if c.kill {
				w.kill(1, time.Second)
			}
			w.answer(call, c.answer)
			w.pass(mirrorConfig.LateCreation - time.Second)
			if w.last(1).State.Traits().Terminal {
				t.Fatalf("%s: the run is %s while its pod may come", name, w.last(1).State)
			}
			w.none()
			return w, call
		}
		w, _ := begin() // it does not come
		w.pass(time.Second)
		w.expect(1, c.state, c.reason)
		w.acknowledge(1)
		w.none()
		if s := w.m.Stats(); s.Runs != 0 || s.Calls != 0 {
			t.Errorf("%s: what is left is %+v", name, s)
		}

		w, call := begin() // it comes
		p := w.startedFrom(w.pod(call))
		w.changed(p)
		if c.kill {
			if d := w.take(); d.Launch != nil || d.Grace != 1 || d.UID == "" {
				t.Errorf("%s: the late pod is followed by %+v", name, d)
			}
			w.gone(p)
			w.expect(1, workload.RunKilled, 0)
		} else {
			w.expect(1, workload.RunRunning, 0)
			w.pass(2 * mirrorConfig.LateCreation)
			w.expect(1, workload.RunRunning, 0)
			w.none()
		}
	}
}

// A kill that the API server refuses is asked for again, with its grace, and says why the run goes on; it is not made final before its kubelet was told of it.
func TestAKillThatIsRefused(t *testing.T) {
	t.Parallel()
	w := newWorldOf(t, atOnce())
	p := w.started(1)
	w.changed(p)
	w.kill(1, 5*time.Second)
	for range 10 {
		d := w.take()
		if d.Grace != 5 {
			t.Fatalf("the kill is %+v", d)
		}
		w.answer(d, mirror.Answer{Refused: "Forbidden", Message: "no such right"})
		if s := w.last(1); s.State != workload.RunKilling || !strings.Contains(s.Message, "no such right") {
			t.Errorf("the run is %s: %s", s.State, s.Message)
		}
		w.none()
		w.pass(mirrorConfig.KillMargin)
	}
	w.answer(w.take(), mirror.Answer{})
	w.pass(5 * time.Second)
	w.none()
	w.pass(mirrorConfig.KillMargin)
	d := w.take()
	if d.Grace != 0 {
		t.Errorf("it is made final by %+v", d)
	}
	w.gone(p)
	w.expect(1, workload.RunKilled, 0)
	w.acknowledge(1)

	p = w.started(2) // of a run that has ended
	w.exits(p, 0)
	w.acknowledge(2)
	w.answer(w.take(), mirror.Answer{Refused: "Forbidden", Message: "no such right"})
	w.pass(mirrorConfig.KillMargin)
	w.answer(w.take(), mirror.Answer{})
	w.gone(p)
	if s := w.m.Stats(); s.Runs != 0 {
		t.Errorf("what is left is %+v", s)
	}
}
