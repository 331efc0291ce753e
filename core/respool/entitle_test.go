package respool_test

import (
	"fmt"
	"math/big"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/respool"
	"github.com/paceline-sched/paceline/core/workload"
)

const cpu, gpu = resource.CPU, resource.GPU

// poolID returns small ids that order as their numbers and never meet the reserved ones.
func poolID(n int) workload.PoolID {
	return workload.PoolID{0: 1, 14: byte(n >> 8), 15: byte(n)}
}

// elastic returns pool number n below the root with a share of 1.
func elastic(n int, reservation int64) respool.Pool {
	return respool.Pool{
		ID: poolID(n), Parent: respool.RootID, Name: fmt.Sprintf("p%03d", n), Kind: respool.Elastic, Share: 1,
		Reservation: resource.Vector{cpu: reservation},
	}
}

// with returns p after edits, for tables.
func with(p respool.Pool, edits ...func(*respool.Pool)) respool.Pool {
	for _, edit := range edits {
		edit(&p)
	}
	return p
}

func limit(q int64) func(*respool.Pool) {
	return func(p *respool.Pool) { p.Limit = p.Limit.With(cpu, q) }
}
func share(w int64) func(*respool.Pool) { return func(p *respool.Pool) { p.Share = w } }
func static(p *respool.Pool)            { p.Kind = respool.Static }
func below(n int) func(*respool.Pool)   { return func(p *respool.Pool) { p.Parent = poolID(n) } }
func rest(p *respool.Pool)              { p.ReserveRest, p.Reservation = true, resource.Vector{} }

func mustTree(t testing.TB, pools ...respool.Pool) *respool.Tree {
	t.Helper()
	tree, err := respool.NewTree(&resource.Names{}, pools)
	if err != nil {
		t.Fatalf("NewTree: %v", err)
	}
	return tree
}

type fatal interface {
	Fatalf(format string, args ...any)
}

func account(t fatal, tree *respool.Tree, id workload.PoolID) respool.Account {
	a, ok := tree.Account(id)
	if !ok {
		t.Fatalf("pool %s is not in the tree", id)
	}
	return a
}

func wants(q int64) respool.Demand  { return respool.Demand{Preemptible: resource.Vector{cpu: q}} }
func pinned(q int64) respool.Demand { return respool.Demand{NonPreemptible: resource.Vector{cpu: q}} }

