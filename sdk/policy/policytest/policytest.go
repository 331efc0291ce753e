package policytest

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/paceline-sched/paceline/sdk/policy"
	"github.com/paceline-sched/paceline/sdk/policyabi"
)

// Policy is a policy that is being tried.
type Policy struct {
	t       testing.TB
	program *policy.Program
	values  policyabi.Config
	// Seed, Time (in milliseconds) and Mix are what the policy is told of them.
	Seed uint64
	Time int64
	Mix  []policy.Class
	// Log is what the policy logged in the last call.
	Log []string
}

// New tries a policy as policy.Register takes it.
func New(t testing.TB, info policy.Info, p any) *Policy {
	t.Helper()
	program, err := policy.New(info, p)
	if err != nil {
		t.Fatal(err)
	}
	return Of(t, program)
}

// Of tries a program.
func Of(t testing.TB, program *policy.Program) *Policy { return &Policy{t: t, program: program} }

// Set configures a value of type bool, int, int64, float64 or string.
func (p *Policy) Set(key string, value any) {
	p.t.Helper()
	v := policyabi.Value{Key: key}
	switch x := value.(type) {
	case bool:
		v.Type, v.Bool = policyabi.Bool, x
	case int:
		v.Type, v.Int = policyabi.Int, int64(x)
	case int64:
		v.Type, v.Int = policyabi.Int, x
	case float64:
		v.Type, v.Float = policyabi.Float, x
	case string:
		v.Type, v.Text = policyabi.Text, x
	default:
		p.t.Fatalf("configuration value %s is a %T", key, value)
	}
	p.values = append(slices.DeleteFunc(p.values, func(o policyabi.Value) bool { return o.Key == key }), v)
	slices.SortFunc(p.values, func(a, b policyabi.Value) int { return strings.Compare(a.Key, b.Key) })
}

// Refused is a call that the policy refused.
type Refused struct{ Status policyabi.Status }

func (r *Refused) Error() string { return "the policy refused the call: " + r.Status.String() }

// scene is what a call is about.
type scene struct {
	shape  policyabi.Shape
	encode func(arena []byte, layout *policyabi.Layout)
	n      int // records
}

// call lays the scene out for two copies of the policy, asks both, and returns the arena of one with the number of results.
func (p *Policy) call(s *scene) ([]byte, *policyabi.Layout, int, error) {
	p.t.Helper()
	capability := p.program.Capability()
	full, err := capability.With(p.values)
	if err != nil {
		p.t.Fatal(err)
	}
	encoded, err := full.Append(nil)
	if err != nil {
		p.t.Fatal(err)
	}
	s.shape.Config, s.shape.Mix = len(encoded), len(p.Mix)
	s.shape.Scratch = capability.Scratch + capability.ScratchPerRow*((s.shape.Rows+policyabi.Alignment-1)&^(policyabi.Alignment-1))
	layout, err := policyabi.Plan(s.shape)
	if err != nil {
		p.t.Fatal(err)
	}
	var arenas [2][]byte
	var status policyabi.Status
	count := 0
	for i := range arenas {
		p.Log = nil
		in := p.program.Start(func(_ int, text string) { p.Log = append(p.Log, text) })
		arenas[i] = in.Arena(int(layout.Header.Total))
		p.encode(arenas[i], &layout, encoded)
		s.encode(arenas[i], &layout)
		if started := in.Configure(); started != policyabi.StatusOK {
			return nil, nil, 0, &Refused{started}
		}
		now, n := policyabi.SplitReturn(in.Call(s.shape.Kind, s.n))
		if i > 0 && (now != status || int(n) != count) {
			p.t.Fatalf("two copies of the policy returned %d results (%s) and %d (%s): it draws on something that it must not", count, status, n, now)
		}
		status, count = now, int(n)
	}
	if !bytes.Equal(arenas[0], arenas[1]) {
		p.t.Fatal("two copies of the policy left different memory: it draws on something that it must not")
	}
	if status != policyabi.StatusOK {
		return nil, nil, 0, &Refused{status}
	}
	return arenas[0], &layout, count, nil
}

// encode writes what is the same for all kinds of calls.
func (p *Policy) encode(arena []byte, layout *policyabi.Layout, config []byte) {
	h := layout.Header
	h.Epoch, h.Generation, h.Seed, h.Time = 1, 1, p.Seed, p.Time
	h.Encode(arena)
	copy(arena[h.Config:], config)
	for i := range layout.Entries {
		layout.Entries[i].Encode(arena[int(h.Directory)+i*policyabi.EntryBytes:])
	}
	for i, c := range p.Mix {
		m := policyabi.Mix{Class: c.ID, Weight: c.Weight, Needs: c.Needs, Share: c.Share, Devices: c.Devices, Models: c.Models}
		m.Encode(arena[int(h.Mix)+i*policyabi.MixBytes:])
	}
}

// results reads what a call returned.
func (p *Policy) results(arena []byte, layout *policyabi.Layout, count int) []policyabi.Result {
	p.t.Helper()
	if count > int(layout.Header.ResultCapacity) {
		p.t.Fatalf("%d results, there was room for %d", count, layout.Header.ResultCapacity)
	}
	var list []policyabi.Result
	for i := range count {
		r, err := policyabi.DecodeResult(arena[int(layout.Header.Results)+i*policyabi.ResultBytes:])
		if err != nil {
			p.t.Fatal(err)
		}
		list = append(list, r)
	}
	return list
}

// Rank returns the rank of each candidate: lower goes first.
func (p *Policy) Rank(candidates ...policy.Candidate) []int {
	p.t.Helper()
	arena, layout, count, err := p.call(&scene{
		shape: policyabi.Shape{Kind: policyabi.Preempt, Requests: len(candidates), Results: len(candidates)},
		n:     len(candidates),
		encode: func(arena []byte, layout *policyabi.Layout) {
			for i := range candidates {
				candidates[i].Encode(arena[int(layout.Header.Requests)+i*policyabi.CandidateBytes:])
			}
		},
	})
	if err != nil {
		p.t.Fatal(err)
	}
	ranks := make([]int, len(candidates))
	for _, r := range p.results(arena, layout, count) {
		ranks[r.Request] = int(r.Host)
	}
	return ranks
}

// Names is the hosts of placements, in order, with blanks between.
func Names(placed []Placement) string {
	var names []string
	for _, x := range placed {
		names = append(names, x.Host)
	}
	return strings.Join(names, " ")
}

func (x Placement) String() string {
	return fmt.Sprintf("request %d on %s devices %b", x.Request, x.Host, x.Devices)
}
