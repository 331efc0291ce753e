package cluster_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"pgregory.net/rapid"

	"github.com/paceline-sched/paceline/hostmanagers/kubernetes/emulator/cluster"
)

var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// world is a cluster with a clock that the test drives.
type world struct {
	*testing.T
	*cluster.Cluster
	now time.Time
}

func newWorld(t *testing.T, behave func(*corev1.Pod, *corev1.Container) cluster.Behaviour) *world {
	capacity, err := cluster.Quantities(map[string]string{"cpu": "4", "memory": "8Gi", "example.org/gpu": "2"})
	if err != nil {
		t.Fatal(err)
	}
	cfg := cluster.Config{Behave: behave, Nodes: []cluster.NodeConfig{{Name: "a", Capacity: capacity}, {Name: "b", Capacity: capacity}}}
	return &world{T: t, Cluster: cluster.New(cfg, epoch), now: epoch}
}

// pass lets time go by.
func (w *world) pass(d time.Duration) {
	w.now = w.now.Add(d)
	w.Advance(w.now)
}

func (w *world) pod(name string, change func(*corev1.Pod)) {
	w.Helper()
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PodSpec{
		NodeName: "a", RestartPolicy: corev1.RestartPolicyNever, Containers: []corev1.Container{{Name: "c", Image: "i"}},
	}}
	if change != nil {
		change(p)
	}
	if _, err := w.Create(cluster.Pods, "default", p, false); err != nil {
		w.Fatal(err)
	}
	w.pass(0)
}

func key(name string) cluster.Key { return cluster.Key{Namespace: "default", Name: name} }

// get finds a pod; nil: it is gone.
func (w *world) get(name string) *corev1.Pod {
	o, err := w.Get(cluster.Pods, key(name))
	if err != nil {
		return nil
	}
	p, _ := o.(*corev1.Pod)
	return p
}

func (w *world) phase(name string, want corev1.PodPhase, reason string) *corev1.Pod {
	w.Helper()
	p := w.get(name)
	if p == nil {
		w.Fatalf("pod %s is gone", name)
	}
	if p.Status.Phase != want || p.Status.Reason != reason {
		w.Errorf("pod %s is %s %q (%s), want %s %q", name, p.Status.Phase, p.Status.Reason, p.Status.Message, want, reason)
	}
	return p
}

func (w *world) delete(name string, grace int64) {
	w.Helper()
	if _, _, err := w.Delete(cluster.Pods, key(name), cluster.Deletion{GraceSeconds: &grace}); err != nil {
		w.Fatal(err)
	}
	w.pass(0)
}

func always(b cluster.Behaviour) func(*corev1.Pod, *corev1.Container) cluster.Behaviour {
	return func(*corev1.Pod, *corev1.Container) cluster.Behaviour { return b }
}

func TestLifeOfAPod(t *testing.T) {
	t.Parallel()
	w := newWorld(t, always(cluster.Behaviour{Start: time.Second, Run: 10 * time.Second, Exit: 3}))
	w.pod("p", nil)
	w.phase("p", corev1.PodPending, "")
	w.pass(time.Second)
	p := w.phase("p", corev1.PodRunning, "")
	if s := p.Status.ContainerStatuses[0]; !s.Ready || s.State.Running == nil || p.Status.PodIP == "" {
		t.Errorf("a running pod has %+v", p.Status)
	}
	w.pass(10 * time.Second)
	p = w.phase("p", corev1.PodFailed, "")
	if end := p.Status.ContainerStatuses[0].State.Terminated; end == nil || end.ExitCode != 3 || end.Reason != "Error" {
		t.Errorf("it ended as %+v", end)
	}
	w.delete("p", 30) // what is over goes at once
	if w.get("p") != nil {
		t.Error("a pod that was over and deleted is still there")
	}
}

