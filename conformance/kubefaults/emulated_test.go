package kubefaults_test

import (
	"math/rand/v2"
	"net"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/paceline-sched/paceline/core/workload"
	"github.com/paceline-sched/paceline/hostmanagers/kubernetes/emulator"
	"github.com/paceline-sched/paceline/hostmanagers/kubernetes/emulator/cluster"
)

// troubles are how often what goes wrong, and how long it lasts. 0: never.
type troubles struct {
	kill                  time.Duration
	outage, outageFor     time.Duration // the API server is not there
	cut                   time.Duration // watches break
	forget                time.Duration // history is forgotten while watches break: 410
	storm, stormFor       time.Duration // 429
	slow, slowFor         time.Duration
	silence, silenceFor   time.Duration // a node's kubelet is not heard of
	flapFor               time.Duration // or only so shortly that nobody notices
	vanish, vanishFor     time.Duration // a node is deleted
	meddle                time.Duration // pods are evicted and deleted by others
	nodeGone, unreachable time.Duration // how long the controllers, and the cell, wait for a node
	late                  time.Duration // how long a creation without an answer is waited for; the emulator carries none out whose client has gone
	runFor                time.Duration // a task, at most
	cores                 string        // of a node
	reject, stuck         float64       // chance
}

const second = time.Second

// TestEmulated runs tasks and services in a cell that is killed and started again and again, on an emulated cluster whose API server goes away, breaks watches, forgets,
// refuses, is slow, and does things without saying so; then on one whose nodes fall silent and vanish, whose kubelets reject pods, and where others delete
// pods, too.
func TestEmulated(t *testing.T) {
	t.Parallel()
	some := troubles{
		kill: second, outage: 900 * time.Millisecond, outageFor: 150 * time.Millisecond, cut: 400 * time.Millisecond, forget: 700 * time.Millisecond,
		storm: 1500 * time.Millisecond, stormFor: 60 * time.Millisecond, slow: 600 * time.Millisecond, slowFor: 100 * time.Millisecond, runFor: 400 * time.Millisecond,
		late: 5 * second, cores: "8", unreachable: 10 * second, stuck: 0.05,
	}
	all := some
	all.silence, all.silenceFor, all.flapFor, all.nodeGone, all.unreachable = second, second, 50*time.Millisecond, 200*time.Millisecond, 300*time.Millisecond
	all.vanish, all.vanishFor, all.meddle, all.reject = 1300*time.Millisecond, 500*time.Millisecond, 250*time.Millisecond, 0.05
	if *tasks >= long {
		some = troubles{
			kill: 9 * second, outage: 7 * second, outageFor: 2 * second, cut: 3 * second, forget: 5 * second, storm: 8 * second, stormFor: 2 * second,
			slow: 6 * second, slowFor: 2 * second, late: 10 * second, runFor: 2 * second, cores: "16", unreachable: time.Minute, stuck: 0.01,
		}
		all = some
		all.silence, all.silenceFor, all.flapFor, all.nodeGone, all.unreachable = 4*second, 20*second, second, 2*second, 5*second
		all.vanish, all.vanishFor, all.meddle, all.reject = 6*second, 8*second, 200*time.Millisecond, 0.02
	}
	for name, trouble := range map[string]troubles{"connections": some, "clusters": all} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			began := time.Now()
			e := newEmulated(t, trouble)
			e.suffer()
			said := e.run()
			e.settle()
			e.report(said, began)
		})
	}
}

const outage = "outage"

// emulated is an emulated cluster in trouble.
type emulated struct {
	weather
	trouble  troubles
	emulator *emulator.Emulator
	nodes    []string

	// The emulator's, under its lock.
	seen  int64 // revision up to which the witness has read
	tries map[instance]int
}

