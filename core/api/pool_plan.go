package api

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"connectrpc.com/connect"

	"github.com/paceline-sched/paceline/core/api/auth"
	"github.com/paceline-sched/paceline/core/api/spec"
	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/respool"
	"github.com/paceline-sched/paceline/core/scheduler"
	"github.com/paceline-sched/paceline/core/workload"
	pacelinev1 "github.com/paceline-sched/paceline/sdk/gen/paceline/v1"
)

func (s *poolService) PlanPool(ctx context.Context, request *connect.Request[pacelinev1.PlanPoolRequest]) (*connect.Response[pacelinev1.PlanPoolResponse], error) {
	names, err := s.names(ctx)
	if err != nil {
		return nil, err
	}
	edits := make([]scheduler.Command, 0, len(request.Msg.GetEdits()))
	for i, in := range request.Msg.GetEdits() {
		edit, err := s.toEdit(ctx, in, fmt.Sprintf("edits[%d]", i), names)
		if err != nil {
			return nil, err
		}
		edits = append(edits, edit)
	}
	var effects []scheduler.PoolEffect
	var refused *scheduler.Error
	caller := callerOf(ctx)
	if err := s.cell.engine.Read(ctx, func(r scheduler.Reader) { effects, refused = r.PlanPools(caller, edits) }); err != nil {
		return nil, err
	}
	if refused != nil {
		return nil, refused
	}
	out := &pacelinev1.PlanPoolResponse{}
	principal := accessOf(ctx).principal
	for i := range effects {
		e := &effects[i]
		if principal.Allows(auth.Viewer, e.Path) && (e.OldPath == "" || principal.Allows(auth.Viewer, e.OldPath)) {
			out.Effects = append(out.Effects, effectToWire(e, names))
		}
	}
	return connect.NewResponse(out), nil
}

// toEdit turns one edit of a plan into the command that it stands for, and asks for the permission that this would need.
func (s *poolService) toEdit(ctx context.Context, in *pacelinev1.PoolEdit, field string, names *resource.Names) (scheduler.Command, error) {
	switch edit := in.GetEdit().(type) {
	case *pacelinev1.PoolEdit_Apply:
		path := edit.Apply.GetPath()
		if err := permit(ctx, spec.ParentPath(path), nil); err != nil {
			return nil, err
		}
		pool, err := spec.ToPool(edit.Apply, field+".apply", names)
		if err != nil {
			return nil, err
		}
		if wrong := s.cell.checkPolicy(field+".apply.placement_policy", pool.PlacementPolicy); wrong != nil {
			return nil, wrong
		}
		return scheduler.ApplyPool{ID: workload.PoolID(newID()), Path: path, Pool: pool}, nil
	case *pacelinev1.PoolEdit_Move:
		path, err := s.planned(ctx, edit.Move.GetPool(), field+".move.pool")
		if err != nil {
			return nil, err
		}
		if err := permit(ctx, spec.ParentPath(edit.Move.GetNewPath()), nil); err != nil {
			return nil, err
		}
		return scheduler.MovePool{Path: path, NewPath: edit.Move.GetNewPath(), ExpectedVersion: edit.Move.GetExpectedVersion()}, nil
	default:
		path, err := s.planned(ctx, in.GetDelete().GetPool(), field+".delete.pool")
		return scheduler.DeletePool{Path: path, ExpectedVersion: in.GetDelete().GetExpectedVersion()}, err
	}
}

// planned finds a pool that the caller may edit. A path without a pool may get one by an earlier edit of the plan.
func (s *poolService) planned(ctx context.Context, ref, field string) (string, error) {
	if isRoot(ref) {
		return "", refuseField(field, "name a pool below it", "the root is the cell itself and cannot be moved or deleted")
	}
	path, err := s.editable(ctx, ref)
	if missing := (*fault)(nil); errors.As(err, &missing) && missing.code == connect.CodeNotFound && strings.HasPrefix(ref, "/") {
		return ref, permit(ctx, spec.ParentPath(ref), missingPool(ref))
	}
	return path, err
}

func effectToWire(e *scheduler.PoolEffect, names *resource.Names) *pacelinev1.PoolEffect {
	out := &pacelinev1.PoolEffect{
		Path: e.Path, OldPath: e.OldPath, Changed: e.Changed, Deleted: e.Deleted,
		EntitlementBefore: spec.FromVector(e.Before, names), EntitlementAfter: spec.FromVector(e.After, names), Usage: spec.FromVector(e.Usage, names),
		OverageBefore: spec.FromVector(e.OverBefore, names), OverageAfter: spec.FromVector(e.OverAfter, names),
	}
	if e.ID != (workload.PoolID{}) {
		out.Id = e.ID.String()
	}
	out.ExposedJobs, out.ExposedRuns = count(e.ExposedJobs), count(e.ExposedRuns)
	for i := range e.Exposed {
		j := &e.Exposed[i]
		out.Exposed = append(out.Exposed, &pacelinev1.ExposedJob{
			Job: j.ID.String(), Name: j.Name, Owner: j.Owner, Priority: j.Priority, Instances: count(j.Instances), Usage: spec.FromVector(j.Usage, names),
			Going: count(j.Going),
		})
	}
	return out
}

func partsToWire(parts []scheduler.ClusterPart, names *resource.Names) []*pacelinev1.PoolCluster {
	out := make([]*pacelinev1.PoolCluster, 0, len(parts))
	for i := range parts {
		c := &parts[i]
		out = append(out, &pacelinev1.PoolCluster{
			Cluster: c.Cluster, Capacity: spec.FromVector(c.Capacity, names), Entitlement: spec.FromVector(c.Entitlement, names),
			Usage: spec.FromVector(c.Usage, names), RevocableUsage: spec.FromVector(c.Revocable, names),
		})
	}
	return out
}

func ownersToWire(owners []scheduler.OwnerUsage, names *resource.Names) []*pacelinev1.PoolOwner {
	out := make([]*pacelinev1.PoolOwner, 0, len(owners))
	for i := range owners {
		o := &owners[i]
		wire := &pacelinev1.PoolOwner{Owner: o.Owner, Usage: spec.FromVector(o.Usage, names)}
		if o.Bounded {
			var limits respool.Limits
			for k, q := range o.Bound.Limit {
				limits = limits.With(resource.Kind(k), q)
			}
			wire.Limit = spec.FromLimits(&limits, names)
		}
		out = append(out, wire)
	}
	return out
}
