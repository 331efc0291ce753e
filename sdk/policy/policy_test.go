package policy_test

import (
	"cmp"
	"errors"
	"fmt"
	"math/bits"
	"strings"
	"testing"

	"github.com/paceline-sched/paceline/sdk/policy"
	"github.com/paceline-sched/paceline/sdk/policy/policytest"
	"github.com/paceline-sched/paceline/sdk/policyabi"
	"pgregory.net/rapid"
)

// tight is the policy of the package's documentation.
type tight struct {
	Reserve int64 `policy:"reserve"`
}

var tightInfo = policy.Info{Name: "tight", Version: "1.0.0", Columns: []string{"free_share"}}

func (p *tight) Cost(r *policy.Request, h policy.Host) int64 {
	if h.Free(policy.CPU)-r.Need(policy.CPU) < p.Reserve {
		return policy.Span
	}
	return h.FreeShare()
}

func (p *tight) Start() error {
	if p.Reserve < 0 {
		return fmt.Errorf("a reserve of %d is negative", p.Reserve)
	}
	return nil
}

func amounts(cpu, memory int64) policytest.Amounts {
	return policytest.Amounts{CPU: cpu, Memory: memory}
}

func TestScorer(t *testing.T) {
	hosts := []policytest.Host{
		{Name: "a", Total: amounts(4000, 8192)},
		{Name: "b", Total: amounts(4000, 8192), Used: amounts(2000, 0)},
		{Name: "c", Total: amounts(4000, 8192), Used: amounts(2600, 0)},
	}
	p := policytest.New(t, tightInfo, &tight{Reserve: 500})
	request := policytest.Request{CPU: 1000, Memory: 512, Count: 4}
	if got := policytest.Names(p.Place(hosts, request)); got != "b a a a" {
		t.Error(got)
	}
	p.Set("reserve", 0)
	if got := policytest.Names(p.Place(hosts, request)); got != "c b b a" {
		t.Error(got)
	}
	p.Set("reserve", -1)
	var refused *policytest.Refused
	if _, err := p.TryPlace(hosts, request); !errors.As(err, &refused) || refused.Status != policyabi.StatusConfig || !strings.Contains(p.Log[0], "a reserve of -1 is negative") {
		t.Error(err, p.Log)
	}
}

// The policies of TestGrouped: costs that jump about as a host fills, in all forms.
type jumpy struct{}

func jump(free int64, row int) int64 {
	return int64(bits.Reverse16(uint16(free*31+int64(row)*7)) & 0x3ff)
}

func (*jumpy) Cost(_ *policy.Request, h policy.Host) int64 { return jump(h.Free(policy.CPU), h.Row()) }

type jumpyBlock struct{}

func (*jumpyBlock) Costs(t *policy.Table, _ *policy.Request, rows []int32, costs []int64) {
	free := t.Free(policy.CPU)
	for i, row := range rows {
		costs[i] = jump(int64(free[row]), int(row))
	}
}

type column struct {
	name       string
	descending bool
}

func (c *column) Order() (string, bool) { return c.name, c.descending }

type picky struct{ column }

func (*picky) Allow(_ *policy.Request, h policy.Host) bool { return h.Free(policy.CPU)%3 != 0 }

type onlyFilter struct{}

func (*onlyFilter) Allow(_ *policy.Request, h policy.Host) bool { return h.Row()%4 != 1 }

// batch is a Placer that goes through the rows and takes what fits.
type batch struct{}

func (*batch) Place(c *policy.Call) error {
	for i := range c.Requests() {
		r := &c.Requests()[i]
		for range r.Count() {
			row := 0
			for row < c.Table().Rows() && !c.Take(r, row) {
				row++
			}
			if row == c.Table().Rows() {
				c.Refuse(r, 7)
				break
			}
		}
	}
	return nil
}

var grouped = map[string]any{
	"scorer":     &jumpy{},
	"block":      &jumpyBlock{},
	"leftover":   &column{"leftover", false},
	"descending": &column{"free_share", true},
	"tasks":      &column{"tasks", false},
	"filter":     &picky{column{"free_share", false}},
	"only":       &onlyFilter{},
	"placer":     &batch{},
}

