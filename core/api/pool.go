package api

import (
	"context"
	"errors"

	"connectrpc.com/connect"

	"github.com/paceline-sched/paceline/core/api/auth"
	"github.com/paceline-sched/paceline/core/api/spec"
	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/respool"
	"github.com/paceline-sched/paceline/core/scheduler"
	"github.com/paceline-sched/paceline/core/workload"
	pacelinev1 "github.com/paceline-sched/paceline/sdk/gen/paceline/v1"
	"github.com/paceline-sched/paceline/sdk/gen/paceline/v1/pacelinev1connect"
)

const maxPoolPage = 1000

type poolService struct{ cell *cell }

var _ pacelinev1connect.PoolServiceHandler = (*poolService)(nil)

func (s *poolService) ApplyPool(ctx context.Context, request *connect.Request[pacelinev1.ApplyPoolRequest]) (*connect.Response[pacelinev1.ApplyPoolResponse], error) {
	in := request.Msg.GetSpec()
	if err := permit(ctx, spec.ParentPath(in.GetPath()), nil); err != nil {
		return nil, err
	}
	names, err := s.names(ctx)
	if err != nil {
		return nil, err
	}
	pool, err := spec.ToPool(in, "spec", names)
	if err != nil {
		return nil, err
	}
	if wrong := s.cell.checkPolicy("spec.placement_policy", pool.PlacementPolicy); wrong != nil {
		return nil, wrong
	}
	answer, err := s.cell.do(ctx, scheduler.ApplyPool{
		ID: workload.PoolID(newID()), Path: in.GetPath(), Pool: pool, ExpectedVersion: request.Msg.GetExpectedVersion(),
	})
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&pacelinev1.ApplyPoolResponse{
		Pool: poolToWire(&answer.Pool, names), Created: !answer.Existed && answer.Pool.Pool.Version == 1, Unchanged: answer.Existed,
		Warnings: answer.Warnings,
	}), nil
}

func (s *poolService) names(ctx context.Context) (names *resource.Names, err error) {
	err = s.cell.engine.Read(ctx, func(r scheduler.Reader) { names = r.Names() })
	return names, err
}

func (s *poolService) GetPool(ctx context.Context, request *connect.Request[pacelinev1.GetPoolRequest]) (*connect.Response[pacelinev1.GetPoolResponse], error) {
	ref := request.Msg.GetPool()
	if isRoot(ref) {
		return s.getRoot(ctx)
	}
	var pool scheduler.PoolView
	var found bool
	var names *resource.Names
	var clusters []scheduler.ClusterPart
	var owners []scheduler.OwnerUsage
	err := s.cell.engine.Read(ctx, func(r scheduler.Reader) {
		if pool, found = findPool(r, ref); found {
			clusters, owners = r.PoolClusters(pool.Pool.ID), r.PoolOwners(pool.Pool.ID)
		}
		names = r.Names()
	})
	if err != nil {
		return nil, err
	}
	if !found {
		return nil, missingPool(ref)
	}
	if err := permit(ctx, pool.Path, missingPool(ref)); err != nil {
		return nil, err
	}
	out := poolToWire(&pool, names)
	out.Clusters, out.Owners = partsToWire(clusters, names), ownersToWire(owners, names)
	return connect.NewResponse(&pacelinev1.GetPoolResponse{Pool: out}), nil
}

// getRoot shows the cell as the pool that it is to the top pools: it guarantees all its capacity.
func (s *poolService) getRoot(ctx context.Context) (*connect.Response[pacelinev1.GetPoolResponse], error) {
	if err := permit(ctx, auth.Root, nil); err != nil {
		return nil, err
	}
	var view scheduler.CellView
	var names *resource.Names
	var clusters []scheduler.ClusterPart
	err := s.cell.engine.Read(ctx, func(r scheduler.Reader) {
		view, names, clusters = r.Cell(), r.Names(), r.PoolClusters(respool.RootID)
	})
	if err != nil {
		return nil, err
	}
	out := rootToWire(&view, names)
	out.Clusters = partsToWire(clusters, names)
	return connect.NewResponse(&pacelinev1.GetPoolResponse{Pool: out}), nil
}

func rootToWire(view *scheduler.CellView, names *resource.Names) *pacelinev1.Pool {
	capacity := spec.FromVector(view.Capacity, names)
	return &pacelinev1.Pool{
		Id: respool.RootID.String(), Spec: &pacelinev1.PoolSpec{Path: auth.Root, Kind: respool.Elastic.String()},
		Reservation: capacity, Entitlement: capacity, Usage: spec.FromVector(view.Used, names),
	}
}

