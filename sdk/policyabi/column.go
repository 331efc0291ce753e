package policyabi

import "strings"

// ColumnID says what a column holds. Those of resources are a family of MaxKinds ids, one for each kind.
type ColumnID uint32

// The columns of placement. "kind k" is 0 CPU, 1 memory, 2 disk, 3 GPU, 4 and up the named resources of the cell.
const (
	ColumnFree          ColumnID = 16  // + kind; int32: what is free, rounded down; negative where a host is overfull
	ColumnTotal         ColumnID = 32  // + kind; int32: what the host has, rounded down
	ColumnInverse       ColumnID = 48  // + kind; float32: 1 / total, 0 where the host has none
	ColumnDeviceFree    ColumnID = 64  // 16 lanes of int16: thousandths of each device that are free
	ColumnDeviceTotal   ColumnID = 65  // 16 lanes of int16: thousandths of each device
	ColumnDeviceModel   ColumnID = 66  // 16 lanes of int16: the model of each device, numbered from 1; 0: no device
	ColumnDeviceWhole   ColumnID = 67  // int32: devices wholly free
	ColumnDeviceLargest ColumnID = 68  // int32: the largest free share of a device
	ColumnFlags         ColumnID = 69  // int32: Host* bits
	ColumnTasks         ColumnID = 70  // int32: tasks on the host
	ColumnLeftover      ColumnID = 71  // int32: free room as a share of the largest host's, 0 to ScoreSpan; what best-fit minimises
	ColumnFreeShare     ColumnID = 72  // int32: free room as a share of the host's own, 0 to ScoreSpan
	ColumnPorts         ColumnID = 73  // int32: ports free
	ColumnVersion       ColumnID = 74  // int64: grows whenever the row changes, also to another host
	ColumnHost          ColumnID = 75  // int64: identity of the host, the same in every table; 0: no host at this row
	ColumnSlack         ColumnID = 80  // + kind; int32: room for revocable work
	ColumnUsage         ColumnID = 96  // + kind; int32: measured use
	ColumnTopology      ColumnID = 112 // + slot; int32: the domain of the host, 0 for none; the entry's key is the attribute's Hash
	// ColumnExtension and up are given out by name; the entry's key is its Hash.
	ColumnExtension ColumnID = 1000

	// The columns of quota. Rows are pools, parents before their children, the root at row 0.

	ColumnPool        ColumnID = 512 // int64: identity of the pool
	ColumnParent      ColumnID = 513 // int32: row of the parent; -1: the root
	ColumnReservation ColumnID = 528 // + kind; int64
	ColumnLimit       ColumnID = 544 // + kind; int64; the largest int64: none
	ColumnShare       ColumnID = 560 // + kind; int64
	ColumnDemand      ColumnID = 576 // + kind; int64: use and waiting work together
	ColumnPoolUsage   ColumnID = 592 // + kind; int64
	ColumnEntitlement ColumnID = 608 // + kind; int64; FlagOut: the guest writes it
	ColumnCapacity    ColumnID = 624 // + kind; int64: row 0 only: what there is to hand out

	// The columns of routing. Rows are clusters; ColumnFree and ColumnTotal are sums over a cluster's hosts, in units of their shift.

	ColumnCluster   ColumnID = 640 // int64: identity of the cluster
	ColumnPlaceable ColumnID = 641 // int32: tasks of the first request's class that find room now
	ColumnWaiting   ColumnID = 642 // int32: tasks waiting for the cluster
	ColumnPrice     ColumnID = 643 // float32: of the cluster's room, comparable among clusters; 0: unknown
)

// Bits of ColumnFlags. A host can be used when HostUsable is set.
const (
	HostUsable    = 1 << iota // ready, and not draining
	HostReady                 // its cluster says that it may take tasks
	HostDraining              // it is being emptied
	HostExclusive             // exclusive work is there
)

// ElementType is the type of a column's elements.
type ElementType uint8

// The element types.
const (
	Int16 ElementType = iota + 1
	Int32
	Int64
	Float32
)

var elementSizes = [...]int{Int16: 2, Int32: 4, Int64: 8, Float32: 4}

// Size is the number of bytes of an element, 0 for a type that is none.
func (t ElementType) Size() int {
	if int(t) >= len(elementSizes) {
		return 0
	}
	return elementSizes[t]
}

// Bits of a directory entry's flags.
const (
	FlagOut = 1 << iota // the guest writes the column
)

// family is a column, or a row of columns with consecutive ids.
type family struct {
	first ColumnID
	count ColumnID
	name  string
	typ   ElementType
	lanes int
	flags uint8
	kinds []Kind
}

var (
	ofHosts    = []Kind{Place}
	ofPools    = []Kind{Quota}
	ofClusters = []Kind{Route}
	ofBoth     = []Kind{Place, Route}
)

