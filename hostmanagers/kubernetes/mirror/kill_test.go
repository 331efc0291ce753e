package mirror_test

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"github.com/paceline-sched/paceline/core/driver"
	"github.com/paceline-sched/paceline/core/workload"
	"github.com/paceline-sched/paceline/hostmanagers/kubernetes/mirror"
)

// deletes has somebody ask for a pod's end.
func (w *world) deletes(p *corev1.Pod, grace time.Duration) {
	w.t.Helper()
	seconds, due := int64(grace/time.Second), metav1.NewTime(time.Unix(0, int64(w.now+grace)))
	p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &due, &seconds
	w.changed(p)
}

func (w *world) cut() { w.do(func(now int64) { w.m.Lost(now, errTest, &w.out) }) }

func (w *world) mend() { w.do(func(now int64) { w.m.Connected(now, &w.out) }) }

func silent(name string) *corev1.Node {
	n := aNode(name)
	n.Status.Conditions[0].Status = corev1.ConditionUnknown
	return n
}

// next is another process on the same cluster.
func (w *world) next(pods ...*corev1.Pod) {
	w.t.Helper()
	m, err := mirror.New(mirrorConfig)
	if err != nil {
		w.t.Fatal(err)
	}
	w.m, w.calls = m, nil
	w.mend()
	w.nodes(aNode("a"), aNode("b"))
	w.pods(pods...)
}

// A kill is made final its grace and the margin after the last moment at which its kubelet can have begun with it, and no sooner.
func TestWhenAKillIsFinal(t *testing.T) {
	t.Parallel()
	const second = time.Second
	margin := mirrorConfig.KillMargin
	done := mirror.Answer{}
	for name, test := range map[string]struct {
		happens func(w *world, p *corev1.Pod) // and leaves nothing to be answered
		final   time.Duration                 // after that
	}{
		"nothing else": {func(w *world, _ *corev1.Pod) {
			w.kill(1, 5*second)
			w.answer(w.take(), done)
		}, 5*second + margin},
		"a late answer": {func(w *world, _ *corev1.Pod) {
			w.kill(1, 5*second)
			d := w.take()
			w.pass(time.Hour)
			w.none()
			w.answer(d, done)
		}, 5*second + margin},
		"a refusal that comes late": {func(w *world, _ *corev1.Pod) {
			w.kill(1, second)
			d := w.take()
			w.pass(5 * second)
			w.answer(d, mirror.Answer{Refused: "Forbidden", Message: "no"})
			w.pass(margin)
			d = w.take()
			if d.Grace != 1 {
				w.t.Fatalf("a kill that its kubelet was never told of is followed by %+v", d)
			}
			w.answer(d, done)
		}, second + margin},
		"its node is out of contact until after the kill": {func(w *world, _ *corev1.Pod) {
			w.node(silent("a"))
			w.kill(1, 5*second)
			w.answer(w.take(), done)
			w.pass(mirrorConfig.UnreachableGrace - second)
			w.none()
			w.node(aNode("a"))
		}, 5*second + margin},
		"the API server is away after the kill": {func(w *world, _ *corev1.Pod) {
			w.kill(1, 5*second)
			w.answer(w.take(), done)
			w.cut()
			w.pass(time.Hour)
			w.none()
			w.mend()
		}, 5*second + margin},
		"somebody else had given it longer": {func(w *world, p *corev1.Pod) {
			w.deletes(p, 40*second)
			w.pass(3 * second)
			w.kill(1, second)
			w.answer(w.take(), done)
		}, 37*second + margin},
		"somebody else gives it less": {func(w *world, p *corev1.Pod) {
			w.kill(1, 40*second)
			w.answer(w.take(), done)
			w.deletes(p, 40*second)
			w.pass(3 * second)
			w.deletes(p, second)
		}, 37*second + margin},
		"an earlier process had given it longer": {func(w *world, p *corev1.Pod) {
			w.kill(1, 40*second)
			w.answer(w.take(), done)
			w.deletes(p, 40*second)
			w.next(p)
			w.expect(1, workload.RunKilling, 0)
			w.kill(1, second)
			w.answer(w.take(), done)
		}, 40*second + margin},
		"somebody else gives it more than there is time": {func(w *world, p *corev1.Pod) {
			long := int64(1) << 60
			p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &metav1.Time{Time: time.Unix(0, int64(w.now))}, &long
			w.changed(p)
			w.kill(1, second)
			w.answer(w.take(), done)
		}, 365*24*time.Hour + margin},
		"it cannot start, and is killed": {func(w *world, p *corev1.Pod) {
			p.Status.Phase = corev1.PodPending
			p.Status.ContainerStatuses[0].State = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "InvalidImageName"}}
			w.changed(p)
			w.answer(w.take(), done)
			w.kill(1, 30*second)
			w.answer(w.take(), done)
		}, 30*second + margin},
		"its name has another pod by now": {func(w *world, _ *corev1.Pod) { // a deletion that meets 404 or another UID counts as done
			w.kill(1, 5*second)
			w.answer(w.take(), done)
			w.changed(w.pod(&mirror.Call{Run: run(1), Namespace: "space", Launch: &driver.Launch{Host: "a"}}))
		}, 5*second + margin},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			p := w.started(1)
			w.changed(p)
			test.happens(w, p)
			w.none()
			w.pass(test.final - second)
			w.none()
			w.pass(second)
			d := w.take()
			if d.Grace != 0 || d.UID != string(p.UID) {
				t.Errorf("it is made final by %+v", d)
			}
			w.pass(10 * margin)
			w.none() // one request is enough until it is answered
			w.answer(d, done)
			w.gone(p)
			if s := w.last(1); !s.State.Traits().Terminal {
				t.Errorf("at last it is %s", s.State)
			}
		})
	}
}