func TestAKubeletRefusesWhatDoesNotFit(t *testing.T) {
	t.Parallel()
	w := newWorld(t, always(cluster.Behaviour{Run: -1}))
	needs := func(name, amount string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			list, err := cluster.Quantities(map[string]string{name: amount})
			if err != nil {
				t.Fatal(err)
			}
			p.Spec.Containers[0].Resources = corev1.ResourceRequirements{Requests: list, Limits: list}
		}
	}
	w.pod("first", needs("cpu", "3"))
	w.pod("second", needs("cpu", "2"))
	p := w.phase("second", corev1.PodFailed, "OutOfcpu")
	if want := "Pod was rejected: Node didn't have enough resource: cpu, requested: 2000, used: 3000, capacity: 4000"; p.Status.Message != want {
		t.Errorf("it is told %q", p.Status.Message)
	}
	w.pod("memory", needs("memory", "9Gi"))
	w.phase("memory", corev1.PodFailed, "OutOfmemory")
	w.pod("gpu", needs("example.org/gpu", "3"))
	w.phase("gpu", corev1.PodFailed, "UnexpectedAdmissionError")
	w.pod("elsewhere", func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"zone": "z"} })
	w.phase("elsewhere", corev1.PodFailed, "NodeAffinity")
	w.delete("first", 0)
	w.pod("third", needs("cpu", "4"))
	w.phase("third", corev1.PodRunning, "")
	w.Reject = func(*corev1.Pod) (string, string) { return "OutOfpods", "a fault" }
	w.pod("unlucky", nil)
	w.phase("unlucky", corev1.PodFailed, "OutOfpods")
}

func TestADeletedPodGetsItsGrace(t *testing.T) {
	t.Parallel()
	w := newWorld(t, always(cluster.Behaviour{Run: -1, Deaf: true}))
	w.pod("p", nil)
	w.delete("p", 20)
	w.pass(19 * time.Second)
	if p := w.phase("p", corev1.PodRunning, ""); p.DeletionTimestamp == nil {
		t.Error("a deleted pod has no time of deletion")
	}
	w.pass(2 * time.Second)
	if w.get("p") != nil {
		t.Fatal("a deaf pod outlives its grace")
	}
	changes, err := w.Changes(cluster.Pods, 1, 100)
	if err != nil {
		t.Fatal(err)
	}
	last, _ := changes[len(changes)-1].Object.(*corev1.Pod)
	if end := last.Status.ContainerStatuses[0].State.Terminated; changes[len(changes)-1].Type != watch.Deleted || end == nil || end.ExitCode != 137 {
		t.Errorf("its last state is %+v", last.Status)
	}
	w.pod("q", nil)
	w.delete("q", 1000)
	w.delete("q", 5) // it can only be shortened
	w.pass(6 * time.Second)
	if w.get("q") != nil {
		t.Error("a shortened grace is not heeded")
	}
}

// TestAGraceBeyondAllTime: one that is longer than time is counted is not none.
func TestAGraceBeyondAllTime(t *testing.T) {
	t.Parallel()
	w := newWorld(t, always(cluster.Behaviour{Run: -1, Deaf: true}))
	w.pod("p", nil)
	w.delete("p", 1<<40)
	w.pass(time.Hour)
	w.phase("p", corev1.PodRunning, "")
}

func TestContainersInOrder(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(_ *corev1.Pod, c *corev1.Container) cluster.Behaviour {
		return map[string]cluster.Behaviour{
			"init": {Run: time.Second}, "side": {Run: -1}, "c": {Run: 5 * time.Second},
		}[c.Name]
	})
	w.pod("p", func(p *corev1.Pod) {
		on := corev1.ContainerRestartPolicyAlways
		p.Spec.InitContainers = []corev1.Container{{Name: "init", Image: "i"}, {Name: "side", Image: "i", RestartPolicy: &on}}
	})
	p := w.phase("p", corev1.PodPending, "")
	if s := p.Status.InitContainerStatuses; s[0].State.Running == nil || s[1].State.Running != nil || p.Status.ContainerStatuses[0].State.Running != nil {
		t.Errorf("at first there runs %+v", p.Status)
	}
	w.pass(time.Second)
	p = w.phase("p", corev1.PodRunning, "")
	if s := p.Status.InitContainerStatuses; s[0].State.Terminated == nil || s[1].State.Running == nil {
		t.Errorf("then there runs %+v", s)
	}
	w.pass(5 * time.Second)
	w.phase("p", corev1.PodSucceeded, "") // what ran beside is ended
}

