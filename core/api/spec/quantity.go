package spec

import (
	"maps"
	"slices"

	"github.com/paceline-sched/paceline/core/resource"
	pacelinev1 "github.com/paceline-sched/paceline/sdk/gen/paceline/v1"
)

// amounts is what messages with quantities have in common: a pointer is nil where nothing is said.
type amounts struct {
	builtin  [resource.FirstNamed]*int64
	extended map[string]int64
}

func amountsOf(q *pacelinev1.Quantities) amounts {
	if q == nil {
		return amounts{}
	}
	return amounts{
		builtin:  [...]*int64{resource.CPU: q.CpuMilli, resource.Memory: q.MemoryMib, resource.Disk: q.DiskMib, resource.GPU: q.GpuMilli},
		extended: q.GetExtended(),
	}
}

func amountsOfTask(r *pacelinev1.TaskResources) amounts {
	cpu, memory, disk, gpu := r.GetCpuMilli(), r.GetMemoryMib(), r.GetDiskMib(), r.GetGpuMilli()
	return amounts{
		builtin:  [...]*int64{resource.CPU: &cpu, resource.Memory: &memory, resource.Disk: &disk, resource.GPU: &gpu},
		extended: r.GetExtended(),
	}
}

// each calls set for every amount that is said, in a fixed order, and refuses names that the cell does not know and amounts out of
// range.
func (a amounts) each(c *checker, field string, names *resource.Names, set func(resource.Kind, int64)) {
	check := func(path string, k resource.Kind, q int64) {
		if q < 0 || q > resource.MaxQuantity {
			c.refuse(path, "must be between 0 and %d", resource.MaxQuantity)
			return
		}
		set(k, q)
	}
	for k, q := range a.builtin {
		if q != nil {
			check(field+"."+names.Name(resource.Kind(k)), resource.Kind(k), *q)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(a.extended)) {
		path := field + ".extended[\"" + clip(name) + "\"]"
		k, ok := names.Lookup(name)
		switch {
		case !ok:
			c.refuse(path, "no host of this cell has offered it: check the name, or add a host that offers it first")
		case k < resource.FirstNamed:
			c.refuse(path, "is no extended resource: write it one level up")
		default:
			check(path, k, a.extended[name])
		}
	}
}

// FromVector writes the kinds that are not zero.
func FromVector(v resource.Vector, names *resource.Names) *pacelinev1.Quantities {
	return fromKinds(names, func(k resource.Kind) (int64, bool) { return v[k], v[k] != 0 })
}

// fromKinds writes the kinds for which amount says so.
func fromKinds(names *resource.Names, amount func(resource.Kind) (int64, bool)) *pacelinev1.Quantities {
	q := &pacelinev1.Quantities{}
	builtin := [...]**int64{resource.CPU: &q.CpuMilli, resource.Memory: &q.MemoryMib, resource.Disk: &q.DiskMib, resource.GPU: &q.GpuMilli}
	for k := range resource.Kind(names.Len()) {
		n, ok := amount(k)
		switch {
		case !ok:
		case k < resource.FirstNamed:
			*builtin[k] = &n
		default:
			if q.Extended == nil {
				q.Extended = map[string]int64{}
			}
			q.Extended[names.Name(k)] = n
		}
	}
	return q
}

// list and table copy what a request holds. What is empty becomes nil, as it does when a spec is read back from the store: specs are
// compared by value.
func list(in []string) []string {
	if len(in) == 0 {
		return nil
	}
	return slices.Clone(in)
}

func table(in map[string]string) map[string]string {
	if len(in) == 0 {
		return nil
	}
	return maps.Clone(in)
}
