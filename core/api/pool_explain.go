package api

import (
	"context"
	"errors"
	"fmt"

	"connectrpc.com/connect"

	"github.com/paceline-sched/paceline/core/api/auth"
	"github.com/paceline-sched/paceline/core/api/spec"
	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/scheduler"
	"github.com/paceline-sched/paceline/core/workload"
	pacelinev1 "github.com/paceline-sched/paceline/sdk/gen/paceline/v1"
)

// What is listed where a request does not say.
const (
	defaultGroups   = 20
	defaultRemedied = 3
)

func (s *poolService) ExplainPool(ctx context.Context, request *connect.Request[pacelinev1.ExplainPoolRequest]) (*connect.Response[pacelinev1.ExplainPoolResponse], error) {
	in := request.Msg
	a := accessOf(ctx)
	var why scheduler.PoolsExplanation
	var names *resource.Names
	var refused error
	root := auth.Root
	err := s.cell.engine.Read(ctx, func(r scheduler.Reader) {
		if !isRoot(in.GetPool()) && in.GetPool() != "" {
			top, ok := findPool(r, in.GetPool())
			if !ok || !a.principal.Allows(a.rule.role, top.Path) {
				refused = missingPool(in.GetPool())
				return
			}
			root = top.Path
		}
		var pools []workload.PoolID
		for _, p := range r.Pools(root) {
			if a.principal.Allows(a.rule.role, p.Path) {
				pools = append(pools, p.Pool.ID)
			}
		}
		why, names = r.ExplainPools(pools, pageSize(int32(in.GetMaxGroups()), defaultGroups)), r.Names()
	})
	if err = errors.Join(err, refused); err != nil {
		return nil, err
	}
	out := poolsExplanationToWire(&why, names)
	out.Pool = root
	remedied := defaultRemedied
	if in.MaxRemedied != nil {
		remedied = int(in.GetMaxRemedied())
	}
	if err := s.remedy(ctx, out.GetGroups(), names, remedied); err != nil {
		return nil, err
	}
	return connect.NewResponse(&pacelinev1.ExplainPoolResponse{Explanation: out}), nil
}

// remedy asks what would let the examples of the largest groups start, all within one bound of time.
func (s *poolService) remedy(ctx context.Context, groups []*pacelinev1.WaitingGroup, names *resource.Names, most int) error {
	bounded, cancel := context.WithTimeout(ctx, scheduler.PlanTimeout)
	defer cancel()
	for _, g := range groups[:min(len(groups), most)] {
		id, err := workload.ParseID(g.GetExampleJobId())
		if err != nil {
			return err
		}
		answer, err := s.cell.do(bounded, scheduler.ExplainJob{Job: workload.JobID(id)})
		gone := (*scheduler.Error)(nil)
		switch {
		case err == nil:
			describeGroup(g, explanationToWire(answer.Why, names))
		case errors.As(err, &gone) && gone.Kind == scheduler.NotFound: // it was erased meanwhile
		case errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil:
			g.Notes = append(g.Notes, fmt.Sprintf("a cluster did not answer within %v, so what would let it start is not told", scheduler.PlanTimeout))
			return nil
		default:
			return err
		}
	}
	return nil
}

// describeGroup takes over what is known of a group's example, if its tasks still wait for that reason before all.
func describeGroup(g *pacelinev1.WaitingGroup, e *pacelinev1.Explanation) {
	for _, r := range e.GetReasons() {
		if r.GetReason() == g.GetReason() {
			g.Message = r.GetMessage()
			break
		}
	}
	if e.GetDominant() == g.GetReason() {
		g.Remedies, g.Estimate, g.Notes = e.GetRemedies(), e.GetEstimate(), e.GetNotes()
	}
}

func poolsExplanationToWire(e *scheduler.PoolsExplanation, names *resource.Names) *pacelinev1.PoolExplanation {
	out := &pacelinev1.PoolExplanation{
		Tasks: uint64(max(e.Tasks, 0)), Jobs: count(e.Jobs), MoreGroups: count(e.MoreRows), MoreTasks: uint64(max(e.MoreTasks, 0)), MoreHeads: count(e.MoreHeads),
	}
	for i := range e.Reasons {
		r := &e.Reasons[i]
		out.Reasons = append(out.Reasons, &pacelinev1.WaitingReason{
			Reason: pendingToWire(r.Kind), Tasks: uint64(max(r.Tasks, 0)), Jobs: count(r.Jobs), Groups: count(r.Classes), SinceTime: timeToWire(r.Since),
		})
	}
	for i := range e.Rows {
		w := &e.Rows[i]
		c := &w.Class
		class := &pacelinev1.TaskClass{Mixed: true}
		if !c.Mixed {
			class = &pacelinev1.TaskClass{
				Needs: spec.FromVector(c.Needs, names), Restrictions: c.Restrictions, GangSize: c.Gang, GangMinSize: c.GangMin, Revocable: c.Revocable,
				NonPreemptible: c.NonPreemptible, Controller: c.Direct,
			}
		}
		out.Groups = append(out.Groups, &pacelinev1.WaitingGroup{
			Reason: pendingToWire(w.Kind), Pool: w.Pool, Class: class, Tasks: uint64(max(w.Tasks, 0)), Jobs: count(w.Jobs),
			ExampleJobId: w.Example.String(), ExampleJob: w.Name, SinceTime: timeToWire(w.Since),
		})
	}
	for i := range e.Heads {
		h := &e.Heads[i]
		out.Heads = append(out.Heads, &pacelinev1.QueueHead{
			Pool: h.Pool, Revocable: h.Revocable, JobId: h.Job.String(), Job: h.Name, QueueLength: count(h.Queued), Pending: pendingReasonToWire(&h.Reason),
			SinceTime: timeToWire(h.Since),
		})
	}
	return out
}