func TestEntitleVectors(t *testing.T) {
	const none = -1
	tests := []struct {
		name     string
		capacity int64
		pools    []respool.Pool
		demand   []respool.Demand // of pools[i]
		want     []int64          // none: not compared
	}{
		{
			"weights share the surplus above the reservations", 100,
			[]respool.Pool{with(elastic(1, 20), limit(100)), with(elastic(2, 20), limit(100)), with(elastic(3, 20), limit(100))},
			[]respool.Demand{wants(10), wants(80), wants(80)},
			[]int64{10, 45, 45},
		},
		{
			"largest remainder, tie to the lowest id", 100,
			[]respool.Pool{with(elastic(3, 20), limit(100)), with(elastic(1, 20), limit(100)), with(elastic(2, 20), limit(100))},
			[]respool.Demand{wants(50), wants(80), wants(80)},
			[]int64{33, 34, 33},
		},
		{
			"equal shares of the surplus keep the reservation apart", 100,
			[]respool.Pool{elastic(1, 60), elastic(2, 0)},
			[]respool.Demand{wants(100), wants(100)},
			[]int64{80, 20},
		},
		{
			"what limits turn away goes to the others", 100,
			[]respool.Pool{with(elastic(1, 0), limit(30)), with(elastic(2, 0), limit(30)), elastic(3, 0)},
			[]respool.Demand{wants(100), wants(100), wants(100)},
			[]int64{30, 30, 40},
		},
		{
			"a share of 0 gets its reservation only", 100,
			[]respool.Pool{with(elastic(1, 25), share(0)), elastic(2, 0)},
			[]respool.Demand{wants(100), wants(10)},
			[]int64{25, 75},
		},
		{
			"without demand all is handed out by weight up to the limits", 100,
			[]respool.Pool{elastic(1, 50), with(elastic(2, 0), share(3)), with(elastic(3, 0), limit(10))},
			[]respool.Demand{{}, {}, {}},
			[]int64{23, 67, 10}, // 90 by 1:3 is 22.5 and 67.5: equal remainders, lowest id
		},
		{
			"everybody at the limit leaves capacity over", 100,
			[]respool.Pool{with(elastic(1, 0), limit(30)), with(elastic(2, 0), limit(30))},
			[]respool.Demand{wants(100), {}},
			[]int64{30, 30},
		},
		{
			"a static pool keeps what it does not use and gets no more", 100,
			[]respool.Pool{with(elastic(1, 40), static), with(elastic(2, 20), static), elastic(3, 0)},
			[]respool.Demand{{}, wants(100), wants(100)},
			[]int64{40, 20, 40},
		},
		{
			"an elastic pool lends what it does not use", 100,
			[]respool.Pool{elastic(1, 40), elastic(2, 0)},
			[]respool.Demand{wants(5), wants(100)},
			[]int64{5, 95},
		},
		{
			"reservations scale down in proportion", 60,
			[]respool.Pool{elastic(1, 60), elastic(2, 40), elastic(3, 20)},
			[]respool.Demand{wants(100), wants(100), wants(100)},
			[]int64{30, 20, 10},
		},
		{
			"scaled down below its parent too", 50,
			[]respool.Pool{elastic(1, 100), with(elastic(2, 75), below(1)), with(elastic(3, 25), below(1))},
			[]respool.Demand{{}, wants(100), wants(100)},
			[]int64{50, 38, 12}, // 37.5 and 12.5: equal remainders, lowest id
		},
		{
			"non-preemptible demand above the reservation does not count", 100,
			[]respool.Pool{elastic(1, 30), elastic(2, 0)},
			[]respool.Demand{pinned(90), wants(100)},
			[]int64{30, 70},
		},
		{
			"a parent's demand is its children's, each clipped by its limit", 100,
			[]respool.Pool{
				elastic(1, 0), with(elastic(2, 0), below(1), limit(10)), with(elastic(3, 0), below(1)),
				elastic(4, 0),
			},
			[]respool.Demand{{}, wants(1000), wants(5), wants(1000)},
			[]int64{15, 10, 5, 85},
		},
		{
			"an idle static pool draws its reservation through its parent", 100,
			[]respool.Pool{elastic(1, 50), with(elastic(2, 50), below(1), static), elastic(3, 0)},
			[]respool.Demand{{}, {}, wants(1000)},
			[]int64{50, 50, 50},
		},
		{
			"demand that a static child can never use does not draw through its parent", 100,
			[]respool.Pool{elastic(1, 10), with(elastic(2, 10), below(1), static), elastic(3, 0)},
			[]respool.Demand{{}, wants(1000), wants(1000)},
			[]int64{10, 10, 90},
		},
		{
			"a fresh cell's default pool guarantees all of it", 100,
			[]respool.Pool{respool.DefaultPool("test", 0)},
			[]respool.Demand{pinned(100)},
			[]int64{100},
		},
		{
			"the rest shrinks as siblings reserve", 100,
			[]respool.Pool{with(elastic(1, 0), rest), elastic(2, 30), elastic(3, 20)},
			[]respool.Demand{pinned(100), wants(100), wants(100)},
			[]int64{50, 30, 20},
		},
		{
			"no capacity, no entitlement", -5,
			[]respool.Pool{elastic(1, 30), with(elastic(2, 0), rest)},
			[]respool.Demand{wants(10), pinned(10)},
			[]int64{0, 0},
		},
		{
			"absurd demand and capacity do not overflow", respool.Unlimited,
			[]respool.Pool{elastic(1, respool.MaxQuantity), with(elastic(2, 0), share(respool.MaxShare)), with(elastic(3, 0), limit(5))},
			[]respool.Demand{wants(respool.Unlimited), wants(respool.Unlimited), wants(respool.Unlimited)},
			[]int64{none, none, 5},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tree := mustTree(t, tt.pools...)
			for i, p := range tt.pools {
				if tree.IsLeaf(p.ID) {
					tree.SetDemand(p.ID, tt.demand[i])
				}
			}
			tree.Entitle(resource.Vector{cpu: tt.capacity})
			top := int64(0)
			for i, p := range tt.pools {
				got := account(t, tree, p.ID).Entitlement[cpu]
				if tt.want[i] != none && got != tt.want[i] {
					t.Errorf("%s: entitlement %d, want %d", tree.Path(p.ID), got, tt.want[i])
				}
				if p.Parent == respool.RootID {
					top += got
				}
			}
			if top > max(0, tt.capacity) {
				t.Errorf("%d handed out of %d", top, tt.capacity)
			}
		})
	}
}

