package kubeemu

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"

	"github.com/spf13/pflag"

	"github.com/paceline-sched/paceline/hostmanagers/kubernetes/emulator"
	"github.com/paceline-sched/paceline/hostmanagers/kubernetes/emulator/cluster"
)

// retryAfter is how many seconds refused requests are told to wait.
const retryAfter = 1

// faults are what the emulated cluster suffers from. Durations are how often, or how long; 0: never. Shares are from 0 to 1.
type faults struct {
	outage, outageFor, cut, forget time.Duration
	refuse, fail, lose             float64
	delay                          time.Duration
	silence, node, nodeFor         time.Duration
	reject                         float64
	meddle                         time.Duration
}

func (f *faults) register(fs *pflag.FlagSet) {
	fs.DurationVar(&f.outage, "fault-outage", 0, "how often the API server is gone, with every connection (0: never)")
	fs.DurationVar(&f.outageFor, "fault-outage-for", time.Second, "how long it is gone")
	fs.DurationVar(&f.cut, "fault-cut", 0, "how often all watches break in the middle (0: never)")
	fs.DurationVar(&f.forget, "fault-forget", 0, "how often all history is forgotten while watches break, so that they are told 410 (0: never)")
	fs.Float64Var(&f.refuse, "fault-refuse", 0, "`share` of requests that are answered 429, try again after a second")
	fs.Float64Var(&f.fail, "fault-fail", 0, "`share` of requests that are answered 500, 503 or 504, some of them after they were done")
	fs.Float64Var(&f.lose, "fault-lose-answer", 0, "`share` of requests that are done and never answered: the connection breaks")
	fs.DurationVar(&f.delay, "fault-delay", 0, "how long a request waits before anything is done, at most (0: not)")
	fs.DurationVar(&f.silence, "fault-silence", 0, "how often a node's kubelet is not heard of (0: never)")
	fs.DurationVar(&f.node, "fault-lose-node", 0, "how often a node is deleted under its pods (0: never)")
	fs.DurationVar(&f.nodeFor, "fault-node-for", 30*time.Second, "how long a node is silent or deleted")
	fs.Float64Var(&f.reject, "fault-reject", 0, "`share` of pods that their kubelet refuses, with OutOfcpu")
	fs.DurationVar(&f.meddle, "fault-meddle", 0, "how often a pod is evicted by its kubelet, evicted through the API or deleted by somebody else (0: never)")
}

func (f *faults) check() error {
	for _, d := range []time.Duration{f.outage, f.outageFor, f.cut, f.forget, f.delay, f.silence, f.node, f.nodeFor, f.meddle} {
		if d < 0 {
			return errors.New("the durations of --fault-... flags must not be negative")
		}
	}
	for _, share := range []float64{f.refuse, f.fail, f.lose, f.reject} {
		if share < 0 || share > 1 {
			return errors.New("the shares of --fault-... flags must be from 0 to 1")
		}
	}
	return nil
}

// chance says yes for a share of the times that it is asked.
func chance(share float64) bool { return rand.Float64() < share } //nolint:gosec // chance, not secrets

// request is what goes wrong with one; nil: nothing ever does.
func (f *faults) request() func(*http.Request) emulator.Fault {
	if f.refuse+f.fail+f.lose == 0 && f.delay == 0 {
		return nil
	}
	codes := []int{http.StatusInternalServerError, http.StatusServiceUnavailable, http.StatusGatewayTimeout}
	return func(r *http.Request) emulator.Fault {
		var fault emulator.Fault
		if f.delay > 0 {
			fault.Delay = rand.N(f.delay) //nolint:gosec // chance, not secrets
		}
		late := r.URL.Query().Get("watch") == "" // a watch has nothing that is done
		switch {
		case chance(f.refuse):
			fault.Code, fault.RetryAfter = http.StatusTooManyRequests, retryAfter
		case chance(f.fail):
			fault.Code = codes[rand.IntN(len(codes))] //nolint:gosec // chance, not secrets
			fault.Late = late && fault.Code == http.StatusGatewayTimeout
		case chance(f.lose):
			fault.Drop, fault.Late = true, late
		}
		return fault
	}
}

// inflict does the others, until ctx ends.
func (f *faults) inflict(ctx context.Context, e *emulator.Emulator, nodes []cluster.NodeConfig) {
	if f.reject > 0 {
		e.Do(func(c *cluster.Cluster) { c.RejectIf(func() bool { return chance(f.reject) }) })
	}
	var work sync.WaitGroup
	defer work.Wait()
	every := func(period time.Duration, do func()) {
		if period > 0 {
			work.Go(func() {
				for wait(ctx, period) {
					do()
				}
			})
		}
	}
	every(f.outage, func() {
		e.SetDown(true)
		wait(ctx, f.outageFor)
		e.SetDown(false)
	})
	every(f.cut, e.CutWatches)
	every(f.forget, func() {
		e.Do(func(c *cluster.Cluster) { c.Compact() })
		e.CutWatches()
	})
	away := func(take, back func(c *cluster.Cluster, node string) bool) func() {
		return func() {
			node := nodes[rand.IntN(len(nodes))].Name //nolint:gosec // chance, not secrets
			e.Do(func(c *cluster.Cluster) { take(c, node) })
			work.Go(func() {
				wait(ctx, f.nodeFor)
				e.Do(func(c *cluster.Cluster) { back(c, node) })
			})
		}
	}
	every(f.silence, away(
		func(c *cluster.Cluster, node string) bool { return c.SetNode(node, false) },
		func(c *cluster.Cluster, node string) bool { return c.SetNode(node, true) }))
	every(f.node, away((*cluster.Cluster).LoseNode, (*cluster.Cluster).ReturnNode))
	every(f.meddle, func() { e.Do(meddle) })
}

// wait lets time pass. False: ctx has ended.
func wait(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// meddle does to a pod what kubelets short of memory, operators who drain and other users do. What is refused is not done.
func meddle(c *cluster.Cluster) {
	all, _ := c.List(cluster.Pods, "", 0) // the present is always there
	if len(all) == 0 {
		return
	}
	p := all[rand.IntN(len(all))] //nolint:gosec // chance, not secrets
	key := cluster.Key{Namespace: p.GetNamespace(), Name: p.GetName()}
	switch rand.IntN(3) { //nolint:gosec // chance, not secrets
	case 0:
		c.Pressure(key, "The node was low on resource: memory.")
	case 1:
		_ = c.EvictPod(key) // a budget may be in the way
	default:
		_, _, _ = c.Delete(cluster.Pods, key, cluster.Deletion{}) // it is there
	}
}
