package kubernetes_test

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/paceline-sched/paceline/core/driver"
	"github.com/paceline-sched/paceline/hostmanagers/kubernetes"
	"github.com/paceline-sched/paceline/hostmanagers/kubernetes/emulator"
)

// A rehearsal is what the API server would say of a pod, and leaves nothing behind.
func TestRehearse(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.start(func(c *kubernetes.Config) { c.Pods.NamespacePerPool = "{pool}" })
		ask := func(change func(*driver.Launch)) driver.Rehearsal {
			t.Helper()
			l := &driver.Launch{Run: id(3), Command: []string{"sleep"}, Needs: map[string]int64{"cpu_milli": 10}}
			l.Pool = "/open"
			if change != nil {
				change(l)
			}
			r, err := w.driver.Rehearse(t.Context(), l)
			if err != nil {
				t.Fatal(err)
			}
			return r
		}
		if r := ask(nil); !strings.Contains(r.Refused, "kubectl create namespace open") {
			t.Errorf("without its namespace: %+v", r)
		}
		if err := w.createNamespace("open"); err != nil {
			t.Fatal(err)
		}
		if r := ask(nil); r.Refused != "" || len(r.Warnings) != 0 {
			t.Errorf("a pod that would be taken: %+v", r)
		}
		if r := ask(func(l *driver.Launch) { l.Host = "a" }); r.Refused != "" {
			t.Errorf("with a node: %+v", r)
		}
		if r := ask(func(l *driver.Launch) { l.Needs = map[string]int64{"gpu_milli": 500} }); !strings.Contains(r.Refused, "whole GPUs") {
			t.Errorf("what no pod can have: %+v", r)
		}
		if pods := w.pods(); len(pods) != 0 {
			t.Errorf("rehearsals left %d pods behind", len(pods))
		}

		code := http.StatusForbidden
		w.breaks(func(_ *http.Request, kind string) emulator.Fault {
			if kind == "POST pods" {
				return emulator.Fault{Code: code}
			}
			return emulator.Fault{}
		})
		if r := ask(nil); !strings.Contains(r.Refused, "an emulated refusal") {
			t.Errorf("what the API server refuses: %+v", r)
		}
		code = http.StatusServiceUnavailable
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		w.takeCounts()
		_, err := w.driver.Rehearse(ctx, &driver.Launch{Run: id(3), Pool: "/open", Command: []string{"sleep"}})
		if err == nil {
			t.Errorf("of a server that does not say: %v", err)
		}
		if n := w.takeCounts()["POST pods"]; n < 2 || n > 40 {
			t.Errorf("it was asked %d times in 5 s", n)
		}
	})
}