// forest is a generated tree with its demand and the capacity of the day.
type forest struct {
	pools    []respool.Pool
	asked    map[workload.PoolID]respool.Demand
	used     map[workload.PoolID]resource.Vector
	capacity resource.Vector
}

// drawForest generates a valid tree of up to maxPools pools. Some quantities are tiny, so that rounding shows, and some huge, so
// that products need more than 64 bits.
func drawForest(t *rapid.T, maxPools int) forest {
	scale := rapid.SampledFrom([]int64{1, 1, 7, 1 << 40}).Draw(t, "scale")
	quantity := func(limit int64, label string) int64 { return rapid.Int64Range(0, limit).Draw(t, label) }
	f := forest{asked: map[workload.PoolID]respool.Demand{}, used: map[workload.PoolID]resource.Vector{}}
	percent := func(label string) uint8 { return rapid.SampledFrom([]uint8{0, 0, 1, 30, 100}).Draw(t, label) }
	type parent struct {
		id                workload.PoolID
		depth             int
		room, limit       resource.Vector // what its children may still reserve; its ceiling
		rest, hasChildren bool
	}
	open := resource.Vector{cpu: 60 * scale, gpu: 60 * scale}
	parents := []*parent{{id: respool.RootID, room: open, limit: resource.Vector{cpu: respool.Unlimited, gpu: respool.Unlimited}}}
	for i := range rapid.IntRange(1, maxPools).Draw(t, "pools") {
		at := parents[rapid.IntRange(0, len(parents)-1).Draw(t, "parent")]
		if at.depth == respool.MaxDepth {
			at = parents[0]
		}
		p := respool.Pool{
			ID: poolID(rapid.IntRange(0, 200).Draw(t, "id")*256 + i), Parent: at.id, Name: fmt.Sprintf("n%d-%d", rapid.IntRange(0, 9).Draw(t, "name"), i),
			Kind:  rapid.SampledFrom([]respool.Kind{respool.Elastic, respool.Elastic, respool.Elastic, respool.Static}).Draw(t, "kind"),
			Share: rapid.SampledFrom([]int64{0, 1, 1, 2, 3, 7, respool.MaxShare}).Draw(t, "share"),

			ControllerPercent: percent("controllers"), RevocablePercent: percent("revocable"),
		}
		p.ReserveRest = !at.rest && rapid.IntRange(0, 4).Draw(t, "rest") == 0
		at.rest, at.hasChildren = at.rest || p.ReserveRest, true
		child := &parent{id: p.ID, depth: at.depth + 1, limit: at.limit}
		for _, k := range []resource.Kind{cpu, gpu} {
			if !p.ReserveRest {
				p.Reservation[k] = min(quantity(25*scale, "reservation"), at.room[k])
				at.room[k] -= p.Reservation[k]
				child.room[k] = p.Reservation[k]
			}
			if rapid.Bool().Draw(t, "limited") {
				ceiling := min(p.Reservation[k]+quantity(30*scale, "limit"), at.limit[k])
				p.Limit = p.Limit.With(k, ceiling)
				child.limit[k] = ceiling
			}
		}
		f.pools, parents = append(f.pools, p), append(parents, child)
	}
	for _, at := range parents[1:] {
		if at.hasChildren {
			continue
		}
		var d respool.Demand
		var used resource.Vector
		for _, k := range []resource.Kind{cpu, gpu} {
			d.Controllers[k], d.Revocable[k] = quantity(30*scale, "of controllers"), quantity(60*scale, "revocable")
			used[k] = quantity(20*scale, "used")
			d.Preemptible[k], d.NonPreemptible[k] = quantity(50*scale, "preemptible"), quantity(40*scale, "non-preemptible")
		}
		f.asked[at.id], f.used[at.id] = d, used
	}
	f.capacity = resource.Vector{cpu: quantity(100*scale, "capacity"), gpu: quantity(100*scale, "gpu capacity")}
	return f
}

