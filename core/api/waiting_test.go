package api_test

import (
	"strings"
	"testing"

	"connectrpc.com/connect"

	"github.com/paceline-sched/paceline/core/scheduler"
	pacelinev1 "github.com/paceline-sched/paceline/sdk/gen/paceline/v1"
)

func TestExplainPool(t *testing.T) {
	c := newTestCell(t, 8)
	root := c.as(adminToken)
	for _, pool := range []string{`{path: /ads, limit: {cpu_milli: 1000}}`, `{path: /web}`, `{path: /web/a}`} {
		if _, err := c.apply(root, pool); err != nil {
			t.Fatal(err)
		}
	}
	for _, job := range []string{
		"name: fill\npool: /ads\ninstances: 5\nbatch: {}\ntask: {command: [x], resources: {cpu_milli: 400}}",
		"name: more\npool: /ads\ninstances: 2\nbatch: {}\ntask: {command: [x], resources: {cpu_milli: 400}}",
		"name: huge\npool: /web/a\ninstances: 3\nbatch: {}\ntask: {command: [x], resources: {cpu_milli: 500000}}",
	} {
		if _, err := c.create(root, job); err != nil {
			t.Fatal(err)
		}
	}
	explain := func(token, pool string, groups, remedied uint32) (*pacelinev1.PoolExplanation, error) {
		answer, err := c.as(token).Pools.ExplainPool(t.Context(), connect.NewRequest(&pacelinev1.ExplainPoolRequest{
			Pool: pool, MaxGroups: groups, MaxRemedied: &remedied,
		}))
		if err != nil {
			return nil, err
		}
		return answer.Msg.GetExplanation(), nil
	}
	var e *pacelinev1.PoolExplanation
	c.eventually("two of five run", func() bool {
		var err error
		e, err = explain(adminToken, "/ads", 0, 3)
		return err == nil && e.GetTasks() == 5 && len(e.GetReasons()) == 2
	})
	first := e.GetGroups()[0]
	if first.GetTasks() != 3 || first.GetReason() != pacelinev1.PendingReason_PENDING_REASON_ENTITLEMENT || first.GetExampleJob() != "fill" ||
		first.GetClass().GetNeeds().GetCpuMilli() != 400 || len(first.GetRemedies()) == 0 || first.GetEstimate() == nil {
		t.Errorf("the largest group is %v", first)
	}
	if h := e.GetHeads(); len(h) != 1 || h[0].GetJob() != "fill" || h[0].GetQueueLength() != 2 || !strings.Contains(h[0].GetPending().GetMessage(), "0.4 cores") {
		t.Errorf("heads %v", h)
	}
	if e.GetJobs() != 2 || len(e.GetGroups()) != 2 || e.GetGroups()[1].GetExampleJob() != "more" {
		t.Errorf("%d jobs wait: %v", e.GetJobs(), e.GetGroups())
	}
	whole, err := explain(adminToken, "", 1, 0)
	if err != nil || whole.GetPool() != "/" || whole.GetTasks() != 8 || len(whole.GetGroups()) != 1 || whole.GetMoreGroups() != 2 || whole.GetMoreTasks() != 5 ||
		len(whole.GetGroups()[0].GetRemedies()) > 0 {
		t.Errorf("the cell: %v, %v", whole, err)
	}
	own, err := explain(adsToken, "/", 0, 0)
	if err != nil || own.GetTasks() != 5 {
		t.Errorf("who sees one pool is told of %v, %v", own, err)
	}
	_, err = explain(adsToken, "/web", 0, 0)
	c.want("a pool that one may not see", err, connect.CodeNotFound, `pool "/web" does not exist`)
	_, err = explain(adminToken, "/nowhere", 0, 0)
	c.want("no pool", err, connect.CodeNotFound, `pool "/nowhere" does not exist`)
	_, err = explain(adminToken, "/", 101, 0)
	c.want("too many groups", err, connect.CodeInvalidArgument, "max_groups")
}

// TestReasonsAreLabelled holds metrics' labels against the names in the API.
func TestReasonsAreLabelled(t *testing.T) {
	for number, name := range pacelinev1.PendingReason_name {
		if number == 0 {
			continue
		}
		want := strings.ToLower(strings.ReplaceAll(strings.TrimPrefix(name, "PENDING_REASON_"), "_", "-"))
		if got := scheduler.PendingKind(number).Label(); got != want {
			t.Errorf("%s is labelled %q", name, got)
		}
	}
}
