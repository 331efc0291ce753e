package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	_ "github.com/paceline-sched/paceline/cmd/paceline/internal/kubeemu" // as in cell_test.go
	"github.com/paceline-sched/paceline/conformance/controlplane"
	pacelinev1 "github.com/paceline-sched/paceline/sdk/gen/paceline/v1"
)

const (
	// kubernetesTasksVariable gives the test on Kubernetes so many tasks, and its faults the pace of real ones.
	kubernetesTasksVariable = "PACELINE_KUBERNETES_TASKS"
	defaultKubernetesTasks  = 60
)

// TestKubernetesCrashes is TestMesosCrashes on an emulated Kubernetes cluster, a process of its own with real processes in its pods. Its API server goes away with all
// connections, breaks watches and forgets, refuses, and does things without saying so; in the long form there is a second cluster, whose nodes fall silent and are deleted, whose
// kubelets reject pods, and where pods are evicted and deleted by others. Every task reaches its goal, none is lost or doubled, and no pod is left at the end.
func TestKubernetesCrashes(t *testing.T) {
	t.Parallel()
	tasks := int(number(t, kubernetesTasksVariable, defaultKubernetesTasks))
	doubt := []string{"--fault-fail", "0.02", "--fault-lose-answer", "0.02"}
	if tasks <= defaultKubernetesTasks {
		storm(t, raid{begin: raidKubernetes, tasks: tasks, life: time.Second, keeps: true, outage: true, faults: append(doubt,
			"--fault-cut", "500ms", "--fault-forget", "1s", "--fault-outage", "1s", "--fault-outage-for", "200ms")})
		return
	}
	slow := append(doubt, "--fault-cut", "3s", "--fault-forget", "5s", "--fault-outage", "7s", "--fault-outage-for", "2s", "--fault-refuse", "0.01", "--fault-delay", "50ms")
	t.Run("connections", func(t *testing.T) {
		t.Parallel()
		storm(t, raid{begin: raidKubernetes, tasks: tasks, life: 7 * time.Second, keeps: true, outage: true, faults: slow})
	})
	t.Run("clusters", func(t *testing.T) {
		t.Parallel()
		storm(t, raid{begin: raidKubernetes, tasks: tasks, life: 9 * time.Second, outage: true, faults: append(slow[:len(slow):len(slow)],
			"--fault-silence", "5s", "--fault-lose-node", "6s", "--fault-node-for", "10s", "--node-gone", "2s", "--fault-reject", "0.02", "--fault-meddle", "1s")}) // more often, and the last task would never come to its end
	})
}

// raidKubernetes begins one of 10 nodes, which ends with the test.
func raidKubernetes(c *cell, faults ...string) raided {
	c.t.Helper()
	return c.emulateKubernetes(10, faults...)
}

func (k *kubernetes) add() {
	k.t.Helper()
	k.must("cluster", "add", "kubernetes", "east", "--kubeconfig", "east.yaml", "--default-image", "none", "--keep-ended", "3s", "--keep-ended-pods", "10", "--wait")
}

// wantIdle waits until the API server has no pod any more. One that was created in doubt keeps its name for a minute.
func (k *kubernetes) wantIdle(string) {
	k.t.Helper()
	k.awaitFor(patience+time.Minute, "no pod is left", func() error {
		var pods podList
		return errors.Join(get(k.url+"/api/v1/pods", &pods), pods.none())
	})
}

// podList is an answer of an API server.
type podList struct {
	Kind  string `json:"kind"`
	Items []struct {
		Metadata struct {
			Name string `json:"name"`
		} `json:"metadata"`
	} `json:"items"`
}

func (l *podList) none() error {
	if l.Kind != "PodList" || len(l.Items) > 0 {
		return fmt.Errorf("there is a %q with %v", l.Kind, l.Items)
	}
	return nil
}

// The tasks on a real control plane are pods that kwok plays.
const playedJob = `name: raided
batch: {max_retries: 1000}
instances: %d
placement: {clusters: [east]}
backoff: {initial_delay: 0.1s, max_delay: 0.2s}
task:
  resources: {cpu_milli: 1000, memory_mib: 16}
  command: [work]
  container: {image: none}
  kubernetes: {pod_patch: {metadata: {annotations: {test.run-for: 2s}}}}
  kill_grace: 1s
`

