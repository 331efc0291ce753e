package placement

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"maps"
	"slices"

	"github.com/paceline-sched/paceline/core/execution"
	"github.com/paceline-sched/paceline/core/host"
	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/workload"
)

// ClassID is the content hash of everything in a Class that bears on placement: equal ids mean interchangeable tasks. It is never
// zero.
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

	// mere: the tasks are a command on their host and no more. They ask nothing of it, so that it has to say when it runs no commands; of any
	// others the constraints say what runs them. It follows from the constraints, so ids do not have it.
	mere      bool
	digest    [sha256.Size]byte // ID is its beginning
	labels    *host.LabelSet
	selectors []*host.LabelSet // of Placement.Affinities
}

// DeviceSet is the GPUs that a task was given: a bit per device of the host.
type DeviceSet = host.DeviceSet

// MaxDevices bounds the GPUs of one host.
const MaxDevices = host.MaxDevices

// NewClass returns the class of a job's instances: of those without an override that bears on placement when override is nil, else
// of the one it describes. Labels are the job's, over them the template's, over them the override's. The spec must have passed
// validation: what makes no sense (an unknown operator, a GPU need of one and a half devices) simply fits nowhere.
func NewClass(job workload.JobID, spec *workload.JobSpec, override *workload.Override) *Class {
	c := &Class{
		Kind:      spec.Kind,
		Needs:     spec.Template.Needs,
		GPUModels: sortedSet(spec.Template.GPUModels),
		Labels:    map[string]string{},
		Placement: normalPlacement(&spec.Placement),
	}
	for _, p := range spec.Template.Ports {
		c.Ports = append(c.Ports, p.Number)
	}
	c.askFor(spec.Template.Execution)
	maps.Copy(c.Labels, spec.Labels)
	maps.Copy(c.Labels, spec.Template.Labels)
	if override != nil {
		maps.Copy(c.Labels, override.Labels)
		if override.Needs != nil {
			c.Needs = *override.Needs
		}
	}
	if c.Placement.Exclusive || len(c.Placement.Spreads) > 0 {
		c.Job = job
	}
	c.labels = host.NewLabelSet(c.Labels)
	for _, a := range c.Placement.Affinities {
		c.selectors = append(c.selectors, host.NewLabelSet(a.Selector))
	}
	c.seal()
	return c
}

// askFor adds what tasks need their host to be able to do.
func (c *Class) askFor(e *execution.Spec) {
	for _, f := range e.Asks() {
		c.Placement.Constraints = append(c.Placement.Constraints, workload.Constraint{
			Key: string(f), Op: workload.OpIn, Values: []string{execution.FeatureYes},
		})
	}
	sortByContent(c.Placement.Constraints, appendConstraint)
	c.mere = !slices.ContainsFunc(c.Placement.Constraints, func(k workload.Constraint) bool {
		return k.Key == string(execution.FeatureCommand) || k.Key == string(execution.FeatureImage)
	})
}

// runsCommands is what a mere command asks of its host: that it does not say no.
var runsCommands = workload.Constraint{
	Key: string(execution.FeatureCommand), Op: workload.OpNotIn, Values: []string{execution.FeatureNo},
}

func (c *Class) seal() {
	c.digest = sha256.Sum256(c.appendContent(nil))
	c.ID = ClassID(max(binary.BigEndian.Uint64(c.digest[:]), 1))
}

// Under returns the class of the same tasks, placed by another strategy.
func (c *Class) Under(strategy workload.Strategy) *Class {
	if c.Placement.Strategy == strategy {
		return c
	}
	other := *c
	other.Placement.Strategy = strategy
	other.seal()
	return &other
}

// normalPlacement returns a copy in which everything whose order means nothing is sorted, so that equal wishes hash alike.
func normalPlacement(in *workload.Placement) workload.Placement {
	p := *in
	p.Clusters = sortedSet(in.Clusters)
	p.Constraints, p.Preferences = nil, nil
	for _, c := range in.Constraints {
		c.Values = sortedSet(c.Values)
		p.Constraints = append(p.Constraints, c)
	}
	for _, f := range in.Preferences {
		f.Constraint.Values = sortedSet(f.Constraint.Values)
		p.Preferences = append(p.Preferences, f)
	}
	p.Affinities, p.Spreads = slices.Clone(in.Affinities), slices.Clone(in.Spreads)
	sortByContent(p.Constraints, appendConstraint)
	sortByContent(p.Preferences, appendPreference)
	sortByContent(p.Affinities, appendAffinity)
	sortByContent(p.Spreads, appendSpread)
	return p
}

func sortedSet(in []string) []string {
	out := slices.Clone(in)
	slices.Sort(out)
	return slices.Compact(out)
}

func sortByContent[T any](list []T, content func([]byte, T) []byte) {
	slices.SortStableFunc(list, func(a, b T) int { return bytes.Compare(content(nil, a), content(nil, b)) })
}

// contentVersion begins the hashed form; another form takes another number.
const contentVersion = 1

// appendContent appends an injective encoding of everything that bears on placement: every string and list under its length.
func (c *Class) appendContent(b []byte) []byte {
	b = append(b, contentVersion, byte(c.Kind))
	for _, q := range c.Needs {
		b = binary.AppendVarint(b, q)
	}
	b = appendList(b, c.GPUModels, appendString)
	b = appendList(b, c.Ports, binary.BigEndian.AppendUint16)
	b = appendMap(b, c.Labels)
	p := &c.Placement
	b = appendString(b, string(p.Strategy))
	b = appendList(b, p.Constraints, appendConstraint)
	b = appendList(b, p.Preferences, appendPreference)
	b = appendList(b, p.Affinities, appendAffinity)
	b = appendList(b, p.Spreads, appendSpread)
	b = appendBool(b, p.Exclusive)
	b = appendString(b, p.HostPool)
	b = appendList(b, p.Clusters, appendString)
	return append(b, c.Job[:]...)
}