// entitled builds the forest's tree and entitles it.
func (f *forest) entitled(t fatal) *respool.Tree {
	tree, err := respool.NewTree(&resource.Names{}, f.pools)
	if err != nil {
		t.Fatalf("the generated tree is refused: %v", err)
	}
	for id, d := range f.asked {
		tree.SetDemand(id, d)
	}
	for id, used := range f.used {
		tree.Charge(id, used, respool.Work{})
	}
	tree.Entitle(f.capacity)
	return tree
}

func TestEntitleAgreesWithOracle(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := drawForest(t, 14)
		compareWithOracle(t, &f, f.entitled(t))
	})
}

func compareWithOracle(t *rapid.T, f *forest, tree *respool.Tree) {
	for _, k := range []resource.Kind{cpu, gpu} {
		want, foreseen := entitlements(f, k, false), entitlements(f, k, true)
		byID := map[workload.PoolID]respool.Pool{}
		for _, p := range f.pools {
			byID[p.ID] = p
		}
		for _, p := range f.pools {
			a := account(t, tree, p.ID)
			got := outcome{a.Reservation[k], a.Demand[k], a.Entitlement[k], a.RevocableDemand[k], a.RevocableEntitlement[k], want[p.ID].wanted}
			if got != want[p.ID] {
				t.Fatalf("%s kind %d: got %+v, oracle says %+v", tree.Path(p.ID), k, got, want[p.ID])
			}
			limit := respool.Unlimited
			for at, ok := p, true; ok; at, ok = byID[at.Parent] {
				if at.ControllerPercent > 0 {
					part := new(big.Int).Mul(big.NewInt(max(foreseen[at.ID].entitlement, want[at.ID].entitlement)), big.NewInt(int64(at.ControllerPercent)))
					limit = min(limit, part.Quo(part, big.NewInt(100)).Int64())
				}
			}
			if b, bounded := tree.ControllerBound(p.ID); b.Limit[k] != limit || bounded != (limit != respool.Unlimited) {
				t.Fatalf("%s kind %d: controllers may use %d, oracle says %d", tree.Path(p.ID), k, b.Limit[k], limit)
			}
		}
	}
}

// TestEntitleManySiblings drives the filling through all its phases: demands that differ by orders of magnitude are satisfied a
// few per pass.
func TestEntitleManySiblings(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := forest{asked: map[workload.PoolID]respool.Demand{}}
		for i := range rapid.IntRange(2, 60).Draw(t, "pools") {
			p := with(elastic(i, rapid.Int64Range(0, 9).Draw(t, "reservation")), share(rapid.Int64Range(0, 5).Draw(t, "share")))
			f.pools = append(f.pools, p)
			f.asked[p.ID] = wants(rapid.Int64Range(0, 9).Draw(t, "mantissa") << rapid.IntRange(0, 40).Draw(t, "exponent"))
		}
		f.capacity[cpu] = rapid.Int64Range(0, 9).Draw(t, "mantissa") << rapid.IntRange(0, 42).Draw(t, "exponent")
		compareWithOracle(t, &f, f.entitled(t))
	})
}

// TestEntitleSlowLevel builds demands that each filling pass satisfies one at a time: for its weight, every want lies between
// the level of the pass before and its own.
func TestEntitleSlowLevel(t *testing.T) {
	weights := []int64{1, 9, 2, 8, 3, 7, 4, 6, 5, 1, 9, 2, 8, 3}
	f := forest{asked: map[workload.PoolID]respool.Demand{}, capacity: resource.Vector{cpu: 1_000_000_000_000_007}}
	left, level, weight := f.capacity[cpu], int64(0), int64(0)
	for _, w := range weights {
		weight += w
	}
	for i, w := range weights {
		next := left / weight
		want := w * (level + (next-level+1)/2)
		if i >= len(weights)-3 {
			want = f.capacity[cpu]
		}
		left, level, weight = max(0, left-want), next, weight-w
		p := with(elastic(len(weights)-i, 0), share(w))
		f.pools = append(f.pools, p)
		f.asked[p.ID] = wants(want)
	}
	tree := f.entitled(t)
	want := entitlements(&f, cpu, false)
	for _, p := range f.pools {
		if got := account(t, tree, p.ID).Entitlement[cpu]; got != want[p.ID].entitlement {
			t.Errorf("%s: entitlement %d, oracle says %d", tree.Path(p.ID), got, want[p.ID].entitlement)
		}
	}
}

