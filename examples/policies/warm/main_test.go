package main

import (
	"testing"

	"github.com/paceline-sched/paceline/sdk/policy/policytest"
)

func TestIdleHostsStayIdle(t *testing.T) {
	room := policytest.Amounts{CPU: 8000, Memory: 16384}
	hosts := []policytest.Host{
		{Name: "small and idle", Total: policytest.Amounts{CPU: 2000, Memory: 4096}},
		{Name: "large and in use", Total: room, Used: policytest.Amounts{CPU: 1000, Memory: 1024}, Tasks: 1},
		{Name: "large and idle", Total: room},
	}
	for _, c := range []struct {
		waking float64
		count  int
		want   string
	}{
		{100, 1, "large and in use"},
		{0, 1, "small and idle"},
		{100, 4, "large and in use large and in use large and in use small and idle"},
	} {
		p := policytest.New(t, info, &Warm{Waking: 100})
		p.Set("waking", c.waking)
		if got := policytest.Names(p.Place(hosts, policytest.Request{CPU: 2000, Memory: 2048, Count: c.count})); got != c.want {
			t.Errorf("waking %v: %d tasks go to %q, not %q", c.waking, c.count, got, c.want)
		}
	}
}