func appendList[T any](b []byte, list []T, one func([]byte, T) []byte) []byte {
	b = binary.AppendUvarint(b, uint64(len(list)))
	for _, v := range list {
		b = one(b, v)
	}
	return b
}

func appendString(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

func appendBool(b []byte, v bool) []byte {
	if v {
		return append(b, 1)
	}
	return append(b, 0)
}

func appendMap(b []byte, m map[string]string) []byte {
	b = binary.AppendUvarint(b, uint64(len(m)))
	for _, k := range slices.Sorted(maps.Keys(m)) {
		b = appendString(appendString(b, k), m[k])
	}
	return b
}

func appendConstraint(b []byte, c workload.Constraint) []byte {
	return appendList(append(appendString(b, c.Key), byte(c.Op)), c.Values, appendString)
}

func appendPreference(b []byte, p workload.Preference) []byte {
	return binary.AppendVarint(appendConstraint(b, p.Constraint), int64(p.Weight))
}

func appendAffinity(b []byte, a workload.Affinity) []byte {
	b = appendBool(appendString(appendMap(b, a.Selector), a.Topology), a.Anti)
	return binary.AppendVarint(b, int64(a.Weight))
}

func appendSpread(b []byte, s workload.Spread) []byte {
	return binary.AppendUvarint(appendString(b, s.Topology), uint64(s.MaxSkew))
}

// Matches reports whether the host at row is one that tasks of the class may ever run on: its pool, attributes and GPU models are
// right. What is free there, whether it is ready, and what else is on it do not matter. Daemons follow it.
func (c *Class) Matches(t *host.Table, row host.Row) bool {
	return t.Has(row) && c.inPool(t, row) && c.meetsConstraints(t, row) && c.modelsFit(t, row)
}

// Suits is Matches for a host that is in no table.
func (c *Class) Suits(h *host.Host) bool {
	if c.Placement.HostPool != "" && c.Placement.HostPool != h.Pool || c.mere && !h.Meets(&runsCommands) {
		return false
	}
	for i := range c.Placement.Constraints {
		if !h.Meets(&c.Placement.Constraints[i]) {
			return false
		}
	}
	return c.Needs[resource.GPU] <= 0 || len(c.GPUModels) == 0 ||
		slices.ContainsFunc(h.Devices, func(d host.Device) bool { return slices.Contains(c.GPUModels, d.Model) })
}

func (c *Class) inPool(t *host.Table, row host.Row) bool {
	return c.Placement.HostPool == "" || c.Placement.HostPool == t.Host(row).Pool
}

func (c *Class) meetsConstraints(t *host.Table, row host.Row) bool {
	for i := range c.Placement.Constraints {
		if !t.Meets(row, &c.Placement.Constraints[i]) {
			return false
		}
	}
	return !c.mere || t.Meets(row, &runsCommands)
}

// modelsFit reports whether the host has any device of an allowed model, when the class asks for one.
func (c *Class) modelsFit(t *host.Table, row host.Row) bool {
	return c.Needs[resource.GPU] <= 0 || len(c.GPUModels) == 0 || t.DevicesOf(row, c.GPUModels) != 0
}

// Occupant returns what a task of the class holds on a host with the given devices and ports.
func (c *Class) Occupant(devices DeviceSet, ports []uint16) host.Occupant {
	return host.Occupant{
		Job: c.Job, Exclusive: c.Placement.Exclusive, Labels: c.labels, Needs: c.Needs,
		Devices: devices, Milli: c.DeviceMilli(), Ports: ports,
	}
}

// DeviceMilli returns what a task takes of each of its devices: its whole GPU need when that is a share of one, else a device.
func (c *Class) DeviceMilli() int64 { return min(max(c.Needs[resource.GPU], 0), host.DeviceMilli) }

// Devices returns how many devices a task takes.
func (c *Class) Devices() int { return int(c.deviceCount()) }

// deviceCount is Devices for arithmetic on columns.
func (c *Class) deviceCount() int64 {
	gpu := max(c.Needs[resource.GPU], 0)
	return (gpu + host.DeviceMilli - 1) / host.DeviceMilli
}

// Shape is the content hash of what decides where a task may run: its needs and hard constraints. Classes that differ in their labels, their
// strategy or their preferences alone have the same.
func (c *Class) Shape() (shape [16]byte) {
	b := []byte{contentVersion}
	for _, q := range c.Needs {
		b = binary.AppendVarint(b, q)
	}
	p := &c.Placement
	b = appendList(b, c.GPUModels, appendString)
	b = appendList(b, c.Ports, binary.BigEndian.AppendUint16)
	b = appendList(b, p.Constraints, appendConstraint)
	for i := range p.Affinities {
		if p.Affinities[i].Weight == 0 {
			b = appendAffinity(append(b, 1), p.Affinities[i])
		}
	}
	b = append(b, 0)
	for i := range p.Spreads {
		if p.Spreads[i].MaxSkew > 0 {
			b = appendSpread(append(b, 1), p.Spreads[i])
		}
	}
	b = appendString(appendBool(append(b, 0), p.Exclusive), p.HostPool)
	sum := sha256.Sum256(appendList(b, p.Clusters, appendString))
	return [16]byte(sum[:16])
}
