package respool_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/respool"
	"github.com/paceline-sched/paceline/core/workload"
)

func named(name string) func(*respool.Pool) { return func(p *respool.Pool) { p.Name = name } }

// chain returns pools 1..n, each below the one before.
func chain(n int) []respool.Pool {
	pools := []respool.Pool{elastic(1, 0)}
	for i := 2; i <= n; i++ {
		pools = append(pools, with(elastic(i, 0), below(i-1)))
	}
	return pools
}

// contents is everything that can be read of a tree, for "nothing changed".
func contents(tree *respool.Tree) string {
	var b strings.Builder
	show := func(id workload.PoolID) {
		p, _ := tree.Pool(id)
		a, _ := tree.Account(id)
		fmt.Fprintf(&b, "%s %+v %+v %v\n", tree.Path(id), p, a, tree.Owners(id))
	}
	show(respool.RootID)
	for p := range tree.All() {
		show(p.ID)
	}
	return b.String()
}

func TestEditsRefused(t *testing.T) {
	base := func() []respool.Pool {
		return []respool.Pool{
			with(elastic(1, 100), limit(200), named("prod")),
			with(elastic(2, 60), below(1), limit(150), named("web")),
			with(elastic(3, 30), below(1), named("db")),
			with(elastic(4, 0), below(1), rest, named("rest")),
			with(elastic(5, 10), below(4), named("inner")),
			with(elastic(6, 500), named("dev")),
		}
	}
	edit := func(i int, edits ...func(*respool.Pool)) func(*respool.Tree) error {
		return func(tree *respool.Tree) error { return tree.Update(with(base()[i-1], edits...)) }
	}
	add := func(p respool.Pool) func(*respool.Tree) error {
		return func(tree *respool.Tree) error { return tree.Add(p) }
	}
	remove := func(id workload.PoolID) func(*respool.Tree) error {
		return func(tree *respool.Tree) error { return tree.Delete(id) }
	}
	tests := []struct {
		name string
		edit func(*respool.Tree) error
		want []string // parts of the message
	}{
		{"no id", add(with(elastic(9, 0), func(p *respool.Pool) { p.ID = workload.PoolID{} })), []string{"no id"}},
		{"the root's id", add(with(elastic(9, 0), func(p *respool.Pool) { p.ID = respool.RootID })), []string{"root's id"}},
		{"an id twice", add(with(elastic(6, 0), named("new"))), []string{"pool new", "/dev"}},
		{"no name", add(with(elastic(9, 0), named(""))), []string{`""`}},
		{"a slash in a name", add(with(elastic(9, 0), named("a/b"))), []string{`"a/b"`}},
		{"a long name", add(with(elastic(9, 0), named(strings.Repeat("x", 64)))), []string{"63"}},
		{"a hostile name", add(with(elastic(9, 0), named(strings.Repeat("/", 1<<20)))), []string{"///..."}},
		{"a name twice", add(with(elastic(9, 0), named("dev"))), []string{"/dev", "twice"}},
		{"renamed onto a sibling", edit(2, named("db")), []string{"/prod/db", "twice"}},
		{"no kind", add(with(elastic(9, 0), func(p *respool.Pool) { p.Kind = 0 })), []string{"kind 0", "elastic"}},
		{"a negative share", add(with(elastic(9, 0), share(-1))), []string{"share -1"}},
		{"an overflowing share", add(with(elastic(9, 0), share(respool.MaxShare+1))), []string{"share 4294967297"}},
		{"a long creator", add(with(elastic(9, 0), func(p *respool.Pool) { p.Creator = strings.Repeat("x", 257) })), []string{"257"}},
		{"a negative reservation", add(elastic(9, -1)), []string{"reservation cpu_milli=-1"}},
		{"an overflowing reservation", add(elastic(9, respool.MaxQuantity+1)), []string{"281474976710657", "281474976710656"}},
		{"a negative limit", add(with(elastic(9, 0), limit(-1))), []string{"limit cpu_milli=-1"}},
		{
			"an unknown resource", add(with(elastic(9, 0), func(p *respool.Pool) { p.Reservation[7] = 3 })),
			[]string{"number 7", "only 4"},
		},
		{"reservation over its own limit", add(with(elastic(9, 30), limit(20))), []string{"cpu_milli=30", "20", "raise the limit"}},
		{"rest and a reservation", add(with(elastic(9, 30), func(p *respool.Pool) { p.ReserveRest = true })), []string{"the rest", "cpu_milli=30"}},
		{"two rests", edit(3, rest), []string{"/prod/db", "/prod/rest", "both"}},
		{"no such parent", add(with(elastic(9, 0), below(77))), []string{"parent", "does not exist"}},
		{"children over the parent's reservation", edit(3, func(p *respool.Pool) { p.Reservation[cpu] = 41 }), []string{"pool /prod:", "cpu_milli=101", "100", "by 1"}},
		{"parent's reservation under its children's", edit(1, func(p *respool.Pool) { p.Reservation[cpu] = 80 }), []string{"pool /prod:", "cpu_milli=90", "80", "by 10"}},
		{"the rest under its children's", edit(3, func(p *respool.Pool) { p.Reservation[cpu] = 35 }), []string{"pool /prod/rest:", "cpu_milli=10", "5"}},
		{"limit over the parent's", edit(2, limit(201)), []string{"/prod/web", "cpu_milli=201", "200"}},
		{"parent's limit under its child's", edit(1, limit(149)), []string{"/prod/web", "cpu_milli=150", "149"}},
		{"limit over the grandparent's", edit(5, limit(201)), []string{"/prod/rest/inner", "cpu_milli=201", "200"}},
		{"moved to where it does not fit", edit(6, below(1)), []string{"pool /prod:", "cpu_milli=590", "100"}},
		{"reservation of the rest over a limit above", add(with(elastic(9, 6), below(4), limit(201))), []string{"/prod/rest", "cpu_milli=16", "10"}},
		{"below itself", edit(4, below(4)), []string{"/prod/rest", "cannot move"}},
		{"below its descendant", edit(1, below(5)), []string{"/prod", "cannot move", "/prod/rest/inner"}},
		{"update of nothing", func(tree *respool.Tree) error { return tree.Update(elastic(9, 0)) }, []string{"does not exist"}},
		{"a child for a pool with jobs", add(with(elastic(9, 0), below(6))), []string{"/dev", "1 jobs"}},
		{"moved below a pool with jobs", edit(2, below(6)), []string{"pool web", "/dev", "1 jobs"}},
		{"delete of nothing", remove(poolID(9)), []string{"does not exist"}},
		{"delete of the root", remove(respool.RootID), []string{"root"}},
		{"delete of a parent", remove(poolID(1)), []string{"/prod", "3 children", "/prod/db"}},
		{"delete of a pool with jobs", remove(poolID(6)), []string{"/dev", "1 jobs"}},
		{"delete of a pool in use", remove(poolID(3)), []string{"/prod/db", "cpu_milli=5"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tree := mustTree(t, base()...)
			if err := tree.AttachJob(poolID(6)); err != nil {
				t.Fatal(err)
			}
			tree.Charge(poolID(3), resource.Vector{cpu: 5}, respool.Work{NonPreemptible: true})
			tree.Entitle(resource.Vector{cpu: 1000})
			before := contents(tree)
			err := tt.edit(tree)
			if err == nil {
				t.Fatal("accepted")
			}
			for _, part := range tt.want {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("%q does not say %q", err, part)
				}
			}
			if len(err.Error()) > 400 {
				t.Errorf("the message has %d characters", len(err.Error()))
			}
			if after := contents(tree); after != before {
				t.Errorf("the refused edit changed the tree:\n%s\n%s", before, after)
			}
		})
	}
}

