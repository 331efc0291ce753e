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
