package wasm_test

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/paceline-sched/paceline/core/preemption"
	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/respool"
	"github.com/paceline-sched/paceline/core/workload"
	"github.com/paceline-sched/paceline/policies/wasm"
	asm "github.com/paceline-sched/paceline/policies/wasm/internal/assembler"
	sdk "github.com/paceline-sched/paceline/sdk/policy"
	"github.com/paceline-sched/paceline/sdk/policyabi"
)

// asked is the configuration of one that asks a version, and where its faults go.
func asked(v *wasm.Version) (wasm.AskConfig, *[]*wasm.Fault) {
	faults := &[]*wasm.Fault{}
	slot := &wasm.Slot{}
	slot.Swap(v)
	return wasm.AskConfig{Slot: slot, OnFault: func(f *wasm.Fault) { *faults = append(*faults, f) }}, faults
}

// poolTree has n pools below the root; some are limited, some static, some have pools below them.
func poolTree(t interface{ Fatal(...any) }, n int, draw func(most int) int64) *respool.Tree {
	names := &resource.Names{}
	if _, err := names.Intern("licences"); err != nil {
		t.Fatal(err)
	}
	tree, err := respool.NewTree(names, nil)
	if err != nil {
		t.Fatal(err)
	}
	var parents []workload.PoolID
	for i := range n {
		p := respool.Pool{ID: workload.PoolID{0: 7, 1: byte(i >> 8), 2: byte(i)}, Parent: respool.RootID, Name: fmt.Sprintf("p%05d", i), Kind: respool.Elastic, Share: draw(9)}
		if len(parents) > 0 && draw(3) == 0 {
			p.Parent = parents[draw(len(parents)-1)]
		} else {
			parents = append(parents, p.ID)
			p.Reservation = resource.Vector{resource.CPU: draw(100), resource.Memory: draw(100), resource.FirstNamed: draw(3)}
		}
		switch draw(9) {
		case 0:
			p.Kind = respool.Static
		case 1:
			p.Limit = p.Limit.With(resource.CPU, p.Reservation[resource.CPU]+draw(50))
		}
		if err := tree.Add(p); err != nil { // its parent is limited, or too deep: another tree will do
			parents = slices.DeleteFunc(parents, func(id workload.PoolID) bool { return id == p.ID })
		}
	}
	for id := range tree.IDs() {
		if tree.IsLeaf(id) {
			tree.SetDemand(id, respool.Demand{
				Preemptible:    resource.Vector{resource.CPU: draw(300), resource.Memory: draw(90), resource.FirstNamed: draw(2)},
				NonPreemptible: resource.Vector{resource.CPU: draw(50)},
			})
		}
	}
	tree.Entitle(resource.Vector{resource.CPU: draw(60 * n), resource.Memory: draw(40 * n), resource.FirstNamed: draw(n)})
	return tree
}

// byShare is what the guest does, worked out by the definition: one pool after the other, at each depth those of larger shares first.
func byShare(s *respool.Snapshot) []resource.Vector {
	given := make([]resource.Vector, len(s.Rows))
	depth := make([]int, len(s.Rows))
	order := make([]int, 0, len(s.Rows))
	for i := range s.Rows {
		if r := &s.Rows[i]; i > 0 {
			depth[i] = depth[r.Parent] + 1
			order = append(order, i)
		}
	}
	slices.SortStableFunc(order, func(a, b int) int {
		return cmp.Or(cmp.Compare(depth[a], depth[b]), cmp.Compare(s.Rows[b].Share, s.Rows[a].Share))
	})
	for k := range s.Kinds {
		given[0][k] = s.Rows[0].Reservation[k]
		for i := 1; i < len(s.Rows); i++ {
			given[i][k] = s.Rows[i].Guarantee(resource.Kind(k))
		}
		for _, i := range order {
			r := &s.Rows[i]
			left := given[r.Parent][k]
			for j := range s.Rows {
				if s.Rows[j].Parent == r.Parent {
					left -= given[j][k]
				}
			}
			given[i][k] += max(min(r.Demand[k]-given[i][k], r.Ceiling[k]-given[i][k], left), 0)
		}
	}
	return given
}