func TestRestarts(t *testing.T) {
	t.Parallel()
	w := newWorld(t, always(cluster.Behaviour{Run: time.Second, Exit: 1}))
	w.pod("p", func(p *corev1.Pod) { p.Spec.RestartPolicy = corev1.RestartPolicyAlways })
	w.pass(2 * time.Second) // once at once
	p := w.phase("p", corev1.PodRunning, "")
	if s := p.Status.ContainerStatuses[0]; s.RestartCount != 1 || s.State.Waiting == nil || s.State.Waiting.Reason != "CrashLoopBackOff" {
		t.Errorf("after two failures there is %+v", s)
	}
	w.pass(time.Hour)
	if n := w.get("p").Status.ContainerStatuses[0].RestartCount; n < 10 || n > 30 {
		t.Errorf("in an hour it was started again %d times", n)
	}
}

func TestProbes(t *testing.T) {
	t.Parallel()
	w := newWorld(t, always(cluster.Behaviour{Run: -1, Ready: 3 * time.Second, Sick: 8 * time.Second}))
	w.pod("p", func(p *corev1.Pod) {
		p.Spec.Containers[0].ReadinessProbe, p.Spec.Containers[0].LivenessProbe = &corev1.Probe{}, &corev1.Probe{}
	})
	if w.phase("p", corev1.PodRunning, "").Status.ContainerStatuses[0].Ready {
		t.Error("it is ready before its probe passed")
	}
	w.pass(3 * time.Second)
	if !w.get("p").Status.ContainerStatuses[0].Ready {
		t.Error("it is not ready after its probe passed")
	}
	w.pass(5 * time.Second)
	p := w.phase("p", corev1.PodFailed, "")
	if end := p.Status.ContainerStatuses[0].State.Terminated; end == nil || end.ExitCode != 143 {
		t.Errorf("a sick container ended as %+v", end)
	}
}

func TestNodes(t *testing.T) {
	t.Parallel()
	w := newWorld(t, always(cluster.Behaviour{Run: -1}))
	w.pod("p", nil)
	w.pod("q", func(p *corev1.Pod) { p.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}} })
	w.SetNode("a", false)
	w.pass(cluster.DefaultNodeGone)
	o, err := w.Get(cluster.Nodes, cluster.Key{Name: "a"})
	if err != nil {
		t.Fatal(err)
	}
	if n, _ := o.(*corev1.Node); n.Status.Conditions[3].Status != corev1.ConditionUnknown || len(n.Spec.Taints) != 2 {
		t.Errorf("a silent node has %+v, %+v", n.Status.Conditions, n.Spec.Taints)
	}
	w.pass(301 * time.Second)
	if p := w.get("p"); p == nil || p.DeletionTimestamp == nil {
		t.Error("a pod of a silent node is not deleted, or is gone while nobody can know what became of it")
	}
	if q := w.get("q"); q == nil || q.DeletionTimestamp != nil {
		t.Error("a pod that tolerates it is deleted")
	}
	w.SetNode("a", true)
	w.pass(time.Second)
	if w.get("p") != nil {
		t.Error("the node is back, and its deleted pod is still there")
	}
	w.phase("q", corev1.PodRunning, "")
	if !w.Pressure(key("q"), "The node was low on resource: memory.") {
		t.Error("no kubelet has the pod")
	}
	w.pass(0)
	w.phase("q", corev1.PodFailed, "Evicted")
	w.pod("r", nil)
	if _, _, err := w.Delete(cluster.Nodes, cluster.Key{Name: "a"}, cluster.Deletion{}); err != nil {
		t.Fatal(err)
	}
	w.pass(cluster.DefaultNodeGone)
	if w.get("r") != nil {
		t.Error("a pod outlives its node")
	}
}

