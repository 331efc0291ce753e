package mirror_test

import (
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"github.com/paceline-sched/paceline/core/workload"
	"github.com/paceline-sched/paceline/hostmanagers/kubernetes/mirror"
)

// cluster is an API server with kubelets, in the simplest form: objects, and what happens to them at random.
type cluster struct {
	*world
	keeps    int
	r        *rapid.T
	launched []uint32
	acked    map[uint32]bool
	objects  map[string]*corev1.Pod // by name
	behind   []*corev1.Pod          // deleted, and the watch has not told
	late     []late
}

// late is a creation that was answered as if there were no pod, and may be carried out until a time.
type late struct {
	call  *mirror.Call
	until time.Duration
}

// act does one thing that may happen.
func (c *cluster) act(action int) {
	switch action {
	case 0:
		i := uint32(len(c.launched) + 1)
		c.launched = append(c.launched, i)
		c.launch(i)
	case 1, 2, 3:
		c.serve(rapid.Float64Range(0, 1).Draw(c.r, "luck"))
	case 4, 5:
		c.kubelet()
	case 6:
		if i := c.some(c.launched); i > 0 {
			c.kill(i, time.Duration(rapid.IntRange(0, 20).Draw(c.r, "grace"))*time.Second)
		}
	case 7:
		c.acknowledgeSome()
	case 8:
		c.pass(time.Duration(rapid.IntRange(0, 20).Draw(c.r, "seconds")) * time.Second)
	case 9:
		c.relist()
	case 10:
		c.deliver()
	case 11: // somebody deletes a pod
		if p := c.somePod(); p != nil {
			delete(c.objects, p.Name)
			c.behind = append(c.behind, p)
		}
	case 12:
		c.do(func(now int64) { c.m.Lost(now, errTest, &c.out) })
		c.do(func(now int64) { c.m.Connected(now, &c.out) })
	case 13:
		n := aNode("a")
		n.Status.Conditions[0].Status = rapid.SampledFrom([]corev1.ConditionStatus{"True", "Unknown", "False"}).Draw(c.r, "ready")
		c.node(n)
	case 14: // what was not answered is done after all
		if len(c.late) > 0 {
			l := c.late[0]
			c.late = c.late[1:]
			if s := c.last(l.call.Run.Instance); c.now < l.until && s.State.Traits().Terminal {
				c.r.Fatalf("run %d is %s %s, and its pod comes", l.call.Run.Instance, s.State, s.Reason)
			} else if c.now < l.until {
				p := c.pod(l.call)
				c.objects[p.Name] = p
				c.changed(p)
			}
		}
	case 15: // a pod cannot start
		if p := c.somePod(); p != nil && p.Status.Phase == corev1.PodPending {
			reason := rapid.SampledFrom([]string{"ErrImagePull", "InvalidImageName"}).Draw(c.r, "reason")
			p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "main", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason}}}}
			c.changed(p)
		}
	}
}

func (c *cluster) some(list []uint32) uint32 {
	if len(list) == 0 {
		return 0
	}
	return rapid.SampledFrom(list).Draw(c.r, "run")
}

func (c *cluster) somePod() *corev1.Pod {
	var names []string
	for name := range c.objects {
		names = append(names, name)
	}
	if len(names) == 0 {
		return nil
	}
	slices.Sort(names)
	return c.objects[rapid.SampledFrom(names).Draw(c.r, "pod")]
}

// serve answers the oldest call. With bad luck what it asks for is done or refused, and nobody hears.
func (c *cluster) serve(luck float64) {
	if len(c.calls) == 0 {
		return
	}
	call := c.calls[0]
	c.calls = c.calls[1:]
	name := call.Run.String()
	p := c.objects[name]
	if call.Launch == nil {
		switch {
		case p == nil || call.UID != "" && call.UID != string(p.UID):
			c.answer(call, mirror.Answer{})
			return
		case luck < 0.2:
			c.answer(call, mirror.Answer{Refused: "Forbidden", Message: "no"})
			return
		case call.Grace == 0 || phaseOver(p):
			delete(c.objects, name)
			c.behind = append(c.behind, p)
		default:
			p.DeletionTimestamp = &metav1.Time{Time: time.Unix(0, int64(c.now))}
		}
		c.answer(call, mirror.Answer{})
		return
	}
	switch {
	case !c.m.Wanted(call) && luck < 0.5:
		if luck < 0.25 {
			c.objects[name] = c.pod(call)
			record := mirrorConfig.ReadPod(c.objects[name])
			c.answer(call, mirror.Answer{Pod: &record})
			return
		}
		c.deny(call, mirror.Answer{GivenUp: true})
	case luck < 0.7:
		c.deny(call, mirror.Answer{Refused: mirror.RefusedByQuota, Message: "no"})
	default:
		p = c.pod(call)
		c.objects[name] = p
		if luck < 0.85 {
			c.changed(p)
		}
		record := mirrorConfig.ReadPod(p)
		c.answer(call, mirror.Answer{Pod: &record})
	}
}

