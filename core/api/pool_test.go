package api_test

import (
	"slices"
	"testing"

	"connectrpc.com/connect"

	pacelinev1 "github.com/paceline-sched/paceline/sdk/gen/paceline/v1"
)

func TestMovePool(t *testing.T) {
	c := newTestCell(t, 8)
	root, ads := c.as(adminToken), c.as(adsToken)
	for _, pool := range []string{
		`{path: /org, reservation: {cpu_milli: 4000}}`, `{path: /org/x, reservation: {cpu_milli: 2000}}`, `{path: /team}`, `{path: /ads}`, `{path: /tight, limit: {cpu_milli: 10}}`,
	} {
		if _, err := c.apply(root, pool); err != nil {
			t.Fatal(err)
		}
	}
	job, err := c.create(root, "name: a\npool: /org/x\nowner: ann\ninstances: 2\nbatch: {}\ntask: {command: [x], resources: {cpu_milli: 500}}")
	if err != nil {
		t.Fatal(err)
	}
	c.eventually("the job holds room", func() bool {
		pool, err := root.Pools.GetPool(t.Context(), connect.NewRequest(&pacelinev1.GetPoolRequest{Pool: "/org/x"}))
		p := pool.Msg.GetPool()
		return err == nil && p.GetUsage().GetCpuMilli() == 1000 && len(p.GetOwners()) == 1 && p.GetOwners()[0].GetOwner() == "ann" &&
			len(p.GetClusters()) == 1 && p.GetClusters()[0].GetUsage().GetCpuMilli() == 1000 && p.GetClusters()[0].GetCapacity().GetCpuMilli() == 10_000
	})
	move := func(pool, to string, version uint64) (*pacelinev1.Pool, error) {
		answer, err := root.Pools.MovePool(t.Context(), connect.NewRequest(&pacelinev1.MovePoolRequest{Pool: pool, NewPath: to, ExpectedVersion: version}))
		if err != nil {
			return nil, err
		}
		return answer.Msg.GetPool(), nil
	}
	_, err = move("/org/x", "/team/y", 1)
	c.want("below a pool that can guarantee less", err, connect.CodeFailedPrecondition, "raise its reservation")
	moved, err := move("/org/x", "/y", 1)
	if err != nil || moved.GetSpec().GetPath() != "/y" || moved.GetVersion() != 2 || moved.GetUsage().GetCpuMilli() != 1000 {
		t.Fatalf("moved: %v, %v", moved, err)
	}
	if found, err := c.get(root, job.GetId()); err != nil || found.GetSummary().GetPool() != "/y" {
		t.Errorf("the job is in %v, %v", found.GetSummary().GetPool(), err)
	}
	list, err := root.Jobs.ListJobs(t.Context(), connect.NewRequest(&pacelinev1.ListJobsRequest{Pool: "/y"}))
	if err != nil || len(list.Msg.GetJobs()) != 1 || list.Msg.GetJobs()[0].GetId() != job.GetId() {
		t.Errorf("jobs under the new path: %v, %v", list, err)
	}
	if renamed, err := move(moved.GetId(), "/z", 0); err != nil || renamed.GetSpec().GetPath() != "/z" || renamed.GetParentId() != moved.GetParentId() {
		t.Errorf("renamed: %v, %v", renamed, err)
	}
	_, err = move("/z", "/team", 0)
	c.want("onto another pool", err, connect.CodeAlreadyExists, "/team")
	_, err = move("/z", "/q", 1)
	c.want("a stale version", err, connect.CodeAborted, "version 3")
	_, err = move("/nowhere", "/q", 0)
	c.want("nothing", err, connect.CodeNotFound, "/nowhere")
	_, err = move("/", "/q", 0)
	c.want("the root", err, connect.CodeInvalidArgument, "root")
	_, err = move("/z", "/Q", 0)
	c.want("a bad name", err, connect.CodeInvalidArgument, "new_path")
	_, err = ads.Pools.MovePool(t.Context(), connect.NewRequest(&pacelinev1.MovePoolRequest{Pool: "/ads", NewPath: "/ads2"}))
	c.want("without a role", err, connect.CodePermissionDenied, "operator")
}

// TestMovePoolAsksBothParents: who runs one of the two pools above may neither take nor give.
func TestMovePoolAsksBothParents(t *testing.T) {
	c := newTestCell(t, 8)
	root, east := c.as(adminToken), c.as(eastToken)
	for _, pool := range []string{`{path: /east}`, `{path: /east/a}`, `{path: /west}`, `{path: /west/b}`} {
		if _, err := c.apply(root, pool); err != nil {
			t.Fatal(err)
		}
	}
	for _, m := range []struct{ pool, to, denied string }{
		{"/east/a", "/east/a2", ""}, {"/east/a2", "/west/a", "/west"}, {"/west/b", "/east/b", "/west/b"}, {"/east", "/east2", "/"},
	} {
		_, err := east.Pools.MovePool(t.Context(), connect.NewRequest(&pacelinev1.MovePoolRequest{Pool: m.pool, NewPath: m.to}))
		_, planErr := east.Pools.PlanPool(t.Context(), connect.NewRequest(&pacelinev1.PlanPoolRequest{Edits: []*pacelinev1.PoolEdit{
			{Edit: &pacelinev1.PoolEdit_Move{Move: &pacelinev1.MovePoolRequest{Pool: m.pool, NewPath: m.to + "-plan"}}},
		}}))
		if m.denied == "" {
			if err != nil || planErr != nil && connect.CodeOf(planErr) != connect.CodeNotFound {
				t.Errorf("%s to %s: %v; its plan: %v", m.pool, m.to, err, planErr)
			}
			continue
		}
		if code := connect.CodeOf(err); code != connect.CodePermissionDenied && code != connect.CodeNotFound {
			t.Errorf("%s to %s: %v", m.pool, m.to, err)
		}
		if code := connect.CodeOf(planErr); code != connect.CodePermissionDenied && code != connect.CodeNotFound {
			t.Errorf("a plan of %s to %s: %v", m.pool, m.to, planErr)
		}
	}
}

