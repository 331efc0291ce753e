package scheduler

import (
	"path"
	"strings"

	"github.com/paceline-sched/paceline/core/respool"
	"github.com/paceline-sched/paceline/core/workload"
)

// poolEdit is what one edit does to a tree of pools.
type poolEdit struct {
	pool      respool.Pool // afterwards; of a deleted pool, its last record
	unchanged bool
	deleted   bool
}

// commitPool carries out an edit.
func (s *State) commitPool(caller Caller, cmd Command) (Answer, *Error) {
	gone := PoolView{}
	if d, ok := cmd.(DeletePool); ok {
		s.enroll() // what its last jobs wanted is told while there is somebody to tell
		gone, _ = s.Reader().Pool(d.Path)
	}
	edit, err := s.editPool(s.pools, caller, cmd)
	if err != nil {
		return Answer{}, err
	}
	if edit.unchanged {
		return Answer{Pool: s.poolView(edit.pool), Existed: true}, nil
	}
	e := s.dirtyPool(edit.pool.ID)
	e.principal = caller.Principal
	s.poolsDirty = true
	if edit.deleted {
		e.gonePool = &edit.pool
		for _, q := range s.queuesOf(edit.pool.ID) {
			delete(s.queues, q.queueKey)
		}
		return Answer{Pool: gone}, nil
	}
	for _, q := range s.queuesOf(edit.pool.ID) {
		s.followPolicy(q, false)
	}
	s.entitle()
	return Answer{Pool: s.poolView(edit.pool)}, nil
}

// editPool makes one edit in a tree: the cell's, or a copy of it for a plan.
func (s *State) editPool(t *respool.Tree, caller Caller, cmd Command) (poolEdit, *Error) {
	switch cmd := cmd.(type) {
	case ApplyPool:
		return s.editApply(t, caller, &cmd)
	case MovePool:
		return s.editMove(t, &cmd)
	case DeletePool:
		return s.editDelete(t, &cmd)
	}
	return poolEdit{}, refuse(InvalidArgument, "", "", "the edit is unknown to this core")
}

// place finds the parent for a pool that is to stand at a path.
func place(t *respool.Tree, at, field string) (parent workload.PoolID, clean, name string, err *Error) {
	clean = path.Clean("/" + strings.TrimSuffix(at, "/"))
	if clean == "/" {
		return parent, clean, name, refuse(InvalidArgument, field, "apply a pool below it", "the root pool is the cell itself and cannot be changed")
	}
	above, name := path.Split(clean)
	parent, ok := t.Lookup(path.Clean(above))
	if !ok {
		return parent, clean, name, refuse(FailedPrecondition, field, "apply the parent first", "pool %s: its parent %s does not exist",
			clean, path.Clean(above))
	}
	return parent, clean, name, nil
}

func (s *State) editApply(t *respool.Tree, caller Caller, cmd *ApplyPool) (poolEdit, *Error) {
	parent, clean, name, refused := place(t, cmd.Path, "path")
	if refused != nil {
		return poolEdit{}, refused
	}
	p := cmd.Pool
	p.Parent, p.Name, p.UpdatedAt, p.Queue = parent, name, s.now, p.Queue.WithDefaults()
	id, exists := t.Lookup(clean)
	var err error
	if exists {
		old, _ := t.Pool(id)
		if refused := expect(&old, clean, cmd.ExpectedVersion); refused != nil {
			return poolEdit{}, refused
		}
		p.ID, p.Creator, p.CreatedAt, p.Version, p.UpdatedAt = old.ID, old.Creator, old.CreatedAt, old.Version, old.UpdatedAt
		if p == old {
			return poolEdit{pool: p, unchanged: true}, nil
		}
		p.Version, p.UpdatedAt = old.Version+1, s.now
		err = t.Update(p)
	} else {
		if cmd.ExpectedVersion != 0 {
			return poolEdit{}, refuse(Aborted, "expected_version", "leave the expected version out to create it",
				"pool %s does not exist, so it is not at version %d", clean, cmd.ExpectedVersion)
		}
		p.ID, p.Creator, p.CreatedAt, p.Version = cmd.ID, caller.Principal, s.now, 1
		err = t.Add(p)
	}
	if err != nil {
		return poolEdit{}, refuse(FailedPrecondition, "pool", "", "%v", err)
	}
	return poolEdit{pool: p}, nil
}

// editMove changes a pool's parent, name, or both. Whatever is below it and runs there goes with it, as all of that hangs on its id.
func (s *State) editMove(t *respool.Tree, cmd *MovePool) (poolEdit, *Error) {
	id, ok := t.Lookup(cmd.Path)
	p, known := t.Pool(id)
	switch {
	case ok && !known:
		return poolEdit{}, refuse(InvalidArgument, "path", "move a pool below it", "the root pool is the cell itself and cannot be moved")
	case !ok:
		return poolEdit{}, refuse(NotFound, "path", "list the pools and choose one", "pool %s does not exist", cmd.Path)
	}
	if refused := expect(&p, cmd.Path, cmd.ExpectedVersion); refused != nil {
		return poolEdit{}, refused
	}
	parent, clean, name, refused := place(t, cmd.NewPath, "new_path")
	if refused != nil {
		return poolEdit{}, refused
	}
	if other, taken := t.Lookup(clean); taken && other != id {
		return poolEdit{}, refuse(AlreadyExists, "new_path", "choose another path, or move the other pool away first", "there is a pool %s already", clean)
	}
	if p.Parent == parent && p.Name == name {
		return poolEdit{pool: p, unchanged: true}, nil
	}
	p.Parent, p.Name, p.Version, p.UpdatedAt = parent, name, p.Version+1, s.now
	if err := t.Update(p); err != nil {
		return poolEdit{}, refuse(FailedPrecondition, "new_path", "", "%v", err)
	}
	return poolEdit{pool: p}, nil
}

func (s *State) editDelete(t *respool.Tree, cmd *DeletePool) (poolEdit, *Error) {
	id, ok := t.Lookup(cmd.Path)
	if !ok {
		return poolEdit{}, refuse(NotFound, "path", "list the pools and choose one", "pool %s does not exist", cmd.Path)
	}
	old, _ := t.Pool(id)
	if refused := expect(&old, cmd.Path, cmd.ExpectedVersion); refused != nil {
		return poolEdit{}, refused
	}
	if err := t.Delete(id); err != nil {
		return poolEdit{}, refuse(FailedPrecondition, "path", "", "%v", err)
	}
	return poolEdit{pool: old, deleted: true}, nil
}

// expect refuses an edit that was made against another version.
func expect(p *respool.Pool, at string, version uint64) *Error {
	if version == 0 || version == p.Version {
		return nil
	}
	return refuse(Aborted, "expected_version", "read the pool again and decide anew", "pool %s is at version %d, not %d", at, p.Version, version)
}

// poolPath names a pool, also one that was deleted after its last job ended.
func (s *State) poolPath(id workload.PoolID) string {
	if p := s.pools.Path(id); p != "" {
		return p
	}
	return "(deleted pool " + id.String() + ")"
}
