package framework

import (
	"errors"
	"fmt"
	"slices"
	"time"
)

// Bounds of a Machine.
const (
	// MaxAgents bounds the agents that are known; offers of more are declined.
	MaxAgents = 1 << 17
	// MaxWaiting bounds the launches that wait for offers; a launch beyond is refused.
	MaxWaiting = 1 << 17
	// maxFragments bounds the offers of one agent that are held; more are given back, so that they come as one.
	maxFragments = 16
	// maxTasks bounds the tasks of one ACCEPT, maxOffers the offers of one DECLINE.
	maxTasks, maxOffers = 500, 1000
	// maxRoles bounds the roles of a framework.
	maxRoles = 32
	// maxOperations bounds the operations on resources that wait for their outcome.
	maxOperations = 1 << 10
)

// Config is what a Machine is made of. Zero fields take their defaults.
type Config struct {
	// Roles are those that the framework subscribed with. They say which reservations are its own.
	Roles []string
	// Principal is the framework's, and that of the reservations and volumes that it makes.
	Principal string
	// GPUModelAttribute names the agents' attribute that says which GPUs they have. Default: "gpu_model".
	GPUModelAttribute string
	// Pool is the host pool of all hosts; PoolAttribute, if an agent has that attribute, names its own.
	Pool, PoolAttribute string
	// FirstToken is what tokens begin above. It must be higher than any that an earlier machine of the cluster gave.
	FirstToken uint64

	// OfferWait is how long a launch waits for the offers that it needs, when those that it was placed on have vanished. Longer finds more,
	// shorter sends the work elsewhere sooner. Default: 3 s, three rounds of a master's allocator.
	OfferWait time.Duration
	// LooseFor is how long resources that were given back, or freed by a task's end, count as the host's before they are offered again.
	// Default: 5 s.
	LooseFor time.Duration
	// DeclineFor is the filter of offers that nobody wants. Default: 1 min.
	DeclineFor time.Duration
	// ReviveEvery is the shortest time between two REVIVE calls. Default: 1 s.
	ReviveEvery time.Duration
	// SuppressAfter is how long after the last launch offers are suppressed if nobody said that work waits. Default: 5 s.
	SuppressAfter time.Duration
	// ProbeEvery is how often the operator API is asked for agents or, while offers are suppressed and it cannot be asked, offers are let come to
	// see what there is. Default: 1 min.
	ProbeEvery time.Duration
	// ProbeFor is how long offers are looked at then, if the master's operator API cannot be asked. Default: 2.5 s.
	ProbeFor time.Duration

	// UnreachableGrace is how long a run on an agent that is out of contact is waited for; then it is lost, and killed should it
	// return. Default: 1 min.
	UnreachableGrace time.Duration
	// MaintenanceLead is how long before a planned unavailability a host takes nothing new. Default: 10 min.
	MaintenanceLead time.Duration
	// InverseFor is the filter of an answer to an inverse offer. Default: 30 s.
	InverseFor time.Duration

	// ReconcileBatch bounds the tasks of one reconciliation, ReconcilePause is the time between two. Defaults: 500, 500 ms.
	ReconcileBatch int
	ReconcilePause time.Duration
	// ReconcileEvery is how often the master is asked for everything that it knows. Default: 10 min.
	ReconcileEvery time.Duration
	// DoubtAfter is when a launch that the master did not answer is asked for. Default: 5 s.
	DoubtAfter time.Duration
	// SilenceAfter is when a task is asked for of which nothing was heard since it was launched. Default: 30 s.
	SilenceAfter time.Duration
	// ReregisterGrace is how long after the first contact with a new master a task that it does not know may still be on an agent that has not
	// registered with it yet. Default: 1 min.
	ReregisterGrace time.Duration
	// UnknownAgain is how often such a task is asked for again if it is one of an earlier process. Default: 5 s.
	UnknownAgain time.Duration
	// HearsayFor is how long an end that was told by reconciliation waits for the update that has the details. Default: 15 s, more than an
	// agent's first retry.
	HearsayFor time.Duration

	// KillResend is how often a kill is sent again, KillMargin how long after its grace it is made final. Defaults: 10 s, 5 s.
	KillResend, KillMargin time.Duration

	// InventoryWait bounds how long after a subscription the inventory is put together; HostsWait how much of that is for the first offers, if the
	// operator API cannot be asked. Defaults: 5 s, 2.5 s.
	InventoryWait, HostsWait time.Duration
	// AnswerWait bounds how long a machine that inherits a framework puts the inventory off for the answer to what tasks there are, which it asks for
	// again every InventoryWait. It counts from the last time that the master failed to take the question, and must be longer than a call may hang:
	// shorter gives hosts up to work sooner, and starts anew what runs on them. Default: 1 min.
	AnswerWait time.Duration
	// DetailsEvery is how often what people see of hosts is brought up to date when nothing else of them changes. Default: 30 s.
	DetailsEvery time.Duration
}