func TestNewTreeRefuses(t *testing.T) {
	crowd := make([]respool.Pool, respool.MaxPools+1)
	tests := []struct {
		name  string
		pools []respool.Pool
		want  string
	}{
		{"too many", crowd, "10001 pools"},
		{"a malformed record", []respool.Pool{elastic(1, -1)}, "cpu_milli=-1"},
		{"an id twice", []respool.Pool{elastic(1, 0), with(elastic(1, 0), named("other"))}, "same id"},
		{"an orphan", []respool.Pool{with(elastic(1, 0), below(2))}, "does not exist"},
		{"its own parent", []respool.Pool{with(elastic(1, 0), below(1))}, "its own ancestor"},
		{"a cycle", []respool.Pool{with(elastic(1, 0), below(2)), with(elastic(2, 0), below(3)), with(elastic(3, 0), below(1))}, "its own ancestor"},
		{"a tail on a cycle", []respool.Pool{with(elastic(1, 0), below(2)), with(elastic(2, 0), below(3)), with(elastic(3, 0), below(2))}, "cycle"},
		{"too deep", chain(respool.MaxDepth + 1), "levels below the root"},
		{"reservations over the limit of the rest", []respool.Pool{with(elastic(1, 0), rest, limit(5)), with(elastic(2, 10), below(1))}, "cpu_milli=10"},
		{"a limit over its parent's", []respool.Pool{with(elastic(1, 0), limit(5)), with(elastic(2, 0), below(1), limit(6))}, "cpu_milli=6"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := respool.NewTree(&resource.Names{}, tt.pools)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got error %v, want one that says %q", err, tt.want)
			}
		})
	}
}

