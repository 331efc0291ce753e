package scheduler_test

import (
	"testing"

	"github.com/paceline-sched/paceline/core/cluster"
	"github.com/paceline-sched/paceline/core/scheduler"
	"github.com/paceline-sched/paceline/core/shard"
)

// TestAClusterThatComesBackIsAnotherOne: what a shard said before its cluster was removed counts for nothing when the cluster is added again.
func TestAClusterThatComesBackIsAnotherOne(t *testing.T) {
	t.Parallel()
	state, _, err := scheduler.Start(scheduler.Config{Cell: "test"}, scheduler.NewImage(), 1, slowDiskStart)
	if err != nil {
		t.Fatal(err)
	}
	spec := cluster.Spec{Name: "east", Mesos: &cluster.Mesos{Masters: []string{"http://m:5050"}}}
	attach := func() shard.Epoch {
		state.Step(slowDiskStart, []scheduler.Event{scheduler.Call{Token: 1, Command: scheduler.AddCluster{Spec: spec}}})
		for _, e := range state.Step(slowDiskStart, []scheduler.Event{scheduler.ShardAttached{Shard: "east/0", Cluster: "east"}}).Internal {
			if to, ok := e.(scheduler.ToShard); ok {
				if a, ok := to.Message.(shard.Assign); ok {
					return a.Epoch
				}
			}
		}
		t.Fatal("the shard was not assigned")
		return shard.Epoch{}
	}
	attach()
	before := attach()
	state.Step(slowDiskStart, []scheduler.Event{scheduler.Call{Token: 2, Command: scheduler.RemoveCluster{Name: "east"}}})
	if len(state.Reader().Clusters()) != 0 {
		t.Fatal("the cluster was not removed")
	}
	if after := attach(); after.Shard <= before.Shard {
		t.Fatalf("the shard was assigned under %v, and after its return under %v", before, after)
	}
	state.Step(slowDiskStart, []scheduler.Event{scheduler.ShardReplied{Shard: "east/0", Epoch: before, Reply: shard.Ready{}}})
	if c := state.Reader().Clusters(); c[0].Shards[0].Ready {
		t.Error("a word from before its removal made the cluster ready")
	}
}
