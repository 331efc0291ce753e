package spec

import (
	"strings"

	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/respool"
	pacelinev1 "github.com/paceline-sched/paceline/sdk/gen/paceline/v1"
)

// ToPool turns a pool spec into the settings of a pool, everything but its identity and place, or returns an *InvalidError. field is
// the path of the spec in its message.
func ToPool(in *pacelinev1.PoolSpec, field string, names *resource.Names) (respool.Pool, error) {
	c := &checker{}
	out := respool.Pool{Name: baseName(in.GetPath()), Kind: respool.Elastic, Share: respool.DefaultShare, ReserveRest: in.GetReserveRest()}
	switch in.GetKind() {
	case "", respool.Elastic.String():
	case respool.Static.String():
		out.Kind = respool.Static
	default:
		c.refuse(field+".kind", "%q is unknown: use elastic or static", clip(in.GetKind()))
	}
	if in.Share != nil {
		out.Share = int64(in.GetShare())
	}
	if out.ReserveRest && in.GetReservation() != nil {
		c.refuse(field+".reservation", "must be left out with reserve_rest, which makes it whatever the parent has left")
	}
	amountsOf(in.GetReservation()).each(c, field+".reservation", names, func(k resource.Kind, q int64) { out.Reservation[k] = q })
	amountsOf(in.GetLimit()).each(c, field+".limit", names, func(k resource.Kind, q int64) { out.Limit = out.Limit.With(k, q) })
	for k := range resource.Kind(names.Len()) {
		if limit := out.Limit.Of(k); out.Reservation[k] > limit {
			c.refuse(field+".reservation", "%s=%d is over the limit of %d: raise the limit or lower the reservation", names.Name(k), out.Reservation[k], limit)
		}
	}
	if err := c.err(); err != nil {
		return respool.Pool{}, err
	}
	return out, nil
}

// FromPool writes a pool's settings as a user would, with every default spelled out.
func FromPool(pool *respool.Pool, path string, names *resource.Names) *pacelinev1.PoolSpec {
	share := uint32(min(pool.Share, int64(maxShare)))
	out := &pacelinev1.PoolSpec{Path: path, Kind: pool.Kind.String(), Share: &share, ReserveRest: pool.ReserveRest}
	if !pool.ReserveRest && !pool.Reservation.IsZero() {
		out.Reservation = FromVector(pool.Reservation, names)
	}
	limited := false
	limit := fromKinds(names, func(k resource.Kind) (int64, bool) {
		q := pool.Limit.Of(k)
		limited = limited || q != respool.Unlimited
		return q, q != respool.Unlimited
	})
	if limited {
		out.Limit = limit
	}
	return out
}

const maxShare = 1<<32 - 1

// ParentPath returns the path above a pool's; that of a top pool is /.
func ParentPath(path string) string {
	i := strings.LastIndexByte(path, '/')
	if i <= 0 {
		return "/"
	}
	return path[:i]
}

func baseName(path string) string { return path[strings.LastIndexByte(path, '/')+1:] }