// TestQuotaEntitles compares a guest with what it should say, tree after tree, with one instance.
func TestQuotaEntitles(t *testing.T) {
	config, faults := asked(load(t, guest(t, "trio"), wasm.Config{}))
	calls := 0
	config.OnCall = func(wasm.Call) { calls++ }
	q := wasm.NewQuota(config)
	defer q.Close()
	rapid.Check(t, func(rt *rapid.T) {
		s := poolTree(rt, rapid.IntRange(0, 40).Draw(rt, "pools"), func(most int) int64 { return int64(rapid.IntRange(0, most).Draw(rt, "number")) }).Snapshot()
		got, err := q.Entitle(s)
		if err != nil || len(*faults) > 0 {
			rt.Fatal(err, *faults)
		}
		if want := byShare(s); !slices.Equal(got, want) {
			rt.Fatalf("got  %v\nwant %v\nof %+v", got, want, s)
		}
	})
	if calls == 0 {
		t.Error("nobody was told of a call")
	}
}

// TestQuotaOfManyPools has a guest entitle as many pools as a cell may have.
func TestQuotaOfManyPools(t *testing.T) {
	config, faults := asked(load(t, guest(t, "trio"), wasm.Config{}))
	q := wasm.NewQuota(config)
	defer q.Close()
	next := uint64(1)
	draw := func(most int) int64 {
		next = next*6364136223846793005 + 1442695040888963407
		return int64(next >> 33 % uint64(most+1))
	}
	var pools []respool.Pool
	for i := range respool.MaxPools {
		p := respool.Pool{ID: workload.PoolID{0: 7, 1: byte(i >> 8), 2: byte(i)}, Parent: respool.RootID, Name: fmt.Sprintf("p%05d", i), Kind: respool.Elastic, Share: 1 + draw(8)}
		pools = append(pools, p)
	}
	tree, err := respool.NewTree(&resource.Names{}, pools)
	if err != nil {
		t.Fatal(err)
	}
	for i := range pools {
		tree.SetDemand(pools[i].ID, respool.Demand{Preemptible: resource.Vector{resource.CPU: draw(1000)}})
	}
	tree.Entitle(resource.Vector{resource.CPU: 2_000_000})
	if _, err := q.Entitle(tree.Snapshot()); err != nil || len(*faults) > 0 {
		t.Fatal(err, *faults)
	}
}

func contender(job int, work time.Duration, cpu int64) preemption.Contender {
	return preemption.Contender{
		Candidate: preemption.Candidate{Job: workload.JobID{byte(job + 1), byte(job >> 8)}, Pool: workload.PoolID{1}, Over: int64(job)},
		Runs:      1, Use: resource.Vector{resource.CPU: cpu}, Work: int64(work),
	}
}

func TestRankerRanks(t *testing.T) {
	config, faults := asked(load(t, guest(t, "trio"), wasm.Config{}))
	r := wasm.NewRanker(config)
	defer r.Close()
	got, err := r.Rank([]preemption.Contender{contender(0, time.Hour, 1), contender(1, 1500*time.Microsecond, 1), contender(2, 9000*time.Hour, 1)})
	if want := []int32{3_600_000, 1, 1<<31 - 1}; err != nil || !slices.Equal(got, want) {
		t.Fatalf("got %v and %v, want %v; %v", got, err, want, *faults)
	}
	if got, err := r.Rank(nil); err != nil || len(got) != 0 {
		t.Fatalf("of nobody it says %v, %v", got, err)
	}
	many := make([]preemption.Contender, preemption.MaxContenders+3)
	for i := range many {
		many[i] = contender(i, time.Duration(i)*time.Millisecond, 1)
	}
	got, err = r.Rank(many)
	if err != nil || got[1023] != 1023 || got[1024] != preemption.Unranked || len(got) != len(many) {
		t.Fatalf("%v, %d ranks", err, len(got))
	}
}

func clusters() []wasm.Cluster {
	return []wasm.Cluster{
		{Name: "dear", Free: resource.Vector{resource.CPU: 9000}, Total: resource.Vector{resource.CPU: 9000}, Placeable: 9, Price: 5},
		{Name: "cheap", Free: resource.Vector{resource.CPU: 3000}, Total: resource.Vector{resource.CPU: 1 << 40}, Placeable: 3, Price: 1},
		{Name: "closed", Placeable: 99, Price: 0.5},
		{Name: "middling", Placeable: 5, Price: 2},
	}
}

