package builtin_test

import (
	"fmt"
	"testing"

	"github.com/paceline-sched/paceline/policies/builtin"
	"github.com/paceline-sched/paceline/sdk/policy"
	"github.com/paceline-sched/paceline/sdk/policy/policytest"
)

func cpu(n int64) policytest.Amounts { return policytest.Amounts{CPU: n} }

// shares are the CPU that pools are entitled to, in the order of the pools.
func shares(t *testing.T, program *policy.Program, capacity int64, pools ...policytest.Pool) string {
	t.Helper()
	got := policytest.Of(t, program).Entitle(cpu(capacity), pools...)
	var list []int64
	for i := range pools {
		list = append(list, got[pools[i].Name].CPU)
	}
	return fmt.Sprint(list)
}

func pool(name string, reservation, demand, share int64) policytest.Pool {
	return policytest.Pool{Name: name, Reservation: cpu(reservation), Demand: cpu(demand), Share: share}
}

func TestQuotas(t *testing.T) {
	limited := pool("a", 0, 100, 1)
	limit := cpu(30)
	limited.Limit = &limit
	child := func(name, parent string, reservation, demand int64) policytest.Pool {
		p := pool(name, reservation, demand, 1)
		p.Parent = parent
		return p
	}
	for _, c := range []struct {
		name    string
		program *policy.Program
		pools   []policytest.Pool
		want    string
	}{
		{"max-min: who wants little gets it", builtin.MaxMin(), []policytest.Pool{pool("a", 20, 10, 1), pool("b", 20, 80, 1), pool("c", 20, 80, 1)}, "[10 45 45]"},
		{"max-min: a third each, rounded", builtin.MaxMin(), []policytest.Pool{pool("a", 20, 50, 1), pool("b", 20, 80, 1), pool("c", 20, 80, 1)}, "[34 33 33]"},
		{"max-min: the surplus is shared, not the whole", builtin.MaxMin(), []policytest.Pool{pool("a", 60, 100, 1), pool("b", 0, 100, 1)}, "[80 20]"},
		{"max-min: by share", builtin.MaxMin(), []policytest.Pool{pool("a", 0, 100, 3), pool("b", 0, 100, 1)}, "[75 25]"},
		{"max-min: what nobody wants", builtin.MaxMin(), []policytest.Pool{limited, pool("b", 0, 20, 1)}, "[30 70]"},
		{"max-min: no share, no more than is guaranteed", builtin.MaxMin(), []policytest.Pool{pool("a", 10, 10, 0), pool("b", 0, 100, 1)}, "[10 90]"},
		{"max-min: level by level", builtin.MaxMin(), []policytest.Pool{
			pool("a", 0, 200, 1), pool("b", 0, 200, 1), child("a1", "a", 10, 100), child("a2", "a", 0, 100), child("b1", "b", 0, 200),
		}, "[50 50 30 20 50]"},
		{"static: idle or not", builtin.Static(), []policytest.Pool{pool("a", 60, 0, 1), pool("b", 10, 100, 1)}, "[60 10]"},
		{"bands: the highest first", builtin.Bands(), []policytest.Pool{pool("a", 0, 100, 1), pool("b", 0, 70, 9), pool("c", 10, 100, 5)}, "[0 70 30]"},
		{"bands: alike in a band", builtin.Bands(), []policytest.Pool{pool("a", 0, 100, 9), pool("b", 0, 30, 9), pool("c", 5, 100, 5)}, "[65 30 5]"},
		{"bands: what nobody wants", builtin.Bands(), []policytest.Pool{pool("a", 0, 10, 3), pool("b", 0, 10, 1)}, "[70 30]"},
		{"drf: one kind is max-min", builtin.DRF(), []policytest.Pool{pool("a", 60, 100, 1), pool("b", 0, 100, 1)}, "[80 20]"},
	} {
		if got := shares(t, c.program, 100, c.pools...); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}

// TestDRF is the example of the paper: of 9 cores and 18 GB, tasks of one pool take 1 core and 4 GB, of the other 3 cores and 1 GB. Three and two of them run.
func TestDRF(t *testing.T) {
	wants := func(name string, cpu, memory, tasks int64) policytest.Pool {
		return policytest.Pool{Name: name, Demand: policytest.Amounts{CPU: cpu * tasks, Memory: memory * tasks}, Share: 1, Limit: &policytest.Amounts{CPU: cpu * tasks, Memory: memory * tasks}}
	}
	p := policytest.Of(t, builtin.DRF())
	a, b := wants("a", 1000, 4096, 1000), wants("b", 3000, 1024, 1000)
	got := p.Entitle(policytest.Amounts{CPU: 9000, Memory: 18 * 1024}, a, b)
	near := func(got, want int64) bool { return got >= want-2 && got <= want+2 }
	if !near(got["a"].CPU, 3000) || got["a"].Memory < 12*1024-2 || !near(got["b"].CPU, 6000) {
		t.Errorf("%+v", got)
	}
	// Twice the weight of a: memory runs out at a dominant share of 6/13 for b and twice that for a, and the cores that are left go two to one.
	a.Share = 2
	got = p.Entitle(policytest.Amounts{CPU: 9000, Memory: 18 * 1024}, a, b)
	if !near(got["a"].CPU, 9000*6/13+692*2/3) || !near(got["b"].CPU, 9000*6/13+692/3) || !near(got["a"].Memory, 18*1024*12/13) {
		t.Errorf("%+v", got)
	}
	// Whoever wants nothing of what has run out goes on.
	c := policytest.Pool{Name: "c", Demand: policytest.Amounts{Disk: 50}, Share: 1}
	a.Share = 1
	if got = p.Entitle(policytest.Amounts{CPU: 9000, Memory: 18 * 1024, Disk: 100}, a, b, c); got["c"].Disk != 100 || !near(got["a"].CPU, 3000) {
		t.Errorf("%+v", got)
	}
}