// TestRealKubernetesCrashes kills a server again and again while it has thousands of pods created by a real API server, which is killed, too, and whose etcd is held up. kwok
// plays the kubelets.
func TestRealKubernetesCrashes(t *testing.T) {
	t.Parallel()
	tasks := int(number(t, kubernetesTasksVariable, defaultKubernetesTasks))
	if tasks <= defaultKubernetesTasks {
		t.Skip("takes minutes: make faults-kubernetes")
	}
	if !controlplane.Cached(controlplane.Etcd, controlplane.APIServer, controlplane.Kwok) {
		t.Skip("the programs of a control plane are not built: make conformance-kubernetes builds them")
	}
	began := time.Now()
	c := newCell(t, "--local-hosts", "0")
	api := startPlane(t, filepath.Join(c.data, "secrets", "plane"))
	c.start()
	c.must("cluster", "add", "kubernetes", "east", "--kubeconfig", "plane/kubeconfig", "--default-image", "none", "--keep-ended", "3s", "--keep-ended-pods", "500", "--wait")
	identity := c.identity()
	books := c.follow()
	c.must("job", "run", write(t, c.dir, "raided.yaml", fmt.Sprintf(playedJob, tasks)))
	suffering, relieve := context.WithCancel(t.Context())
	suffered := make(chan struct{})
	go func() {
		defer close(suffered)
		api.suffer(suffering)
	}()
	calm := func() { relieve(); <-suffered }
	defer calm() // also when the test fails: the trouble ends before the plane does
	kills := 0
	for ; !c.endedWithin(t, "/default/raided", 5*time.Second+time.Duration(kills)*time.Second); kills++ {
		c.kill()
		c.start()
		if time.Since(began) > maxMesosTime {
			t.Fatalf("the job does not end: %v", c.must("job", "get", "raided"))
		}
	}
	calm()
	if kills == 0 || api.killed == 0 {
		t.Errorf("%d servers and %d API servers were killed: the job was too short to show anything; give %s more tasks", kills, api.killed, kubernetesTasksVariable)
	}
	c.awaitJobs(pacelinev1.JobState_JOB_STATE_SUCCEEDED, "/default/raided")
	if now := c.identity(); now != identity || now == "" {
		t.Errorf("the cluster knew the cell as %q, and now as %q", identity, now)
	}
	runs, lost, failed := books.check(t, c)
	if failed > 0 {
		t.Errorf("%d runs failed", failed)
	}
	c.awaitFor(patience+time.Minute, "no pod is left", func() error {
		var pods podList
		return errors.Join(api.Ask(t.Context(), http.MethodGet, "/api/v1/pods", nil, &pods), pods.none())
	})
	t.Logf("%d tasks in %v; %d servers, %d API servers killed, etcd held up %d times; %d runs in the event log, %d of them lost", tasks, time.Since(began).Round(time.Second), kills, api.killed, api.held, runs, lost)
	c.must("cluster", "remove", "east")
	c.stop()
}

// plane is a real control plane.
type plane struct {
	*testing.T
	*controlplane.Plane
	killed, held int
}

// startPlane starts a control plane of 20 nodes in a directory of its own.
func startPlane(t *testing.T, dir string) *plane {
	t.Helper()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	p, err := controlplane.Start(t.Context(), controlplane.Config{Kwok: true, Dir: dir, Log: os.Stderr})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	type object map[string]any
	capacity := object{"cpu": "16", "memory": "16Gi", "pods": "110"}
	for n := range 20 {
		node := object{
			"kind": "Node", "apiVersion": "v1", "status": object{"capacity": capacity, "allocatable": capacity},
			"metadata": object{"name": fmt.Sprintf("node-%d", n), "annotations": object{"kwok.x-k8s.io/node": "fake"}},
		}
		if err := p.Ask(t.Context(), http.MethodPost, "/api/v1/nodes", node, nil); err != nil {
			t.Fatal(err)
		}
	}
	return &plane{T: t, Plane: p}
}

// suffer kills the API server every ten seconds, and holds etcd up, until the context ends.
func (p *plane) suffer(ctx context.Context) {
	wait := func(d time.Duration) bool {
		select {
		case <-time.After(d):
			return true
		case <-ctx.Done():
			return false
		}
	}
	for n := 1; wait(10 * time.Second); n++ {
		if n%2 == 0 {
			pid := p.PID(controlplane.Etcd)
			if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
				p.Error(err)
			}
			wait(3 * time.Second)
			if err := syscall.Kill(pid, syscall.SIGCONT); err != nil {
				p.Error(err)
			}
			p.held++
		}
		if err := p.CrashAPIServer(p.Context()); err != nil {
			p.Errorf("kill the API server and start it again: %v", err)
		}
		p.killed++
	}
}