var families = []family{
	{ColumnFree, MaxKinds, "free", Int32, 1, 0, ofBoth},
	{ColumnTotal, MaxKinds, "total", Int32, 1, 0, ofBoth},
	{ColumnInverse, MaxKinds, "inverse", Float32, 1, 0, ofHosts},
	{ColumnDeviceFree, 1, "device_free", Int16, MaxDevices, 0, ofHosts},
	{ColumnDeviceTotal, 1, "device_total", Int16, MaxDevices, 0, ofHosts},
	{ColumnDeviceModel, 1, "device_model", Int16, MaxDevices, 0, ofHosts},
	{ColumnDeviceWhole, 1, "device_whole", Int32, 1, 0, ofHosts},
	{ColumnDeviceLargest, 1, "device_largest", Int32, 1, 0, ofHosts},
	{ColumnFlags, 1, "flags", Int32, 1, 0, ofHosts},
	{ColumnTasks, 1, "tasks", Int32, 1, 0, ofHosts},
	{ColumnLeftover, 1, "leftover", Int32, 1, 0, ofHosts},
	{ColumnFreeShare, 1, "free_share", Int32, 1, 0, ofHosts},
	{ColumnPorts, 1, "ports", Int32, 1, 0, ofHosts},
	{ColumnVersion, 1, "version", Int64, 1, 0, ofHosts},
	{ColumnHost, 1, "host", Int64, 1, 0, ofHosts},
	{ColumnSlack, MaxKinds, "slack", Int32, 1, 0, ofHosts},
	{ColumnUsage, MaxKinds, "usage", Int32, 1, 0, ofHosts},
	{ColumnTopology, MaxTopologies, "topology", Int32, 1, 0, ofHosts},
	{ColumnPool, 1, "pool", Int64, 1, 0, ofPools},
	{ColumnParent, 1, "parent", Int32, 1, 0, ofPools},
	{ColumnReservation, MaxKinds, "reservation", Int64, 1, 0, ofPools},
	{ColumnLimit, MaxKinds, "limit", Int64, 1, 0, ofPools},
	{ColumnShare, MaxKinds, "share", Int64, 1, 0, ofPools},
	{ColumnDemand, MaxKinds, "demand", Int64, 1, 0, ofPools},
	{ColumnPoolUsage, MaxKinds, "pool_usage", Int64, 1, 0, ofPools},
	{ColumnEntitlement, MaxKinds, "entitlement", Int64, 1, FlagOut, ofPools},
	{ColumnCapacity, MaxKinds, "capacity", Int64, 1, 0, ofPools},
	{ColumnCluster, 1, "cluster", Int64, 1, 0, ofClusters},
	{ColumnPlaceable, 1, "placeable", Int32, 1, 0, ofClusters},
	{ColumnWaiting, 1, "waiting", Int32, 1, 0, ofClusters},
	{ColumnPrice, 1, "price", Float32, 1, 0, ofClusters},
}

func familyOf(id ColumnID) *family {
	for i := range families {
		if f := &families[i]; id >= f.first && id < f.first+f.count {
			return f
		}
	}
	return nil
}

// Type returns the type of a known column's elements and how many of them a row has; 0, 0 for an id that this version does not know.
func (id ColumnID) Type() (ElementType, int) {
	if f := familyOf(id); f != nil {
		return f.typ, f.lanes
	}
	return 0, 0
}

// KindNames are the names of the resource kinds that every cell has, in order.
var KindNames = [...]string{"cpu", "memory", "disk", "gpu"}

// Want is a column, or several, that a policy asks for by name:
//
//	leftover              the column
//	free.cpu              of a kind that every cell has: cpu, memory, disk, gpu
//	free.*                of every kind
//	free:licences         of a named resource
//	topology:rack         the domains of an attribute
//	extension:power       a column beyond this version
//
// What a host does not have is left out of the directory.
type Want struct {
	Column ColumnID // the family's first, or the exact one
	Every  bool     // all kinds
	Name   string   // of a named resource, an attribute, an extension
}

// ParseWant reads a wanted column.
func ParseWant(text string) (Want, error) {
	base, rest := text, ""
	at := strings.IndexAny(text, ".:")
	if at >= 0 {
		base, rest = text[:at], text[at+1:]
	}
	named := at >= 0 && text[at] == ':'
	if named && !validName(rest) {
		return Want{}, fault("column "+text, "", -1, "the name after ':' must be 1 to "+itoa(MaxName)+" letters, digits or one of _ - . /")
	}
	if base == "extension" && named {
		return Want{Column: ColumnExtension, Name: rest}, nil
	}
	for i := range families {
		f := &families[i]
		if f.name != base {
			continue
		}
		switch {
		case f.count == 1 && at < 0:
			return Want{Column: f.first}, nil
		case f.count == 1:
			return Want{}, fault("column "+text, "", -1, base+" is one column: write it alone")
		case named:
			return Want{Column: f.first, Name: rest}, nil
		case f.first == ColumnTopology:
			return Want{}, fault("column "+text, "", -1, "say of which attribute: topology:rack")
		case rest == "*":
			return Want{Column: f.first, Every: true}, nil
		}
		for k, name := range KindNames {
			if rest == name {
				return Want{Column: f.first + ColumnID(k)}, nil
			}
		}
		return Want{}, fault("column "+text, "", -1, "say of which kind: "+base+".cpu, .memory, .disk, .gpu, .* for all, or "+base+":name for a named resource")
	}
	return Want{}, fault("column "+text, "", -1, "this version knows no such column")
}

func (w Want) String() string {
	if w.Column == ColumnExtension {
		return "extension:" + w.Name
	}
	f := familyOf(w.Column)
	switch {
	case f == nil:
		return "column " + itoa(w.Column)
	case w.Name != "":
		return f.name + ":" + w.Name
	case w.Every:
		return f.name + ".*"
	case f.count > 1 && int(w.Column-f.first) < len(KindNames):
		return f.name + "." + KindNames[w.Column-f.first]
	}
	return f.name
}

// Serves reports whether tables of a kind of policy may have the column.
func (w Want) Serves(kind Kind) bool {
	if w.Column >= ColumnExtension {
		return true
	}
	f := familyOf(w.Column)
	if f == nil {
		return false
	}
	for _, k := range f.kinds {
		if k == kind {
			return true
		}
	}
	return false
}

func validName(s string) bool {
	if len(s) == 0 || len(s) > MaxName {
		return false
	}
	for i := range len(s) {
		if c := s[i]; !letter(c) && (c < '0' || c > '9') && strings.IndexByte("_-./", c) < 0 {
			return false
		}
	}
	return true
}

func letter(c byte) bool { return c|0x20 >= 'a' && c|0x20 <= 'z' }
