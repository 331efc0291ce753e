package wasm

import (
	"fmt"

	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/respool"
	"github.com/paceline-sched/paceline/sdk/policyabi"
)

// Quota entitles pools with the policy in a slot. It implements respool.Quota. Every answer has passed respool.Snapshot.Propose.
type Quota struct{ caller caller }

var _ respool.Quota = (*Quota)(nil)

// NewQuota returns a Quota without an instance; the first snapshot makes one.
func NewQuota(config AskConfig) *Quota {
	return &Quota{caller{config: config, kind: policyabi.Quota}}
}

// Close lets go of the version that it works with.
func (q *Quota) Close() { q.caller.close() }

// poolFamilies are the columns of a snapshot that there is one of for each kind.
var poolFamilies = []struct {
	first policyabi.ColumnID
	value func(r *respool.Row, k resource.Kind) int64
}{
	{policyabi.ColumnReservation, func(r *respool.Row, k resource.Kind) int64 { return r.Reservation[k] }},
	{policyabi.ColumnLimit, func(r *respool.Row, k resource.Kind) int64 { return r.Ceiling[k] }},
	{policyabi.ColumnShare, func(r *respool.Row, _ resource.Kind) int64 { return r.Share }},
	{policyabi.ColumnDemand, func(r *respool.Row, k resource.Kind) int64 { return r.Demand[k] }},
	{policyabi.ColumnPoolUsage, func(r *respool.Row, k resource.Kind) int64 { return r.Usage[k] }},
	{policyabi.ColumnEntitlement, (*respool.Row).Guarantee},
	{policyabi.ColumnCapacity, func(r *respool.Row, k resource.Kind) int64 {
		if r.Parent >= 0 {
			return 0
		}
		return r.Reservation[k]
	}},
}

// Entitle implements respool.Quota. The error is ErrNoPolicy or a *Fault.
func (q *Quota) Entitle(s *respool.Snapshot) ([]resource.Vector, error) {
	if err := q.caller.enter(); err != nil {
		return nil, err
	}
	values := make([]resource.Vector, len(s.Rows))
	ask := question{
		shape: policyabi.Shape{Rows: len(s.Rows), Columns: poolColumns(q.caller.wants(), s.Kinds)}, rows: poolsOf(s),
		work: poolWork(s), tasks: len(s.Rows),
		fill: func(l *policyabi.Layout, h *policyabi.Header, b []byte) { fillPools(l, h, b, s) },
		read: func(l *policyabi.Layout, arena []byte, count int) *wrong {
			return readPools(l, arena, count, s, values)
		},
	}
	if err := q.caller.ask(&ask); err != nil {
		return nil, err
	}
	return values, nil
}

// poolWork counts a pool for as much as a task: what is done with one is more than to look at it.
func poolWork(s *respool.Snapshot) int64 {
	return taskWork * int64(len(s.Rows)) * int64(max(len(s.Kinds), 1))
}

// poolsOf is a number for which pools there are, in which order, and of which kinds.
func poolsOf(s *respool.Snapshot) uint64 {
	h := uint64(len(s.Kinds))
	for i := range s.Rows {
		h = (h^identity(s.Rows[i].ID))*0x100000001b3 + uint64(uint32(s.Rows[i].Parent))
	}
	return max(h, 1)
}

func poolColumns(wants []policyabi.Want, kinds []string) []policyabi.Column {
	var list []policyabi.Column
	for _, id := range []policyabi.ColumnID{policyabi.ColumnPool, policyabi.ColumnParent} {
		if wantsColumn(wants, id) {
			list = append(list, policyabi.Column{ID: id})
		}
	}
	for i := range poolFamilies {
		list = kindColumns(list, wants, poolFamilies[i].first, kinds)
	}
	return list
}

// fillPools writes a snapshot. The column that the guest writes holds the guarantees at first.
func fillPools(l *policyabi.Layout, _ *policyabi.Header, b []byte, s *respool.Snapshot) {
	for i := range l.Entries {
		e := &l.Entries[i]
		for row := range s.Rows {
			r, cell := &s.Rows[row], b[at(e, row):]
			switch e.ID {
			case policyabi.ColumnPool:
				le.PutUint64(cell, identity(r.ID))
			case policyabi.ColumnParent:
				le.PutUint32(cell, uint32(r.Parent))
			default:
				le.PutUint64(cell, uint64(poolValue(e.ID, r)))
			}
		}
	}
}

func poolValue(id policyabi.ColumnID, r *respool.Row) int64 {
	for i := range poolFamilies {
		if f := &poolFamilies[i]; id >= f.first && id < f.first+policyabi.MaxKinds {
			return f.value(r, resource.Kind(id-f.first))
		}
	}
	return 0
}

// readPools reads what was written into the column of entitlements.
func readPools(l *policyabi.Layout, arena []byte, count int, s *respool.Snapshot, values []resource.Vector) *wrong {
	if count != len(s.Rows) {
		return &wrong{FaultResult, fmt.Sprintf("it returned %d, there are %d pools: return their number once all have an entitlement", count, len(s.Rows))}
	}
	for k, name := range s.Kinds {
		e := policyabi.Find(l.Entries, policyabi.ColumnEntitlement+policyabi.ColumnID(k), 0)
		if e == nil {
			return &wrong{FaultResult, fmt.Sprintf("it has no column for the entitlement of %s: name entitlement.* among its columns", name)}
		}
		for row := range s.Rows {
			values[row][k] = int64(le.Uint64(arena[at(e, row):]))
		}
	}
	if len(values) > 0 {
		values[0] = s.Rows[0].Reservation // whatever it says of the root
	}
	if _, err := s.Propose(values); err != nil {
		return misfit("%v", err)
	}
	return nil
}
