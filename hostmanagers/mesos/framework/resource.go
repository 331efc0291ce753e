package framework

import (
	"cmp"
	"math"
	"slices"
	"strconv"
	"strings"

	mesos "github.com/mesos/mesos-go/api/v1/lib"

	"github.com/paceline-sched/paceline/core/resource"
)

// The names of a master's own resources.
const (
	cpus  = "cpus"
	mem   = "mem"
	disk  = "disk"
	gpus  = "gpus"
	ports = "ports"
)

// flavor is all of a resource but its name and amount. Flavors of one machine are interned: two resources are of the same flavor if their
// pointers are the same. The plain one is nil: unreserved, not revocable, no volume.
type flavor struct {
	like      mesos.Resource // without name, type, amount and allocation
	usable    bool           // tasks of the framework may be given it without being told
	revocable bool
	reserved  bool
}

// flavors interns.
type flavors struct {
	byKey map[string]*flavor
	roles []string
}

// of returns a resource's flavor.
func (fs *flavors) of(r *mesos.Resource) *flavor {
	reservations := r.Reservations
	if role := r.GetRole(); len(reservations) == 0 && role != "*" && role != "" { // the format of the operator API
		reservation := mesos.Resource_ReservationInfo{Type: mesos.Resource_ReservationInfo_STATIC.Enum(), Role: &role}
		if r.Reservation != nil {
			reservation.Type = mesos.Resource_ReservationInfo_DYNAMIC.Enum()
			reservation.Principal, reservation.Labels = r.Reservation.Principal, r.Reservation.Labels
		}
		reservations = []mesos.Resource_ReservationInfo{reservation}
	}
	if len(reservations) == 0 && r.Disk == nil && r.Revocable == nil && r.Shared == nil && r.ProviderID == nil {
		return nil
	}
	like := mesos.Resource{
		Type: mesos.SCALAR.Enum(), Reservations: reservations, Disk: r.Disk, Revocable: r.Revocable, Shared: r.Shared, ProviderID: r.ProviderID,
	}
	key, err := like.Marshal()
	if err != nil { // of something that was unmarshalled a moment ago
		key = []byte(like.String())
	}
	if f := fs.byKey[string(key)]; f != nil {
		return f
	}
	like.Type = nil
	f := &flavor{
		like: like, revocable: r.Revocable != nil, reserved: len(reservations) > 0,
		usable: r.Disk == nil && r.Shared == nil && r.ProviderID == nil && fs.ours(reservations),
	}
	fs.byKey[string(key)] = f
	return f
}

// ours reports whether what is reserved so may be used in one of the framework's roles: a reservation is for a role and those below it.
func (fs *flavors) ours(reservations []mesos.Resource_ReservationInfo) bool {
	if len(reservations) == 0 {
		return true
	}
	to := reservations[len(reservations)-1].GetRole()
	return slices.ContainsFunc(fs.roles, func(role string) bool { return role == to || strings.HasPrefix(role, to+"/") })
}

// span is a range of ports, both ends included.
type span struct{ first, last uint64 }

// part is an amount of one resource of one flavor.
type part struct {
	name   string
	flavor *flavor
	milli  int64  // of a scalar, in thousandths
	spans  []span // of ranges, sorted, apart from each other; never changed in place
}

func (p *part) empty() bool { return p.milli <= 0 && len(p.spans) == 0 }

func (p *part) usable() bool { return p.flavor == nil || p.flavor.usable }

func (p *part) revocable() bool { return p.flavor != nil && p.flavor.revocable }

// bundle is a set of resources, at most one part of a name and flavor. Operations leave their operands as they are.
type bundle []part

// parse reads resources. Sets are left out: no task is given any.
func (fs *flavors) parse(resources []mesos.Resource) bundle {
	b := make(bundle, 0, len(resources))
	for i := range resources {
		r := &resources[i]
		p := part{name: r.Name, flavor: fs.of(r)}
		switch r.GetType() {
		case mesos.RANGES:
			for _, s := range r.GetRanges().GetRange() {
				if s.Begin <= s.End {
					p.spans = append(p.spans, span{s.Begin, s.End})
				}
			}
			p.spans = joinSpans(p.spans, nil)
		case mesos.SCALAR:
			p.milli = milliOf(r.GetScalar().GetValue())
		default:
			continue
		}
		b.add(&p)
	}
	return b
}

// maxMilli bounds an amount, so that sums of some of them stay in 64 bits.
const maxMilli = resource.MaxQuantity * 1000

