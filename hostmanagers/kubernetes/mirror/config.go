package mirror

import (
	"errors"
	"fmt"
	"regexp"
	"time"
)

// The labels and annotations of pods.
const (
	// LabelOwner names whose runs the pods are.
	LabelOwner = "paceline.io/owner"
	// LabelEpoch is the epoch under which a pod was created.
	LabelEpoch = "paceline.io/epoch"
	// AnnotationDevices lists the GPUs of its host that a run was placed on.
	AnnotationDevices = "paceline.io/devices"
	// LabelPool is the label of nodes that names their host pool, unless another is set.
	LabelPool = "paceline.io/host-pool"
)

// What is kept of runs that have ended, unless something else is set.
const (
	DefaultKeepEnded     = 10 * time.Minute
	DefaultKeepEndedPods = 1000
)

// Config is what a Machine is made of. Zero fields take their defaults.
type Config struct {
	// Owner tells this cell's pods from those of others. It is a label's value, and must stay what it is: pods of another owner are foreign.
	Owner string
	// Epoch is the one under which this cell creates pods; it grows with every start. 0: it has none, and nothing is fenced.
	Epoch uint64
	// GPUs are the resources of device plug-ins that are GPUs. Of a node that has several, the first counts. Default: NVIDIA's, AMD's, Intel's.
	GPUs []string
	// PoolLabel is the label of nodes that names their host pool. Default: LabelPool.
	PoolLabel string
	// Tolerated are the keys of taints that the cell's pods tolerate; a node with another one that repels takes nothing.
	Tolerated []string
	// FirstPort and LastPort bound the ports of hosts that runs are given. Default: 20000 to 29999, below the cluster's own node ports.
	FirstPort, LastPort uint16
	// Features are what hosts can do for tasks, as attributes.
	Features map[string]string
	// FirstToken is what tokens begin above. It must be higher than any that an earlier machine of the cluster gave.
	FirstToken uint64

	// StartGrace is how long what keeps a container from starting may mend itself, such as an image that cannot be pulled. Default: 2 min.
	StartGrace time.Duration
	// UnreachableGrace is how long a run on a node that is out of contact is waited for, while the API server is in contact; then it is lost. Default: 1 min.
	UnreachableGrace time.Duration
	// LateCreation is how long after its client has given up on it a request to create a pod may still have its effect. As long the pod of its name stays
	// where it is, so that there is no second one. Default: 1 min, which is how long an API server keeps a request.
	LateCreation time.Duration
	// KillMargin is how long after its grace a kill is made final. Default: 15 s.
	KillMargin time.Duration

	// KeepEnded is how long the pod of a run stays after its end, so that its output can be read. It takes no room, but counts among the API server's
	// objects. Default: 10 min; below 0: it goes once the end was acknowledged.
	KeepEnded time.Duration
	// KeepEndedPods is how many such pods stay; of more the oldest go. Default: 1,000; below 0: none.
	KeepEndedPods int
}

var ownerPattern = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?$`)

// Validate fills in the defaults and reports what is out of range.
func (c *Config) Validate() error {
	if len(c.GPUs) == 0 {
		c.GPUs = []string{"nvidia.com/gpu", "amd.com/gpu", "gpu.intel.com/i915"}
	}
	if c.PoolLabel == "" {
		c.PoolLabel = LabelPool
	}
	if c.FirstPort == 0 && c.LastPort == 0 {
		c.FirstPort, c.LastPort = 20000, 29999
	}
	for _, d := range []struct {
		name      string
		field     *time.Duration
		otherwise time.Duration
	}{
		{"StartGrace", &c.StartGrace, 2 * time.Minute},
		{"UnreachableGrace", &c.UnreachableGrace, time.Minute},
		{"LateCreation", &c.LateCreation, time.Minute},
		{"KillMargin", &c.KillMargin, 15 * time.Second},
	} {
		if *d.field == 0 {
			*d.field = d.otherwise
		}
		if *d.field < 0 {
			return fmt.Errorf("%s is %s; it must not be negative", d.name, *d.field)
		}
	}
	if c.KeepEnded == 0 {
		c.KeepEnded = DefaultKeepEnded
	}
	if c.KeepEndedPods == 0 {
		c.KeepEndedPods = DefaultKeepEndedPods
	}
	switch {
	case !ownerPattern.MatchString(c.Owner):
		return fmt.Errorf("the owner of pods is %.80q; it must be a label's value: at most 63 letters, digits, '-', '_' and '.'", c.Owner)
	case c.FirstPort > c.LastPort || c.FirstPort == 0:
		return errors.New("the ports of hosts must be from 1 on, the first not above the last")
	}
	return nil
}
