package cluster

import (
	"time"

	mesos "github.com/mesos/mesos-go/api/v1/lib"
)

// Plain returns the resources of an agent without reservations: processors, MiB of memory and of disk, and ports from first to last, if any.
func Plain(cpus, memMiB, diskMiB float64, firstPort, lastPort uint64) []mesos.Resource {
	scalar := func(name string, value float64) mesos.Resource {
		return mesos.Resource{Name: name, Type: mesos.SCALAR.Enum(), Scalar: &mesos.Value_Scalar{Value: value}}
	}
	resources := []mesos.Resource{scalar("cpus", cpus), scalar("mem", memMiB), scalar("disk", diskMiB)}
	if firstPort > 0 {
		resources = append(resources, mesos.Resource{Name: "ports", Type: mesos.RANGES.Enum(), Ranges: &mesos.Value_Ranges{
			Range: []mesos.Value_Range{{Begin: firstPort, End: lastPort}},
		}})
	}
	return resources
}

// Lasting returns processes that do nothing for some time and end well; Forever: until they are killed.
func Lasting(d time.Duration) func(*mesos.TaskInfo) Behaviour {
	return func(*mesos.TaskInfo) Behaviour { return Behaviour{For: d} }
}