func routeRequest(n int) wasm.RouteRequest {
	return wasm.RouteRequest{
		Class: newClass(resource.Vector{resource.CPU: 1000, resource.FirstNamed: 2}, workload.Placement{}), Count: n, Open: []bool{true, true, false, true},
	}
}

func TestRouterRoutes(t *testing.T) {
	config, faults := asked(load(t, guest(t, "trio"), wasm.Config{}))
	r := wasm.NewRouter(config, newNames(t, "licences"))
	defer r.Close()
	got, err := r.Route(clusters(), []wasm.RouteRequest{routeRequest(3), routeRequest(4), routeRequest(50), routeRequest(9)})
	want := []wasm.Route{{Request: 0, Cluster: 1, Count: 3, Score: 1}, {Request: 1, Cluster: 3, Count: 4, Score: 2}, {Request: 3, Cluster: 0, Count: 9, Score: 5}}
	if err != nil || !slices.Equal(got, want) {
		t.Fatalf("got %v and %v, want %v; %v", got, err, want, *faults)
	}
	other := routeRequest(3)
	other.Open = []bool{true, false, false, false}
	if got, err := r.Route(clusters(), []wasm.RouteRequest{other}); err != nil || len(got) != 1 || got[0].Cluster != 0 {
		t.Fatalf("with another cluster open it says %v, %v", got, err)
	}
	if got, err := r.Route(nil, []wasm.RouteRequest{routeRequest(1)}); err != nil || len(got) != 0 {
		t.Fatalf("without clusters it says %v, %v", got, err)
	}
	if _, err := r.Route(clusters(), make([]wasm.RouteRequest, 1000)); err == nil {
		t.Fatal("a thousand requests at once")
	}
}

// TestKindsFollowTheSlot swaps the version under one that asks, then takes it away.
func TestKindsFollowTheSlot(t *testing.T) {
	first, second := load(t, guest(t, "trio"), wasm.Config{}), load(t, guest(t, "trio"), wasm.Config{})
	config, _ := asked(first)
	r := wasm.NewRanker(config)
	defer r.Close()
	rank := func() error { _, err := r.Rank([]preemption.Contender{contender(0, 0, 1)}); return err }
	if err := rank(); err != nil {
		t.Fatal(err)
	}
	config.Slot.Swap(second).Release()
	if closed(first) {
		t.Fatal("closed while somebody works with it")
	}
	if err := rank(); err != nil || !closed(first) {
		t.Fatal(err, "the old version must be closed now")
	}
	config.Slot.Swap(nil)
	if err := rank(); !errors.Is(err, wasm.ErrNoPolicy) {
		t.Fatalf("without a policy: %v", err)
	}
}

// TestGenerationOfPools has a guest entitle a pool to as much as the number of the generation, where there are five: it grows when the rows are others, and only
// then.
func TestGenerationOfPools(t *testing.T) {
	s := smallTree(t)
	generation := asm.Join(
		asm.I32Const(arenaAt+policyabi.HeaderBytes+policyabi.EntryOffset), asm.With(0x28, 2, 0),
		asm.I32Const(arenaAt+policyabi.HeaderGeneration), asm.With(0x29, 3, 0), asm.With(0x37, 3, arenaAt+8*3))
	v := load(t, hostile(policyabi.Quota, "columns entitlement.*\n", policyabi.HeaderRows, int32(len(s.Rows)), all(generation)).of(policyabi.Quota), wasm.Config{})
	config, _ := asked(v)
	q := wasm.NewQuota(config)
	defer q.Close()
	fewer := *s
	fewer.Rows = s.Rows[:4]
	for n, step := range []struct {
		of   *respool.Snapshot
		want int64
	}{{s, 1}, {s, 1}, {&fewer, 0}, {&fewer, 0}, {s, 3}} {
		if got, err := q.Entitle(step.of); err != nil || got[3][resource.CPU] != step.want {
			t.Fatalf("question %d: %v and %v, want generation %d", n, got, err, step.want)
		}
	}
}

