package scenarios

import (
	"testing"

	"github.com/paceline-sched/paceline/core/driver"
	"github.com/paceline-sched/paceline/core/shard"
	"github.com/paceline-sched/paceline/core/workload"
)

// TestStaleMembersNeverCount: a word of a member of a former generation is answered with a kill, and changes nothing.
func TestStaleMembersNeverCount(t *testing.T) {
	w := newWorld(t)
	for _, line := range [][]string{
		{"cluster", "c", "a=1000"},
		{"run", "ring", "n=3", "gang", "min=2", "retries=5"},
		{"finish", "ring/0", "exit=1"},
		{"finish", "ring/1", "exit=1"},
		{"advance", "30s"},
	} {
		w.command(line)
	}
	before := w.showTasks("ring")
	c, id := w.clusters["c"], w.job("ring").ID
	if now, _ := w.state.Reader().Task(id, 1); now.Generation != 2 || now.RunState != workload.RunRunning {
		t.Fatalf("it should be in its second life:\n%s", before)
	}
	kills := c.kills
	for _, state := range []workload.RunState{workload.RunRunning, workload.RunSucceeded, workload.RunFailed} {
		stale := driver.Status{Run: workload.RunID{Job: id, Instance: 1, Generation: 1, Run: 1}, Host: "a", State: state, Token: 1000 + driver.Token(state)}
		c.runs[stale.Run].acked = false
		c.inbox = append(c.inbox, shard.StatusesArrived{Statuses: []driver.Status{stale}})
		w.settle()
	}
	if c.kills != kills+1 {
		t.Errorf("%d kills for one member that lives", c.kills-kills)
	}
	if after := w.showTasks("ring"); after != before {
		t.Errorf("a former life shows:\n%s\nbefore:\n%s", after, before)
	}
}

// TestWarnsOfMissingTopology: nobody can stay within one value of an attribute that no host has.
func TestWarnsOfMissingTopology(t *testing.T) {
	w := newWorld(t)
	w.command([]string{"cluster", "c", "r1.a=1000"})
	for key, warned := range map[string]int{"rack": 0, "zone": 1, workload.TopologyHost: 0, workload.TopologyCluster: 0} {
		w.command([]string{"run", key, "n=2", "gang", "topology=" + key + "!"})
		if got := w.answers[0].Warnings; len(got) != warned {
			t.Errorf("a gang within one %s: %q", key, got)
		}
	}
}
