package host

import (
	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/workload"
)

// Bounds of one host and of one table.
const (
	MaxDevices    = 16   // GPUs of a host: one bit each in a DeviceSet
	MaxAttributes = 256  // attributes of a host
	MaxKeys       = 1024 // distinct attribute keys among a table's hosts
	MaxPortRanges = 64   // port ranges of a host
	MaxCounters   = 1024 // (selector, topology) counters kept; the least recently used one makes room
	// DeviceMilli is a whole device.
	DeviceMilli = int64(1000)
)

// Row is a host's position in the table.
type Row int32

// NoRow is no host.
const NoRow Row = -1

// DeviceSet is a set of one host's GPUs: a bit per device.
type DeviceSet uint16

// Device is one GPU of a host.
type Device struct {
	Model string
	Milli int64 // 1000 unless the device is partly reserved
}

// PortRange is inclusive at both ends.
type PortRange struct{ First, Last uint16 }

// Host is what a cluster says of one machine.
type Host struct {
	ID         workload.HostID
	Name       string // the value of the attribute "host", which every host has
	Attributes map[string]string
	Pool       string          // host pool; "" is the default one
	Capacity   resource.Vector // of GPU the sum of Devices counts, whatever stands here
	Foreign    resource.Vector // used by others than us
	Devices    []Device
	Ports      []PortRange // what tasks may be given
	Ready      bool        // may take new tasks
}

// Occupant is the room that one task holds on a host. The same value that was taken is released.
type Occupant struct {
	Job       workload.JobID // zero: a class that several jobs may share
	Exclusive bool           // keeps tasks of other jobs off the host
	Labels    *LabelSet      // nil: none
	Needs     resource.Vector
	// Devices of the host, each giving Milli: the whole GPU need when that is under 1000, else 1000.
	Devices DeviceSet
	Milli   int64
	Ports   []uint16
}
