package cluster

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The pause before a container that ended is started again.
const (
	firstPause = 10 * time.Second
	maxPause   = 5 * time.Minute
)

// The codes that shells give to ends by a signal.
const (
	exitTerm = 128 + 15
	exitKill = 128 + 9
)

// box is one container of a pod.
type box struct {
	worker  *worker
	spec    *corev1.Container
	init    bool
	begun   bool
	attempt int32
	process string // that runs or is being started; "": none
	state   corev1.ContainerState
	last    corev1.ContainerState
	id      string
	ready   bool
	started bool
	deaf    bool
	polite  bool
	timers  []*timer
}

func newBox(w *worker, spec *corev1.Container, init bool) *box {
	b := &box{worker: w, spec: spec, init: init}
	b.state.Waiting = &corev1.ContainerStateWaiting{Reason: "ContainerCreating"}
	if len(w.pod.Spec.InitContainers) > 0 {
		b.state.Waiting.Reason = "PodInitializing"
	}
	return b
}

// complete says that an init container did its work.
func (b *box) complete() bool {
	return b.init && !restarts(b.spec) && b.state.Terminated != nil && b.state.Terminated.ExitCode == 0
}

// passes says that what comes after an init container may start.
func (b *box) passes() bool { return b.complete() || restarts(b.spec) && b.started }

// final says that a container ended and is not started again.
func (b *box) final() bool {
	t := b.state.Terminated
	if t == nil {
		return false
	}
	return b.worker.ending || !b.again(t.ExitCode)
}

// again says whether a container is started again after it ended with a code.
func (b *box) again(code int32) bool {
	policy := b.worker.pod.Spec.RestartPolicy
	switch {
	case b.init && restarts(b.spec):
		return !b.worker.mainsOver()
	case b.init:
		return code != 0 && policy != corev1.RestartPolicyNever
	}
	return policy == corev1.RestartPolicyAlways || policy == corev1.RestartPolicyOnFailure && code != 0
}

func (w *worker) mainsOver() bool {
	for _, b := range w.mains {
		if !b.final() {
			return false
		}
	}
	return len(w.mains) > 0
}

// phase is what a pod's containers together make of it.
func (w *worker) phase() corev1.PodPhase {
	alive, failed := false, w.reason != ""
	for _, b := range w.boxes() {
		alive = alive || b.process != ""
	}
	for _, b := range w.inits {
		if t := b.state.Terminated; t != nil && t.ExitCode != 0 && b.final() && !restarts(b.spec) {
			if !alive {
				return corev1.PodFailed
			}
			failed = true
		}
	}
	if w.reason != "" && !alive {
		return corev1.PodFailed
	}
	begun := false
	for _, b := range w.mains {
		begun = begun || b.state.Running != nil || b.state.Terminated != nil || b.last.Terminated != nil
		failed = failed || b.state.Terminated != nil && b.state.Terminated.ExitCode != 0
	}
	switch {
	case w.mainsOver() && !alive && failed:
		return corev1.PodFailed
	case w.mainsOver() && !alive:
		return corev1.PodSucceeded
	case w.ending && !alive:
		return corev1.PodFailed // it was stopped before it ran
	case begun:
		return corev1.PodRunning
	}
	return corev1.PodPending
}

// run starts a container.
func (c *Cluster) run(b *box) {
	w := b.worker
	b.begun, b.ready, b.started = true, false, false
	if c.cfg.Behave == nil {
		c.make(b)
		c.effects = append(c.effects, Start{Process: b.process, Pod: w.pod, Container: b.spec, Refs: c.refs(w.pod)})
		return
	}
	behaviour := c.cfg.Behave(w.pod, b.spec)
	if behaviour.Refused != "" {
		b.state = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: behaviour.Refused, Message: behaviour.Message}}
		c.note(w.pod, corev1.EventTypeWarning, "Failed", behaviour.Message)
		c.touch(w)
		return
	}
	c.make(b)
	b.deaf, b.polite = behaviour.Deaf, behaviour.Polite
	process := b.process
	c.later(b, behaviour.Start, func() {
		c.Started(process)
		c.live(b, behaviour)
	})
}

// make gives a container its next process's name.
func (c *Cluster) make(b *box) {
	b.attempt++
	b.process = fmt.Sprintf("%s-%s-%d", b.worker.uid, b.spec.Name, b.attempt)
	c.boxes[b.process] = b
}

