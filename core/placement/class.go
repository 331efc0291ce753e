package placement

import (
	"github.com/paceline-sched/paceline/core/host"
	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/workload"
)

// ClassID is the content hash of everything in a Class that bears on placement: equal ids mean interchangeable tasks.
type ClassID uint64

// Class is a set of tasks that placement cannot tell apart: same needs, constraints, preferences and strategy. Build one with
// NewClass; it is immutable afterwards and may be shared by any number of readers.
type Class struct {
	ID        ClassID
	Kind      workload.Kind
	Needs     resource.Vector
	GPUModels []string // sorted
	Ports     []uint16 // one per port need, in the order of the task's ports; 0: any free port
	Labels    map[string]string
	Placement workload.Placement
	Job       workload.JobID // set when Spread or Exclusive make the class the job's own; zero otherwise

	labels *host.LabelSet
}

// NewClass returns the class of a job's instances: of those without an override that bears on placement when override is nil, else
// of the one it describes. Labels are the job's, over them the template's, over them the override's.
func NewClass(job workload.JobID, spec *workload.JobSpec, override *workload.Override) *Class {
	return &Class{}
}

// Matches reports whether the host at row is one that tasks of the class may ever run on: its pool, attributes and GPU models are
// right. What is free there, whether it is ready, and what else is on it do not matter. Daemons follow it.
func (c *Class) Matches(t *host.Table, row host.Row) bool { return false }

// Occupant returns what a task of the class holds on a host with the given devices and ports.
func (c *Class) Occupant(devices DeviceSet, ports []uint16) host.Occupant { return host.Occupant{} }

// DeviceSet is the GPUs that a task was given: a bit per device of the host.
type DeviceSet = host.DeviceSet

// MaxDevices bounds the GPUs of one host.
const MaxDevices = host.MaxDevices