// TestEntitleSafety checks what must hold of any result, whatever the oracle thinks.
func TestEntitleSafety(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := drawForest(t, 14)
		tree := f.entitled(t)
		siblings := map[workload.PoolID][]respool.Pool{}
		for _, p := range f.pools {
			siblings[p.Parent] = append(siblings[p.Parent], p)
		}
		for id, children := range siblings {
			parent := account(t, tree, id)
			for _, k := range []resource.Kind{cpu, gpu} {
				checkSiblings(t, tree, children, k, parent.Entitlement[k], parent.Reservation[k])
			}
		}
	})
}

func checkSiblings(t *rapid.T, tree *respool.Tree, children []respool.Pool, k resource.Kind, amount, reservation int64) {
	sum, reserved := int64(0), int64(0)
	wanting, takers, idle := false, false, false
	for _, c := range children {
		a := account(t, tree, c.ID)
		e, r, d, ceiling := a.Entitlement[k], a.Reservation[k], a.Demand[k], c.Limit.Of(k)
		sum, reserved = sum+e, reserved+r
		borrows := c.Kind == respool.Elastic && c.Share > 0
		switch {
		case e < 0 || e > ceiling:
			t.Fatalf("%s: entitlement %d outside 0..%d", tree.Path(c.ID), e, ceiling)
		case e < min(d, r):
			t.Fatalf("%s: entitlement %d under min(demand %d, reservation %d)", tree.Path(c.ID), e, d, r)
		case r > a.Nominal[k]:
			t.Fatalf("%s: reservation %d scaled up from %d", tree.Path(c.ID), r, a.Nominal[k])
		case c.Kind == respool.Static && e != r:
			t.Fatalf("%s: static, yet %d and not its reservation %d", tree.Path(c.ID), e, r)
		case c.Kind == respool.Elastic && c.Share == 0 && e > r:
			t.Fatalf("%s: no share, yet %d and not at most %d", tree.Path(c.ID), e, r)
		}
		wanting = wanting || borrows && e < d
		takers = takers || borrows && e < ceiling
		idle = idle || borrows && e > d
	}
	switch {
	case sum > amount:
		t.Fatalf("siblings of %s got %d of %d", tree.Path(children[0].ID), sum, amount)
	case reserved > reservation:
		t.Fatalf("siblings of %s hold reservations of %d under one of %d", tree.Path(children[0].ID), reserved, reservation)
	case takers && sum < amount:
		t.Fatalf("siblings of %s got %d of %d while one is below its limit", tree.Path(children[0].ID), sum, amount)
	case wanting && idle:
		t.Fatalf("siblings of %s: one wants more while another got more than it wants", tree.Path(children[0].ID))
	}
}

func TestEntitleIgnoresOrderAndNames(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := drawForest(t, 14)
		first := f.entitled(t)
		other := f
		other.pools = rapid.Permutation(slices.Clone(f.pools)).Draw(t, "order")
		for i := range other.pools {
			other.pools[i].Name = fmt.Sprintf("renamed-%d", i)
		}
		second := other.entitled(t)
		second.Entitle(resource.Vector{cpu: 3}) // what was computed before leaves no trace
		second.Entitle(f.capacity)
		for _, p := range f.pools {
			if a, b := account(t, first, p.ID), account(t, second, p.ID); a != b {
				t.Fatalf("pool %s: %+v in one order, %+v in another", p.ID, a, b)
			}
		}
	})
}

