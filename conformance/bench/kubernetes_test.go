package bench

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/paceline-sched/paceline/conformance/controlplane/crowd"
	"github.com/paceline-sched/paceline/core/driver"
	"github.com/paceline-sched/paceline/core/execution"
	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/scheduler"
	"github.com/paceline-sched/paceline/core/workload"
	"github.com/paceline-sched/paceline/hostmanagers/kubernetes"
	"github.com/paceline-sched/paceline/hostmanagers/kubernetes/manifest"
)

const (
	kubernetesNodes = 1_000
	kubernetesPods  = 10_000
)

// BenchmarkKubernetes is a job of 10,000 pods on a new cluster of 1,000 nodes, from its submission until all are created and the records say so. It is
// there to be profiled, with a control plane of its own; what is compared with others, the command kubernetes below this folder measures.
func BenchmarkKubernetes(b *testing.B) {
	plane := os.Getenv("PACELINE_CONTROLPLANE")
	if plane == "" {
		b.Skip("needs a new Kubernetes cluster: go run ./conformance/controlplane/run -- go test -run '^$' -bench '^BenchmarkKubernetes$' -benchtime 1x ./conformance/bench")
	}
	b.ReportAllocs()
	b.StopTimer()
	kubeconfig := filepath.Join(plane, "kubeconfig")
	fill(b, kubeconfig)
	cluster, err := kubernetes.Connect(kubeconfig, "")
	if err != nil {
		b.Fatal(err)
	}
	for n := range b.N {
		d, err := kubernetes.New(kubernetes.Config{API: cluster, Pods: manifest.Config{Owner: fmt.Sprintf("bench-%d", n), Epoch: 1}})
		if err != nil {
			b.Fatal(err)
		}
		r := &rig{tb: b, dir: b.TempDir(), worlds: []func() driver.Driver{func() driver.Driver { return d }}}
		r.start()
		r.await("hosts are ready", func(c scheduler.Reader) bool { return c.Cell().Ready == kubernetesNodes })
		before := cpuTime(b)
		b.StartTimer()
		r.jobs++
		job := batchJob(r.jobs, kubernetesPods, 0)
		job.Spec.Template.Command = nil
		job.Spec.Template.Needs = resource.Vector{resource.CPU: crowd.CPUMilli, resource.Memory: crowd.MemoryMiB}
		job.Spec.Template.Execution = &execution.Spec{Main: execution.Container{Image: crowd.Image}}
		if a, err := r.cell.Do(b.Context(), caller, job); err != nil || a.Err != nil {
			b.Fatalf("submit: %v, %v", err, a.Err)
		}
		r.await("all pods are there", func(c scheduler.Reader) bool {
			v, _ := c.Job(job.ID)
			return int(v.ByRun[workload.RunStarting]+v.ByRun[workload.RunRunning]) == kubernetesPods
		})
		b.StopTimer()
		used := cpuTime(b) - before
		b.ReportMetric(used.Seconds()*1e3/kubernetesPods, "cpu-ms/pod")
		r.stop()
	}
	rate(b, kubernetesPods, "pods/s")
}

// fill makes the nodes.
func fill(tb testing.TB, kubeconfig string) {
	tb.Helper()
	c, err := crowd.Dial(kubeconfig)
	if err != nil {
		tb.Fatal(err)
	}
	defer c.Close()
	if err := c.Nodes(tb.Context(), kubernetesNodes, false); err != nil {
		tb.Fatal(err)
	}
}
