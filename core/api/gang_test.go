package api_test

import (
	"testing"

	"connectrpc.com/connect"

	pacelinev1 "github.com/paceline-sched/paceline/sdk/gen/paceline/v1"
)

// TestGangs: a client sees where a gang stands, and each member its place in it.
func TestGangs(t *testing.T) {
	c := newTestCell(t, 2)
	root := c.as(adminToken)
	if _, err := c.create(root, `{name: a, instances: 5, gang: {min_size: 2}, batch: {}, task: {command: [x], resources: {cpu_milli: 100}}}`); err != nil {
		t.Fatal(err)
	}
	explain := func(job string) *pacelinev1.Explanation {
		answer, err := root.Jobs.ExplainJob(t.Context(), connect.NewRequest(&pacelinev1.ExplainJobRequest{Job: job}))
		if err != nil {
			t.Fatal(err)
		}
		return answer.Msg.GetExplanation()
	}
	c.eventually("two members are there", func() bool {
		gangs := explain("a").GetGangs()
		return len(gangs) == 1 && gangs[0].GetName() == "a" && gangs[0].GetGeneration() == 1 && gangs[0].GetPresent() == 2 &&
			gangs[0].GetMinSize() == 2 && gangs[0].GetSize() == 5 && !gangs[0].GetEnding()
	})
	task, err := root.Tasks.GetTask(t.Context(), connect.NewRequest(&pacelinev1.GetTaskRequest{Job: "a", Instance: 1}))
	if g := task.Msg.GetTask().GetGang(); err != nil || g.GetRank() != 1 || g.GetGang().GetPresent() != 2 {
		t.Errorf("member 1 is told %v, %v", g, err)
	}
	const tight = `{name: b, instances: 3, gang: {topology: {key: host, required: true}}, batch: {}, task: {command: [x]}}`
	if _, err := c.create(root, tight); err != nil {
		t.Fatal(err)
	}
	if job, err := c.get(root, "b"); err != nil || !job.GetSpec().GetGang().GetTopology().GetRequired() {
		t.Errorf("its topology comes back as %v, %v", job.GetSpec().GetGang(), err)
	}
}