func TestPlanPool(t *testing.T) {
	c := newTestCell(t, 10)
	root := c.as(adminToken)
	for _, pool := range []string{`{path: /a, reservation: {cpu_milli: 2000}}`, `{path: /b}`, `{path: /idle}`} {
		if _, err := c.apply(root, pool); err != nil {
			t.Fatal(err)
		}
	}
	job, err := c.create(root, "name: low\npool: /a\nowner: ann\npriority: -1\ninstances: 4\nbatch: {}\ntask: {command: [x], resources: {cpu_milli: 500}}")
	if err != nil {
		t.Fatal(err)
	}
	c.eventually("the job holds room", func() bool {
		pool, err := root.Pools.GetPool(t.Context(), connect.NewRequest(&pacelinev1.GetPoolRequest{Pool: "/a"}))
		return err == nil && pool.Msg.GetPool().GetUsage().GetCpuMilli() == 2000
	})
	plan := func(edits ...*pacelinev1.PoolEdit) ([]*pacelinev1.PoolEffect, error) {
		answer, err := root.Pools.PlanPool(t.Context(), connect.NewRequest(&pacelinev1.PlanPoolRequest{Edits: edits}))
		if err != nil {
			return nil, err
		}
		return answer.Msg.GetEffects(), nil
	}
	apply := func(yaml string) *pacelinev1.PoolEdit {
		return &pacelinev1.PoolEdit{Edit: &pacelinev1.PoolEdit_Apply{Apply: parseYAML[*pacelinev1.PoolSpec](t, yaml)}}
	}
	remove := func(pool string) *pacelinev1.PoolEdit {
		return &pacelinev1.PoolEdit{Edit: &pacelinev1.PoolEdit_Delete{Delete: &pacelinev1.DeletePoolRequest{Pool: pool}}}
	}
	if effects, err := plan(apply(`{path: /a, reservation: {cpu_milli: 2000}}`)); err != nil || len(effects) != 0 {
		t.Errorf("what is so already: %v, %v", effects, err)
	}
	effects, err := plan(apply(`{path: /a, limit: {cpu_milli: 500}}`), apply(`{path: /c, reservation: {cpu_milli: 6000}, kind: static}`), remove("/idle"))
	if err != nil {
		t.Fatal(err)
	}
	find := func(path string) *pacelinev1.PoolEffect {
		i := slices.IndexFunc(effects, func(e *pacelinev1.PoolEffect) bool { return e.GetPath() == path })
		if i < 0 {
			t.Fatalf("nothing is said of %s: %v", path, effects)
		}
		return effects[i]
	}
	a := find("/a")
	if !a.GetChanged() || a.GetEntitlementAfter().GetCpuMilli() != 500 || a.GetUsage().GetCpuMilli() != 2000 || a.GetOverageAfter().GetCpuMilli() != 1500 ||
		a.GetOverageBefore().GetCpuMilli() != 0 || len(a.GetExposed()) != 1 {
		t.Errorf("the pool that would lose: %v", a)
	} else if j := a.GetExposed()[0]; j.GetJob() != job.GetId() || j.GetName() != "low" || j.GetOwner() != "ann" || j.GetPriority() != -1 || j.GetInstances() != 4 || j.GetUsage().GetCpuMilli() != 2000 {
		t.Errorf("who would make room: %v", j)
	}
	if made := find("/c"); made.GetId() != "" || made.GetOldPath() != "" || !made.GetChanged() || made.GetEntitlementAfter().GetCpuMilli() != 6000 {
		t.Errorf("the new pool: %v", made)
	}
	if gone := find("/idle"); !gone.GetDeleted() || gone.GetId() == "" {
		t.Errorf("the pool that would go: %v", gone)
	}
	if _, err := root.Pools.GetPool(t.Context(), connect.NewRequest(&pacelinev1.GetPoolRequest{Pool: "/idle"})); err != nil {
		t.Errorf("a plan changed something: %v", err)
	}
	_, err = plan(apply(`{path: /d}`), remove("/a"))
	c.want("a pool in use", err, connect.CodeFailedPrecondition, "holds 1 jobs")
	_, err = plan(remove("/nowhere"))
	c.want("no pool", err, connect.CodeNotFound, "/nowhere")
	_, err = plan(remove("/"))
	c.want("the root", err, connect.CodeInvalidArgument, "root")
	_, err = plan()
	c.want("no edits", err, connect.CodeInvalidArgument, "edits")
	_, err = plan(&pacelinev1.PoolEdit{})
	c.want("an empty edit", err, connect.CodeInvalidArgument, "edit")
	if effects, err = plan(apply(`{path: /n}`), remove("/n")); err != nil || len(effects) != 0 {
		t.Errorf("made and removed: %v, %v", effects, err)
	}
}
