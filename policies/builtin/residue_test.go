package builtin_test

import (
	"slices"
	"testing"

	"github.com/paceline-sched/paceline/policies/builtin"
	"github.com/paceline-sched/paceline/sdk/policy"
	"github.com/paceline-sched/paceline/sdk/policy/policytest"
	"pgregory.net/rapid"
)

// TestLeastResidueSeesCoresRunOut: a task of many cores goes where GPUs have cores to spare, although one more task of the expected work finds room on either host. fgd sees no difference there and
// takes the fuller host.
func TestLeastResidueSeesCoresRunOut(t *testing.T) {
	hosts := []policytest.Host{
		{Name: "scarce", Total: policytest.Amounts{CPU: 32000}, GPUs: make([]policytest.GPU, 4)},
		{Name: "rich", Total: policytest.Amounts{CPU: 96000}, GPUs: make([]policytest.GPU, 4)},
	}
	for _, c := range []struct {
		program *policy.Program
		want    string
	}{{builtin.LeastResidue(), "rich"}, {builtin.FGD(), "scarce"}} {
		p := policytest.Of(t, c.program)
		p.Mix = []policy.Class{{ID: 1, Weight: 1, Share: 1000, Devices: 1, Needs: [4]int32{8000}}}
		if got := p.Place(hosts, policytest.Request{CPU: 16000, GPU: 1000}); policytest.Names(got) != c.want {
			t.Errorf("%s: %v, want %s", c.program.Capability().Name, got, c.want)
		}
	}
}

// TestLeastResidueFillsDevices: a share goes to the device where what is left is of use.
func TestLeastResidueFillsDevices(t *testing.T) {
	p := policytest.Of(t, builtin.LeastResidue())
	p.Mix = []policy.Class{{ID: 1, Weight: 0.5, Share: 400, Devices: 1}, {ID: 2, Weight: 0.5, Share: 1000, Devices: 1}}
	hosts := []policytest.Host{{Name: "h", GPUs: []policytest.GPU{{Used: 500}, {Used: 200}, {}}}}
	// Of 800 thousandths 400 leave one more share, of 500 nothing but splinters, and the whole one stays whole.
	if got := p.Place(hosts, policytest.Request{GPU: 400}); len(got) != 1 || got[0].Devices != 0b010 {
		t.Error(got)
	}
}

func TestLeastResidueIsConfigured(t *testing.T) {
	p := policytest.Of(t, builtin.LeastResidue())
	hosts := []policytest.Host{{Name: "h"}}
	for far, fine := range map[int]bool{-1: false, 0: true, 100: true, 101: false} {
		p.Set("far", far)
		if _, err := p.TryPlace(hosts, policytest.Request{CPU: 1}); (err == nil) != fine {
			t.Errorf("far %d: %v", far, err)
		}
	}
}

// residue is what tasks of one expected class would leave over on a host until it is full, in expectation, times 2^20.
func (h *gpuHost) residue(mix []policy.Class) int64 {
	sum := int64(0)
	for _, m := range mix {
		if m.Devices == 0 {
			continue
		}
		all, shares := int64(0), int64(0)
		for l, free := range h.free {
			if all += free; h.open(m.Models, l) {
				shares += free / int64(m.Share)
			}
		}
		one := int64(m.Share) * int64(m.Devices)
		used := shares / int64(m.Devices) * one
		if m.Needs[0] > 0 {
			used = min(used, h.cpu*one/int64(m.Needs[0]))
		}
		sum += int64(m.Weight*(1<<20)) * (all - used)
	}
	return sum
}

// TestLeastResidue holds the first choice of a device and a host against the measure computed naively.
func TestLeastResidue(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		hosts, mix := drawGPUHosts(rt), drawMix(rt)
		far := rapid.SampledFrom([]int64{1, 10, 50, 100}).Draw(rt, "far")
		r := policytest.Request{CPU: 500 * rapid.Int64Range(0, 4).Draw(rt, "cpu"), GPU: 125 * rapid.Int64Range(1, 8).Draw(rt, "gpu"), Class: rapid.SampledFrom([]uint64{0, 7}).Draw(rt, "class")}
		p := policytest.Of(t, builtin.LeastResidue())
		p.Set("far", far)
		p.Mix = mix
		measure := func(h *gpuHost) int64 {
			return ((100-far)*int64(h.fragmentation(mix)*(1<<20)) + far*h.residue(mix)) / 100
		}
		var told []policytest.Host
		var best, least []int64 // what decides: the growth, what is left over on the host, the host, what is left of the device, the device
		for i := range hosts {
			h := &hosts[i]
			told = append(told, h.Host)
			before, leftover := measure(h), h.leftover(mix)
			h.cpu -= r.CPU
			for l := range h.free {
				if h.free[l] < r.GPU || h.cpu < 0 {
					continue
				}
				h.free[l] -= r.GPU
				growth := (measure(h) - before) >> 18
				h.free[l] += r.GPU
				at := []int64{growth, leftover, int64(i), h.free[l], int64(l)}
				if least == nil || slices.Compare(at, least) < 0 {
					least, best = at, []int64{int64(i), int64(l)}
				}
			}
		}
		got := p.Place(told, r)
		if best == nil {
			if len(got) > 0 {
				rt.Fatalf("got %v, want none", got)
			}
			return
		}
		if len(got) != 1 || got[0].Host != hosts[best[0]].Name || got[0].Devices != 1<<best[1] {
			rt.Fatalf("%+v, far %d\n%+v\n%+v\ngot %v, want device %d of %s", r, far, hosts, mix, got, best[1], hosts[best[0]].Name)
		}
	})
}
