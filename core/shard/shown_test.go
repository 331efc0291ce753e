package shard_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/paceline-sched/paceline/core/driver"
	"github.com/paceline-sched/paceline/core/shard"
)

// TestWhatIsShownOfAHostIsBounded: a driver that says too much is cut short, and saying it again changes nothing.
func TestWhatIsShownOfAHostIsBounded(t *testing.T) {
	t.Parallel()
	m, err := shard.New(shard.Config{ID: "c/0", Cluster: "c"})
	if err != nil {
		t.Fatal(err)
	}
	long := strings.Repeat("é", driver.MaxDetailValue)
	a := driver.Host{Name: "a", ID: long, Ready: true, Details: map[string]string{long: "left out"}}
	for n := range driver.MaxDetails + 1 {
		a.Details[fmt.Sprintf("detail-%02d", n)] = long
	}
	var out shard.Output
	for n, message := range []shard.Message{
		shard.InventoryArrived{Inventory: driver.Inventory{Hosts: []driver.Host{a}}},
		shard.Assign{Epoch: shard.Epoch{Cell: 1, Shard: 1}},
		shard.Replay{Epoch: shard.Epoch{Cell: 1, Shard: 1}, Done: true},
		shard.HostsUpdated{Changed: []driver.Host{a}},
	} {
		m.Handle(1, message, &out)
		told := 0
		for _, r := range out.Replies {
			if r, ok := r.(shard.Hosts); ok {
				for i := range r.Changed {
					checkShown(t, &r.Changed[i])
					told++
				}
			}
		}
		if want := n == 2; want != (told == 1) {
			t.Errorf("after message %d %d hosts are told", n, told)
		}
	}
}

func checkShown(t *testing.T, h *shard.HostSummary) {
	t.Helper()
	if len(h.ClusterID) > driver.MaxHostID || !strings.HasSuffix(h.ClusterID, "é...") || len(h.Details) != driver.MaxDetails {
		t.Errorf("%d bytes of an id, %d details", len(h.ClusterID), len(h.Details))
	}
	for name, value := range h.Details {
		if len(name) > driver.MaxDetailName || len(value) > driver.MaxDetailValue || !strings.HasSuffix(value, "é...") {
			t.Errorf("detail %.20q has %d bytes", name, len(value))
		}
	}
}
