package mirror_test

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/paceline-sched/paceline/core/driver"
	"github.com/paceline-sched/paceline/core/workload"
	"github.com/paceline-sched/paceline/hostmanagers/kubernetes/mirror"
)

// done has a run succeed, acknowledged.
func (w *world) done(i uint32) *corev1.Pod {
	w.t.Helper()
	p := w.started(i)
	w.changed(p)
	w.exits(p, 0)
	w.acknowledge(i)
	return p
}

// removedPods are the runs whose pods were asked to be deleted since the last call, without grace. Nothing else was asked for.
func (w *world) removedPods() (list []uint32) {
	w.t.Helper()
	for _, c := range w.calls {
		if c.Launch != nil || c.Grace != 0 || c.UID == "" {
			w.t.Fatalf("there is a call %+v", c)
		}
		list = append(list, c.Run.Instance)
	}
	w.calls = nil
	return list
}

// The pod of a run that has ended stays for a while after its end was acknowledged. It takes no room, and is nobody's run any more.
func TestAnEndedPodIsKept(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	empty := w.hosts["a"].Details["pods"]
	p := w.started(1)
	w.changed(p)
	w.exits(p, 3)
	w.pass(time.Minute)
	w.acknowledge(1)
	w.none()
	if namespace, ok := w.m.Where(run(1)); !ok || namespace != "space" {
		t.Errorf("its pod is in %q, %v", namespace, ok)
	}
	if got := w.hosts["a"].Details["pods"]; got != empty {
		t.Errorf("its node has %s pods, and without it %s", got, empty)
	}
	before := len(w.statuses[1])
	w.changed(p)
	w.pods(p)
	w.do(func(now int64) { w.m.Lost(now, errTest, &w.out) })
	w.do(func(now int64) { w.m.Connected(now, &w.out) })
	if len(w.statuses[1]) != before || len(w.inventories[1].Runs) != 0 {
		t.Errorf("it is told again: %+v", w.statuses[1][before:])
	}
	w.kill(1, 0)
	w.expect(1, workload.RunLost, workload.ReasonNotFound)
	w.pass(mirror.DefaultKeepEnded - time.Minute - time.Second)
	w.none()
	if s := w.m.Stats(); s.Kept != 1 || s.Runs != 1 {
		t.Errorf("there is %+v", s)
	}
	w.pass(2 * time.Second)
	if c := w.take(); c.Launch != nil || c.UID != string(p.UID) || c.Grace != 0 || c.Namespace != "space" {
		t.Errorf("afterwards there is %+v", c)
	}
	w.gone(p)
	if s := w.m.Stats(); s.Kept != 0 || s.Runs != 0 {
		t.Errorf("what is left is %+v", s)
	}
}

// Of more than may stay the one that ended first goes.
func TestOnlySoManyEndedPodsAreKept(t *testing.T) {
	t.Parallel()
	const most = 50
	config := mirrorConfig
	config.KeepEndedPods = most
	w := newWorldOf(t, config)
	pods := map[uint32]*corev1.Pod{}
	for i := range uint32(most) {
		pods[i] = w.done(i)
		w.now++
	}
	w.none()
	late := w.started(5000)
	w.changed(late)
	w.exits(late, 0) // ends before 5001, and is acknowledged after it
	w.now++
	w.done(5001)
	if list := w.removedPods(); len(list) != 1 || list[0] != 0 {
		t.Errorf("beyond the bound goes %v", list)
	}
	w.now++
	w.acknowledge(5000)
	if list := w.removedPods(); len(list) != 1 || list[0] != 1 {
		t.Errorf("beyond the bound goes %v", list)
	}
	if s := w.m.Stats(); s.Kept != most {
		t.Errorf("kept are %+v", s)
	}
	w.gone(pods[20]) // somebody deletes one
	w.done(5002)
	w.none()
}