func TestSlotTellsItsWatcher(t *testing.T) {
	first, second := load(t, guest(t, "trio"), wasm.Config{}), load(t, guest(t, "trio"), wasm.Config{})
	slot := &wasm.Slot{}
	slot.Swap(first)
	var told []*wasm.Version
	slot.Watch(func(v *wasm.Version) { told = append(told, v) })
	for _, v := range []*wasm.Version{first, second, second, nil} {
		slot.Swap(v)
	}
	if want := []*wasm.Version{first, second, nil}; !slices.Equal(told, want) {
		t.Fatalf("told of %v, want %v", told, want)
	}
}

// thrifty is a policy of two kinds in Go: pools get their guarantees and nothing else, and the smallest use makes room first.
type thrifty struct{ quotas int }

func (p *thrifty) Entitle(pools *sdk.Pools) error {
	p.quotas++
	for k := range sdk.Kind(pools.Kinds()) {
		reservation, demand, given := pools.Reservation(k), pools.Demand(k), pools.Entitlement(k)
		for row := range given {
			given[row] = min(reservation[row], demand[row])
		}
	}
	return nil
}

func (p *thrifty) Compare(a, b *policyabi.Candidate) int { return cmp.Compare(a.Use[0], b.Use[0]) }

// TestNativeKinds runs a policy that is part of the program as modules are run.
func TestNativeKinds(t *testing.T) {
	program, err := sdk.New(sdk.Info{Name: "thrifty"}, &thrifty{})
	if err != nil {
		t.Fatal(err)
	}
	v, err := wasm.LoadNative(program, wasm.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(v.Release)
	config, faults := asked(v)
	q, r := wasm.NewQuota(config), wasm.NewRanker(config)
	defer q.Close()
	defer r.Close()
	s := smallTree(t)
	given, err := q.Entitle(s)
	if err != nil || given[1][resource.CPU] != 40 || given[3][resource.CPU] != 0 {
		t.Fatalf("%v and %v; %v", given, err, *faults)
	}
	ranks, err := r.Rank([]preemption.Contender{contender(0, 1, 900), contender(1, 1, 7), contender(2, 1, 900), contender(3, 1, 100)})
	if err != nil || !slices.Equal(ranks, []int32{2, 0, 2, 1}) {
		t.Fatalf("%v and %v; %v", ranks, err, *faults)
	}
}

// hostile is a module of one kind, good in its trial; when the header says size at offset, it does other.
func hostile(kind policyabi.Kind, columns string, offset, size int32, other []byte) *policy {
	p := good()
	p.section = fmt.Sprintf("paceline.policy 1\nname hostile\nabi 1.0\nkinds %s\n%s", kind, columns)
	well := asm.I64Const(0)
	if kind == policyabi.Quota { // all pools have their guarantees
		well = asm.Join(asm.LocalGet(0), asm.Op(0xad))
	}
	p.place = asm.Join(
		asm.I32Const(arenaAt+offset), asm.With(0x28, 2, 0), asm.I32Const(size), asm.Op(0x46), asm.If(0x40, other, asm.Op(0x0f)), well)
	return p
}

// build makes its call that of the kind.
func (p *policy) of(kind policyabi.Kind) []byte {
	code := p.place
	p.place = nil
	if p.before != nil {
		p.before(&p.Module)
		p.before = nil
	}
	p.Export(kind.Export(), asm.Function, p.Func([]byte{asm.I32}, []byte{asm.I64}, p.locals, code))
	return p.bytes()
}

// entitle is code that entitles a row to an amount of the kind of that number.
func entitle(kind uint32, row uint32, amount int64) []byte {
	return asm.Join(
		asm.I32Const(int32(arenaAt+policyabi.HeaderBytes+kind*policyabi.EntryBytes+policyabi.EntryOffset)), asm.With(0x28, 2, 0),
		asm.I64Const(amount), asm.With(0x37, 3, arenaAt+8*row))
}

func all(code ...[]byte) []byte { return asm.Join(asm.Join(code...), asm.LocalGet(0), asm.Op(0xad)) }

// hostileSteps are what policies of every kind may do instead of an answer.
var hostileSteps = map[string]struct {
	code []byte
	kind wasm.FaultKind
}{
	"trap":                    {asm.Op(0x00), wasm.FaultTrap},
	"endless loop":            {asm.Join(asm.Loop(0x40, asm.Br(0)), asm.Op(0x00)), wasm.FaultFuel},
	"huge fill":               {asm.Join(asm.Loop(0x40, asm.I32Const(0), asm.I32Const(1), asm.I32Const(1<<22), asm.Op(0xfc, 11, 0), asm.Br(0)), asm.Op(0x00)), wasm.FaultFuel},
	"grows as far as it can":  {asm.Join(asm.Loop(0x40, asm.I32Const(1), asm.Op(0x40, 0, 0x1a), asm.Br(0)), asm.Op(0x00)), wasm.FaultFuel},
	"refusal":                 {asm.I64Const(int64(policyabi.Return(policyabi.StatusInternal, 0))), wasm.FaultStatus},
	"unknown status":          {asm.I64Const(77 << 32), wasm.FaultStatus},
	"results without end":     {asm.I64Const(1<<32 - 1), wasm.FaultResult},
	"one more than there are": {asm.I64Const(5000), wasm.FaultResult},
}

var hostileQuotas = map[string]struct {
	code []byte
	kind wasm.FaultKind
}{
	"some pools only":           {asm.I64Const(2), wasm.FaultResult},
	"less than is guaranteed":   {all(entitle(0, 1, 39)), wasm.FaultRow},
	"nothing to anybody":        {all(entitle(0, 1, 0)), wasm.FaultRow},
	"a negative entitlement":    {all(entitle(1, 2, -1)), wasm.FaultRow},
	"over a limit":              {all(entitle(0, 2, 31)), wasm.FaultRow},
	"more than there is":        {all(entitle(0, 3, 61)), wasm.FaultRow},
	"everything to everybody":   {all(entitle(0, 1, 100), entitle(0, 3, 100)), wasm.FaultRow},
	"as much as a number holds": {all(entitle(0, 3, 1<<63-1)), wasm.FaultRow},
	"of what nobody has":        {all(entitle(2, 3, 1)), wasm.FaultRow},
	"more than its parent":      {all(entitle(0, 4, 41)), wasm.FaultRow},
	"header overwritten": {
		asm.Join(asm.I32Const(arenaAt), asm.I32Const(0xff), asm.I32Const(1<<13), asm.Op(0xfc, 11, 0), asm.LocalGet(0), asm.Op(0xad)), wasm.FaultRow,
	},
}

// smallTree has a pool with 40 guaranteed and one below it, one with a limit of 30, and one that may have all else of 100.
func smallTree(t *testing.T) *respool.Snapshot {
	t.Helper()
	id := func(n byte) workload.PoolID { return workload.PoolID{0: 9, 15: n} }
	pools := []respool.Pool{
		{ID: id(1), Parent: respool.RootID, Name: "a", Kind: respool.Elastic, Share: 1, Reservation: resource.Vector{resource.CPU: 40}},
		{ID: id(2), Parent: respool.RootID, Name: "b", Kind: respool.Elastic, Share: 1, Limit: respool.Limits{}.With(resource.CPU, 30)},
		{ID: id(3), Parent: respool.RootID, Name: "c", Kind: respool.Elastic, Share: 1},
		{ID: id(4), Parent: id(1), Name: "z", Kind: respool.Elastic, Share: 1},
	}
	tree, err := respool.NewTree(&resource.Names{}, pools)
	if err != nil {
		t.Fatal(err)
	}
	tree.SetDemand(id(4), respool.Demand{Preemptible: resource.Vector{resource.CPU: 500}})
	tree.SetDemand(id(3), respool.Demand{Preemptible: resource.Vector{resource.CPU: 500, resource.Memory: 5}})
	tree.Entitle(resource.Vector{resource.CPU: 100, resource.Memory: 100})
	s := tree.Snapshot()
	slices.SortFunc(s.Rows[1:], func(a, b respool.Row) int { return cmp.Compare(a.ID[15], b.ID[15]) }) // a, b, c, a/z
	return s
}

func TestContainsHostileQuotas(t *testing.T) {
	s := smallTree(t)
	test := func(t *testing.T, code []byte, want wasm.FaultKind) {
		v := load(t, hostile(policyabi.Quota, "columns entitlement.*\n", policyabi.HeaderRows, int32(len(s.Rows)), code).of(policyabi.Quota), wasm.Config{})
		config, faults := asked(v)
		q := wasm.NewQuota(config)
		defer q.Close()
		values, err := q.Entitle(s)
		checkFault(t, err, *faults, v, want)
		if values != nil {
			t.Errorf("it gave %v", values)
		}
		other := *s
		other.Rows = s.Rows[:4]
		if _, err := q.Entitle(&other); err != nil {
			t.Errorf("the next question met %v", err)
		}
	}
	for name, c := range hostileSteps {
		t.Run(name, func(t *testing.T) { test(t, c.code, c.kind) })
	}
	for name, c := range hostileQuotas {
		t.Run(name, func(t *testing.T) { test(t, c.code, c.kind) })
	}
}

// checkFault checks that a fault of a kind was met, told and counted.
func checkFault(t *testing.T, err error, faults []*wasm.Fault, v *wasm.Version, want wasm.FaultKind) {
	t.Helper()
	var f *wasm.Fault
	slow := want == wasm.FaultFuel && len(faults) == 1 && faults[0].Kind == wasm.FaultTime // on a busy machine the clock may be first
	if !errors.As(err, &f) || len(faults) != 1 || faults[0] != f || f.Kind != want && !slow {
		t.Fatalf("want a fault of kind %s, got %v, told of %v", want, err, faults)
	}
	if n := v.Counters().Faults(f.Kind); n != 1 {
		t.Errorf("%d faults are counted", n)
	}
}

var hostileRanks = map[string]struct {
	code []byte
	kind wasm.FaultKind
}{
	"somebody twice":       {results(3, policyabi.Result{Request: 1, Host: 5}, policyabi.Result{Request: 0, Host: 5}, policyabi.Result{Request: 1, Host: 6}), wasm.FaultRow},
	"nobody":               {results(1, policyabi.Result{Request: 3, Host: 5}), wasm.FaultRow},
	"a rank without end":   {results(1, policyabi.Result{Request: 0, Host: 1 << 31}), wasm.FaultRow},
	"no row":               {results(1, policyabi.Result{Request: 0, Host: policyabi.NoRow}), wasm.FaultRow},
	"no number":            {results(1, policyabi.Result{Request: 0, Host: 5, Score: nan()}), wasm.FaultResult},
	"more than candidates": {results(4), wasm.FaultResult},
}

func TestContainsHostileRankers(t *testing.T) {
	contenders := []preemption.Contender{contender(0, 3, 1), contender(1, 2, 1), contender(2, 1, 1)}
	test := func(t *testing.T, code []byte, want wasm.FaultKind) {
		v := load(t, hostile(policyabi.Preempt, "", policyabi.HeaderRequestCount, 3, code).of(policyabi.Preempt), wasm.Config{})
		config, faults := asked(v)
		r := wasm.NewRanker(config)
		defer r.Close()
		ranks, err := r.Rank(contenders)
		checkFault(t, err, *faults, v, want)
		if ranks != nil {
			t.Errorf("it ranked %v", ranks)
		}
		if ranks, err := r.Rank(contenders[:2]); err != nil || !slices.Equal(ranks, []int32{preemption.Unranked, preemption.Unranked}) {
			t.Errorf("the next question met %v and %v", ranks, err)
		}
	}
	for name, c := range hostileSteps {
		t.Run(name, func(t *testing.T) { test(t, c.code, c.kind) })
	}
	for name, c := range hostileRanks {
		t.Run(name, func(t *testing.T) { test(t, c.code, c.kind) })
	}
}

var hostileRoutes = map[string]struct {
	code []byte
	kind wasm.FaultKind
}{
	"no such cluster":       {results(1, policyabi.Result{Count: 1, Host: 4}), wasm.FaultRow},
	"a closed cluster":      {results(1, policyabi.Result{Count: 1, Host: 2}), wasm.FaultRow},
	"more than asked":       {results(1, policyabi.Result{Count: 4, Host: 0}), wasm.FaultRow},
	"more than asked twice": {results(2, policyabi.Result{Count: 2, Host: 0}, policyabi.Result{Count: 2, Host: 1}), wasm.FaultRow},
	"no tasks":              {results(1, policyabi.Result{Count: 0, Host: 0}), wasm.FaultRow},
	"unknown request":       {results(1, policyabi.Result{Request: 2, Count: 1, Host: 0}), wasm.FaultResult},
	"out of order":          {results(2, policyabi.Result{Request: 1, Count: 1, Host: 0}, policyabi.Result{Count: 1, Host: 0}), wasm.FaultResult},
	"no number":             {results(1, policyabi.Result{Count: 1, Host: 0, Score: nan()}), wasm.FaultResult},
}

func TestContainsHostileRouters(t *testing.T) {
	test := func(t *testing.T, code []byte, want wasm.FaultKind) {
		v := load(t, hostile(policyabi.Route, "", policyabi.HeaderRequestCount, 2, code).of(policyabi.Route), wasm.Config{})
		config, faults := asked(v)
		r := wasm.NewRouter(config, nil)
		defer r.Close()
		routes, err := r.Route(clusters(), []wasm.RouteRequest{routeRequest(3), routeRequest(1)})
		checkFault(t, err, *faults, v, want)
		if routes != nil {
			t.Errorf("it routed %v", routes)
		}
		if routes, err := r.Route(clusters(), []wasm.RouteRequest{routeRequest(3)}); err != nil || len(routes) != 0 {
			t.Errorf("the next question met %v and %v", routes, err)
		}
	}
	for name, c := range hostileSteps {
		t.Run(name, func(t *testing.T) { test(t, c.code, c.kind) })
	}
	for name, c := range hostileRoutes {
		t.Run(name, func(t *testing.T) { test(t, c.code, c.kind) })
	}
}

// TestTrialOfKinds refuses policies that do in their trial what they must never do.
func TestTrialOfKinds(t *testing.T) {
	for name, c := range map[string]struct {
		kind    policyabi.Kind
		columns string
		code    []byte
		want    string
	}{
		"a quota that cannot say anything": {policyabi.Quota, "columns parent\n", all(), "entitlement.*"},
		"a quota of less than is due":      {policyabi.Quota, "columns entitlement.*\n", all(entitle(0, 1, 0)), "at least the smaller is due"},
		"ranks for one twice":              {policyabi.Preempt, "", results(2, policyabi.Result{Host: 1}, policyabi.Result{Host: 2}), "returned 2 ranks"},
		"ranks that trap":                  {policyabi.Preempt, "", asm.Op(0x00), "unreachable"},
		"routes to nowhere":                {policyabi.Route, "", results(1, policyabi.Result{Count: 1, Host: 1000}), "no cluster at row 1000"},
		"routes for ever":                  {policyabi.Route, "", asm.Join(asm.Loop(0x40, asm.Br(0)), asm.Op(0x00)), "paceline_route"},
	} {
		t.Run(name, func(t *testing.T) {
			p := good()
			p.section = fmt.Sprintf("paceline.policy 1\nname hostile\nabi 1.0\nkinds %s\n%s", c.kind, c.columns)
			p.place = c.code
			m, err := wasm.Check(p.of(c.kind), wasm.Limits{})
			if err == nil {
				_, err = wasm.Load(t.Context(), m, wasm.Config{Limits: wasm.Limits{CallFuel: 1 << 22}})
			}
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("want a fault about %q, got %v", c.want, err)
			}
		})
	}
}

// TestQuotaOfTheRoot wants the root to be entitled to what there is, whatever a policy writes there.
func TestQuotaOfTheRoot(t *testing.T) {
	s := smallTree(t)
	v := load(t, hostile(policyabi.Quota, "columns entitlement.*\n", policyabi.HeaderRows, int32(len(s.Rows)), all(entitle(0, 0, 7))).of(policyabi.Quota), wasm.Config{})
	config, _ := asked(v)
	q := wasm.NewQuota(config)
	defer q.Close()
	if got, err := q.Entitle(s); err != nil || got[0] != s.Rows[0].Reservation {
		t.Fatalf("%v and %v", got, err)
	}
}