// milliOf turns a master's number into thousandths; one that is none counts as nothing.
func milliOf(value float64) int64 {
	if !(value > 0) {
		return 0
	}
	return int64(math.Round(min(value*1000, float64(maxMilli))))
}

func (b bundle) find(p *part) int {
	for i := range b {
		if b[i].flavor == p.flavor && b[i].name == p.name {
			return i
		}
	}
	return -1
}

// add changes the bundle.
func (b *bundle) add(p *part) {
	if p.empty() {
		return
	}
	i := b.find(p)
	if i < 0 {
		*b = append(*b, *p)
		return
	}
	mine := &(*b)[i]
	mine.milli += p.milli
	if len(p.spans) > 0 {
		mine.spans = joinSpans(mine.spans, p.spans)
	}
}

// plus returns the sum.
func (b bundle) plus(other bundle) bundle {
	sum := append(make(bundle, 0, len(b)+len(other)), b...)
	for i := range other {
		sum.add(&other[i])
	}
	return sum
}

// minus returns what is left. What is not there cannot be taken and is ignored.
func (b bundle) minus(other bundle) bundle {
	left := append(make(bundle, 0, len(b)), b...)
	for i := range other {
		p := &other[i]
		if at := left.find(p); at >= 0 {
			left[at].milli = max(0, left[at].milli-p.milli)
			if len(p.spans) > 0 {
				left[at].spans = cutSpans(left[at].spans, p.spans)
			}
		}
	}
	return slices.DeleteFunc(left, func(p part) bool { return p.empty() })
}

// joinSpans returns the union.
func joinSpans(a, b []span) []span {
	if len(a)+len(b) == 0 {
		return nil
	}
	all := slices.Concat(a, b)
	slices.SortFunc(all, func(x, y span) int { return cmp.Compare(x.first, y.first) })
	joined := all[:1]
	for _, s := range all[1:] {
		last := &joined[len(joined)-1]
		if s.first <= last.last || s.first == last.last+1 {
			last.last = max(last.last, s.last)
			continue
		}
		joined = append(joined, s)
	}
	return joined
}

// cutSpans takes b out of a.
func cutSpans(a, b []span) []span {
	for _, cut := range b {
		var left []span
		for _, s := range a {
			if cut.last < s.first || cut.first > s.last {
				left = append(left, s)
				continue
			}
			if s.first < cut.first {
				left = append(left, span{s.first, cut.first - 1})
			}
			if s.last > cut.last {
				left = append(left, span{cut.last + 1, s.last})
			}
		}
		a = left
	}
	return a
}

// need is what a task asks of one resource.
type need struct {
	name  string
	milli int64
}

// needsOf turns quantities by Paceline's names into a master's, in an order that does not depend on the map's.
func needsOf(quantities map[string]int64) []need {
	needs := make([]need, 0, len(quantities))
	for name, quantity := range quantities {
		if quantity > 0 {
			needs = append(needs, needOf(name, quantity))
		}
	}
	slices.SortFunc(needs, func(a, b need) int { return strings.Compare(a.name, b.name) })
	return needs
}

func needOf(name string, quantity int64) need {
	switch name {
	case nameCPU:
		return need{cpus, quantity}
	case nameGPU:
		return need{gpus, quantity}
	case nameMemory:
		return need{mem, quantity * 1000}
	case nameDisk:
		return need{disk, quantity * 1000}
	}
	return need{name, quantity * 1000}
}

// Paceline's names of the built-in resources.
var (
	nameCPU    = new(resource.Names).Name(resource.CPU)
	nameMemory = new(resource.Names).Name(resource.Memory)
	nameDisk   = new(resource.Names).Name(resource.Disk)
	nameGPU    = new(resource.Names).Name(resource.GPU)
)

// quantityOf turns an amount by a master's name into Paceline's name and unit; false: Paceline has no use for it.
func quantityOf(name string, milli int64) (string, int64, bool) {
	switch name {
	case cpus:
		return nameCPU, milli, true
	case gpus:
		return nameGPU, milli / 1000 * 1000, true
	case mem:
		return nameMemory, milli / 1000, true
	case disk:
		return nameDisk, milli / 1000, true
	}
	switch {
	case resource.CheckName(name) != nil:
		return "", 0, false
	case name == nameCPU, name == nameGPU, name == nameMemory, name == nameDisk: // an agent's own resource, by a name that means another here
		return "", 0, false
	}
	return name, milli / 1000, true
}