// TestGrouped holds one call for many tasks of several requests against calls for one task each, on hosts that are told anew every time.
func TestGrouped(t *testing.T) {
	for name, impl := range grouped {
		t.Run(name, func(t *testing.T) {
			p := policytest.New(t, policy.Info{Name: name}, impl)
			rapid.Check(t, func(rt *rapid.T) {
				hosts := drawHosts(rt)
				var requests []policytest.Request
				for range rapid.IntRange(1, 3).Draw(rt, "requests") {
					requests = append(requests, drawRequest(rt))
				}
				got := fmt.Sprint(p.Place(hosts, requests...))
				if want := fmt.Sprint(oneByOne(p, hosts, requests)); got != want {
					rt.Fatalf("%+v\n%+v\ngot  %s\nwant %s", hosts, requests, got, want)
				}
			})
		})
	}
}

// counting is jumpy, and counts how often it is asked.
type counting struct{}

var asked int

func (*counting) Cost(_ *policy.Request, h policy.Host) int64 {
	asked++
	return jump(h.Free(policy.CPU), h.Row())
}

// TestRemember: costs that may be remembered are asked once for a host, and again when something is placed there; the answers are the same.
func TestRemember(t *testing.T) {
	var hosts []policytest.Host
	for i := range 100 {
		hosts = append(hosts, policytest.Host{Name: fmt.Sprint("h", i), Total: amounts(int64(4000+100*i), 0)})
	}
	request := policytest.Request{CPU: 700, Count: 3, Class: 5}
	other := request
	other.Class = 6
	requests := []policytest.Request{request, request, other, request}
	want := fmt.Sprint(policytest.New(t, policy.Info{Name: "x"}, &counting{}).Place(hosts, requests...))
	all := asked
	asked = 0
	if got := fmt.Sprint(policytest.New(t, policy.Info{Name: "x", Remember: true}, &counting{}).Place(hosts, requests...)); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	const copies, classes, placed = 2, 2, 12
	if all < copies*400 || asked > copies*(classes*100+classes*placed) {
		t.Errorf("asked %d times, without remembering %d", asked, all)
	}
	if _, err := policy.New(policy.Info{Name: "x", Remember: true}, &column{"leftover", false}); err == nil {
		t.Error("a policy without a cost to remember was taken")
	}
}

// oneByOne places task by task. What a gang that is not complete took is free again for requests after it.
func oneByOne(p *policytest.Policy, hosts []policytest.Host, requests []policytest.Request) []policytest.Placement {
	var all []policytest.Placement
	for i, r := range requests {
		now := clone(hosts)
		var placed []policytest.Placement
		one := r
		one.Count, one.Gang = 1, false
		for range max(r.Count, 1) {
			got := p.Place(now, one)
			if len(got) == 0 {
				break
			}
			got[0].Request = i
			placed = append(placed, got[0])
			take(now, &one, &got[0])
		}
		if r.Gang && len(placed) < r.Count {
			continue
		}
		hosts = now
		all = append(all, placed...)
	}
	return all
}

func clone(hosts []policytest.Host) []policytest.Host {
	out := append([]policytest.Host(nil), hosts...)
	for i := range out {
		out[i].GPUs = append([]policytest.GPU(nil), out[i].GPUs...)
	}
	return out
}

func take(hosts []policytest.Host, r *policytest.Request, x *policytest.Placement) {
	for i := range hosts {
		h := &hosts[i]
		if h.Name != x.Host {
			continue
		}
		h.Used.CPU += r.CPU
		h.Used.Memory += r.Memory
		h.Tasks++
		for l := range h.GPUs {
			if x.Devices>>l&1 != 0 {
				h.GPUs[l].Used += min(r.GPU, 1000)
			}
		}
	}
}

func drawHosts(t *rapid.T) []policytest.Host {
	hosts := make([]policytest.Host, rapid.IntRange(0, 140).Draw(t, "hosts"))
	seed := rapid.Uint64().Draw(t, "seed")
	next := func(n int64) int64 {
		seed = seed*6364136223846793005 + 1442695040888963407
		return int64(seed>>33) % n
	}
	for i := range hosts {
		h := &hosts[i]
		h.Name = fmt.Sprint("h", i)
		h.Total, h.Used, h.Tasks = amounts(1000*next(9), 512*next(9)), amounts(250*next(5), 0), int(next(4))
		for range next(4) {
			h.GPUs = append(h.GPUs, policytest.GPU{Model: []string{"a", "b"}[next(2)], Used: 250 * next(5)})
		}
	}
	return hosts
}

