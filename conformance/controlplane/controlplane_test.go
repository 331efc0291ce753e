package controlplane_test

import (
	"os"
	"strings"
	"syscall"
	"testing"

	"go.uber.org/goleak"

	"github.com/paceline-sched/paceline/conformance/controlplane"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A plane starts, survives the death of its API server, and leaves nothing behind.
func TestPlane(t *testing.T) {
	t.Parallel()
	if os.Getenv("PACELINE_KUBECONFIG") == "" || !controlplane.Cached(controlplane.Etcd, controlplane.APIServer) {
		t.Skip("needs the programs of a control plane: make conformance-kubernetes")
	}
	p, err := controlplane.Start(t.Context(), controlplane.Config{Log: os.Stderr})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = p.Close() }()
	raw, err := os.ReadFile(p.Kubeconfig())
	if err != nil || !strings.Contains(string(raw), controlplane.Token) {
		t.Errorf("the kubeconfig is %q: %v", raw, err)
	}
	old := p.PID(controlplane.APIServer)
	if err := p.KillAPIServer(); err != nil {
		t.Fatal(err)
	}
	if err := p.KillAPIServer(); err == nil {
		t.Error("an API server that is dead was killed")
	}
	if err := p.StartAPIServer(t.Context()); err != nil {
		t.Fatal(err)
	}
	etcd, now := p.PID(controlplane.Etcd), p.PID(controlplane.APIServer)
	if old == now || etcd == 0 {
		t.Errorf("the API server was %d and is %d", old, now)
	}
	dir := p.Dir()
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	for _, pid := range []int{old, now, etcd} {
		if syscall.Kill(pid, 0) == nil {
			t.Errorf("process %d is still there", pid)
		}
	}
	if _, err := os.Stat(dir); err == nil {
		t.Errorf("%s is still there", dir)
	}
}
