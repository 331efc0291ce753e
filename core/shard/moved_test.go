package shard_test

import (
	"slices"
	"testing"

	"github.com/paceline-sched/paceline/core/driver"
	"github.com/paceline-sched/paceline/core/placement"
	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/shard"
	"github.com/paceline-sched/paceline/core/workload"
)

// TestAHostThatCameBackIsNotElsewhere: of the runs on a host that went to another shard, came back and left the cluster, this shard has to speak.
func TestAHostThatCameBackIsNotElsewhere(t *testing.T) {
	t.Parallel()
	m, err := shard.New(shard.Config{ID: "c/0", Cluster: "c"})
	if err != nil {
		t.Fatal(err)
	}
	a := driver.Host{Name: "a", Capacity: map[string]int64{"cpu_milli": 1000}, Ready: true}
	run := workload.RunID{Job: workload.JobID{1}, Run: 1}
	bound := shard.BoundRun{
		Run: run, Host: shard.HostID("c", "a"), State: workload.RunRunning,
		Class: placement.NewClass(run.Job, &workload.JobSpec{Template: workload.TaskTemplate{Needs: resource.Vector{resource.CPU: 1000}}}, nil),
	}
	epoch := shard.Epoch{Cell: 1, Shard: 1}
	var missing []workload.RunID
	var out shard.Output
	for _, message := range []shard.Message{
		shard.InventoryArrived{Inventory: driver.Inventory{Hosts: []driver.Host{a}}},
		shard.HostsMoved{Hosts: []string{"a"}},
		shard.HostsUpdated{Changed: []driver.Host{a}},
		shard.HostsUpdated{Removed: []string{"a"}},
		shard.Assign{Epoch: epoch},
		shard.Replay{Epoch: epoch, Bound: []shard.BoundRun{bound}, Done: true},
	} {
		m.Handle(1, message, &out)
		for _, r := range out.Replies {
			if r, ok := r.(shard.RunsMissing); ok {
				missing = append(missing, r.Runs...)
			}
		}
	}
	if !slices.Equal(missing, []workload.RunID{run}) {
		t.Errorf("missing are %v, want %v", missing, run)
	}
}