func TestQuotaAndBudget(t *testing.T) {
	t.Parallel()
	w := newWorld(t, always(cluster.Behaviour{Run: -1}))
	hard, err := cluster.Quantities(map[string]string{"pods": "1"})
	if err != nil {
		t.Fatal(err)
	}
	var quotas, budgets *cluster.Resource
	for _, r := range cluster.Resources {
		switch r.Resource {
		case "resourcequotas":
			quotas = r
		case "poddisruptionbudgets":
			budgets = r
		}
	}
	if _, err := w.Create(quotas, "default", &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "q"}, Spec: corev1.ResourceQuotaSpec{Hard: hard}}, false); err != nil {
		t.Fatal(err)
	}
	w.pod("p", func(p *corev1.Pod) { p.Labels = map[string]string{"a": "b"} })
	_, err = w.Create(cluster.Pods, "default", &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "more"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}},
	}, false)
	if !apierrors.IsForbidden(err) || err.Error() != `pods "more" is forbidden: exceeded quota: q, requested: pods=1, used: pods=1, limited: pods=1` {
		t.Errorf("beyond the quota: %v", err)
	}
	budget := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Name: "b"}, Spec: policyv1.PodDisruptionBudgetSpec{
		Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"a": "b"}},
	}}
	if _, err := w.Create(budgets, "default", budget, false); err != nil {
		t.Fatal(err)
	}
	if err := w.Evict("default", &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: "p"}}, cluster.Deletion{}); !apierrors.IsTooManyRequests(err) {
		t.Errorf("against the budget: %v", err)
	}
}

// The log of changes, applied to nothing, gives the objects; and a list of the past is what was listed then.
func TestChangesGiveTheObjects(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		seed := rapid.Uint64().Draw(rt, "seed")
		chance := rand.New(rand.NewPCG(seed, 1))
		capacity, err := cluster.Quantities(map[string]string{"cpu": "4"})
		if err != nil {
			rt.Fatal(err)
		}
		c := cluster.New(cluster.Config{
			Seed: seed, Nodes: []cluster.NodeConfig{{Name: "a", Capacity: capacity}},
			Behave: func(*corev1.Pod, *corev1.Container) cluster.Behaviour {
				return cluster.Behaviour{Run: time.Duration(chance.IntN(20)-5) * time.Second, Exit: int32(chance.IntN(2)), Deaf: chance.IntN(3) == 0}
			},
		}, epoch)
		now, listed := epoch, map[int64]string{}
		for range rapid.IntRange(1, 60).Draw(rt, "steps") {
			name := fmt.Sprintf("p%d", chance.IntN(6))
			switch chance.IntN(4) {
			case 0, 1:
				p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PodSpec{
					NodeName: []string{"a", "", "ghost"}[chance.IntN(3)], Containers: []corev1.Container{{Name: "c", Image: "i"}},
				}}
				_, _ = c.Create(cluster.Pods, "default", p, chance.IntN(5) == 0)
			case 2:
				grace := int64(chance.IntN(10))
				_, _, _ = c.Delete(cluster.Pods, key(name), cluster.Deletion{GraceSeconds: &grace, Dry: chance.IntN(5) == 0})
			case 3:
				now = now.Add(time.Duration(chance.IntN(8)) * time.Second)
				c.Advance(now)
			}
			listed[c.Revision()] = names(rt, c, 0)
		}
		state := map[string]string{}
		changes, err := c.Changes(cluster.Pods, 1, 1<<20)
		if err != nil {
			rt.Fatal(err)
		}
		for _, ch := range changes {
			if got := ch.Object.GetResourceVersion(); got != strconv.FormatInt(ch.Revision, 10) {
				rt.Fatalf("change %d has an object of version %s", ch.Revision, got)
			}
			if (ch.Type == watch.Added) != (state[ch.Object.GetName()] == "") {
				rt.Fatalf("change %d is %s of what was %q", ch.Revision, ch.Type, state[ch.Object.GetName()])
			}
			state[ch.Object.GetName()] = ch.Object.GetResourceVersion()
			if ch.Type == watch.Deleted {
				delete(state, ch.Object.GetName())
			}
		}
		if got, want := fmt.Sprint(sorted(state)), names(rt, c, 0); got != want {
			rt.Fatalf("the changes give %s, the cluster has %s", got, want)
		}
		for revision, want := range listed {
			if got := names(rt, c, revision); got != want {
				rt.Fatalf("at %d there was %s, and is listed %s", revision, want, got)
			}
		}
	})
}