func TestDepthBound(t *testing.T) {
	pools := chain(respool.MaxDepth)
	tree := mustTree(t, pools...)
	if err := tree.Add(with(elastic(50, 0), below(respool.MaxDepth))); err == nil || !strings.Contains(err.Error(), "levels below the root") {
		t.Errorf("a pool below the lowest level: error %v", err)
	}
	if err := tree.Add(elastic(51, 0)); err != nil {
		t.Fatal(err)
	}
	before := contents(tree)
	if err := tree.Update(with(pools[0], below(51))); err == nil || !strings.Contains(err.Error(), "levels below the root") {
		t.Errorf("a subtree moved down too far: error %v", err)
	}
	if contents(tree) != before {
		t.Error("the refused move changed the tree")
	}
}

func TestPoolBound(t *testing.T) {
	pools := make([]respool.Pool, respool.MaxPools)
	for i := range pools {
		pools[i] = with(elastic(i, respool.MaxQuantity), named(fmt.Sprintf("p%d", i)))
	}
	tree := mustTree(t, pools...)
	if err := tree.Add(elastic(respool.MaxPools, 0)); err == nil || !strings.Contains(err.Error(), "one too many") {
		t.Errorf("a pool over the bound: error %v", err)
	}
	// The largest tree of the largest reservations still scales without overflow.
	for i := range pools {
		tree.SetDemand(pools[i].ID, wants(respool.Unlimited))
	}
	tree.Entitle(resource.Vector{cpu: respool.MaxQuantity})
	sum := int64(0)
	for i := range pools {
		sum += account(t, tree, pools[i].ID).Entitlement[cpu]
	}
	if sum != respool.MaxQuantity {
		t.Errorf("%d of %d handed out", sum, respool.MaxQuantity)
	}
}

