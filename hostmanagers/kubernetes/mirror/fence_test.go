package mirror_test

import (
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/paceline-sched/paceline/core/driver"
	"github.com/paceline-sched/paceline/core/workload"
	"github.com/paceline-sched/paceline/hostmanagers/kubernetes/mirror"
)

// orphan is a pod of our owner that this process did not create.
func orphan(i uint32, epoch string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: run(i).String(), Namespace: "space", UID: types.UID("10000000-0000-0000-0000-00000000000" + string(rune('0'+i))),
			Labels: map[string]string{mirror.LabelOwner: "us", mirror.LabelEpoch: epoch},
		},
		Spec: corev1.PodSpec{NodeName: "a", Containers: []corev1.Container{{Name: "main", Resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{"cpu": resource.MustParse("100m")},
		}}}},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: []corev1.ContainerStatus{{Name: "main", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}},
	}
}

// A process that another one has followed creates nothing any more, and kills all the same.
func TestAnEarlierProcess(t *testing.T) {
	t.Parallel()
	launch := func(w *world, i uint32) error {
		var err error
		w.do(func(now int64) {
			err = w.m.Launch(now, []driver.Launch{{Run: run(i), Host: "a"}}, func(*driver.Launch) string { return "space" }, &w.out)
		})
		return err
	}
	w := bareWorld(t)
	w.do(func(now int64) { w.m.Connected(now, &w.out) })
	w.nodes(aNode("a"))
	w.pods(orphan(1, "9"), orphan(2, "3")) // as after a restore from a backup: our epoch is 5
	w.changed(orphan(1, "9"))
	if err := launch(w, 3); err != nil {
		t.Fatal(err)
	}
	w.changed(orphan(4, "4")) // of an earlier one, late
	if err := launch(w, 5); err != nil || w.m.Newer() != 0 {
		t.Fatal(err)
	}
	pending := w.calls
	w.calls = nil
	w.changed(orphan(6, "6"))
	if err := launch(w, 7); !errors.Is(err, mirror.ErrStale) || w.m.Newer() != 6 {
		t.Errorf("after a later process has created a pod: %v", err)
	}
	for _, c := range pending {
		if w.m.Wanted(c) {
			t.Errorf("the creation of %s is tried again", c.Run)
		}
	}
	w.kill(2, 0)
	if c := w.take(); c.Launch != nil {
		t.Error("nothing is killed")
	}
}

// A copy of a run's pod in another namespace is not the run, and takes room.
func TestACopyOfAPod(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := w.started(1)
	w.changed(p)
	before := w.hosts["a"].Foreign
	dup := orphan(1, "1")
	dup.Namespace = "backup"
	w.changed(dup)
	if w.hosts["a"].Foreign[0] != before[0]+100 {
		t.Errorf("beside the copy others take %v", w.hosts["a"].Foreign)
	}
	w.gone(dup)
	w.expect(1, workload.RunRunning, 0)
	if w.hosts["a"].Foreign != before {
		t.Errorf("after it others take %v", w.hosts["a"].Foreign)
	}
	w.none()
}

// A list in which a run's name has another pod: the run is lost, and the other one is told apart from it.
func TestAnotherPodOfTheName(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.changed(w.started(1))
	other := orphan(1, "1")
	w.pods(other)
	w.expect(1, workload.RunLost, workload.ReasonNotFound)
	w.acknowledge(1)
	if c := w.take(); c.Launch != nil || c.UID != string(other.UID) {
		t.Errorf("it is followed by %+v", c)
	}
	w.gone(other)
	if s := w.m.Stats(); s.Runs != 0 {
		t.Errorf("what is left is %+v", s)
	}
}
