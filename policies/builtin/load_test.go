package builtin_test

import (
	"testing"

	"github.com/paceline-sched/paceline/policies/builtin"
	"github.com/paceline-sched/paceline/sdk/policy/policytest"
)

func TestLoadAware(t *testing.T) {
	size := policytest.Amounts{CPU: 8000, Memory: 8000}
	hosts := []policytest.Host{
		{Name: "idle", Total: size, Used: policytest.Amounts{CPU: 6000}, Usage: policytest.Amounts{CPU: 1000}}, // with the task 0.3 * 7000 + 0.7 * 1000
		{Name: "busy", Total: size, Used: policytest.Amounts{CPU: 1000}, Usage: policytest.Amounts{CPU: 5000}},
		{Name: "even", Total: size, Used: policytest.Amounts{CPU: 2000}, Usage: policytest.Amounts{CPU: 3000}},
	}
	r := policytest.Request{CPU: 1000, Count: 3}
	p := policytest.Of(t, builtin.LoadAware())
	if got := policytest.Names(p.Place(hosts, r)); got != "idle even idle" {
		t.Error(got)
	}
	p.Set("requested", 0) // whatever is placed, usage alone counts
	if got := policytest.Names(p.Place(hosts, r)); got != "idle idle even" {
		t.Error(got)
	}
	p.Set("requested", 100)
	if got := policytest.Names(p.Place(hosts, r)); got != "busy busy even" {
		t.Error(got)
	}
	p.Set("requested", 101)
	if _, err := p.TryPlace(hosts, r); err == nil {
		t.Error("101 percent")
	}
}

// TestLoadAwareHot: a host that is hot in one kind goes last, however little it has to do otherwise.
func TestLoadAwareHot(t *testing.T) {
	size := policytest.Amounts{CPU: 1000, Memory: 1000}
	hosts := []policytest.Host{
		{Name: "hot", Total: size, Usage: policytest.Amounts{CPU: 0, Memory: 950}},
		{Name: "warm", Total: size, Usage: policytest.Amounts{CPU: 700, Memory: 700}},
	}
	p := policytest.Of(t, builtin.LoadAware())
	p.Set("requested", 0)
	if got := policytest.Names(p.Place(hosts, policytest.Request{CPU: 10})); got != "warm" {
		t.Error(got)
	}
	p.Set("hot", 100)
	if got := policytest.Names(p.Place(hosts, policytest.Request{CPU: 10})); got != "hot" {
		t.Error(got)
	}
}
