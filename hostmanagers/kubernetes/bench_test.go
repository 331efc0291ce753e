package kubernetes_test

import (
	"context"
	"fmt"
	"math"
	"net"
	"runtime"
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/paceline-sched/paceline/core/driver"
	"github.com/paceline-sched/paceline/core/workload"
	"github.com/paceline-sched/paceline/hostmanagers/kubernetes"
	"github.com/paceline-sched/paceline/hostmanagers/kubernetes/emulator"
	"github.com/paceline-sched/paceline/hostmanagers/kubernetes/emulator/cluster"
	"github.com/paceline-sched/paceline/hostmanagers/kubernetes/manifest"
)

// The size of the cluster that benchmarks run on.
const (
	scaleNodes = 10_000
	scalePods  = 100_000
)

// counter is a sink that counts runs which run, and keeps nothing.
type counter struct {
	ack     driver.Driver
	hosts   chan int
	running chan int
}

func (c *counter) Inventory(i driver.Inventory) {
	c.hosts <- len(i.Hosts)
	c.Statuses(i.Runs)
}
func (*counter) HostsChanged([]driver.Host, []string) {}
func (*counter) Disconnected(error)                   {}
func (c *counter) Statuses(list []driver.Status) {
	tokens, n := make([]driver.Token, len(list)), 0
	for i := range list {
		tokens[i] = list[i].Token
		if list[i].State == workload.RunRunning {
			n++
		}
	}
	_ = c.ack.Acknowledge(context.Background(), tokens) // fails only at the end
	c.running <- n
}

// heap is what is in use.
func heap() float64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc)
}

// cpuTime is what this process has used of its processors.
func cpuTime(b *testing.B) time.Duration {
	b.Helper()
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		b.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// benched is a driver that works, with its sink and what ends it.
func benched(b *testing.B, address string) (*kubernetes.Driver, *counter, func()) {
	b.Helper()
	d, err := kubernetes.New(kubernetes.Config{
		API: &rest.Config{Host: "http://" + address}, Pods: manifest.Config{Owner: "bench", Epoch: 1, DefaultImage: "none"},
	})
	if err != nil {
		b.Fatal(err)
	}
	sink := &counter{ack: d, hosts: make(chan int, 8), running: make(chan int, 2*scalePods)}
	ctx, cancel := context.WithCancel(b.Context())
	if err := d.Start(ctx, sink); err != nil {
		b.Fatal(err)
	}
	return d, sink, func() {
		cancel()
		d.Wait()
	}
}

// BenchmarkScale has a driver create 100,000 pods on 10,000 nodes of an emulated cluster, over HTTP and in one process, until all are known to run. It tells how
// fast that goes, what both sides keep in memory of each node and pod, and how long a driver that starts then takes to know them all.
func BenchmarkScale(b *testing.B) {
	capacity, err := cluster.Quantities(map[string]string{"cpu": "64", "memory": "256Gi", "pods": "110"})
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		b.StopTimer()
		empty := heap()
		e, address, stop := scaled(b, cluster.Config{Behave: cluster.Lasting(-1)})
		e.Do(func(c *cluster.Cluster) {
			for n := range scaleNodes {
				c.AddNode(cluster.NodeConfig{Name: fmt.Sprintf("node-%d", n), Capacity: capacity, Labels: map[string]string{"topology.kubernetes.io/zone": fmt.Sprint("zone-", n%10)}})
			}
		})
		nodes := heap()
		d, sink, end := benched(b, address)
		if n := <-sink.hosts; n != scaleNodes {
			b.Fatalf("%d hosts are there", n)
		}
		b.ReportMetric((heap()-nodes)/scaleNodes, "driver-B/node")
		b.ReportMetric((nodes-empty)/scaleNodes, "emulator-B/node")
		b.StartTimer()
		began, used := time.Now(), cpuTime(b)
		fill(b, d, sink)
		b.ReportMetric(scalePods/time.Since(began).Seconds(), "pods/s")
		b.ReportMetric((cpuTime(b)-used).Seconds()*1000/scalePods, "cpu-ms/pod")
		b.StopTimer()
		both := heap()
		end()
		d, sink = nil, nil //nolint:ineffassign,wastedassign // their memory is to be given back
		alone := heap()
		b.ReportMetric((both-alone)/scalePods, "driver-B/pod")
		b.ReportMetric((alone-nodes)/scalePods, "emulator-B/pod")
		began = time.Now()
		_, sink, end = benched(b, address)
		for seen := 0; seen < scalePods; {
			seen += <-sink.running
		}
		b.ReportMetric(time.Since(began).Seconds(), "s/restart")
		end()
		stop()
		b.StartTimer()
	}
}

// fill launches pods in batches, so many at once as a cell has under way, until all run.
func fill(b *testing.B, d *kubernetes.Driver, sink *counter) {
	b.Helper()
	const batch, most = 1000, 20_000
	for launched, running := 0, 0; running < scalePods; {
		if launched == scalePods || launched-running >= most {
			running += <-sink.running
			continue
		}
		list := make([]driver.Launch, batch)
		for i := range list {
			n := launched + i
			list[i] = driver.Launch{
				Run: workload.RunID{Job: workload.JobID{7}, Instance: uint32(n), Generation: 1, Run: 1}, Host: fmt.Sprintf("node-%d", n%scaleNodes), Pool: "/eng/batch",
				Command: []string{"sh", "-c", "exec work --hard"}, Needs: map[string]int64{"cpu_milli": 1000, "memory_mib": 2048}, KillGrace: time.Second,
				Env: map[string]string{"A": "b", "LONGER": "a value of some length"},
			}
		}
		if err := d.Launch(b.Context(), list); err != nil {
			b.Fatal(err)
		}
		launched += batch
	}
}

// scaled serves an emulated cluster.
func scaled(b *testing.B, cfg cluster.Config) (e *emulator.Emulator, address string, stop func()) {
	b.Helper()
	cfg.History, cfg.QuietKubelets = math.MaxInt16, true
	e, err := emulator.New(emulator.Config{Cluster: cfg})
	if err != nil {
		b.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- e.Serve(l) }()
	return e, l.Addr().String(), func() {
		e.Close()
		if err := <-served; err != nil {
			b.Error(err)
		}
	}
}
