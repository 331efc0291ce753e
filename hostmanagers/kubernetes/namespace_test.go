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

func perPool(create bool) func(*kubernetes.Config) {
	return func(c *kubernetes.Config) { c.Pods.NamespacePerPool, c.CreateNamespaces = "paceline-{pool}", create }
}

// A namespace that is missing is named, with how to mend it.
func TestMissingNamespace(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.start(perPool(false))
		w.launch(0, 1, nil)
		w.pass(time.Second)
		s := w.expect(0, workload.RunFailed, workload.ReasonLaunchFailed)
		for _, words := range []string{`no namespace "paceline-eng"`, "kubectl create namespace paceline-eng", "cluster's settings"} {
			if !strings.Contains(s.Message, words) {
				t.Errorf("the message does not say %q: %s", words, s.Message)
			}
		}
		if n := w.takeCounts()["POST namespaces"]; n != 0 {
			t.Errorf("%d namespaces were asked for", n)
		}
	})
}

// A namespace that is missing is created where that is allowed, once for all the pods that wait for it, and not in spite of the API server.
func TestNamespacesAreCreated(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.start(perPool(true))
		w.launch(0, 20, nil)
		w.launch(20, 21, func(l *driver.Launch) { l.Pool = "/eng/Batch" })
		w.pass(10 * time.Second)
		if n := w.sink.count(0, 21, workload.RunRunning); n != 21 {
			t.Fatalf("%d of 21 runs run", n)
		}
		spaces := map[string]int{}
		for key := range w.pods() {
			space, _, _ := strings.Cut(key, "/")
			spaces[space]++
		}
		if len(spaces) != 2 || spaces["paceline-eng"] != 20 {
			t.Errorf("the pods are in %v", spaces)
		}
		w.breaks(func(_ *http.Request, kind string) emulator.Fault {
			if kind == "POST namespaces" {
				return emulator.Fault{Code: http.StatusForbidden}
			}
			return emulator.Fault{}
		})
		w.launch(30, 31, func(l *driver.Launch) { l.Pool = "/other" })
		w.pass(time.Second)
		if s := w.expect(30, workload.RunFailed, workload.ReasonLaunchFailed); !strings.Contains(s.Message, "let the server's account create namespaces") {
			t.Errorf("the message is %s", s.Message)
		}
	})
}
