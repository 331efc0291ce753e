package cluster

import (
	"fmt"
	"slices"
	"strings"
	"time"

	mesos "github.com/mesos/mesos-go/api/v1/lib"
	"github.com/mesos/mesos-go/api/v1/lib/allocator"
	"github.com/mesos/mesos-go/api/v1/lib/maintenance"
	"github.com/mesos/mesos-go/api/v1/lib/scheduler"
)

// window is a time in which machines may be unavailable.
type window = maintenance.Window

// inverseOffer asks a framework to leave an agent.
type inverseOffer struct {
	id        string
	framework *framework
	agent     *agent
}

// answer is what a framework said to inverse offers of an agent, and until when it wants no other.
type answer struct {
	status mesos.TimeInfo
	yes    bool
	until  time.Time
}

// Schedule returns the maintenance windows.
func (c *Cluster) Schedule() *maintenance.Schedule { return &maintenance.Schedule{Windows: c.windows} }

// SetSchedule replaces the maintenance windows. All offers are taken back and made anew.
func (c *Cluster) SetSchedule(s *maintenance.Schedule) *Refusal {
	for _, w := range s.Windows {
		if len(w.MachineIDs) == 0 {
			return badRequest("List of machines in the maintenance window is empty")
		}
	}
	c.windows = s.Windows
	live := c.live()
	for _, a := range live {
		c.rescindAgent(a)
	}
	for _, a := range live {
		c.rescindInverse(a)
		a.answers = nil
	}
	c.allocate(live)
	c.inverseOffers()
	return nil
}

// live returns the agents that are there, those that stay available first.
func (c *Cluster) live() []*agent {
	var stay, leave []*agent
	for _, a := range c.roster {
		switch {
		case !a.registered:
		case c.unavailability(a) == nil:
			stay = append(stay, a)
		default:
			leave = append(leave, a)
		}
	}
	return append(stay, leave...)
}

func (c *Cluster) unavailability(a *agent) *mesos.Unavailability {
	if w := c.windowOf(a.info.Hostname); w != nil {
		return &w.Unavailability
	}
	return nil
}

func (c *Cluster) windowOf(hostname string) *window {
	for i := range c.windows {
		if slices.ContainsFunc(c.windows[i].MachineIDs, func(m mesos.MachineID) bool { return m.GetHostname() == hostname }) {
			return &c.windows[i]
		}
	}
	return nil
}

// inverseOffers asks those who are on agents with a window, unless they were asked or want no question now.
func (c *Cluster) inverseOffers() {
	for _, f := range c.order {
		var made []mesos.InverseOffer
		for _, a := range c.roster {
			if o := c.inverseOffer(f, a); o != nil {
				made = append(made, *o)
			}
		}
		if len(made) > 0 {
			c.deliver(f, &scheduler.Event{
				Type: scheduler.Event_INVERSE_OFFERS, InverseOffers: &scheduler.Event_InverseOffers{InverseOffers: made},
			})
		}
	}
}

func (c *Cluster) inverseOffer(f *framework, a *agent) *mesos.InverseOffer {
	unavailable := c.unavailability(a)
	if unavailable == nil || f.stream == "" || !a.connected || a.answers[f.id].until.After(c.now) {
		return nil
	}
	present := slices.ContainsFunc(a.tasks, func(t *task) bool { return t.framework == f })
	for _, i := range c.inverse {
		if i.framework == f && i.agent == a {
			return nil
		}
	}
	if !present {
		return nil
	}
	made := &inverseOffer{id: c.offerID(), framework: f, agent: a}
	c.inverse[made.id] = made
	return &mesos.InverseOffer{
		OfferID: mesos.OfferID{Value: made.id}, URL: a.url(), FrameworkID: mesos.FrameworkID{Value: f.id},
		AgentID: &mesos.AgentID{Value: a.id}, Unavailability: *unavailable,
	}
}