// live arranges what happens to a container that has no process.
func (c *Cluster) live(b *box, behaviour Behaviour) {
	process := b.process
	if b.probed() {
		c.later(b, behaviour.Ready, func() {
			c.Probed(process, Startup, true, "")
			c.Probed(process, Readiness, true, "")
		})
	}
	if behaviour.Sick > 0 && b.spec.LivenessProbe != nil {
		c.later(b, behaviour.Sick, func() { c.Probed(process, Liveness, false, "the emulated probe failed") })
	}
	if behaviour.Run >= 0 {
		c.later(b, behaviour.Run, func() {
			c.Ended(process, Exit{Code: behaviour.Exit, OOM: behaviour.Reason == "OOMKilled", Message: behaviour.Message})
		})
	}
}

func (b *box) probed() bool { return b.spec.ReadinessProbe != nil || b.spec.StartupProbe != nil }

// later is after, until the container ends.
func (c *Cluster) later(b *box, d time.Duration, do func()) {
	if d <= 0 {
		do()
		return
	}
	b.timers = append(b.timers, c.after(d, do))
}

func (b *box) cancel(c *Cluster) {
	for _, t := range b.timers {
		c.stop(t)
	}
	b.timers = nil
}

// refs collects what a pod's containers refer to.
func (c *Cluster) refs(p *corev1.Pod) map[Ref]Object {
	out := map[Ref]Object{}
	for _, r := range Resources {
		if r.Resource != "configmaps" && r.Resource != "secrets" {
			continue
		}
		for _, o := range c.inNamespace(r, p.Namespace) {
			if refersTo(p, r.Resource, o.GetName()) {
				out[Ref{r.Resource, o.GetName()}] = o
			}
		}
	}
	return out
}

func refersTo(p *corev1.Pod, resource, name string) bool {
	for _, list := range [][]corev1.Container{p.Spec.InitContainers, p.Spec.Containers} {
		for _, c := range list {
			for _, from := range c.EnvFrom {
				if resource == "configmaps" && from.ConfigMapRef != nil && from.ConfigMapRef.Name == name ||
					resource == "secrets" && from.SecretRef != nil && from.SecretRef.Name == name {
					return true
				}
			}
			for _, e := range c.Env {
				if e.ValueFrom == nil {
					continue
				}
				if m := e.ValueFrom.ConfigMapKeyRef; resource == "configmaps" && m != nil && m.Name == name {
					return true
				}
				if s := e.ValueFrom.SecretKeyRef; resource == "secrets" && s != nil && s.Name == name {
					return true
				}
			}
		}
	}
	return false
}

// Started tells that a process runs.
func (c *Cluster) Started(process string) {
	b := c.boxes[process]
	if b == nil || b.process != process || b.state.Running != nil {
		return
	}
	b.id = idPrefix + process
	b.state = corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: c.stamp()}}
	b.started = b.spec.StartupProbe == nil
	b.ready = !b.init && !b.probed()
	c.note(b.worker.pod, corev1.EventTypeNormal, "Started", "Container started")
	c.proceed(b.worker)
	c.touch(b.worker)
}

// Ended tells that a process is gone.
func (c *Cluster) Ended(process string, exit Exit) {
	b := c.boxes[process]
	if b == nil {
		return
	}
	delete(c.boxes, process)
	if b.process != process {
		return
	}
	b.process = ""
	b.cancel(c)
	code, reason := exit.Code, "Completed"
	if exit.Signal != 0 {
		code = 128 + exit.Signal
	}
	switch {
	case exit.NotStarted:
		reason, code = "StartError", 128
	case exit.OOM:
		reason, code = "OOMKilled", exitKill
	case code != 0:
		reason = "Error"
	}
	begun := c.stamp()
	if b.state.Running != nil {
		begun = b.state.Running.StartedAt
	} else if exit.NotStarted {
		begun = metav1.NewTime(time.Unix(0, 0).UTC())
	}
	b.id = idPrefix + process
	b.state = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
		ExitCode: code, Reason: reason, Message: exit.Message, StartedAt: begun, FinishedAt: c.stamp(), ContainerID: b.id,
	}}
	b.ready, b.started = false, false
	c.followUp(b)
}

