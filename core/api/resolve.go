package api

import (
	"context"
	"strings"

	"connectrpc.com/connect"

	"github.com/paceline-sched/paceline/core/api/auth"
	"github.com/paceline-sched/paceline/core/api/spec"
	"github.com/paceline-sched/paceline/core/engine"
	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/scheduler"
	"github.com/paceline-sched/paceline/core/shard"
	"github.com/paceline-sched/paceline/core/workload"
)

// cell is the handlers' way to the engine.
type cell struct {
	engine *engine.Engine
	name   string
	paths  pathBook
	bench  bench

	policies Policies // nil: the built-in ones only
	clusters Clusters // nil: none can be added
}

// cursor returns the cursor after a revision, good for any filters.
func (c *cell) cursor(revision uint64) cursor {
	return cursor{cell: cellHash(c.name), incarnation: c.engine.Incarnation(), revision: revision}
}

// do carries out a command for the caller and turns its refusal into an error.
func (c *cell) do(ctx context.Context, command scheduler.Command) (scheduler.Answer, error) {
	answer, err := c.engine.Do(ctx, callerOf(ctx), command)
	if err != nil {
		return scheduler.Answer{}, err
	}
	if answer.Err != nil {
		return scheduler.Answer{}, answer.Err
	}
	return answer, nil
}

// seenJob is a job that the caller has been permitted to touch, with the names of its resources.
type seenJob struct {
	view  scheduler.JobView
	names *resource.Names
}

// job finds the job that a request names and asks for permission. more looks on in the same state.
func (c *cell) job(ctx context.Context, ref string, more func(scheduler.Reader, scheduler.JobView)) (seenJob, error) {
	missing := refuse(connect.CodeNotFound, "list the jobs; ended ones are kept for a while only", "job %q does not exist, or you may not see it", clip(ref, 128))
	var job seenJob
	var found bool
	var denied error
	err := c.engine.Read(ctx, func(r scheduler.Reader) {
		if job.view, found = findJob(r, ref); !found {
			return
		}
		if denied = permit(ctx, job.view.PoolPath, missing); denied != nil {
			return
		}
		job.names = r.Names()
		if more != nil {
			more(r, job.view)
		}
	})
	switch {
	case err != nil:
		return seenJob{}, err
	case !found:
		return seenJob{}, missing
	}
	return job, denied
}

// findJob looks a job up by its id or by pool path and name.
func findJob(r scheduler.Reader, ref string) (scheduler.JobView, bool) {
	if id, err := workload.ParseID(ref); err == nil {
		if view, ok := r.Job(workload.JobID(id)); ok {
			return view, true
		}
	}
	pool, name := spec.DefaultPool, ref
	if i := strings.LastIndexByte(ref, '/'); i >= 0 {
		pool, name = ref[:i], ref[i+1:]
	}
	view, ok := r.Pool(pool)
	if !ok {
		return scheduler.JobView{}, false
	}
	return r.JobNamed(view.Pool.ID, name)
}

// findPool looks a pool up by its id or path.
func findPool(r scheduler.Reader, ref string) (scheduler.PoolView, bool) {
	if id, err := workload.ParseID(ref); err == nil {
		return r.PoolByID(workload.PoolID(id))
	}
	return r.Pool(ref)
}

// findHost looks a host up by its id or by cluster/name.
func findHost(r scheduler.Reader, ref string) (scheduler.HostView, bool) {
	if id, err := workload.ParseID(ref); err == nil {
		if view, ok := r.Host(workload.HostID(id)); ok {
			return view, true
		}
	}
	cluster, name, ok := strings.Cut(ref, "/")
	if !ok {
		return scheduler.HostView{}, false
	}
	return r.Host(shard.HostID(cluster, name))
}

func missingHost(ref string) error {
	return refuse(connect.CodeNotFound, "list the hosts and choose one, by id or as cluster/name", "host %q is not known", clip(ref, 128))
}

// visible are the pools that a caller may see, for lists over many pools.
type visible struct {
	all   bool
	pools []workload.PoolID
}

// visiblePools returns the pools at and below root that the caller may see; an empty root is the whole tree.
func visiblePools(a *access, r scheduler.Reader, root string) (visible, error) {
	everything := a.principal.Allows(a.rule.role, auth.Root)
	if everything && (root == "" || root == auth.Root) {
		return visible{all: true}, nil
	}
	top := auth.Root
	if root != "" {
		view, ok := findPool(r, root)
		if root != auth.Root && (!ok || !a.principal.Allows(a.rule.role, view.Path)) {
			return visible{}, missingPool(root)
		}
		if root != auth.Root {
			top = view.Path
		}
	}
	var v visible
	for _, p := range r.Pools(top) {
		if a.principal.Allows(a.rule.role, p.Path) {
			v.pools = append(v.pools, p.Pool.ID)
		}
	}
	return v, nil
}

func missingPool(ref string) error {
	return refuse(connect.CodeNotFound, "list the pools and choose one", "pool %q does not exist, or you may not see it", clip(ref, 128))
}