// rescindInverse takes back the inverse offers of an agent.
func (c *Cluster) rescindInverse(a *agent) {
	var ids []string
	for id, i := range c.inverse {
		if i.agent == a {
			ids = append(ids, id)
		}
	}
	slices.SortFunc(ids, strings.Compare)
	for _, id := range ids {
		f := c.inverse[id].framework
		delete(c.inverse, id)
		c.deliver(f, &scheduler.Event{
			Type: scheduler.Event_RESCIND_INVERSE_OFFER, RescindInverseOffer: &scheduler.Event_RescindInverseOffer{InverseOfferID: mesos.OfferID{Value: id}},
		})
	}
}

// answerInverse is an ACCEPT_INVERSE_OFFERS or DECLINE_INVERSE_OFFERS call. Unknown ones are ignored.
func (c *Cluster) answerInverse(f *framework, ids []mesos.OfferID, filters *mesos.Filters, yes bool) {
	for _, id := range ids {
		i := c.inverse[id.Value]
		if i == nil || i.framework != f {
			continue
		}
		delete(c.inverse, id.Value)
		if i.agent.answers == nil {
			i.agent.answers = map[string]answer{}
		}
		i.agent.answers[f.id] = answer{
			status: mesos.TimeInfo{Nanoseconds: c.now.UnixNano()}, yes: yes, until: c.now.Add(refusal(filters) + hearing),
		}
	}
}

// MaintenanceStatus says which machines are draining or down.
func (c *Cluster) MaintenanceStatus() *maintenance.ClusterStatus {
	status := &maintenance.ClusterStatus{}
	for _, w := range c.windows {
		for _, m := range w.MachineIDs {
			if c.down[m.GetHostname()] {
				status.DownMachines = append(status.DownMachines, m)
				continue
			}
			d := maintenance.ClusterStatus_DrainingMachine{ID: m}
			for _, a := range c.roster {
				if a.info.Hostname == m.GetHostname() {
					d.Statuses = append(d.Statuses, c.answersOf(a)...)
				}
			}
			status.DrainingMachines = append(status.DrainingMachines, d)
		}
	}
	return status
}

func (c *Cluster) answersOf(a *agent) []allocator.InverseOfferStatus {
	var statuses []allocator.InverseOfferStatus
	for _, f := range c.order {
		if said, ok := a.answers[f.id]; ok {
			status := allocator.InverseOfferStatus_DECLINE
			if said.yes {
				status = allocator.InverseOfferStatus_ACCEPT
			}
			statuses = append(statuses, allocator.InverseOfferStatus{
				Status: &status, FrameworkID: mesos.FrameworkID{Value: f.id}, Timestamp: said.status,
			})
		}
	}
	return statuses
}

// machineText writes a machine as a master's messages do.
func machineText(m mesos.MachineID) string {
	return fmt.Sprintf(`Machine '{"hostname":"%s","ip":"%s"}'`, m.GetHostname(), m.GetIP())
}

// MachinesDown takes machines of a window down: their agents are removed.
func (c *Cluster) MachinesDown(machines []mesos.MachineID) *Refusal {
	for _, m := range machines {
		if c.windowOf(m.GetHostname()) == nil {
			return badRequest(machineText(m) + " is not part of a maintenance schedule")
		}
		if c.down[m.GetHostname()] {
			return badRequest(machineText(m) + " is not in DRAINING mode and cannot be brought down")
		}
	}
	for _, m := range machines {
		c.down[m.GetHostname()] = true
		for _, a := range slices.Clone(c.roster) {
			if a.info.Hostname == m.GetHostname() {
				c.RemoveAgent(a.id, "Operator initiated 'Machine DOWN'")
			}
		}
	}
	return nil
}

// MachinesUp ends the maintenance of machines.
func (c *Cluster) MachinesUp(machines []mesos.MachineID) *Refusal {
	for _, m := range machines {
		if !c.down[m.GetHostname()] {
			return badRequest(machineText(m) + " is not in DOWN mode and cannot be brought up")
		}
	}
	for _, m := range machines {
		delete(c.down, m.GetHostname())
		for i := range c.windows {
			c.windows[i].MachineIDs = slices.DeleteFunc(slices.Clone(c.windows[i].MachineIDs), func(other mesos.MachineID) bool {
				return other.GetHostname() == m.GetHostname()
			})
		}
	}
	c.windows = slices.DeleteFunc(c.windows, func(w window) bool { return len(w.MachineIDs) == 0 })
	return nil
}
