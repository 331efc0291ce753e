package cluster

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	mesos "github.com/mesos/mesos-go/api/v1/lib"

	"github.com/paceline-sched/paceline/hostmanagers/mesos/emulator/wire"
)

// part is an amount of one resource. Amounts of parts with the same key can be added.
type part struct {
	key    string
	like   *mesos.Resource // everything but the amount and whom it is allocated to; shared and never changed
	milli  int64           // of a scalar, in thousandths
	ranges []mesos.Value_Range
	items  []string
}

// bundle is a set of resources, at most one part of a key, in the order in which they came.
type bundle []part

// parse reads resources in either format of reservations.
func parse(resources []mesos.Resource) bundle {
	var b bundle
	for i := range resources {
		b = b.plus(bundle{parsePart(&resources[i])})
	}
	return b
}

func parsePart(r *mesos.Resource) part {
	like := &mesos.Resource{
		Name: r.Name, Type: r.Type, Reservations: r.Reservations, Disk: r.Disk, Revocable: r.Revocable, Shared: r.Shared, ProviderID: r.ProviderID,
	}
	if role := r.GetRole(); len(r.Reservations) == 0 && role != "*" && role != "" {
		reservation := mesos.Resource_ReservationInfo{Type: mesos.Resource_ReservationInfo_STATIC.Enum(), Role: &role}
		if r.Reservation != nil {
			reservation.Type = mesos.Resource_ReservationInfo_DYNAMIC.Enum()
			reservation.Principal, reservation.Labels = r.Reservation.Principal, r.Reservation.Labels
		}
		like.Reservations = []mesos.Resource_ReservationInfo{reservation}
	}
	p := part{key: r.Name, like: like}
	if len(like.Reservations) > 0 || like.Disk != nil || like.Revocable != nil || like.Shared != nil || like.ProviderID != nil {
		p.key = string(wire.AppendJSON(nil, like))
	}
	switch r.GetType() {
	case mesos.RANGES:
		p.ranges = slices.Clone(r.GetRanges().GetRange())
		slices.SortFunc(p.ranges, func(a, b mesos.Value_Range) int { return int(int64(a.Begin) - int64(b.Begin)) }) //nolint:gosec // an order
	case mesos.SET:
		p.items = slices.Clone(r.GetSet().GetItem())
	default:
		p.milli = int64(math.Round(r.GetScalar().GetValue() * 1000))
	}
	return p
}

func (p *part) empty() bool { return p.milli <= 0 && len(p.ranges) == 0 && len(p.items) == 0 }

// reservedTo is the role that the part is reserved to; "": none.
func (p *part) reservedTo() string {
	if n := len(p.like.Reservations); n > 0 {
		return p.like.Reservations[n-1].GetRole()
	}
	return ""
}

// open reports whether the part may be allocated to a role: it is not reserved, or to the role or one above.
func (p *part) open(role string) bool {
	to := p.reservedTo()
	return to == "" || to == role || strings.HasPrefix(role, to+"/")
}

func (b bundle) find(key string) *part {
	for i := range b {
		if b[i].key == key {
			return &b[i]
		}
	}
	return nil
}

func (b bundle) milli(name string) int64 {
	var sum int64
	for i := range b {
		if b[i].like.Name == name {
			sum += b[i].milli
		}
	}
	return sum
}

// plus returns the sum; the operands stay as they are.
func (b bundle) plus(other bundle) bundle {
	sum := slices.Clone(b)
	for _, p := range other {
		if p.empty() {
			continue
		}
		mine := sum.find(p.key)
		if mine == nil {
			sum = append(sum, p)
			continue
		}
		mine.milli += p.milli
		mine.ranges = joinRanges(mine.ranges, p.ranges)
		mine.items = append(slices.Clone(mine.items), p.items...)
	}
	return sum
}

// minus returns what is left; what is not there cannot be taken and is ignored.
func (b bundle) minus(other bundle) bundle {
	left := slices.Clone(b)
	for _, p := range other {
		mine := left.find(p.key)
		if mine == nil {
			continue
		}
		mine.milli -= p.milli
		mine.ranges = cutRanges(mine.ranges, p.ranges)
		mine.items = slices.DeleteFunc(slices.Clone(mine.items), func(item string) bool { return slices.Contains(p.items, item) })
	}
	return slices.DeleteFunc(left, func(p part) bool { return p.empty() })
}

// has reports whether other is a part of it.
func (b bundle) has(other bundle) bool {
	for i := range other {
		p := &other[i]
		if p.empty() {
			continue
		}
		mine := b.find(p.key)
		if mine == nil || mine.milli < p.milli || len(cutRanges(p.ranges, mine.ranges)) > 0 {
			return false
		}
		for _, item := range p.items {
			if !slices.Contains(mine.items, item) {
				return false
			}
		}
	}
	return true
}

// ordered puts resources in the order of a master's offers: ports, what is reserved, the rest.
func (b bundle) ordered() bundle {
	class := func(p *part) int {
		switch {
		case p.key == p.like.Name && len(p.ranges) > 0:
			return 0
		case p.key != p.like.Name:
			return 1
		default:
			return 2
		}
	}
	sorted := slices.Clone(b)
	slices.SortStableFunc(sorted, func(x, y part) int { return class(&x) - class(&y) })
	return sorted
}

func (b bundle) only(keep func(*part) bool) bundle {
	var kept bundle
	for i := range b {
		if keep(&b[i]) {
			kept = append(kept, b[i])
		}
	}
	return kept
}