func drawRequest(t *rapid.T) policytest.Request {
	r := policytest.Request{
		Count: rapid.IntRange(1, 40).Draw(t, "count"), CPU: 250 * rapid.Int64Range(0, 8).Draw(t, "cpu"), Memory: 128 * rapid.Int64Range(0, 8).Draw(t, "memory"),
		GPU: rapid.SampledFrom([]int64{0, 0, 250, 500, 1000, 2000}).Draw(t, "gpu"), Gang: rapid.IntRange(0, 3).Draw(t, "gang") == 0,
	}
	if rapid.IntRange(0, 2).Draw(t, "models") == 0 {
		r.Models = []string{"a"}
	}
	if rapid.IntRange(0, 2).Draw(t, "prefer") == 0 {
		r.Prefer = map[string]int{"h3": 30, "h70": -20}
	}
	if rapid.IntRange(0, 2).Draw(t, "only") == 0 {
		r.Only = []string{"h1", "h2", "h3", "h64", "h65"}
	}
	return r
}

type youngest struct{}

func (*youngest) Compare(a, b *policy.Candidate) int { return cmp.Compare(a.Work, b.Work) }

func TestRanker(t *testing.T) {
	p := policytest.New(t, policy.Info{Name: "youngest"}, &youngest{})
	got := p.Rank(policy.Candidate{Work: 5}, policy.Candidate{Work: 1}, policy.Candidate{Work: 5}, policy.Candidate{Work: 3})
	if fmt.Sprint(got) != "[2 0 2 1]" {
		t.Error(got)
	}
}

// TestMistakes lists what New refuses.
func TestMistakes(t *testing.T) {
	for _, c := range []struct {
		policy any
		info   policy.Info
		want   string
	}{
		{jumpy{}, policy.Info{Name: "x"}, "is no pointer to a struct"},
		{&struct{}{}, policy.Info{Name: "x"}, "implements none of"},
		{&struct {
			jumpy
			jumpyBlock
		}{}, policy.Info{Name: "x"}, "more than one of"},
		{&struct {
			jumpy
			batch
		}{}, policy.Info{Name: "x"}, "a Placer does that for itself"},
		{&struct {
			jumpy
			Limit uint8 `policy:"limit"`
		}{}, policy.Info{Name: "x"}, "it must be a bool, int, int64, float64 or string"},
		{&jumpy{}, policy.Info{Name: "x", Columns: []string{"leftovers"}}, "knows no such column"},
		{&jumpy{}, policy.Info{Name: "two words"}, "a name is"},
	} {
		if _, err := policy.New(c.info, c.policy); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%T: %v, want %q", c.policy, err, c.want)
		}
	}
}

// frugal goes to the cheapest cluster that is not full of waiting tasks.
type frugal struct{}

func (*frugal) Toll(_ *policy.Request, c policy.Cluster) (int64, bool) {
	return int64(c.Price() * 100), c.Waiting() < 10
}

func TestRouter(t *testing.T) {
	p := policytest.New(t, policy.Info{Name: "frugal"}, &frugal{})
	room := func(cpu int64) policytest.Amounts { return policytest.Amounts{CPU: cpu} }
	clusters := []policytest.Cluster{
		{Name: "dear", Free: room(9000), Total: room(9000), Price: 3, Placeable: 9},
		{Name: "cheap", Free: room(2500), Total: room(9000), Price: 1, Placeable: 2},
		{Name: "jammed", Free: room(9000), Total: room(9000), Price: 0, Placeable: 9, Waiting: 10},
		{Name: "fair", Free: room(9000), Total: room(9000), Price: 2, Placeable: 1},
	}
	for _, c := range []struct {
		request policytest.Request
		want    string
	}{
		{policytest.Request{CPU: 1000, Count: 2}, "[{0 cheap 2}]"},
		{policytest.Request{CPU: 1000, Count: 5}, "[{0 cheap 2} {0 fair 1} {0 dear 2}]"},
		{policytest.Request{CPU: 1000, Count: 20}, "[{0 cheap 10} {0 fair 1} {0 dear 9}]"}, // eight wait where it is cheapest
		{policytest.Request{CPU: 1000, Count: 5, Gang: true}, "[{0 dear 5}]"},
		{policytest.Request{CPU: 1000, Count: 20, Gang: true}, "[{0 cheap 20}]"},
		{policytest.Request{CPU: 1000, Count: 2, Only: []string{"jammed"}}, "[]"},
	} {
		if got := fmt.Sprint(p.Route(clusters, c.request)); got != c.want {
			t.Errorf("%+v: %s, want %s", c.request, got, c.want)
		}
	}
}