func names(t *rapid.T, c *cluster.Cluster, revision int64) string {
	objects, err := c.List(cluster.Pods, "default", revision)
	if err != nil {
		t.Fatal(err)
	}
	state := map[string]string{}
	for _, o := range objects {
		state[o.GetName()] = o.GetResourceVersion()
	}
	return fmt.Sprint(sorted(state))
}

func sorted(state map[string]string) []string {
	var out []string
	for name, version := range state {
		out = append(out, name+"@"+version)
	}
	slices.Sort(out)
	return out
}

// A node that is deleted and comes back soon has its pods still; one that stays away loses them.
func TestLostNodes(t *testing.T) {
	t.Parallel()
	w := newWorld(t, always(cluster.Behaviour{Run: -1}))
	w.pod("p", nil)
	uid := func() string {
		o, err := w.Get(cluster.Nodes, cluster.Key{Name: "a"})
		if err != nil {
			return ""
		}
		return string(o.GetUID())
	}
	before := uid()
	if !w.LoseNode("a") || w.LoseNode("a") || w.LoseNode("c") || uid() != "" {
		t.Fatal("a node that is there, and no other, can be lost")
	}
	w.pass(cluster.DefaultNodeGone - time.Second)
	if !w.ReturnNode("a") || w.ReturnNode("a") || w.ReturnNode("b") || uid() == before || uid() == "" {
		t.Fatalf("the node that was lost, and no other, comes back as another one: %q, and was %q", uid(), before)
	}
	w.pass(2 * time.Second)
	w.phase("p", corev1.PodRunning, "")
	w.LoseNode("a")
	w.pass(cluster.DefaultNodeGone)
	if w.get("p") != nil {
		t.Error("a pod outlives its node")
	}
	w.ReturnNode("a")
	w.pod("q", nil)
	w.phase("q", corev1.PodRunning, "")
}

