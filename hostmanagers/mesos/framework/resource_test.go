package framework

import (
	"maps"
	"slices"
	"testing"

	mesos "github.com/mesos/mesos-go/api/v1/lib"
	"pgregory.net/rapid"
)

// oracle counts resources one by one: thousandths by name and flavor, ports singly.
type oracle struct {
	scalars map[string]int64
	ports   map[uint64]bool
}

func (b bundle) count() oracle {
	o := oracle{map[string]int64{}, map[uint64]bool{}}
	for i := range b {
		p := &b[i]
		key := p.name
		if p.flavor != nil {
			key += p.flavor.like.String()
		}
		if len(p.spans) == 0 {
			o.scalars[key] += p.milli
		}
		for _, s := range p.spans {
			for port := s.first; port <= s.last; port++ {
				o.ports[port] = true
			}
		}
	}
	return o
}

func drawResources(t *rapid.T, label string) []mesos.Resource {
	role, other := "rec", "other"
	like := []mesos.Resource{
		{},
		{Reservations: []mesos.Resource_ReservationInfo{{Type: mesos.Resource_ReservationInfo_STATIC.Enum(), Role: &role}}},
		{Reservations: []mesos.Resource_ReservationInfo{{Type: mesos.Resource_ReservationInfo_DYNAMIC.Enum(), Role: &other}}},
		{Revocable: &mesos.Resource_RevocableInfo{}},
	}
	var list []mesos.Resource
	for range rapid.IntRange(0, 6).Draw(t, label) {
		r := rapid.SampledFrom(like).Draw(t, "flavor")
		r.Name = rapid.SampledFrom([]string{cpus, mem, gpus}).Draw(t, "name")
		r.Type, r.Scalar = mesos.SCALAR.Enum(), &mesos.Value_Scalar{Value: float64(rapid.IntRange(1, 5000).Draw(t, "milli")) / 1000}
		if r.Revocable == nil && rapid.IntRange(0, 2).Draw(t, "kind") == 0 {
			first := uint64(rapid.IntRange(31000, 31030).Draw(t, "first")) //nolint:gosec // a port
			r.Name, r.Type, r.Scalar = ports, mesos.RANGES.Enum(), nil
			r.Reservations = nil
			r.Ranges = &mesos.Value_Ranges{Range: []mesos.Value_Range{{Begin: first, End: first + uint64(rapid.IntRange(0, 9).Draw(t, "more"))}}} //nolint:gosec // a port
		}
		list = append(list, r)
	}
	return list
}

// TestTakingConservesResources compares sums and differences with counting, and what a task is given with what it asked for and what there was.
func TestTakingConservesResources(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		fs := flavors{byKey: map[string]*flavor{}, roles: []string{"rec"}}
		a, b := fs.parse(drawResources(t, "a")), fs.parse(drawResources(t, "b"))
		sum, x, y := a.plus(b).count(), a.count(), b.count()
		for key, milli := range sum.scalars {
			if milli != x.scalars[key]+y.scalars[key] {
				t.Fatalf("%d of %s and %d make %d", x.scalars[key], key, y.scalars[key], milli)
			}
		}
		all := a.plus(b)
		needs := []need{{cpus, int64(rapid.IntRange(1, 9000).Draw(t, "cpus"))}, {mem, int64(rapid.IntRange(1, 9000).Draw(t, "mem"))}}
		var wanted []uint16
		if rapid.Bool().Draw(t, "with a port") {
			wanted = []uint16{uint16(rapid.IntRange(31000, 31040).Draw(t, "port"))} //nolint:gosec // a port
		}
		revocable := rapid.Bool().Draw(t, "revocable")
		taken, ok := all.take(needs, wanted, revocable)
		if ok {
			checkTaken(t, all, taken, needs, wanted, revocable)
			return
		}
		for _, n := range needs { // it must be that something was missing
			if enough(all, n, false) || (revocable && enough(all, n, true)) {
				continue
			}
			return
		}
		for _, port := range wanted {
			if !all.only(func(p *part) bool { return p.usable() && !p.revocable() }).count().ports[uint64(port)] {
				return
			}
		}
		t.Fatalf("%v and %v were there in %s, and not taken", needs, wanted, all.text())
	})
}

func enough(b bundle, n need, revocable bool) bool {
	var sum int64
	for i := range b {
		if p := &b[i]; p.name == n.name && p.usable() && p.revocable() == revocable {
			sum += p.milli
		}
	}
	return sum >= n.milli
}

func checkTaken(t *rapid.T, all, taken bundle, needs []need, wanted []uint16, revocable bool) {
	for _, n := range needs {
		var plain, back int64
		for i := range taken {
			p := &taken[i]
			switch {
			case p.name != n.name:
			case !p.usable():
				t.Fatalf("others' resources were taken: %s", taken.text())
			case p.revocable():
				back += p.milli
			default:
				plain += p.milli
			}
		}
		if plain+back != n.milli || (plain > 0 && back > 0) || (back > 0 && !revocable) {
			t.Fatalf("of %d thousandths of %s it has %d, and %d revocable ones", n.milli, n.name, plain, back)
		}
	}
	had, got, left := all.count(), taken.count(), all.minus(taken).count()
	for key, milli := range had.scalars {
		if got.scalars[key]+left.scalars[key] != milli {
			t.Fatalf("%d of %s were divided into %d and %d", milli, key, got.scalars[key], left.scalars[key])
		}
	}
	if len(got.ports) != len(wanted) || len(got.ports)+len(left.ports) != len(had.ports) {
		t.Fatalf("ports %v of %v", slices.Collect(maps.Keys(got.ports)), slices.Collect(maps.Keys(had.ports)))
	}
	for _, port := range wanted {
		if !got.ports[uint64(port)] || left.ports[uint64(port)] {
			t.Fatalf("port %d is in both parts, or in none", port)
		}
	}
}

// TestResourcesAreWrittenAsRead sends resources through both directions.
func TestResourcesAreWrittenAsRead(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		fs := flavors{byKey: map[string]*flavor{}, roles: []string{"rec"}}
		b := fs.parse(drawResources(t, "resources"))
		back := fs.parse(b.write("rec"))
		x, y := b.count(), back.count()
		if !maps.Equal(x.scalars, y.scalars) || !maps.Equal(x.ports, y.ports) {
			t.Fatalf("%s came back as %s", b.text(), back.text())
		}
	})
}
