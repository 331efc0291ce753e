package api_test

import (
	"strings"
	"testing"

	"connectrpc.com/connect"

	pacelinev1 "github.com/paceline-sched/paceline/sdk/gen/paceline/v1"
)

// A job or a pool that names a policy which does not place is refused, with those that do.
func TestUnknownPolicies(t *testing.T) {
	c := newTestCell(t, 1)
	root := c.as(adminToken)
	const job = "name: a\npool: /ads\nbatch: {}\ntask: {command: [x]}\nplacement: {strategy: tightest}"
	if _, err := c.apply(root, `{path: /ads, placement_policy: pack}`); err != nil {
		t.Fatal(err)
	}
	_, err := c.create(root, job)
	c.want("a job", err, connect.CodeInvalidArgument, "best-fit, pack, spread")
	_, err = root.Jobs.PlanJob(t.Context(), connect.NewRequest(&pacelinev1.PlanJobRequest{Spec: parseYAML[*pacelinev1.JobSpec](t, job)}))
	c.want("a plan", err, connect.CodeInvalidArgument, `"tightest"`)
	_, err = c.apply(root, `{path: /ads, placement_policy: tightest}`)
	c.want("a pool", err, connect.CodeInvalidArgument, "best-fit, pack, spread")
	if _, err := c.create(root, strings.Replace(job, "tightest", "spread", 1)); err != nil {
		t.Fatal(err)
	}
	pool, err := root.Pools.GetPool(t.Context(), connect.NewRequest(&pacelinev1.GetPoolRequest{Pool: "/ads"}))
	if err != nil || pool.Msg.GetPool().GetSpec().GetPlacementPolicy() != "pack" {
		t.Errorf("the pool is %v, %v", pool, err)
	}
}