func TestPathsAndOrder(t *testing.T) {
	pools := []respool.Pool{
		with(elastic(1, 0), named("b")), with(elastic(2, 0), below(1), named("z")), with(elastic(3, 0), below(1), named("y")),
		with(elastic(4, 0), named("a")), respool.DefaultPool("test", 7),
	}
	want := []string{"/a", "/b", "/b/y", "/b/z", "/default"}
	slices.Reverse(pools)
	tree := mustTree(t, pools...)
	if tree.Len() != 5 {
		t.Errorf("%d pools, want 5", tree.Len())
	}
	var got []string
	for p := range tree.All() {
		path := tree.Path(p.ID)
		got = append(got, path)
		for _, form := range []string{path, path[1:]} {
			if id, ok := tree.Lookup(form); !ok || id != p.ID {
				t.Errorf("%s looked up as %s, %v", form, id, ok)
			}
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("order %v, want %v", got, want)
	}
	for range tree.All() {
		break
	}
	for _, form := range []string{"/c", "/b/x", "/b/y/q", "//", "/b//y"} {
		if id, ok := tree.Lookup(form); ok {
			t.Errorf("%s looked up as %s", form, id)
		}
	}
	if id, ok := tree.Lookup("/"); !ok || id != respool.RootID || tree.Path(id) != "/" {
		t.Errorf("the root looked up as %s, %v", id, ok)
	}
	if tree.Path(poolID(99)) != "" || tree.IsLeaf(poolID(99)) || tree.IsLeaf(respool.RootID) || tree.IsLeaf(poolID(1)) || !tree.IsLeaf(poolID(2)) {
		t.Error("leaves or paths are wrong")
	}
	if _, ok := tree.Pool(respool.RootID); ok {
		t.Error("the root has a record")
	}
}

func TestLimitsZeroValueAndRemoval(t *testing.T) {
	var none respool.Limits
	if none.Of(cpu) != respool.Unlimited {
		t.Errorf("the zero value limits cpu to %d", none.Of(cpu))
	}
	zero := none.With(cpu, 0)
	if zero.Of(cpu) != 0 || zero == none {
		t.Error("a limit of 0 is no limit")
	}
	if zero.With(cpu, respool.Unlimited) != none {
		t.Error("a removed limit leaves a trace")
	}
}

// TestKindsJoinLater: a resource that the cell meets after the tree was built takes part at the next recompute.
func TestKindsJoinLater(t *testing.T) {
	names := &resource.Names{}
	tree, err := respool.NewTree(names, []respool.Pool{respool.DefaultPool("test", 0)})
	if err != nil {
		t.Fatal(err)
	}
	licence, err := names.Intern("licence")
	if err != nil {
		t.Fatal(err)
	}
	capacity := resource.Vector{}
	capacity[licence] = 4
	tree.Entitle(capacity)
	if e := account(t, tree, respool.DefaultID).Entitlement[licence]; e != 4 {
		t.Errorf("entitled to %d of a new resource, want 4", e)
	}
}

// TestEditsAgreeWithRebuild applies random edits and compares with a tree built afresh from the records, ledgers included.
func TestEditsAgreeWithRebuild(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		names := &resource.Names{}
		tree, err := respool.NewTree(names, nil)
		if err != nil {
			t.Fatal(err)
		}
		records := map[workload.PoolID]respool.Pool{}
		type item struct {
			pool workload.PoolID
			v    resource.Vector
			work respool.Work
		}
		var charged []item
		draw := func(n int) respool.Pool {
			p := with(elastic(n, rapid.Int64Range(0, 8).Draw(t, "reservation")), named(rapid.SampledFrom([]string{"a", "b", "c", "d"}).Draw(t, "name")))
			if parent := rapid.IntRange(0, 8).Draw(t, "parent"); parent > 0 {
				p.Parent = poolID(parent)
			}
			return p
		}
		for range rapid.IntRange(1, 40).Draw(t, "edits") {
			n := rapid.IntRange(1, 8).Draw(t, "pool")
			before := contents(tree)
			var err error
			switch rapid.IntRange(0, 4).Draw(t, "verb") {
			case 0:
				p := draw(n)
				if err = tree.Add(p); err == nil {
					records[p.ID] = p
				}
			case 1:
				p := draw(n)
				if err = tree.Update(p); err == nil {
					records[p.ID] = p
				}
			case 2:
				if err = tree.Delete(poolID(n)); err == nil {
					delete(records, poolID(n))
				}
			case 3:
				if tree.IsLeaf(poolID(n)) {
					c := item{poolID(n), resource.Vector{cpu: rapid.Int64Range(1, 5).Draw(t, "charge")}, respool.Work{
						Owner: rapid.SampledFrom([]string{"", "ann", "bob"}).Draw(t, "owner"), NonPreemptible: rapid.Bool().Draw(t, "non-preemptible"),
						Controller: rapid.Bool().Draw(t, "controller"), Revocable: rapid.Bool().Draw(t, "revocable"),
					}}
					tree.Charge(c.pool, c.v, c.work)
					charged = append(charged, c)
				}
			case 4:
				if len(charged) > 0 {
					i := rapid.IntRange(0, len(charged)-1).Draw(t, "refund")
					tree.Refund(charged[i].pool, charged[i].v, charged[i].work)
					charged = slices.Delete(charged, i, i+1)
				}
			}
			if err != nil && contents(tree) != before {
				t.Fatalf("refused with %v, yet changed", err)
			}
		}
		rebuilt, err := respool.NewTree(names, slices.Collect(maps.Values(records)))
		if err != nil {
			t.Fatalf("the records of an accepted tree are refused: %v", err)
		}
		for _, c := range charged {
			rebuilt.Charge(c.pool, c.v, c.work)
		}
		twin := tree.Clone()
		before := contents(tree)
		if got := contents(twin); got != before {
			t.Fatalf("a copy:\n%s\nof:\n%s", got, before)
		}
		twin.Entitle(resource.Vector{cpu: 30})
		for _, c := range charged {
			twin.Refund(c.pool, c.v, c.work)
		}
		if contents(tree) != before {
			t.Fatal("a tree changed with its copy")
		}
		tree.Entitle(resource.Vector{cpu: 30})
		rebuilt.Entitle(resource.Vector{cpu: 30})
		if got, want := contents(tree), contents(rebuilt); got != want {
			t.Fatalf("edited:\n%s\nrebuilt:\n%s", got, want)
		}
	})
}
