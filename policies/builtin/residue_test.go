package builtin_test

import (
	"testing"

	"github.com/paceline-sched/paceline/policies/builtin"
	"github.com/paceline-sched/paceline/sdk/policy"
	"github.com/paceline-sched/paceline/sdk/policy/policytest"
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