// joinRanges adds ranges, both sorted, and merges neighbours.
func joinRanges(a, b []mesos.Value_Range) []mesos.Value_Range {
	if len(b) == 0 {
		return a
	}
	all := slices.Concat(a, b)
	slices.SortFunc(all, func(x, y mesos.Value_Range) int { return int(int64(x.Begin) - int64(y.Begin)) }) //nolint:gosec // an order
	joined := all[:1]
	for _, r := range all[1:] {
		last := &joined[len(joined)-1]
		if r.Begin <= last.End+1 {
			last.End = max(last.End, r.End)
			continue
		}
		joined = append(joined, r)
	}
	return joined
}

// cutRanges takes b out of a.
func cutRanges(a, b []mesos.Value_Range) []mesos.Value_Range {
	for _, cut := range b {
		var left []mesos.Value_Range
		for _, r := range a {
			if cut.End < r.Begin || cut.Begin > r.End {
				left = append(left, r)
				continue
			}
			if r.Begin < cut.Begin {
				left = append(left, mesos.Value_Range{Begin: r.Begin, End: cut.Begin - 1})
			}
			if r.End > cut.End {
				left = append(left, mesos.Value_Range{Begin: cut.End + 1, End: r.End})
			}
		}
		a = left
	}
	return a
}

// write returns resources as a framework with some capabilities sees them, allocated to a role.
func (b bundle) write(f *framework, role string) []mesos.Resource {
	resources := make([]mesos.Resource, len(b))
	for i := range b {
		p, r := &b[i], &resources[i]
		*r = *p.like
		p.amount(r)
		if f.multiRole {
			r.AllocationInfo = &mesos.Resource_AllocationInfo{Role: &role}
		}
		if f.refined {
			continue
		}
		r.Role, r.Reservations = pointer("*"), nil
		if n := len(p.like.Reservations); n > 0 {
			last := p.like.Reservations[n-1]
			r.Role = last.Role
			if last.GetType() == mesos.Resource_ReservationInfo_DYNAMIC {
				r.Reservation = &mesos.Resource_ReservationInfo{Principal: last.Principal, Labels: last.Labels}
			}
		}
	}
	return resources
}

func (p *part) amount(r *mesos.Resource) {
	switch {
	case len(p.ranges) > 0:
		r.Type, r.Ranges = mesos.RANGES.Enum(), &mesos.Value_Ranges{Range: p.ranges}
	case len(p.items) > 0:
		r.Type, r.Set = mesos.SET.Enum(), &mesos.Value_Set{Item: p.items}
	default:
		r.Type, r.Scalar = mesos.SCALAR.Enum(), &mesos.Value_Scalar{Value: float64(p.milli) / 1000}
	}
}

// text writes resources as a master's messages do.
func (b bundle) text(role string) string {
	if len(b) == 0 {
		return "{}"
	}
	words := make([]string, len(b))
	for i := range b {
		words[i] = b[i].text(role)
	}
	return strings.Join(words, "; ")
}

func (p *part) text(role string) string {
	var s strings.Builder
	s.WriteString(p.like.Name)
	if role != "" {
		fmt.Fprintf(&s, "(allocated: %s)", role)
	}
	if len(p.like.Reservations) > 0 {
		s.WriteString("(reservations: [")
		for i, r := range p.like.Reservations {
			if i > 0 {
				s.WriteString(",")
			}
			fmt.Fprintf(&s, "(%s,%s", r.GetType(), r.GetRole())
			if r.Principal != nil {
				s.WriteString("," + r.GetPrincipal())
			}
			if r.Labels != nil {
				s.WriteString("," + labelText(r.Labels))
			}
			s.WriteString(")")
		}
		s.WriteString("])")
	}
	if p.like.Disk.GetPersistence() != nil {
		fmt.Fprintf(&s, "[%s:%s]", p.like.Disk.Persistence.ID, p.like.Disk.GetVolume().GetContainerPath())
	}
	if p.like.Revocable != nil {
		s.WriteString("{REV}")
	}
	s.WriteString(":" + p.amountText())
	return s.String()
}

func (p *part) amountText() string {
	switch {
	case len(p.ranges) > 0:
		words := make([]string, len(p.ranges))
		for i, r := range p.ranges {
			words[i] = fmt.Sprintf("%d-%d", r.Begin, r.End)
		}
		return "[" + strings.Join(words, ", ") + "]"
	case len(p.items) > 0:
		return "{" + strings.Join(p.items, ", ") + "}"
	default:
		return strconv.FormatFloat(float64(p.milli)/1000, 'f', -1, 64)
	}
}

func labelText(labels *mesos.Labels) string {
	words := make([]string, len(labels.Labels))
	for i, l := range labels.Labels {
		words[i] = l.Key + ": " + l.GetValue()
	}
	return "{" + strings.Join(words, ", ") + "}"
}

// share counts scalars by name, in thousandths, for the allocator's fairness.
type share map[string]int64

func (s share) add(b bundle, sign int64) {
	for i := range b {
		if b[i].milli != 0 {
			s[b[i].like.Name] += sign * b[i].milli
		}
	}
}

// dominant is the largest fraction of a total.
func (s share) dominant(total share) float64 {
	var most float64
	for name, mine := range s {
		if all := total[name]; all > 0 {
			most = max(most, float64(mine)/float64(all))
		}
	}
	return most
}