// even gives each pool the same part, whatever it is guaranteed.
type even struct{}

func (*even) Entitle(p *policy.Pools) error {
	if p.Capacity(policy.CPU) < 0 {
		return policy.Refusal(3)
	}
	for row := 1; row < p.Rows(); row++ {
		p.Entitlement(policy.CPU)[row] = p.Capacity(policy.CPU) / int64(p.Rows()-1)
	}
	return nil
}

// failed is a test that fails as it should.
type failed struct {
	testing.TB
	why string
}

func (f *failed) Fatal(args ...any) { f.why = fmt.Sprint(args...); panic(f) }

func (f *failed) Fatalf(format string, args ...any) { f.Fatal(fmt.Sprintf(format, args...)) }

func (f *failed) Helper() {}

// fickle is a policy that remembers more than it should.
type fickle struct{}

var calls int64

func (*fickle) Cost(_ *policy.Request, h policy.Host) int64 {
	calls++
	return calls * int64(h.Row()%2)
}

// grabby names devices that are taken.
type grabby struct{ jumpy }

func (*grabby) Devices(*policy.Request, policy.Host, policy.Devices) policy.Devices { return 1 }

// TestKitFinds: policytest finds what is wrong with policies.
func TestKitFinds(t *testing.T) {
	for _, c := range []struct {
		name   string
		policy any
		use    func(p *policytest.Policy)
		want   string
	}{
		{"fickle", &fickle{}, func(p *policytest.Policy) {
			p.Place([]policytest.Host{{Name: "a", Total: amounts(9000, 0)}, {Name: "b", Total: amounts(9000, 0)}, {Name: "c"}}, policytest.Request{CPU: 1000, Count: 20})
		}, "left different memory"},
		{"grabby", &grabby{}, func(p *policytest.Policy) {
			p.Place([]policytest.Host{{Name: "a", GPUs: []policytest.GPU{{Used: 900}, {Used: 0}}}}, policytest.Request{GPU: 500})
		}, "a device that it names is taken"},
		{"even", &even{}, func(p *policytest.Policy) {
			p.Entitle(policytest.Amounts{CPU: 90}, policytest.Pool{Name: "a"}, policytest.Pool{Name: "b", Reservation: policytest.Amounts{CPU: 60}, Demand: policytest.Amounts{CPU: 60}})
		}, "it is guaranteed 60"},
		{"refusal", &even{}, func(p *policytest.Policy) { p.Entitle(policytest.Amounts{CPU: -1}, policytest.Pool{Name: "a"}) }, "for its reason 3"},
		{"unsupported", &even{}, func(p *policytest.Policy) { p.Rank(policy.Candidate{}) }, "unsupported"},
	} {
		f := &failed{TB: t}
		func() {
			defer func() {
				if r := recover(); r != nil && r != any(f) {
					panic(r)
				}
			}()
			c.use(policytest.New(f, policy.Info{Name: c.name}, c.policy))
		}()
		if !strings.Contains(f.why, c.want) {
			t.Errorf("%s: %q, want %q", c.name, f.why, c.want)
		}
	}
}

// talker logs what it is told of the call.
type talker struct{ jumpy }

func (*talker) Prepare(t *policy.Table, r *policy.Request) {
	mix, version := t.Mix()
	t.Log(policyabi.LogInfo, fmt.Sprintf("request %d at %d with seed %d: %d classes, version %d, class %d", r.Index(), t.Time(), t.Seed(), len(mix), version, mix[0].ID))
}

func TestWhatAPolicyIsTold(t *testing.T) {
	p := policytest.New(t, policy.Info{Name: "talker"}, &talker{})
	p.Seed, p.Time, p.Mix = 42, 1234, []policy.Class{{ID: 7, Weight: 0.5}, {ID: 8, Weight: 0.5}}
	p.Place([]policytest.Host{{Name: "a"}}, policytest.Request{}, policytest.Request{})
	want := "[request 0 at 1234 with seed 42: 2 classes, version 1, class 7 request 1 at 1234 with seed 42: 2 classes, version 1, class 7]"
	if fmt.Sprint(p.Log) != want {
		t.Errorf("%v, want %s", p.Log, want)
	}
}