// take finds what a task needs in a bundle: what is reserved before what is not, and what is revocable first if the task may have that and not
// at all otherwise. Of one resource a task has either revocable or other parts: a master refuses a mixture.
func (b bundle) take(needs []need, wanted []uint16, revocable bool) (bundle, bool) {
	taken := make(bundle, 0, len(needs)+1)
	for _, n := range needs {
		if revocable && b.takeScalar(&taken, n, true) {
			continue
		}
		if !b.takeScalar(&taken, n, false) {
			return nil, false
		}
	}
	for _, port := range wanted {
		if !b.takePort(&taken, uint64(port)) {
			return nil, false
		}
	}
	return taken, true
}

// takeScalar adds parts to taken that make up a need, or leaves it as it is.
func (b bundle) takeScalar(taken *bundle, n need, revocable bool) bool {
	missing := n.milli
	for i := range b {
		if p := &b[i]; p.name == n.name && p.usable() && p.revocable() == revocable {
			missing -= p.milli
		}
	}
	if missing > 0 {
		return false
	}
	missing = n.milli
	for _, reserved := range [2]bool{true, false} {
		for i := range b {
			p := &b[i]
			if p.name != n.name || !p.usable() || p.revocable() != revocable || (p.flavor != nil && p.flavor.reserved) != reserved {
				continue
			}
			if some := min(missing, p.milli); some > 0 {
				taken.add(&part{name: p.name, flavor: p.flavor, milli: some})
				missing -= some
			}
		}
	}
	return true
}

func (b bundle) takePort(taken *bundle, port uint64) bool {
	for i := range b {
		p := &b[i]
		if p.name != ports || !p.usable() || p.revocable() {
			continue
		}
		for _, s := range p.spans {
			if s.first <= port && port <= s.last {
				taken.add(&part{name: ports, flavor: p.flavor, spans: []span{{port, port}}})
				return true
			}
		}
	}
	return false
}

// The least that a master thinks worth an offer (its flag --min_allocatable_resources).
const (
	leastCPUMilli = 10
	leastMemMilli = 32000
)

// offerable reports whether a master would offer so little.
func (b bundle) offerable() bool {
	var cpu, memory int64
	for i := range b {
		switch b[i].name {
		case cpus:
			cpu += b[i].milli
		case mem:
			memory += b[i].milli
		}
	}
	return cpu >= leastCPUMilli || memory >= leastMemMilli
}

// write returns the resources as a master reads them, allocated to a role.
func (b bundle) write(role string) []mesos.Resource {
	resources := make([]mesos.Resource, len(b))
	for i := range b {
		p, r := &b[i], &resources[i]
		if p.flavor != nil {
			*r = p.flavor.like
		}
		r.Name = p.name
		r.AllocationInfo = &mesos.Resource_AllocationInfo{Role: &role}
		if len(p.spans) > 0 {
			ranges := make([]mesos.Value_Range, len(p.spans))
			for i, s := range p.spans {
				ranges[i] = mesos.Value_Range{Begin: s.first, End: s.last}
			}
			r.Type, r.Ranges = mesos.RANGES.Enum(), &mesos.Value_Ranges{Range: ranges}
			continue
		}
		r.Type, r.Scalar = mesos.SCALAR.Enum(), &mesos.Value_Scalar{Value: float64(p.milli) / 1000}
	}
	return resources
}

// scalars adds up what tasks may be given and is not revocable, by name.
func (b bundle) scalars() map[string]int64 {
	sums := make(map[string]int64, len(b))
	for i := range b {
		if p := &b[i]; p.usable() && !p.revocable() && len(p.spans) == 0 {
			sums[p.name] += p.milli
		}
	}
	return sums
}

// text is for people.
func (b bundle) text() string {
	words := make([]string, 0, len(b))
	for i := range b {
		p := &b[i]
		word := p.name
		switch {
		case p.revocable():
			word += " (revocable)"
		case p.flavor != nil && p.flavor.like.Disk.GetPersistence() != nil:
			word += " (volume " + p.flavor.like.Disk.Persistence.ID + ")"
		case p.flavor != nil && p.flavor.reserved:
			last := p.flavor.like.Reservations[len(p.flavor.like.Reservations)-1]
			word += " (reserved to " + last.GetRole() + ")"
		}
		words = append(words, word+": "+p.amountText())
	}
	slices.Sort(words)
	return strings.Join(words, "; ")
}

func (p *part) amountText() string {
	if len(p.spans) == 0 {
		return strconv.FormatFloat(float64(p.milli)/1000, 'f', -1, 64)
	}
	ranges := make([]string, len(p.spans))
	for i, s := range p.spans {
		ranges[i] = strconv.FormatUint(s.first, 10) + "-" + strconv.FormatUint(s.last, 10)
	}
	return strings.Join(ranges, ", ")
}
