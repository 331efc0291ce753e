package scheduler

import (
	"path"
	"strings"

	"github.com/paceline-sched/paceline/core/workload"
)

func (s *State) applyPool(caller Caller, cmd ApplyPool) (Answer, *Error) {
	clean := path.Clean("/" + strings.TrimSuffix(cmd.Path, "/"))
	if clean == "/" {
		return Answer{}, refuse(InvalidArgument, "path", "apply a pool below it", "the root pool is the cell itself and cannot be changed")
	}
	parentPath, name := path.Split(clean)
	parent, ok := s.pools.Lookup(path.Clean(parentPath))
	if !ok {
		return Answer{}, refuse(FailedPrecondition, "path", "apply the parent first", "pool %s: its parent %s does not exist",
			clean, path.Clean(parentPath))
	}
	p := cmd.Pool
	p.Parent, p.Name, p.UpdatedAt = parent, name, s.now
	id, exists := s.pools.Lookup(clean)
	var err error
	if exists {
		old, _ := s.pools.Pool(id)
		if cmd.ExpectedVersion != 0 && cmd.ExpectedVersion != old.Version {
			return Answer{}, refuse(Aborted, "expected_version", "read the pool again and decide anew",
				"pool %s is at version %d, not %d", clean, old.Version, cmd.ExpectedVersion)
		}
		p.ID, p.Creator, p.CreatedAt, p.Version, p.UpdatedAt = old.ID, old.Creator, old.CreatedAt, old.Version, old.UpdatedAt
		if p == old {
			return Answer{Pool: s.poolView(p), Existed: true}, nil
		}
		p.Version, p.UpdatedAt = old.Version+1, s.now
		err = s.pools.Update(p)
	} else {
		if cmd.ExpectedVersion != 0 {
			return Answer{}, refuse(Aborted, "expected_version", "leave the expected version out to create it",
				"pool %s does not exist, so it is not at version %d", clean, cmd.ExpectedVersion)
		}
		p.ID, p.Creator, p.CreatedAt, p.Version = cmd.ID, caller.Principal, s.now, 1
		err = s.pools.Add(p)
	}
	if err != nil {
		return Answer{}, refuse(FailedPrecondition, "pool", "", "%v", err)
	}
	s.dirtyPool(p.ID).principal = caller.Principal
	s.poolsDirty = true
	s.entitle()
	for _, q := range s.queuesOf(p.ID) {
		s.followPolicy(q, false)
	}
	return Answer{Pool: s.poolView(p)}, nil
}

func (s *State) deletePool(caller Caller, cmd DeletePool) (Answer, *Error) {
	id, ok := s.pools.Lookup(cmd.Path)
	if !ok {
		return Answer{}, refuse(NotFound, "path", "list the pools and choose one", "pool %s does not exist", cmd.Path)
	}
	old, _ := s.pools.Pool(id)
	if cmd.ExpectedVersion != 0 && cmd.ExpectedVersion != old.Version {
		return Answer{}, refuse(Aborted, "expected_version", "read the pool again and decide anew",
			"pool %s is at version %d, not %d", cmd.Path, old.Version, cmd.ExpectedVersion)
	}
	s.enroll() // what its last jobs wanted is told while there is somebody to tell
	view := s.poolView(old)
	if err := s.pools.Delete(id); err != nil {
		return Answer{}, refuse(FailedPrecondition, "path", "", "%v", err)
	}
	for _, q := range s.queuesOf(id) {
		delete(s.queues, q.queueKey)
	}
	e := s.dirtyPool(id)
	e.gonePool, e.principal = &old, caller.Principal
	s.poolsDirty = true
	return Answer{Pool: view}, nil
}

// poolPath names a pool, also one that was deleted after its last job ended.
func (s *State) poolPath(id workload.PoolID) string {
	if p := s.pools.Path(id); p != "" {
		return p
	}
	return "(deleted pool " + id.String() + ")"
}