// TestEntitleMonotone: more capacity takes from nobody and more demand is never punished, but for rounding: each of the three
// apportionings may move one unit.
func TestEntitleMonotone(t *testing.T) {
	const rounding = 3
	rapid.Check(t, func(t *rapid.T) {
		f := forest{asked: map[workload.PoolID]respool.Demand{}}
		for i := range rapid.IntRange(1, 8).Draw(t, "pools") {
			p := with(elastic(i, rapid.Int64Range(0, 500).Draw(t, "reservation")), share(rapid.Int64Range(0, 4).Draw(t, "share")))
			if rapid.Bool().Draw(t, "limited") {
				limit(p.Reservation[cpu] + rapid.Int64Range(0, 500).Draw(t, "limit"))(&p)
			}
			f.pools = append(f.pools, p)
			f.asked[p.ID] = wants(rapid.Int64Range(0, 1500).Draw(t, "demand"))
		}
		f.capacity[cpu] = rapid.Int64Range(0, 3000).Draw(t, "capacity")
		tree := f.entitled(t)
		before := map[workload.PoolID]int64{}
		for _, p := range f.pools {
			before[p.ID] = account(t, tree, p.ID).Entitlement[cpu]
		}
		tree.Entitle(f.capacity.Add(resource.Vector{cpu: rapid.Int64Range(1, 2000).Draw(t, "more capacity")}))
		for _, p := range f.pools {
			if e := account(t, tree, p.ID).Entitlement[cpu]; e < before[p.ID]-rounding {
				t.Fatalf("%s: %d became %d with more capacity", tree.Path(p.ID), before[p.ID], e)
			}
		}
		eager := f.pools[rapid.IntRange(0, len(f.pools)-1).Draw(t, "eager")].ID
		more := f.asked[eager].Preemptible[cpu] + rapid.Int64Range(1, 1500).Draw(t, "more demand")
		tree.SetDemand(eager, wants(more))
		tree.Entitle(f.capacity)
		if e := account(t, tree, eager).Entitlement[cpu]; e < before[eager]-rounding {
			t.Fatalf("%s: %d became %d with more demand", tree.Path(eager), before[eager], e)
		}
	})
}

// plainTree builds fanout^depth leaves, with demand over four orders of magnitude.
func plainTree(tb testing.TB, fanout, depth int) (*respool.Tree, resource.Vector) {
	var pools []respool.Pool
	var leaves []workload.PoolID
	var grow func(parent workload.PoolID, level int)
	grow = func(parent workload.PoolID, level int) {
		for range fanout {
			p := with(elastic(len(pools), 0), share(int64(len(pools)%5+1)))
			p.Parent = parent
			p.Name = fmt.Sprintf("p%d", len(pools))
			pools = append(pools, p)
			if level == depth {
				leaves = append(leaves, p.ID)
				continue
			}
			grow(p.ID, level+1)
		}
	}
	grow(respool.RootID, 1)
	tree := mustTree(tb, pools...)
	capacity := resource.Vector{}
	for i, id := range leaves {
		var d respool.Demand
		for k := range resource.FirstNamed {
			d.Preemptible[k] = int64(i*7919%1000+1) << (i % 13)
			capacity[k] += d.Preemptible[k] / 2
		}
		tree.SetDemand(id, d)
	}
	return tree, capacity
}

func TestEntitleAllocatesNothing(t *testing.T) {
	tree, capacity := plainTree(t, 10, 2)
	tree.Entitle(capacity)
	if n := testing.AllocsPerRun(10, func() { tree.Entitle(capacity) }); n != 0 {
		t.Errorf("%v allocations per recompute, want none", n)
	}
}

// BenchmarkEntitle recomputes four kinds over about a thousand pools; the aim is a millisecond.
func BenchmarkEntitle(b *testing.B) {
	for _, shape := range []struct {
		name          string
		fanout, depth int
	}{{"flat-1000", 1000, 1}, {"deep-10x10x10", 10, 3}, {"binary-8", 2, 8}} {
		b.Run(shape.name, func(b *testing.B) {
			tree, capacity := plainTree(b, shape.fanout, shape.depth)
			tree.Entitle(capacity)
			b.ReportAllocs()
			for b.Loop() {
				tree.Entitle(capacity)
			}
			b.ReportMetric(float64(tree.Len()), "pools")
		})
	}
}
