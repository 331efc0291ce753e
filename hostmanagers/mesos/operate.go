package mesos

import (
	"context"
	"fmt"

	"github.com/paceline-sched/paceline/hostmanagers/mesos/framework"
)

// Operate has an operation carried out on what is offered of a host, and waits for its outcome. It fails at once if nothing that is offered has
// what it needs: tell Demand that offers are wanted, and try again.
func (d *Driver) Operate(ctx context.Context, op framework.Operation) error {
	if err := d.working(); err != nil {
		return err
	}
	done := make(chan framework.Feedback, 1)
	var id string
	var err error
	d.input(func(now int64, out *framework.Output) {
		if id, err = d.machine.Operate(now, &op, out); err == nil {
			d.waiters[id] = done
		}
	})
	if err != nil {
		return err
	}
	select {
	case f := <-done:
		if !f.Done() {
			return fmt.Errorf("%s on host %s: the master says %s: %s", op.Kind, op.Host, f.State, f.Message)
		}
		return nil
	case <-ctx.Done():
	case <-d.done:
	}
	d.mu.Lock()
	delete(d.waiters, id)
	d.mu.Unlock()
	return fmt.Errorf("%s on host %s: its outcome (operation %s) is not known: %w", op.Kind, op.Host, id, context.Cause(ctx))
}

// Reserve reserves resources of a host for a role, dynamically.
func (d *Driver) Reserve(ctx context.Context, host, role string, needs map[string]int64) error {
	return d.Operate(ctx, framework.Operation{Kind: framework.Reserve, Host: host, Role: role, Needs: needs})
}

// Unreserve gives resources that a role reserved dynamically back to all.
func (d *Driver) Unreserve(ctx context.Context, host, role string, needs map[string]int64) error {
	return d.Operate(ctx, framework.Operation{Kind: framework.Unreserve, Host: host, Role: role, Needs: needs})
}

// Volume is a persistent volume on a host's disk, in a role that has reserved so much of it.
type Volume struct {
	Host, Role string
	ID         string
	Path       string // where tasks see it
	MiB        int64
}

// CreateVolume makes a persistent volume.
func (d *Driver) CreateVolume(ctx context.Context, v Volume) error {
	return d.Operate(ctx, framework.Operation{
		Kind: framework.CreateVolume, Host: v.Host, Role: v.Role, Volume: v.ID, Path: v.Path, Needs: map[string]int64{"disk_mib": v.MiB},
	})
}

// DestroyVolume destroys a persistent volume, with what is on it. Of v, Path and MiB are not looked at.
func (d *Driver) DestroyVolume(ctx context.Context, v Volume) error {
	return d.Operate(ctx, framework.Operation{Kind: framework.DestroyVolume, Host: v.Host, Role: v.Role, Volume: v.ID})
}