func newEmulated(t *testing.T, trouble troubles) *emulated {
	t.Helper()
	e := &emulated{weather: weather{hardship: newHardship(t, trouble.kill, outage), slowFor: trouble.slowFor}, trouble: trouble, tries: map[instance]int{}, seen: 1}
	capacity, err := cluster.Quantities(map[string]string{"cpu": trouble.cores, "memory": "16Gi", "pods": "110"})
	if err != nil {
		t.Fatal(err)
	}
	cfg := emulator.Config{Faults: e.fault, Cluster: cluster.Config{Behave: e.behave, NodeGone: trouble.nodeGone, QuietKubelets: true}}
	for n := range 10 {
		e.nodes = append(e.nodes, label("node", n))
		cfg.Cluster.Nodes = append(cfg.Cluster.Nodes, cluster.NodeConfig{Name: label("node", n), Capacity: capacity})
	}
	if e.emulator, err = emulator.New(cfg); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	e.orders.Kubeconfig = e.file("kubeconfig", emulator.Kubeconfig(l.Addr().String()))
	e.witness.grace = trouble.unreachable
	e.orders.Late = trouble.late
	e.orders.Start, e.orders.Unreachable, e.orders.Kill, e.orders.LongestWait = second, trouble.unreachable, second, 500*time.Millisecond
	served := make(chan error, 1)
	go func() { served <- e.emulator.Serve(l) }()
	t.Cleanup(func() {
		e.emulator.Close()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	e.emulator.Do(func(c *cluster.Cluster) { c.Reject = e.reject })
	return e
}

// behave is what becomes of a container: tasks end by themselves, some fail first, or cannot be started; services go on, and some of them are deaf.
func (e *emulated) behave(p *corev1.Pod, c *corev1.Container) cluster.Behaviour {
	id, err := workload.ParseRunID(p.Name)
	if err != nil {
		return cluster.Behaviour{Run: -1}
	}
	if c.Command[0] == "serve" {
		return cluster.Behaviour{Start: 10 * time.Millisecond, Run: -1, Deaf: id.Instance%4 == 0}
	}
	b := cluster.Behaviour{Start: time.Duration(rand.IntN(50)) * time.Millisecond, Run: time.Duration(rand.Int64N(int64(e.trouble.runFor)))}
	key := instance{id.Job, id.Instance}
	e.tries[key]++
	switch first := e.tries[key] == 1; {
	case first && rand.Float64() < e.trouble.stuck:
		b.Refused, b.Message = "ErrImagePull", "there is no such image today"
	case first && id.Instance%17 == 0:
		b.Exit = ownCode
	}
	return b
}

func (e *emulated) reject(*corev1.Pod) (reason, message string) {
	if e.suffering.Err() == nil && rand.Float64() < e.trouble.reject {
		e.strike("rejected")
		return "OutOfcpu", "Node didn't have enough resource: cpu"
	}
	return "", ""
}

// suffer begins the trouble.
func (e *emulated) suffer() {
	o := &e.trouble
	e.work.Go(e.look)
	e.every(o.outage, outage, func() {
		e.emulator.SetDown(true)
		e.wait(o.outageFor)
		e.emulator.SetDown(false)
	})
	e.every(o.cut, "cut", e.emulator.CutWatches)
	e.every(o.forget, "forgotten", func() {
		e.emulator.Do(func(c *cluster.Cluster) {
			e.read(c)
			c.Compact()
		})
		e.emulator.CutWatches()
	})
	e.change(o)
	e.every(o.silence, "silence", func() {
		name, back, ok := e.takeAway(e.nodes)
		if !ok {
			return
		}
		d := o.silenceFor
		if rand.IntN(3) == 0 {
			d = o.flapFor
		}
		e.emulator.Do(func(c *cluster.Cluster) { c.SetNode(name, false) })
		e.work.Go(func() {
			e.wait(d)
			e.emulator.Do(func(c *cluster.Cluster) {
				c.SetNode(name, true)
				e.read(c)
			})
			back()
		})
	})
	e.every(o.vanish, "vanished", e.vanish)
	e.every(o.meddle, "meddled", e.meddle)
}

// look has the witness read on, until all trouble has ended.
func (e *emulated) look() {
	ticks := time.NewTicker(20 * time.Millisecond)
	defer ticks.Stop()
	for {
		select {
		case <-ticks.C:
			e.emulator.Do(e.read)
		case <-e.suffering.Done():
			return
		}
	}
}

// read lets the witness see what happened since it last looked. It is called with the cluster.
func (e *emulated) read(c *cluster.Cluster) {
	for _, r := range []*cluster.Resource{cluster.Nodes, cluster.Pods} {
		changes, err := c.Changes(r, e.seen, 1<<20)
		if err != nil {
			e.Errorf("the witness missed something: %v", err)
		}
		for _, change := range changes {
			gone := change.Type == watch.Deleted
			switch o := change.Object.(type) {
			case *corev1.Node:
				e.witness.node(o, change.Revision, gone)
			case *corev1.Pod:
				e.witness.pod(o, change.Revision, gone)
			}
		}
	}
	e.seen = c.Revision()
}

// settle waits until no pod is left.
func (e *emulated) settle() {
	e.Helper()
	for deadline := time.Now().Add(patience); ; <-time.After(10 * time.Millisecond) {
		left := 0
		e.emulator.Do(func(c *cluster.Cluster) {
			e.read(c)
			pods, _ := c.List(cluster.Pods, "", 0) // the present is always there
			left = len(pods)
		})
		if left == 0 || time.Now().After(deadline) {
			return // the witness knows which are left
		}
	}
}

// vanish takes a node away for a while. It comes back as another one of its name.
func (e *emulated) vanish() {
	name, back, ok := e.takeAway(e.nodes)
	if !ok {
		return
	}
	e.emulator.Do(func(c *cluster.Cluster) { c.LoseNode(name) })
	e.work.Go(func() {
		e.wait(e.trouble.vanishFor)
		e.emulator.Do(func(c *cluster.Cluster) { c.ReturnNode(name) })
		back()
	})
}

// meddle does to a pod what others may do.
func (e *emulated) meddle() {
	e.emulator.Do(func(c *cluster.Cluster) {
		var pods []*corev1.Pod
		all, _ := c.List(cluster.Pods, "", 0) // the present is always there
		for _, o := range all {
			if p, ok := o.(*corev1.Pod); ok && p.DeletionTimestamp == nil {
				pods = append(pods, p)
			}
		}
		p, ok := some(pods)
		if !ok {
			return
		}
		key, grace := cluster.Key{Namespace: p.Namespace, Name: p.Name}, int64(rand.IntN(2))
		switch rand.IntN(3) {
		case 0:
			e.witness.touch(string(p.UID), "evicted")
			eviction := &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: p.Name, Namespace: p.Namespace}}
			if err := c.Evict(p.Namespace, eviction, cluster.Deletion{GraceSeconds: &grace}); err != nil {
				e.Errorf("evict %s: %v", p.Name, err)
			}
		case 1:
			e.witness.touch(string(p.UID), "deleted")
			if _, _, err := c.Delete(cluster.Pods, key, cluster.Deletion{GraceSeconds: &grace}); err != nil {
				e.Errorf("delete %s: %v", p.Name, err)
			}
		default:
			if c.Pressure(key, "The node was low on resource: memory.") {
				e.witness.touch(string(p.UID), "evicted by its kubelet")
			}
		}
	})
}
