// Command warm is a policy of placement: hosts that run something are filled before idle ones are woken, which may then be switched off.
package main

import "github.com/paceline-sched/paceline/sdk/policy"

// Warm is best fit with a surcharge for idle hosts.
type Warm struct {
	// Waking is what waking a host costs, in hundredths of the scale of costs: 100 wakes none while another has room, 0 is best fit.
	Waking float64 `policy:"waking"`
}

// Cost implements policy.Scorer.
func (w *Warm) Cost(_ *policy.Request, h policy.Host) int64 {
	cost := h.Leftover()
	if h.Tasks() == 0 {
		cost += int64(w.Waking * policy.Point)
	}
	return cost
}

var info = policy.Info{Name: "warm", Version: "1.0.0", Columns: []string{"leftover", "tasks"}}

func init() { policy.Register(info, &Warm{Waking: 100}) }

func main() {}
