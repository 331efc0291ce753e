package simulated

import (
	"errors"
	"fmt"
	"time"

	"github.com/paceline-sched/paceline/core/driver"
	"github.com/paceline-sched/paceline/core/execution"
)

// The bounds of a cluster.
const (
	MaxHosts = 200_000
	// MaxRuns bounds the runs that live or were not acknowledged.
	MaxRuns = 4_000_000
	// maxBatch bounds the statuses of one call of the sink.
	maxBatch = 4096
	// maxCalls bounds the calls of the sink that are due; beyond, the connection takes nothing more.
	maxCalls = 1 << 16
	perMille = 1000
)

// Config describes a cluster. Zero fields but Hosts take their defaults.
type Config struct {
	// Hosts are the machines: from ReadInventory, Generate or by hand. At most MaxHosts, with distinct names.
	Hosts []driver.Host
	// Features is what every host says that it can do, beyond the attributes that it has. Default: nothing is said, so that they are sent mere
	// commands only.
	Features []execution.Feature
	// Seed decides everything that happens by chance.
	Seed uint64
	// Virtual makes time move by Advance alone, from Origin on. Default: wall time.
	Virtual bool
	Origin  time.Time
	// DefaultDuration is how long a run lasts whose launch does not say. Default: until it is killed.
	DefaultDuration time.Duration
	// LaunchLatency is the time from a launch to RUNNING, KillLatency from a kill to the end; a grace of 0 ends at once. Defaults: 0.
	LaunchLatency time.Duration
	KillLatency   time.Duration
	Faults        Faults
	// Now is the wall clock. Default: time.Now.
	Now func() time.Time
}

// Faults is what goes wrong by itself. The zero value: nothing. Chances are in thousandths, 0 to 1000.
type Faults struct {
	// A lost status is not delivered, but Reconcile and the next inventory tell; a delayed one comes up to MaxDelay late, and holds
	// up what follows of its run.
	LoseStatus, DuplicateStatus, DelayStatus int32
	MaxDelay                                 time.Duration
	// LaunchFailure is the chance that a run cannot be started.
	LaunchFailure int32
	// Every HostFailureEvery, give or take a half, one host goes out of contact for HostOutage. ReturnEmpty is the chance that it has
	// lost its runs when it is back; otherwise they went on.
	HostFailureEvery, HostOutage time.Duration
	ReturnEmpty                  int32
	// Every CutEvery, give or take a half, the connection is lost for CutFor.
	CutEvery, CutFor time.Duration
}

// Validate fills in the defaults and reports what is out of range.
func (c *Config) Validate() error {
	if c.Now == nil {
		c.Now = time.Now
	}
	if len(c.Hosts) == 0 || len(c.Hosts) > MaxHosts {
		return fmt.Errorf("simulated: there are %d hosts; there must be from 1 to %d", len(c.Hosts), MaxHosts)
	}
	if c.DefaultDuration < 0 || c.LaunchLatency < 0 || c.KillLatency < 0 {
		return errors.New("simulated: DefaultDuration, LaunchLatency and KillLatency must not be negative")
	}
	if c.Origin.IsZero() {
		c.Origin = time.Unix(0, 0)
	}
	return c.Faults.validate()
}

func (f *Faults) validate() error {
	for name, chance := range map[string]int32{
		"LoseStatus": f.LoseStatus, "DuplicateStatus": f.DuplicateStatus, "DelayStatus": f.DelayStatus,
		"LaunchFailure": f.LaunchFailure, "ReturnEmpty": f.ReturnEmpty,
	} {
		if chance < 0 || chance > perMille {
			return fmt.Errorf("simulated: Faults.%s is %d; it must be from 0 to %d thousandths", name, chance, perMille)
		}
	}
	switch {
	case f.DelayStatus > 0 && f.MaxDelay <= 0:
		return errors.New("simulated: Faults.DelayStatus needs a MaxDelay")
	case f.HostFailureEvery < 0 || f.CutEvery < 0 || f.MaxDelay < 0:
		return errors.New("simulated: the times of Faults must not be negative")
	case f.HostFailureEvery > 0 && f.HostOutage <= 0:
		return errors.New("simulated: Faults.HostFailureEvery needs a HostOutage")
	case f.CutEvery > 0 && f.CutFor <= 0:
		return errors.New("simulated: Faults.CutEvery needs a CutFor")
	}
	return nil
}
