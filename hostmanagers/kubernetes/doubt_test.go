package kubernetes_test

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/paceline-sched/paceline/core/driver"
	"github.com/paceline-sched/paceline/core/workload"
	"github.com/paceline-sched/paceline/hostmanagers/kubernetes"
	"github.com/paceline-sched/paceline/hostmanagers/kubernetes/emulator"
	"github.com/paceline-sched/paceline/hostmanagers/kubernetes/emulator/cluster"
	"github.com/paceline-sched/paceline/hostmanagers/kubernetes/manifest"
	"github.com/paceline-sched/paceline/hostmanagers/kubernetes/mirror"
)

// lostThen loses the first request of a kind before it is done; from then on f says what goes wrong.
func lostThen(kind string, f func(kind string) emulator.Fault) func(*http.Request, string) emulator.Fault {
	first := true
	return func(_ *http.Request, is string) emulator.Fault {
		if first && is == kind {
			first = false
			return emulator.Fault{Drop: true}
		}
		if first {
			return emulator.Fault{}
		}
		return f(is)
	}
}

// create makes a pod, as somebody else or a creation of ours that is carried out late.
func (w *world) create(p *corev1.Pod) {
	w.t.Helper()
	var err error
	w.emulator.Do(func(c *cluster.Cluster) { _, err = c.Create(cluster.Pods, p.Namespace, p, false) })
	if err != nil {
		w.t.Fatal(err)
	}
}

// lateOf is the pod that a launch asks for.
func (w *world) lateOf(i int, epoch uint64) *corev1.Pod {
	w.t.Helper()
	cfg := manifest.Config{Owner: "us", Epoch: epoch, Namespace: "default", DefaultImage: "none"}
	if err := cfg.Validate(); err != nil {
		w.t.Fatal(err)
	}
	p, err := cfg.Pod(&driver.Launch{Run: id(i), Host: "a", Pool: "/eng", Command: []string{"sleep"}, KillGrace: time.Second}, "")
	if err != nil {
		w.t.Fatal(err)
	}
	return p
}

// A creation without an answer is in doubt also if everything afterwards is refused: the run has no end before it is clear that no pod comes, and a pod
// that comes is the run's.
func TestARefusalAfterACreationWithoutAnAnswer(t *testing.T) {
	t.Parallel()
	forbidden := func(kind string) emulator.Fault {
		if kind == "POST pods" || kind == "GET pods" {
			return emulator.Fault{Code: http.StatusForbidden}
		}
		return emulator.Fault{}
	}
	stranger := func(w *world) *corev1.Pod {
		p := w.lateOf(0, 1)
		p.Labels[mirror.LabelOwner] = "them"
		return p
	}
	for name, c := range map[string]struct {
		fault  func(kind string) emulator.Fault
		others bool // somebody else has a pod of the name
		comes  bool
	}{
		"forbidden":                                   {forbidden, false, false},
		"forbidden, and the pod comes":                {forbidden, false, true},
		"the name is taken":                           {func(string) emulator.Fault { return emulator.Fault{} }, true, false},
		"the name is taken for a while, and it comes": {func(string) emulator.Fault { return emulator.Fault{} }, true, true},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				w.start(nil)
				other := stranger(w)
				if c.others {
					w.create(other)
				}
				w.breaks(lostThen("POST pods", c.fault))
				w.launch(0, 1, nil)
				w.pass(50 * time.Second)
				if s := w.sink.status(id(0)); s.State.Traits().Terminal {
					t.Fatalf("within a minute of an unanswered creation the run is %s: %s", s.State, s.Message)
				}
				w.breaks(nil)
				if c.comes {
					if c.others {
						w.emulator.Do(func(k *cluster.Cluster) {
							if _, _, err := k.Delete(cluster.Pods, cluster.Key{Namespace: "default", Name: id(0).String()}, cluster.Deletion{GraceSeconds: new(int64)}); err != nil {
								t.Error(err)
							}
						})
					}
					w.create(w.lateOf(0, 1))
					w.pass(5 * time.Minute)
					w.expect(0, workload.RunRunning, 0)
					return
				}
				w.pass(time.Minute)
				w.expect(0, workload.RunFailed, workload.ReasonLaunchFailed)
			})
		})
	}
}

