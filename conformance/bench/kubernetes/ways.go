package main

import (
	"context"
	"fmt"
	"time"

	"github.com/paceline-sched/paceline/conformance/controlplane"
	"github.com/paceline-sched/paceline/conformance/controlplane/crowd"
)

// way is one way of getting pods to nodes.
type way struct {
	name, what string
	do         func(ctx context.Context, st *stage) error
}

// The names of ways.
const (
	limitWay = "limit"
	afterWay = "scheduler-after"
	whileWay = "scheduler-while"
	ourWay   = "paceline"
)

var ways = []way{
	{limitWay, "created bound, 32 at once, no scheduler", createBound},
	{afterWay, "kube-scheduler, started after all were created", schedulerAfter},
	{whileWay, "kube-scheduler, while they are created", schedulerWhile},
	{ourWay, "Paceline, one job", paceline},
}

// createBound is what the API server gives who only creates.
func createBound(ctx context.Context, st *stage) error {
	if err := st.begin(); err != nil {
		return err
	}
	if err := st.crowd.Pods(ctx, st.pods, st.nodes); err != nil {
		return fmt.Errorf("create the pods: %w", err)
	}
	if err := st.count.Await(st.there(st.pods)); err != nil {
		return fmt.Errorf("wait for the pods: %w", err)
	}
	return st.end()
}

// schedulerAfter counts from the first pod that kube-scheduler binds, so not its start; its processor time is all that it takes. What the creation of the
// pods took beforehand belongs to the whole way.
func schedulerAfter(ctx context.Context, st *stage) error {
	creating := time.Now()
	if err := st.crowd.Pods(ctx, st.pods, 0); err != nil {
		return fmt.Errorf("create the pods: %w", err)
	}
	if err := st.count.Await(func(t crowd.Tally) bool { return t.Created >= st.pods }); err != nil {
		return fmt.Errorf("wait for the pods: %w", err)
	}
	st.created = time.Since(creating)
	if err := st.settle(ctx); err != nil {
		return err
	}
	if err := st.begin(); err != nil {
		return err
	}
	if err := st.plane.StartScheduler(ctx); err != nil {
		return fmt.Errorf("start kube-scheduler: %w", err)
	}
	if err := st.count.Await(st.there(st.pods)); err != nil {
		return fmt.Errorf("wait until the pods are bound: %w", err)
	}
	return st.endAt(st.count.Bound().First, st.last())
}

// schedulerWhile has kube-scheduler at work before the pods come: it has bound one.
func schedulerWhile(ctx context.Context, st *stage) error {
	if err := st.plane.StartScheduler(ctx); err != nil {
		return fmt.Errorf("start kube-scheduler: %w", err)
	}
	if err := st.crowd.Probe(ctx); err != nil {
		return err //nolint:wrapcheck // it says what it is of
	}
	if err := st.count.Await(st.there(1)); err != nil {
		return fmt.Errorf("wait until %s is at work: %w", controlplane.KubeScheduler, err)
	}
	if err := st.settle(ctx); err != nil {
		return err
	}
	if err := st.begin(); err != nil {
		return err
	}
	if err := st.crowd.Pods(ctx, st.pods, 0); err != nil {
		return fmt.Errorf("create the pods: %w", err)
	}
	if err := st.count.Await(st.there(st.pods + 1)); err != nil {
		return fmt.Errorf("wait until the pods are bound: %w", err)
	}
	return st.end()
}
