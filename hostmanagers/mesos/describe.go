package mesos

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/mesos/mesos-go/api/v1/lib/scheduler"

	"github.com/paceline-sched/paceline/core/driver"
)

var (
	_ driver.Describer = (*Driver)(nil)
	_ driver.Leaver    = (*Driver)(nil)
)

// Describe says how the connection to the master fares.
func (d *Driver) Describe() driver.Description {
	status, stats := d.connection.Status(), d.Stats()
	d.mu.Lock()
	version := d.version
	d.mu.Unlock()
	out := driver.Description{Details: map[string]string{}}
	tell := func(name, value string) {
		if value != "" {
			out.Details[name] = value
		}
	}
	tell("leading master", status.Master)
	tell("version of Mesos", version)
	tell("framework", status.Framework)
	if status.Subscribed {
		tell("subscribed since", status.Since.UTC().Format(time.RFC3339))
		tell("agents", strconv.Itoa(stats.Agents))
		tell("offers held", strconv.Itoa(stats.Offers))
		tell("launches that wait for offers", strconv.Itoa(stats.Waiting))
		tell("statuses not acknowledged", strconv.Itoa(stats.Unacked))
		return out
	}
	if status.Err != nil {
		out.Err, out.ErrAt, out.Attempts, out.Next = status.Err, status.ErrAt, status.Attempts, status.Next
	}
	return out
}

// Leave has the master end the framework with all its tasks. Nobody subscribes as it again. Where no master ever knew the framework, there is nobody to tell.
func (d *Driver) Leave(ctx context.Context) error {
	if id, err := d.cfg.Identity.Load(); err == nil && id == "" {
		return nil
	}
	if err := d.working(); err != nil {
		return err
	}
	if err := d.connection.Call(ctx, &scheduler.Call{Type: scheduler.Call_TEARDOWN}); err != nil {
		return fmt.Errorf("tell the Mesos master to tear the framework down: %w", err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.left()
	return nil
}
