package crowd_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/paceline-sched/paceline/conformance/controlplane/crowd"
	"github.com/paceline-sched/paceline/hostmanagers/kubernetes/emulator"
	"github.com/paceline-sched/paceline/hostmanagers/kubernetes/emulator/cluster"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// emulated is the kubeconfig of an emulated cluster whose containers run for ever.
func emulated(t *testing.T) string {
	t.Helper()
	capacity, err := cluster.Quantities(map[string]string{"cpu": "4", "memory": "8Gi", "pods": "110"})
	if err != nil {
		t.Fatal(err)
	}
	cfg := cluster.Config{Behave: cluster.Lasting(-1)}
	for n := range 5 {
		cfg.Nodes = append(cfg.Nodes, cluster.NodeConfig{Name: crowd.NodeName(n), Capacity: capacity})
	}
	e, err := emulator.New(emulator.Config{Cluster: cfg})
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- e.Serve(l) }()
	t.Cleanup(func() {
		e.Close()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	path := filepath.Join(t.TempDir(), "kubeconfig")
	text := fmt.Sprintf("{clusters: [{name: e, cluster: {server: 'http://%s'}}], contexts: [{name: e, context: {cluster: e}}], current-context: e}", l.Addr())
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// What is created is counted, where it is and in what order it came there.
func TestCount(t *testing.T) {
	t.Parallel()
	c, err := crowd.Dial(emulated(t))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ctx, stop := context.WithTimeout(t.Context(), 2*time.Minute)
	defer stop()
	count, err := c.Count(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer count.Wait()
	defer stop()
	if err := c.Nodes(ctx, 5, false); err == nil {
		t.Error("nodes that are there were created")
	}
	if err := c.Pods(ctx, 40, 5); err != nil {
		t.Fatal(err)
	}
	if err := c.Probe(ctx); err != nil { // which nobody binds
		t.Fatal(err)
	}
	want := crowd.Tally{Created: 41, Bound: 40, Running: 40}
	if err := count.Await(func(t crowd.Tally) bool { return t == want }); err != nil {
		t.Fatal(err)
	}
	bound, running := count.Bound(), count.Running()
	if bound.First.IsZero() || bound.Last.Before(bound.First) || running.First.Before(bound.First) || running.Last.Before(running.First) {
		t.Errorf("pods were bound from %v and ran from %v", bound, running)
	}
	if _, err := c.Count(ctx); err == nil {
		t.Error("a cluster with pods is counted")
	}
	stop()
	if err := count.Await(func(t crowd.Tally) bool { return t.Ended > 0 }); err == nil {
		t.Error("a count that has ended is waited for")
	}
}