// followUp is what follows a container's end: its successor, itself again, or the end of its pod.
func (c *Cluster) followUp(b *box) {
	w := b.worker
	if !w.live() {
		return
	}
	t := b.state.Terminated
	switch {
	case w.ending:
		c.settle(w)
	case b.again(t.ExitCode):
		pause := min(maxPause, firstPause<<min(uint(max(0, b.attempt-1)), 10))
		b.last = b.state
		if b.attempt == 1 {
			pause = 0
		} else {
			b.state = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{
				Reason: "CrashLoopBackOff", Message: fmt.Sprintf("back-off %s restarting failed container=%s", pause, b.spec.Name),
			}}
			c.note(w.pod, corev1.EventTypeWarning, "BackOff", "Back-off restarting failed container "+b.spec.Name)
		}
		b.timers = append(b.timers, c.after(pause, func() {
			if w.live() && !w.ending {
				c.run(b)
			}
		}))
	default:
		c.proceed(w)
		if w.mainsOver() || b.init && t.ExitCode != 0 {
			c.endSidecars(w)
		}
	}
	c.touch(w)
}

// endSidecars stops what ran beside a pod's work.
func (c *Cluster) endSidecars(w *worker) {
	for _, b := range w.inits {
		if restarts(b.spec) && b.process != "" {
			process := b.process
			c.signal(b, false)
			c.after(seconds(podGrace(w.pod, nil)), func() {
				if b.process == process {
					c.signal(b, true)
				}
			})
		}
	}
}

// signal ends a container's process.
func (c *Cluster) signal(b *box, kill bool) {
	if b.process == "" {
		return
	}
	if c.cfg.Behave == nil {
		c.effects = append(c.effects, Signal{Process: b.process, Kill: kill})
		return
	}
	process := b.process
	switch {
	case kill:
		c.after(0, func() { c.Ended(process, Exit{Code: exitKill}) })
	case !b.deaf:
		code := int32(exitTerm)
		if b.polite {
			code = 0
		}
		c.after(0, func() { c.Ended(process, Exit{Code: code}) })
	}
}

// Probe is what a container is asked.
type Probe uint8

// The probes.
const (
	Startup Probe = iota
	Readiness
	Liveness
)

// Probed tells how a container answers a probe, after the probe's thresholds.
func (c *Cluster) Probed(process string, probe Probe, passes bool, message string) {
	b := c.boxes[process]
	if b == nil || b.process != process || b.state.Running == nil {
		return
	}
	switch {
	case probe == Readiness:
		b.ready = passes && b.started && !b.init
	case passes:
		b.started = true
		if b.spec.ReadinessProbe == nil {
			b.ready = !b.init
		}
		c.proceed(b.worker)
	default:
		c.note(b.worker.pod, corev1.EventTypeWarning, "Unhealthy", message)
		c.note(b.worker.pod, corev1.EventTypeNormal, "Killing", "Container "+b.spec.Name+" failed a probe, will be restarted")
		b.ready = false
		c.signal(b, false)
		grace := seconds(podGrace(b.worker.pod, nil))
		c.after(grace, func() {
			if b.process == process {
				c.signal(b, true)
			}
		})
	}
	c.touch(b.worker)
}

func statuses(boxes []*box) []corev1.ContainerStatus {
	var out []corev1.ContainerStatus
	for _, b := range boxes {
		started := b.started
		s := corev1.ContainerStatus{
			Name: b.spec.Name, Image: b.spec.Image, State: *b.state.DeepCopy(), LastTerminationState: *b.last.DeepCopy(),
			Ready: b.ready || b.complete() || b.init && restarts(b.spec) && b.started, RestartCount: max(0, b.attempt-1), ContainerID: b.id, Started: &started,
		}
		if b.id != "" {
			s.ImageID = "emulated:" + b.spec.Image
		}
		out = append(out, s)
	}
	return out
}

// address is the next pod's.
func (c *Cluster) address() string {
	c.minted++
	return fmt.Sprintf("10.%d.%d.%d", 128+c.minted>>16&0x7f, c.minted>>8&0xff, c.minted&0xff)
}

// at is a time as objects carry it; now, if it is not set.
func at(t, now time.Time) metav1.Time {
	if t.IsZero() {
		t = now
	}
	return metav1.NewTime(t.Truncate(time.Second))
}

// Lasting is how containers behave that run for a time and end well.
func Lasting(d time.Duration) func(*corev1.Pod, *corev1.Container) Behaviour {
	return func(*corev1.Pod, *corev1.Container) Behaviour { return Behaviour{Run: d} }
}

// Quantities is a list of resources by name, written as Kubernetes writes them.
func Quantities(of map[string]string) (corev1.ResourceList, error) {
	out := corev1.ResourceList{}
	for name, text := range of {
		q, err := resource.ParseQuantity(text)
		if err != nil {
			return nil, fmt.Errorf("%s: %q is no quantity: %w", name, text, err)
		}
		out[corev1.ResourceName(name)] = q
	}
	return out, nil
}
