package emulator

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/paceline-sched/paceline/hostmanagers/kubernetes/emulator/cluster"
	"github.com/paceline-sched/paceline/hostmanagers/local/runner/health"
)

// probe begins to ask a container's probes: the one of its start first, then the others until its process ends.
func (l *Local) probe(process string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s, ok := l.starts[process]
	if !ok || l.orders.Context().Err() != nil || s.Container.StartupProbe == nil && s.Container.ReadinessProbe == nil && s.Container.LivenessProbe == nil {
		return
	}
	ctx, cancel := context.WithCancel(l.orders.Context())
	l.probes[process] = cancel
	l.probing.Go(func() { // ends with the process
		if !l.ask(ctx, s, cluster.Startup, s.Container.StartupProbe, true) {
			return
		}
		l.probing.Go(func() { // as above
			l.ask(ctx, s, cluster.Liveness, s.Container.LivenessProbe, false)
		})
		l.ask(ctx, s, cluster.Readiness, s.Container.ReadinessProbe, false)
	})
}

// ask asks one probe again and again, and tells when its answer changes by its thresholds. With once it is done after the first success.
// It returns false when the process ended or is to be ended.
func (l *Local) ask(ctx context.Context, s cluster.Start, kind cluster.Probe, p *corev1.Probe, once bool) bool {
	if p == nil {
		return true
	}
	question, err := l.question(s, p)
	if err != nil {
		question = func(context.Context) error { return err }
	}
	timer := time.NewTimer(time.Duration(p.InitialDelaySeconds) * time.Second)
	defer timer.Stop()
	var passed, failed int32
	passes := false
	for {
		select {
		case <-timer.C:
		case <-ctx.Done():
			return false
		}
		err := l.answer(ctx, question, time.Duration(p.TimeoutSeconds)*time.Second)
		if ctx.Err() != nil {
			return false
		}
		if err == nil {
			passed, failed = passed+1, 0
		} else {
			passed, failed = 0, failed+1
		}
		switch {
		case passed >= p.SuccessThreshold && !passes:
			passes = true
			l.tell(func(c *cluster.Cluster) { c.Probed(s.Process, kind, true, "") })
			if once {
				return true
			}
		case failed >= p.FailureThreshold && (passes || kind != cluster.Readiness):
			passes = false
			l.tell(func(c *cluster.Cluster) { c.Probed(s.Process, kind, false, fmt.Sprintf("probe failed: %v", err)) })
			if kind != cluster.Readiness {
				return false
			}
		}
		timer.Reset(time.Duration(max(1, p.PeriodSeconds)) * time.Second)
	}
}

func (l *Local) answer(ctx context.Context, question health.Probe, timeout time.Duration) error {
	select {
	case l.gate <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-l.gate }()
	ctx, cancel := context.WithTimeout(ctx, max(time.Second, timeout))
	defer cancel()
	return question(ctx)
}

// question is how a probe is asked on this machine.
func (l *Local) question(s cluster.Start, p *corev1.Probe) (health.Probe, error) {
	switch {
	case p.Exec != nil:
		return func(ctx context.Context) error { return l.orders.Runner().Exec(ctx, s.Process, p.Exec.Command) }, nil
	case p.HTTPGet != nil:
		port, err := portOf(s.Container, p.HTTPGet.Port)
		if err != nil {
			return nil, err
		}
		return health.HTTP(port, p.HTTPGet.Path), nil
	case p.TCPSocket != nil:
		port, err := portOf(s.Container, p.TCPSocket.Port)
		if err != nil {
			return nil, err
		}
		return health.TCP(port), nil
	}
	return nil, errors.New("the emulator knows probes by command, HTTP and TCP only")
}

// portOf finds a port by its number or name.
func portOf(c *corev1.Container, port intstr.IntOrString) (uint16, error) {
	number := int32(port.IntValue()) //nolint:gosec // checked below
	if port.Type == intstr.String {
		for _, p := range c.Ports {
			if p.Name == port.StrVal {
				number = p.ContainerPort
			}
		}
	}
	if number < 1 || number > 1<<16-1 {
		return 0, fmt.Errorf("container %s has no port %s", c.Name, port.String())
	}
	return uint16(number), nil
}