// deny answers a creation as if there were no pod; one may come all the same.
func (c *cluster) deny(call *mirror.Call, a mirror.Answer) {
	if a.Doubt = rapid.Bool().Draw(c.r, "doubt"); a.Doubt {
		c.late = append(c.late, late{call, c.now + mirrorConfig.LateCreation})
	}
	c.answer(call, a)
}

func phaseOver(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
}

// kubelet brings a pod on.
func (c *cluster) kubelet() {
	p := c.somePod()
	switch {
	case p == nil:
	case p.DeletionTimestamp != nil:
		delete(c.objects, p.Name)
		c.behind = append(c.behind, p)
	case p.Status.Phase == corev1.PodPending:
		c.startedFrom(p)
	case !phaseOver(p):
		c.exits(p, int32(rapid.IntRange(0, 1).Draw(c.r, "code")))
	}
}

func (c *cluster) deliver() {
	if len(c.behind) > 0 {
		p := c.behind[0]
		c.behind = c.behind[1:]
		c.gone(p)
	}
}

func (c *cluster) relist() {
	var list []*corev1.Pod
	for _, p := range c.objects {
		list = append(list, p)
	}
	c.behind = nil
	c.pods(list...)
}

func (c *cluster) acknowledgeSome() {
	if i := c.some(c.launched); i > 0 && c.last(i).State.Traits().Terminal {
		c.acknowledge(i)
		c.acked[i] = true
	}
}

// check holds the statuses of all runs to what a shard may rely on, and what is kept to its bound.
func (c *cluster) check() {
	if s := c.m.Stats(); s.Kept > c.keeps {
		c.r.Fatalf("%d pods are kept, more than %d", s.Kept, c.keeps)
	}
	for i, history := range c.statuses {
		var end workload.RunState
		tokens := uint64(0)
		for _, s := range history {
			if s.Reason == workload.ReasonNotFound && s.Token == 0 {
				continue // of a run that was acknowledged
			}
			if end != workload.RunNone && s.State != end {
				c.r.Fatalf("run %d ended as %s and then was %s", i, end, s.State)
			}
			if uint64(s.Token) < tokens {
				c.r.Fatalf("token %d of run %d came after %d", s.Token, i, tokens)
			}
			if tokens = uint64(s.Token); s.State.Traits().Terminal {
				end = s.State
			}
		}
	}
}

// TestWhateverHappens plays random histories. Whatever happens, a run has one end, and once all ends are acknowledged nothing is left: no pod, no
// record of one.
func TestWhateverHappens(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(r *rapid.T) {
		config := mirrorConfig
		config.KeepEnded = rapid.SampledFrom([]time.Duration{-1, time.Second, 30 * time.Second, mirror.DefaultKeepEnded}).Draw(r, "keep")
		config.KeepEndedPods = rapid.SampledFrom([]int{-1, 1, 3, mirror.DefaultKeepEndedPods}).Draw(r, "keep pods")
		c := &cluster{world: newWorldOf(t, config), keeps: max(config.KeepEndedPods, 0), r: r, acked: map[uint32]bool{}, objects: map[string]*corev1.Pod{}}
		for range rapid.IntRange(1, 60).Draw(r, "steps") {
			c.act(rapid.IntRange(0, 15).Draw(r, "action"))
			c.check()
		}
		c.node(aNode("a"))
		for range 20 {
			for _, i := range c.launched {
				if !c.last(i).State.Traits().Terminal {
					c.kill(i, 0)
				}
			}
			for len(c.calls) > 0 {
				c.serve(1)
			}
			for _, p := range c.objects {
				if p.DeletionTimestamp != nil {
					delete(c.objects, p.Name)
					c.behind = append(c.behind, p)
				}
			}
			for len(c.behind) > 0 {
				c.deliver()
			}
			for _, i := range c.launched {
				if c.last(i).State.Traits().Terminal {
					c.acknowledge(i)
				}
			}
			c.pass(time.Minute)
		}
		c.check()
		for _, i := range c.launched {
			if !c.last(i).State.Traits().Terminal {
				r.Fatalf("run %d never ended: %+v", i, c.statuses[i])
			}
		}
		if s := c.m.Stats(); s.Runs != 0 || s.Calls != 0 || len(c.objects) != 0 {
			r.Fatalf("left are %+v and %d pods", s, len(c.objects))
		}
	})
}
