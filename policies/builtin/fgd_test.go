package builtin_test

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/paceline-sched/paceline/policies/builtin"
	"github.com/paceline-sched/paceline/sdk/policy"
	"github.com/paceline-sched/paceline/sdk/policy/policytest"
	"pgregory.net/rapid"
)

// gpuHost is a host as the naive measure sees it.
type gpuHost struct {
	policytest.Host
	free []int64 // of each GPU
	cpu  int64
}

func (h *gpuHost) open(models uint64, l int) bool {
	model := map[string]int{"a": 1, "b": 2}[h.GPUs[l].Model]
	return models == 0 || models>>model&1 != 0
}

// fragmentation is the measure of the paper, word by word.
func (h *gpuHost) fragmentation(mix []policy.Class) float64 {
	expected := 0.0
	for _, m := range mix {
		all, small, enough := int64(0), int64(0), int32(0)
		for l, free := range h.free {
			all += free
			if free >= int64(m.Share) && free > 0 && h.open(m.Models, l) {
				enough++
			} else {
				small += free
			}
		}
		if m.Devices == 0 || enough < m.Devices || int64(m.Needs[0]) > h.cpu {
			small = all
		}
		expected += m.Weight * float64(small)
	}
	return expected
}

// bestOf is the best score of a task on a host, and the device that gives it.
func (h *gpuHost) bestOf(r *policytest.Request, mix []policy.Class) (score, device int) {
	before := h.fragmentation(mix)
	score, device = -1, -1
	h.cpu -= r.CPU
	for l := range h.free {
		if h.free[l] < r.GPU {
			continue
		}
		h.free[l] -= r.GPU
		s := int(math.Floor(100 / (1 + math.Exp((h.fragmentation(mix)-before)/1000))))
		h.free[l] += r.GPU
		if s > score || s == score && h.free[l] < h.free[device] {
			score, device = s, l
		}
	}
	h.cpu += r.CPU
	return score, device
}

// leftover is what breaks ties: free GPUs, and free cores as so much of a GPU as the expected work asks for with each, in steps of 8 thousandths, of which there are 8,192.
func (h *gpuHost) leftover(mix []policy.Class) int64 {
	gpu, cpu := int64(0), int64(0)
	for _, m := range mix {
		gpu += int64(m.Weight*(1<<20)) * int64(m.Share) * int64(m.Devices)
		cpu += int64(m.Weight*(1<<20)) * int64(m.Needs[0])
	}
	perCore := int64(1<<20) / 16
	if gpu > 0 && cpu > 0 {
		perCore = min(gpu/(cpu>>20+1), 1<<20)
	}
	sum := int64(0)
	for _, f := range h.free {
		sum += f
	}
	return min((sum+h.cpu*perCore>>20)/8, 8191)
}

// TestFGD holds the policy against the measure of the paper computed naively, task by task. Weights are such that sums are exact.
func TestFGD(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		hosts := drawGPUHosts(rt)
		mix := drawMix(rt)
		r := policytest.Request{Count: rapid.IntRange(1, 12).Draw(rt, "count"), CPU: 500 * rapid.Int64Range(0, 4).Draw(rt, "cpu"), GPU: 125 * rapid.Int64Range(1, 8).Draw(rt, "gpu"), Class: rapid.SampledFrom([]uint64{0, 7}).Draw(rt, "class")}
		p := policytest.Of(t, builtin.FGD())
		p.Mix = mix
		var told []policytest.Host
		for i := range hosts {
			told = append(told, hosts[i].Host)
		}
		got := p.Place(told, r)
		for n := range r.Count {
			best, device, score, left := -1, 0, 0, [2]int64{}
			for i := range hosts {
				h := &hosts[i]
				s, l := h.bestOf(&r, mix)
				if l < 0 || h.cpu < r.CPU {
					continue
				}
				over := [2]int64{policy.WholeDevice, h.leftover(mix)}
				if r.GPU < policy.WholeDevice {
					over[0] = h.free[l] - r.GPU
				}
				if best < 0 || s > score || s == score && slices.Compare(over[:], left[:]) < 0 {
					best, device, score, left = i, l, s, over
				}
			}
			if best < 0 {
				if len(got) != n {
					rt.Fatalf("task %d: got %v, want none", n, got)
				}
				return
			}
			if n >= len(got) || got[n].Host != hosts[best].Name || got[n].Devices != 1<<device {
				rt.Fatalf("task %d of %+v\n%+v\n%+v\ngot %v, want device %d of %s for %d", n, r, hosts, mix, got, device, hosts[best].Name, score)
			}
			hosts[best].cpu -= r.CPU
			hosts[best].free[device] -= r.GPU
		}
	})
}

func drawGPUHosts(t *rapid.T) []gpuHost {
	hosts := make([]gpuHost, rapid.IntRange(1, 12).Draw(t, "hosts"))
	for i := range hosts {
		h := &hosts[i]
		h.cpu = 500 * rapid.Int64Range(0, 16).Draw(t, "cpu")
		h.Host = policytest.Host{Name: fmt.Sprint("h", i), Total: policytest.Amounts{CPU: h.cpu}}
		for range rapid.IntRange(0, 4).Draw(t, "gpus") {
			g := policytest.GPU{Model: rapid.SampledFrom([]string{"a", "b"}).Draw(t, "model"), Used: 125 * rapid.Int64Range(0, 8).Draw(t, "used")}
			if len(h.GPUs) > 0 {
				g.Model = h.GPUs[0].Model
			}
			h.GPUs, h.free = append(h.GPUs, g), append(h.free, 1000-g.Used)
		}
	}
	for i := range hosts { // models are numbered by their first host
		if g := hosts[i].GPUs; len(g) > 0 {
			if g[0].Model == "b" {
				for n := range hosts {
					for l := range hosts[n].GPUs {
						hosts[n].GPUs[l].Model = map[string]string{"a": "b", "b": "a"}[hosts[n].GPUs[l].Model]
					}
				}
			}
			break
		}
	}
	return hosts
}

func drawMix(t *rapid.T) []policy.Class {
	var mix []policy.Class
	left := 64
	for i := range rapid.IntRange(0, 6).Draw(t, "classes") {
		part := rapid.IntRange(0, left).Draw(t, "part")
		left -= part
		c := policy.Class{ID: uint64(i + 1), Weight: float64(part) / 64, Needs: [4]int32{int32(500 * rapid.IntRange(0, 6).Draw(t, "cpu"))}}
		if gpu := rapid.IntRange(0, 10).Draw(t, "gpu"); gpu > 8 {
			c.Share, c.Devices = 1000, int32(gpu-7)
		} else if gpu > 0 {
			c.Share, c.Devices = int32(125*gpu), 1
		}
		c.Models = rapid.SampledFrom([]uint64{0, 0, 2, 4, 6}).Draw(t, "models")
		mix = append(mix, c)
	}
	return mix
}

// TestFGDWholeDevices: a task of two GPUs leaves the host alone that the expected work of four wants.
func TestFGDWholeDevices(t *testing.T) {
	p := policytest.Of(t, builtin.FGD())
	p.Mix = []policy.Class{{ID: 1, Weight: 1, Share: 1000, Devices: 4}}
	gpus := func(n int) []policytest.GPU { return make([]policytest.GPU, n) }
	got := p.Place([]policytest.Host{{Name: "four", GPUs: gpus(4)}, {Name: "three", GPUs: gpus(3)}}, policytest.Request{GPU: 2000})
	if policytest.Names(got) != "three" || got[0].Devices != 0b11 {
		t.Error(got)
	}
}