// stubborn is a kubelet that hears late of a deletion, ends its pod as late as it may, keeps to the grace that it began with, and often does not say that it has
// done so; with the API server that it hears from.
type stubborn struct {
	*world
	r         *rapid.T
	p         *corev1.Pod
	there     bool
	node, api bool
	told      bool           // what is known of the node
	since     time.Duration  // since when it could have heard
	lag       time.Duration  // how long it takes to hear
	began     int64          // the grace that it began with
	ends      time.Duration  // when it has ended its pod; 0: it has not heard
	executed  []*mirror.Call // and not answered
	killed    bool
}

func (k *stubborn) over() bool { return k.ends > 0 && k.now >= k.ends }

// may notes that from now on the kubelet can hear of what it could not hear of before.
func (k *stubborn) may() {
	k.since, k.lag = k.now, time.Duration(rapid.IntRange(0, int(mirrorConfig.KillMargin/time.Second)-1).Draw(k.r, "lag"))*time.Second
}

// live lets time pass, second by second.
func (k *stubborn) live(seconds int) {
	for range seconds {
		k.pass(time.Second)
		k.look()
		if d := k.p.DeletionGracePeriodSeconds; d != nil && k.ends == 0 && k.node && k.api && k.now >= k.since+k.lag {
			k.began, k.ends = *d, k.now+time.Duration(*d)*time.Second
		}
	}
}

// look holds new calls to what is promised.
func (k *stubborn) look() {
	for _, c := range k.calls {
		if c.Launch == nil && c.Grace == 0 && !k.last(1).State.Traits().Terminal && !k.over() {
			k.r.Fatalf("at %s the pod is taken away; its kubelet ends it at %s", k.now, k.ends)
		}
	}
}

func (k *stubborn) delete(grace int64) {
	if d := k.p.DeletionGracePeriodSeconds; d != nil && *d <= grace {
		return
	}
	if k.p.DeletionGracePeriodSeconds == nil {
		k.may()
	}
	k.deletes(k.p, time.Duration(grace)*time.Second)
}

func (k *stubborn) act(action int) {
	switch action {
	case 0, 1, 2:
		k.live(rapid.IntRange(0, 25).Draw(k.r, "seconds"))
	case 3:
		k.kill(1, time.Duration(rapid.IntRange(0, 40).Draw(k.r, "grace"))*time.Second)
		k.killed = true
	case 4:
		if k.api && len(k.calls) > 0 {
			k.serve()
		}
	case 5:
		k.answered()
	case 6:
		if k.api {
			k.delete(int64(rapid.IntRange(1, 60).Draw(k.r, "their grace")))
		}
	case 7:
		if k.node = !k.node; k.node {
			k.may()
		}
		if k.api { // else it is told once there is contact
			k.tellNode()
		}
	case 8:
		if k.api = !k.api; !k.api {
			k.cut()
			return
		}
		k.mend()
		k.tellNode()
		k.may()
	case 9:
		if d := k.p.DeletionGracePeriodSeconds; k.api && k.node && (k.ends == 0 || *d == k.began) { // of a longer one, that was replaced, nobody could tell it
			k.executed, k.killed = nil, false
			k.next(k.p)
		}
	case 10: // it cannot start, as it seems
		if k.api && k.p.DeletionTimestamp == nil {
			k.p.Status.ContainerStatuses[0].State = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "InvalidImageName"}}
			k.p.Status.Phase = corev1.PodPending
			k.changed(k.p)
		}
	}
}

func (k *stubborn) tellNode() {
	switch {
	case k.node == k.told:
	case k.node:
		k.world.node(aNode("a"))
	default:
		k.world.node(silent("a"))
	}
	k.told = k.node
}

// serve does what the oldest call asks for, or refuses it.
func (k *stubborn) serve() {
	c := k.calls[0]
	k.calls = k.calls[1:]
	switch {
	case rapid.IntRange(0, 4).Draw(k.r, "luck") == 0:
		k.answer(c, mirror.Answer{Refused: "Forbidden", Message: "no"})
		return
	case c.Grace == 0:
		k.there = false
	default:
		k.delete(c.Grace)
	}
	k.executed = append(k.executed, c)
}

func (k *stubborn) answered() {
	if len(k.executed) > 0 {
		c := k.executed[0]
		k.executed = k.executed[1:]
		k.answer(c, mirror.Answer{})
	}
}

// TestNoKillIsFinalBeforeItsKubelet plays random histories of a kill. Whatever is lost, late, refused or asked for by others, also before this process began, no pod is taken
// away before its kubelet has ended it; and once all is well, every kill is made final.
func TestNoKillIsFinalBeforeItsKubelet(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(r *rapid.T) {
		k := &stubborn{world: newWorld(t), r: r, there: true, node: true, api: true, told: true}
		k.p = k.started(1)
		k.changed(k.p)
		for range rapid.IntRange(1, 40).Draw(r, "steps") {
			k.act(rapid.IntRange(0, 10).Draw(r, "action"))
			k.look()
			if !k.there || k.last(1).State.Traits().Terminal {
				return // made final, or lost with its node
			}
		}
		if !k.api {
			k.act(8)
		}
		if !k.node {
			k.act(7)
		}
		if !k.killed {
			k.kill(1, time.Second)
		}
		for range 50 { // longer than any grace, and all refusals
			for len(k.calls) > 0 && k.there {
				k.serve()
			}
			for len(k.executed) > 0 {
				k.answered()
			}
			k.live(10)
			if !k.there {
				return
			}
		}
		r.Fatalf("the kill was not made final: %+v", k.statuses[1])
	})
}