func (c *Config) setDefaults() {
	for _, d := range []struct {
		field *time.Duration
		value time.Duration
	}{
		{&c.OfferWait, 3 * time.Second},
		{&c.LooseFor, 5 * time.Second},
		{&c.DeclineFor, time.Minute},
		{&c.ReviveEvery, time.Second},
		{&c.SuppressAfter, 5 * time.Second},
		{&c.ProbeEvery, time.Minute},
		{&c.ProbeFor, 2500 * time.Millisecond},
		{&c.UnreachableGrace, time.Minute},
		{&c.MaintenanceLead, 10 * time.Minute},
		{&c.InverseFor, 30 * time.Second},
		{&c.ReconcilePause, 500 * time.Millisecond},
		{&c.ReconcileEvery, 10 * time.Minute},
		{&c.DoubtAfter, 5 * time.Second},
		{&c.SilenceAfter, 30 * time.Second},
		{&c.ReregisterGrace, time.Minute},
		{&c.UnknownAgain, 5 * time.Second},
		{&c.HearsayFor, 15 * time.Second},
		{&c.KillResend, 10 * time.Second},
		{&c.KillMargin, 5 * time.Second},
		{&c.InventoryWait, 5 * time.Second},
		{&c.HostsWait, 2500 * time.Millisecond},
		{&c.AnswerWait, time.Minute},
		{&c.DetailsEvery, 30 * time.Second},
	} {
		if *d.field == 0 {
			*d.field = d.value
		}
	}
	if c.ReconcileBatch == 0 {
		c.ReconcileBatch = 500
	}
	if c.GPUModelAttribute == "" {
		c.GPUModelAttribute = "gpu_model"
	}
}

// Validate fills in the defaults and reports what is out of range.
func (c *Config) Validate() error {
	c.setDefaults()
	switch {
	case len(c.Roles) == 0:
		return errors.New("a Mesos framework needs a role: set Roles")
	case len(c.Roles) > maxRoles:
		return fmt.Errorf("a Mesos framework has at most %d roles, not %d", maxRoles, len(c.Roles))
	case slices.Contains(c.Roles, ""):
		return errors.New("a role of a Mesos framework has no name")
	case c.ReconcileBatch < 1:
		return fmt.Errorf("ReconcileBatch is %d; it must be at least 1", c.ReconcileBatch)
	}
	for _, d := range []time.Duration{
		c.OfferWait, c.LooseFor, c.DeclineFor, c.ReviveEvery, c.SuppressAfter, c.ProbeEvery, c.ProbeFor, c.UnreachableGrace, c.MaintenanceLead,
		c.InverseFor, c.ReconcilePause, c.ReconcileEvery, c.DoubtAfter, c.SilenceAfter, c.ReregisterGrace, c.UnknownAgain, c.HearsayFor, c.KillResend,
		c.KillMargin, c.InventoryWait, c.HostsWait, c.AnswerWait, c.DetailsEvery,
	} {
		if d < 0 {
			return fmt.Errorf("a time of a Mesos framework is %s; none may be negative", d)
		}
	}
	return nil
}