// Lists are in the order of an API server's storage, and stay what they were: also while they are read, and whoever else lists.
func TestListsStay(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		c := cluster.New(cluster.Config{Behave: always(cluster.Behaviour{Run: -1})}, epoch)
		spaces := []string{"a", "a-b", "a0", "b"}
		for _, name := range spaces {
			if _, err := c.Create(cluster.Namespaces, "", &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, false); err != nil {
				t.Fatal(err)
			}
		}
		now := map[string]string{} // "namespace/name" to its version
		then := map[int64]map[string]string{}
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			k := cluster.Key{Namespace: rapid.SampledFrom(spaces).Draw(t, "space"), Name: rapid.SampledFrom([]string{"x", "x-1", "y"}).Draw(t, "name")}
			if _, is := now[k.Namespace+"/"+k.Name]; is {
				zero := int64(0)
				if _, _, err := c.Delete(cluster.Pods, k, cluster.Deletion{GraceSeconds: &zero}); err != nil {
					t.Fatal(err)
				}
				delete(now, k.Namespace+"/"+k.Name)
			} else {
				p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: k.Name}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}}
				o, err := c.Create(cluster.Pods, k.Namespace, p, false)
				if err != nil {
					t.Fatal(err)
				}
				now[k.Namespace+"/"+k.Name] = o.GetResourceVersion()
			}
			then[c.Revision()] = maps.Clone(now)
			at := rapid.SampledFrom(slices.Sorted(maps.Keys(then))).Draw(t, "at")
			space := rapid.SampledFrom(append(spaces, "")).Draw(t, "of")
			want := maps.Clone(then[at])
			maps.DeleteFunc(want, func(k, _ string) bool { return space != "" && !strings.HasPrefix(k, space+"/") })
			list, err := c.List(cluster.Pods, space, at)
			if err != nil {
				t.Fatal(err)
			}
			var keys []string
			got := map[string]string{}
			for _, o := range list {
				keys = append(keys, o.GetNamespace()+"/"+o.GetName())
				got[keys[len(keys)-1]] = o.GetResourceVersion()
			}
			if !maps.Equal(got, want) || !slices.IsSorted(keys) {
				t.Fatalf("as of %d in %q: %v (%v), want %v", at, space, got, keys, want)
			}
		}
	})
}

// A cluster that is restored has what it had then, under the same versions and UIDs, and gives the versions since away anew. Its kubelets end what it does not know.
func TestRestore(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(*corev1.Pod, *corev1.Container) cluster.Behaviour { return cluster.Behaviour{Run: -1} })
	for _, name := range []string{"stays", "changes", "goes"} {
		w.pod(name, nil)
	}
	w.pass(time.Second)
	there := func() (list []string) {
		pods, err := w.List(cluster.Pods, "", 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range pods {
			list = append(list, fmt.Sprint(p.GetName(), p.GetUID(), p.GetResourceVersion(), p.GetLabels()))
		}
		return list
	}
	then, revision := there(), w.Revision()
	label := func(o cluster.Object) (cluster.Object, error) {
		o.SetLabels(map[string]string{"changed": "yes"})
		return o, nil
	}
	if _, err := w.Update(cluster.Pods, cluster.Key{Namespace: "default", Name: "changes"}, "", label, false); err != nil {
		t.Fatal(err)
	}
	if _, _, err := w.Delete(cluster.Pods, cluster.Key{Namespace: "default", Name: "goes"}, cluster.Deletion{}); err != nil {
		t.Fatal(err)
	}
	w.pod("comes", nil)
	w.pass(time.Minute)
	if now := there(); slices.Equal(now, then) {
		t.Fatalf("nothing changed: %v", now)
	}
	later := w.Revision()
	if err := w.Restore(revision); err != nil {
		t.Fatal(err)
	}
	if now := there(); !slices.Equal(now, then) || w.Revision() != revision {
		t.Errorf("it has %v at %d, and had %v at %d", now, w.Revision(), then, revision)
	}
	if changes, err := w.Changes(cluster.Pods, revision, 100); err != nil || len(changes) != 0 {
		t.Errorf("what was undone is told: %v, %v", changes, err)
	}
	w.pass(time.Minute)
	w.pod("comes", nil) // its name is free, and its room
	w.pass(time.Minute)
	o, err := w.Get(cluster.Pods, cluster.Key{Namespace: "default", Name: "comes"})
	if p, ok := o.(*corev1.Pod); !ok || p.Status.Phase != corev1.PodRunning {
		t.Errorf("a pod created afterwards is %+v: %v", o, err)
	}
	if err := w.Restore(later + 1000); err == nil {
		t.Error("it was restored to what has not come yet")
	}
	w.Compact()
	if err := w.Restore(revision); err == nil {
		t.Error("it was restored to what it has forgotten")
	}
}
