package kubernetes_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/paceline-sched/paceline/core/driver"
	"github.com/paceline-sched/paceline/core/workload"
	"github.com/paceline-sched/paceline/hostmanagers/kubernetes"
	"github.com/paceline-sched/paceline/hostmanagers/kubernetes/emulator"
)

func exits(l *driver.Launch) { l.Command = []string{"exit", "0"} }

// Ended pods stay until their end was acknowledged, whoever does it, and then go: also those whose acknowledgement an earlier process took with it.
func TestEndedPodsAfterARestart(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.start(atOnce)
		w.sink.setDeaf(true) // ends are not acknowledged
		w.launch(0, 3, exits)
		w.launch(3, 5, nil)
		w.pass(time.Minute)
		if n := w.sink.count(0, 3, workload.RunSucceeded); n != 3 || len(w.pods()) != 5 {
			t.Fatalf("%d runs ended, and there are %d pods", n, len(w.pods()))
		}
		// One end is acknowledged, and its deletion never reaches the server.
		w.breaks(func(_ *http.Request, kind string) emulator.Fault { return emulator.Fault{Drop: kind == "DELETE pods"} })
		if err := w.driver.Acknowledge(t.Context(), []driver.Token{w.sink.status(id(0)).Token}); err != nil {
			t.Fatal(err)
		}
		w.pass(time.Second)
		w.end()
		w.breaks(nil)

		inventory := w.start(func(c *kubernetes.Config) { c.Pods.Epoch = 2; atOnce(c) })
		if len(inventory.Runs) != 5 {
			t.Errorf("the inventory after the restart has %d runs", len(inventory.Runs))
		}
		w.pass(time.Minute)
		if n := w.sink.count(0, 3, workload.RunSucceeded); n != 3 || len(w.pods()) != 2 {
			t.Errorf("after the restart %d runs ended, and there are %d pods", n, len(w.pods()))
		}
		w.expect(4, workload.RunRunning, 0)
	})
}

// What a process creates in spite of a later one is told to that one, which decides; the earlier one notices, and creates nothing more.
func TestTwoProcesses(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.start(nil)
		old, oldStop := w.driver, w.stop
		w.start(func(c *kubernetes.Config) { c.Pods.Epoch = 2 })
		late := driver.Launch{Run: id(1), Host: "a", Pool: "/eng", Command: []string{"sleep"}}
		if err := old.Launch(t.Context(), []driver.Launch{late}); err != nil {
			t.Fatal(err)
		}
		w.pass(time.Second)
		w.expect(1, workload.RunRunning, 0)
		w.launch(1, 2, nil) // the later one launches the same: it is answered with what there is
		w.launch(2, 3, nil)
		w.pass(time.Second)
		if len(w.pods()) != 2 {
			t.Errorf("there are %d pods", len(w.pods()))
		}
		late.Run = id(3)
		if err := old.Launch(t.Context(), []driver.Launch{late}); err == nil || !strings.Contains(err.Error(), "taken over") || !strings.Contains(err.Error(), "epoch 2") {
			t.Errorf("a launch by the earlier process: %v", err)
		}
		if d := old.Describe(); d.Err == nil || !strings.Contains(d.Err.Error(), "taken over") {
			t.Errorf("it is described as %v", d.Err)
		}
		oldStop()
		old.Wait()
	})
}
