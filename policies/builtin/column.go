package builtin

import "github.com/paceline-sched/paceline/sdk/policy"

type bestFit struct{}

// BestFit places where the least is left over, measured by the largest host.
func BestFit() *policy.Program { return program(policy.Info{Name: "best-fit"}, &bestFit{}) }

func (*bestFit) Order() (string, bool) { return "leftover", false }

type pack struct{}

// Pack fills the fullest host first, measured by the host itself.
func Pack() *policy.Program { return program(policy.Info{Name: "pack"}, &pack{}) }

func (*pack) Order() (string, bool) { return "free_share", false }

type spread struct{}

// Spread takes the emptiest host first, and the emptiest device.
func Spread() *policy.Program { return program(policy.Info{Name: "spread"}, &spread{}) }

func (*spread) Order() (string, bool) { return "free_share", true }

// Devices gives shares to the device with the most free, and whole devices in order.
func (*spread) Devices(r *policy.Request, h policy.Host, open policy.Devices) policy.Devices {
	if n, share := r.Devices(); n == 1 && share < policy.WholeDevice {
		return h.MostFree(open)
	}
	return policy.InOrder(r, open)
}
