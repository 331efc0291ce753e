package kit

import (
	"fmt"
	"slices"

	"github.com/paceline-sched/paceline/core/host"
	"github.com/paceline-sched/paceline/core/placement"
	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/workload"
)

// books are what the kit knows of the hosts, kept without any of the code that it judges: plain sums, one host after the other.
type books struct {
	hosts map[workload.HostID]*account
}

// account is one host: what is free there, and whether tasks may go there.
type account struct {
	host     host.Host
	draining bool
	free     resource.Vector
	lanes    []int64
}

func newBooks() *books { return &books{hosts: map[workload.HostID]*account{}} }

func (b *books) put(h host.Host) {
	a := &account{host: h, free: h.Capacity}
	for i := range h.Devices {
		a.lanes = append(a.lanes, h.Devices[i].Milli)
	}
	if was := b.hosts[h.ID]; was != nil { // it grew: what is used there stays
		a.draining, a.lanes = was.draining, was.lanes
		for k := range a.free {
			a.free[k] -= was.host.Capacity[k] - was.free[k]
		}
	}
	b.hosts[h.ID] = a
}

// take enters what a request was answered with, and says what cannot be, "" for nothing.
func (b *books) take(t *host.Table, a *asked, got *placement.Result) string {
	r := &a.request
	n := len(got.Assignments)
	switch {
	case n+got.Refused != r.Count:
		return fmt.Sprintf("%d tasks placed and %d refused of %d", n, got.Refused, r.Count)
	case r.Gang && n > 0 && n < r.Count:
		return fmt.Sprintf("%d of a gang of %d placed", n, r.Count)
	}
	for _, as := range got.Assignments {
		if why := b.one(t, a, as); why != "" {
			return why
		}
	}
	return ""
}

// one enters one task.
func (b *books) one(t *host.Table, a *asked, as placement.Assignment) string {
	if !t.Has(as.Row) {
		return fmt.Sprintf("a task on row %d, where no host is", as.Row)
	}
	id := t.ID(as.Row)
	to := b.hosts[id]
	switch {
	case to == nil:
		return fmt.Sprintf("a task on row %d, whose host is gone", as.Row)
	case !to.host.Ready || to.draining:
		return fmt.Sprintf("a task on %s, which takes none", to.host.Name)
	case a.request.Host != (workload.HostID{}) && a.request.Host != id:
		return fmt.Sprintf("a task on %s, not the one host that was asked for", to.host.Name)
	}
	for i := range a.spec.Placement.Constraints {
		c := &a.spec.Placement.Constraints[i]
		if c.Op == workload.OpIn && !slices.Contains(c.Values, to.host.Attributes[c.Key]) {
			return fmt.Sprintf("a task on %s, against its constraint on %s", to.host.Name, c.Key)
		}
	}
	for k, need := range a.spec.Template.Needs {
		if resource.Kind(k) == resource.GPU {
			continue
		}
		if to.free[k] -= need; to.free[k] < 0 && need > 0 {
			return fmt.Sprintf("a task on %s, where %d of resource %d is missing", to.host.Name, -to.free[k], k)
		}
	}
	return to.devices(a.spec.Template.Needs[resource.GPU], a.spec.Template.GPUModels, as.Devices)
}

// devices enters the devices of one task.
func (a *account) devices(need int64, models []string, set host.DeviceSet) string {
	share, want := min(need, host.DeviceMilli), (need+host.DeviceMilli-1)/host.DeviceMilli
	for l := range host.MaxDevices {
		if set>>l&1 == 0 {
			continue
		}
		want--
		if l >= len(a.lanes) {
			return fmt.Sprintf("a task on device %d of %s, which has %d", l, a.host.Name, len(a.lanes))
		}
		if a.lanes[l] -= share; a.lanes[l] < 0 {
			return fmt.Sprintf("a task on device %d of %s, where %d thousandths are missing", l, a.host.Name, -a.lanes[l])
		}
		if len(models) > 0 && !slices.Contains(models, a.host.Devices[l].Model) {
			return fmt.Sprintf("a task on device %d of %s, of a model that will not do", l, a.host.Name)
		}
	}
	if want != 0 {
		return fmt.Sprintf("a task on %s has %d devices too few", a.host.Name, want)
	}
	return ""
}

// compare says where a table differs from the books, "" for nowhere.
func (b *books) compare(t *host.Table) string {
	for row := range host.Row(t.Rows()) {
		if !t.Has(row) {
			continue
		}
		a := b.hosts[t.ID(row)]
		if a == nil {
			return fmt.Sprintf("row %d has a host that should be gone", row)
		}
		for k, n := range t.Free(row) {
			if resource.Kind(k) != resource.GPU && n != a.free[k] {
				return fmt.Sprintf("%s has %d of resource %d free, it should be %d", a.host.Name, n, k, a.free[k])
			}
		}
		lanes, _ := t.Lanes(row)
		for l := range a.lanes {
			if lanes[l] != a.lanes[l] {
				return fmt.Sprintf("device %d of %s has %d thousandths free, it should be %d", l, a.host.Name, lanes[l], a.lanes[l])
			}
		}
	}
	return ""
}
