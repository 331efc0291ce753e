package api

import (
	"context"
	"sync"

	"github.com/paceline-sched/paceline/core/api/auth"
	"github.com/paceline-sched/paceline/core/engine"
	"github.com/paceline-sched/paceline/core/respool"
	"github.com/paceline-sched/paceline/core/scheduler"
	"github.com/paceline-sched/paceline/core/workload"
)

// pathBook has the paths of all pools, for all watches together: each with a map of its own would take a gigabyte in a cell of many pools,
// and ask the loop for it at the same moment as all others.
type pathBook struct {
	mu   sync.Mutex
	last *poolPaths
}

// poolPaths are the paths at a revision. The path of a pool that is gone is the last one known. They are never altered.
type poolPaths struct {
	revision uint64
	of       map[workload.PoolID]string
}

// get returns the paths of a revision or a later one. Who needs new ones waits while another reads them.
func (b *pathBook) get(ctx context.Context, e *engine.Engine, revision uint64) (*poolPaths, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.last != nil && b.last.revision >= revision {
		return b.last, nil
	}
	next := &poolPaths{revision: e.Revision(), of: map[workload.PoolID]string{}} // what is durable, a read after it sees
	err := e.Read(ctx, func(r scheduler.Reader) {
		for _, pool := range r.Pools(auth.Root) {
			next.of[pool.Pool.ID] = pool.Path
		}
	})
	if err != nil {
		return nil, err
	}
	if b.last != nil {
		for id, path := range b.last.of {
			if _, there := next.of[id]; !there && len(next.of) < 2*respool.MaxPools {
				next.of[id] = path
			}
		}
	}
	b.last = next
	return next, nil
}