// A deletion that meets a conflict which nobody may look into is refused, and is tried again with pauses, not without end.
func TestAConflictThatNobodyMayLookInto(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.start(nil)
		w.launch(0, 1, nil)
		w.pass(time.Second)
		w.takeCounts()
		w.breaks(func(_ *http.Request, kind string) emulator.Fault {
			switch kind {
			case "DELETE pods":
				return emulator.Fault{Code: http.StatusConflict}
			case "GET pods":
				return emulator.Fault{Code: http.StatusForbidden}
			}
			return emulator.Fault{}
		})
		if err := w.driver.Kill(t.Context(), []driver.Kill{{Run: id(0), Grace: time.Second}}); err != nil {
			t.Fatal(err)
		}
		w.pass(10 * time.Minute)
		if n := w.takeCounts()["DELETE pods"]; n > 45 { // one for each margin of a kill
			t.Errorf("within ten minutes the pod was deleted %d times", n)
		}
		if w.driver.Stats().Calls > 0 {
			t.Error("the deletion is still under way")
		}
		w.breaks(nil)
		w.pass(time.Minute)
		w.expect(0, workload.RunKilled, 0)
	})
}

// Leave waits for what a creation without an answer may still make, and deletes that, too. Who cannot wait is told.
func TestLeaveWithACreationInDoubt(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.start(nil)
		w.breaks(lostThen("POST pods", func(kind string) emulator.Fault {
			return emulator.Fault{Drop: kind == "POST pods"}
		}))
		w.launch(0, 1, nil)
		w.pass(time.Second)
		short, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		if err := w.driver.Leave(short); err == nil || !strings.Contains(err.Error(), "paceline.io/owner=us") || !strings.Contains(err.Error(), "without an answer") {
			t.Errorf("leaving in haste: %v", err)
		}
		w.breaks(nil)
		left := make(chan error, 1)
		go func() { left <- w.driver.Leave(t.Context()) }()
		w.pass(20 * time.Second)
		w.create(w.lateOf(0, 1))
		if err := <-left; err != nil {
			t.Error(err)
		}
		if n := len(w.pods()); n != 0 {
			t.Errorf("%d pods are left", n)
		}
	})
}

// A creation that comes after its process has ended, and after the next one has looked, is told to that one, which can end it.
func TestACreationThatOutlivesItsProcess(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.start(nil)
		w.breaks(only("POST pods", emulator.Fault{Drop: true}))
		w.launch(0, 1, nil)
		w.pass(time.Second)
		w.end()
		w.breaks(nil)
		next := func(c *kubernetes.Config) { c.Pods.Epoch = 2 }
		if inventory := w.start(next); len(inventory.Runs) != 0 {
			t.Fatalf("the next process finds %v", inventory.Runs)
		}
		w.create(w.lateOf(0, 1))
		w.pass(time.Second)
		w.expect(0, workload.RunRunning, 0) // which the cell does not expect, and kills
		if err := w.driver.Kill(t.Context(), []driver.Kill{{Run: id(0), Grace: time.Second}}); err != nil {
			t.Fatal(err)
		}
		w.pass(time.Minute)
		w.expect(0, workload.RunKilled, 0)
		if n := len(w.pods()); n != 0 {
			t.Errorf("%d pods are left", n)
		}
	})
}

// A kill whose deletion has no answer for minutes is not followed by others, and above all by none that takes the pod away before its kubelet was told.
func TestAKillWhileTheServerDoesNotAnswer(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.start(nil)
		w.launch(0, 1, nil)
		w.pass(time.Second)
		w.breaks(only("DELETE pods", emulator.Fault{Code: http.StatusServiceUnavailable}))
		if err := w.driver.Kill(t.Context(), []driver.Kill{{Run: id(0), Grace: 5 * time.Second}}); err != nil {
			t.Fatal(err)
		}
		w.pass(5 * time.Minute)
		if n := w.driver.Stats().Calls; n != 1 {
			t.Errorf("%d requests wait for the API server", n)
		}
		asked := 0
		w.breaks(func(_ *http.Request, kind string) emulator.Fault {
			if kind == "DELETE pods" {
				asked++
			}
			return emulator.Fault{}
		})
		w.pass(time.Minute)
		w.expect(0, workload.RunKilled, 0)
		if asked > 2 { // the kill, and what is left of the pod when its end was acknowledged
			t.Errorf("then %d deletions were asked for", asked)
		}
	})
}