// Pods go few at a time, and more of a long line: else their deletions would stand before every launch.
func TestRemovalsArePaced(t *testing.T) {
	t.Parallel()
	w := newWorldOf(t, atOnce())
	const many, most = 400, 400 / 32
	var tokens []driver.Token
	for i := range uint32(many) {
		p := w.started(i)
		w.changed(p)
		w.exits(p, 0)
		tokens = append(tokens, w.last(i).Token)
	}
	w.none()
	w.do(func(now int64) { w.m.Acknowledge(now, tokens, &w.out) })
	next, seen := uint32(0), 0
	for len(w.calls) > 0 {
		if len(w.calls) > most {
			t.Fatalf("%d deletions are under way", len(w.calls))
		}
		if next == 0 && len(w.calls) < 8 || next < many-100 && len(w.calls) < 2 {
			t.Fatalf("%d deletions are under way, and %d are done", len(w.calls), next)
		}
		seen = max(seen, len(w.calls))
		c := w.calls[0]
		w.calls = w.calls[1:]
		if c.Run.Instance != next {
			t.Fatalf("run %d goes, and it is %d's turn", c.Run.Instance, next)
		}
		next++
		w.answer(c, mirror.Answer{})
	}
	if next != many || seen < 8 {
		t.Errorf("%d of %d pods go, %d at once", next, many, seen)
	}
}

// A pod without an output goes as soon as its end was acknowledged: one that never ran, and one that somebody has deleted, which goes by itself.
func TestWhatHasNoOutputIsNotKept(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := w.started(1)
	w.changed(p)
	p.Status.Phase, p.Status.Reason, p.Status.ContainerStatuses = corev1.PodFailed, "OutOfcpu", nil
	w.changed(p)
	w.acknowledge(1)
	w.take()
	p = w.started(2)
	w.changed(p)
	now := metav1.NewTime(time.Unix(0, int64(w.now)))
	p.DeletionTimestamp = &now
	w.exits(p, 143)
	w.acknowledge(2)
	w.take()
}

// After a restart ended pods are told, as somebody may have yet to hear of them. What is acknowledged stays for what is left of its time.
func TestKeptPodsAfterARestart(t *testing.T) {
	t.Parallel()
	old := newWorld(t)
	pods := []*corev1.Pod{old.done(0)}
	old.pass(6 * time.Minute)
	pods = append(pods, old.done(1))
	old.pass(3 * time.Minute)
	old.none()

	w := bareWorld(t)
	w.now = old.now
	w.do(func(now int64) { w.m.Connected(now, &w.out) })
	w.nodes(aNode("a"), aNode("b"))
	w.pods(pods...)
	if runs := w.inventories[0].Runs; len(runs) != 2 {
		t.Fatalf("the inventory has %+v", runs)
	}
	w.expect(0, workload.RunSucceeded, workload.ReasonExited)
	w.acknowledge(1)
	w.acknowledge(0)
	w.none()
	w.pass(2 * time.Minute)
	if c := w.take(); c.Run.Instance != 0 {
		t.Errorf("first goes run %d", c.Run.Instance)
	}
	w.pass(4 * time.Minute)
	w.none()
	w.pass(2 * time.Minute)
	if c := w.take(); c.Run.Instance != 1 {
		t.Errorf("then goes run %d", c.Run.Instance)
	}
}

// A quota of objects counts kept pods: when it refuses one, those of its namespace go. A quota of anything else has no use for that.
func TestKeptPodsMakeRoom(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.done(1)
	w.done(2)
	refused := func(i uint32, message string) {
		t.Helper()
		w.launch(i)
		w.answer(w.take(), mirror.Answer{Refused: mirror.RefusedByQuota, Message: message})
		w.expect(i, workload.RunLost, workload.ReasonLaunchRefused)
	}
	refused(3, "exceeded quota: q, requested: pods=1, used: pods=2, limited: pods=2")
	w.none()
	refused(4, "exceeded quota: q, requested: count/pods=1, used: count/pods=2, limited: count/pods=2")
	if list := w.removedPods(); len(list) != 2 {
		t.Errorf("room is made by the removal of %v", list)
	}
}

// A cell that was set back launches a run that had ended: the pod is found by its name, and the run's end is told, not kept back.
func TestAKeptRunIsLaunchedAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := w.done(1)
	w.launch(1)
	c := w.take()
	record := mirrorConfig.ReadPod(p)
	before := len(w.statuses[1])
	w.answer(c, mirror.Answer{Pod: &record})
	if got := w.statuses[1][before:]; len(got) != 1 || got[0].State != workload.RunSucceeded {
		t.Fatalf("it is answered with %+v", got)
	}
	w.acknowledge(1)
	w.none()
	w.pass(mirror.DefaultKeepEnded + time.Second)
	w.take()
	w.gone(p)
	if s := w.m.Stats(); s.Runs != 0 || s.Kept != 0 {
		t.Errorf("what is left is %+v", s)
	}
}