func (s *poolService) ListPools(ctx context.Context, request *connect.Request[pacelinev1.ListPoolsRequest]) (*connect.Response[pacelinev1.ListPoolsResponse], error) {
	in := request.Msg
	filters := filterHash(in, "page_size", "page_token")
	after, err := decodePage(in.GetPageToken(), filters) // the path of the last pool of the page before
	if err != nil {
		return nil, err
	}
	a := accessOf(ctx)
	revision := s.cell.engine.Revision()
	var list []scheduler.PoolView
	var cell *scheduler.CellView // of a first page that begins at the root
	var names *resource.Names
	var refused error
	err = s.cell.engine.Read(ctx, func(r scheduler.Reader) {
		root := auth.Root
		if in.GetRoot() != "" && in.GetRoot() != auth.Root {
			top, ok := findPool(r, in.GetRoot())
			if !ok || !a.principal.Allows(a.rule.role, top.Path) {
				refused = missingPool(in.GetRoot())
				return
			}
			root = top.Path
		} else if len(after) == 0 && a.principal.Allows(a.rule.role, auth.Root) {
			view := r.Cell()
			cell = &view
		}
		list, names = r.Pools(root), r.Names()
	})
	if err = errors.Join(err, refused); err != nil {
		return nil, err
	}
	out := &pacelinev1.ListPoolsResponse{WatchCursor: s.cell.cursor(revision).String()}
	size, last := pageSize(in.GetPageSize(), maxPoolPage), ""
	if cell != nil {
		out.Pools, last = append(out.Pools, rootToWire(cell, names)), auth.Root
	}
	for i := range list {
		p := &list[i]
		if !a.principal.Allows(a.rule.role, p.Path) || comparePaths(p.Path, string(after)) <= 0 {
			continue
		}
		if len(out.Pools) == size {
			out.NextPageToken = encodePage(filters, []byte(last))
			break
		}
		out.Pools = append(out.Pools, poolToWire(p, names))
		last = p.Path
	}
	return connect.NewResponse(out), nil
}

// comparePaths orders paths as the tree does in depth-first order: '/' sorts before every character of a name.
func comparePaths(a, b string) int {
	for i := range min(len(a), len(b)) {
		switch {
		case a[i] == b[i]:
		case a[i] == '/':
			return -1
		case b[i] == '/':
			return 1
		default:
			return int(a[i]) - int(b[i])
		}
	}
	return len(a) - len(b)
}

func (s *poolService) DeletePool(ctx context.Context, request *connect.Request[pacelinev1.DeletePoolRequest]) (*connect.Response[pacelinev1.DeletePoolResponse], error) {
	in := request.Msg
	if isRoot(in.GetPool()) {
		return nil, refuseField("pool", "delete the pools below it", "the root is the cell itself and cannot be deleted")
	}
	path, err := s.editable(ctx, in.GetPool())
	if err != nil {
		return nil, err
	}
	if _, err = s.cell.do(ctx, scheduler.DeletePool{Path: path, ExpectedVersion: in.GetExpectedVersion()}); err != nil {
		return nil, err
	}
	return connect.NewResponse(&pacelinev1.DeletePoolResponse{}), nil
}

func (s *poolService) MovePool(ctx context.Context, request *connect.Request[pacelinev1.MovePoolRequest]) (*connect.Response[pacelinev1.MovePoolResponse], error) {
	in := request.Msg
	if isRoot(in.GetPool()) {
		return nil, refuseField("pool", "move a pool below it", "the root is the cell itself and cannot be moved")
	}
	path, err := s.editable(ctx, in.GetPool())
	if err != nil {
		return nil, err
	}
	if err := permit(ctx, spec.ParentPath(in.GetNewPath()), nil); err != nil {
		return nil, err
	}
	answer, err := s.cell.do(ctx, scheduler.MovePool{Path: path, NewPath: in.GetNewPath(), ExpectedVersion: in.GetExpectedVersion()})
	if err != nil {
		return nil, err
	}
	names, err := s.names(ctx)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&pacelinev1.MovePoolResponse{Pool: poolToWire(&answer.Pool, names)}), nil
}

func isRoot(ref string) bool { return ref == auth.Root || ref == respool.RootID.String() }

// editable finds a pool that a request names, which the caller may edit if he runs the pool above it, and returns its path.
func (s *poolService) editable(ctx context.Context, ref string) (string, error) {
	var pool scheduler.PoolView
	var found bool
	if err := s.cell.engine.Read(ctx, func(r scheduler.Reader) { pool, found = findPool(r, ref) }); err != nil {
		return "", err
	}
	if !found {
		return "", missingPool(ref)
	}
	if err := permit(ctx, spec.ParentPath(pool.Path), missingUnlessSeen(ctx, pool.Path, ref)); err != nil {
		return "", err
	}
	return pool.Path, nil
}

// missingUnlessSeen hides a pool from those who may not see it, and tells the others plainly what they lack.
func missingUnlessSeen(ctx context.Context, path, ref string) error {
	if accessOf(ctx).principal.Allows(auth.Viewer, path) {
		return nil
	}
	return missingPool(ref)
}
