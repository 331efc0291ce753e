package spec

import (
	"strings"

	"google.golang.org/protobuf/types/known/durationpb"

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
	amountsOf(in.GetUserLimit()).each(c, field+".user_limit", names, func(k resource.Kind, q int64) { out.UserLimit = out.UserLimit.With(k, q) })
	out.Queue = toQueue(c, in.GetQueue(), field+".queue")
	out.ControllerPercent = toPercent(c, in.GetControllerPercent(), field+".controller_percent")
	out.RevocablePercent = toPercent(c, in.GetRevocablePercent(), field+".revocable_percent")
	out.PlacementPolicy = in.GetPlacementPolicy()
	checkPolicy(c, out.PlacementPolicy, field+".placement_policy")
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

func toQueue(c *checker, in *pacelinev1.QueueSpec, field string) respool.QueuePolicy {
	order := func(name, what string, otherwise respool.Order) respool.Order {
		o, known := respool.ParseOrder(name)
		switch {
		case name == "":
			return otherwise
		case !known:
			c.refuse(field+"."+what, "%q is unknown: use priority-fifo, fair-user, smallest-first, shortest-first or express", clip(name))
		}
		return o
	}
	out := respool.QueuePolicy{Order: order(in.GetOrder(), "order", respool.OrderPriorityFIFO)}
	out.Candidates = order(in.GetCandidates(), "candidates", out.Order)
	if name := in.GetBackfill(); name != "" {
		way, known := respool.ParseBackfill(name)
		if !known {
			c.refuse(field+".backfill", "%q is unknown: use none or easy", clip(name))
		}
		out.Backfill = way
	}
	out.Patience = toDuration(c, field+".patience", in.GetPatience(), respool.DefaultPatience)
	out.UsageHalfLife = toDuration(c, field+".usage_half_life", in.GetUsageHalfLife(), respool.DefaultUsageHalfLife)
	return out
}

func toPercent(c *checker, n uint32, field string) uint8 {
	if n > 100 {
		c.refuse(field, "%d %% are too many: give 0 to 100", n)
		return 0
	}
	return uint8(n)
}

// FromPool writes a pool's settings as a user would, with every default spelled out.
func FromPool(pool *respool.Pool, path string, names *resource.Names) *pacelinev1.PoolSpec {
	share := uint32(min(pool.Share, int64(maxShare)))
	out := &pacelinev1.PoolSpec{
		Path: path, Kind: pool.Kind.String(), Share: &share, ReserveRest: pool.ReserveRest,
		UserLimit: FromLimits(&pool.UserLimit, names), Limit: FromLimits(&pool.Limit, names), Queue: fromQueue(pool.Queue),
		ControllerPercent: uint32(pool.ControllerPercent), RevocablePercent: uint32(pool.RevocablePercent),
		PlacementPolicy: pool.PlacementPolicy,
	}
	if !pool.ReserveRest && !pool.Reservation.IsZero() {
		out.Reservation = FromVector(pool.Reservation, names)
	}
	return out
}

// FromLimits leaves out limits that limit nothing.
func FromLimits(l *respool.Limits, names *resource.Names) *pacelinev1.Quantities {
	limited := false
	out := fromKinds(names, func(k resource.Kind) (int64, bool) {
		q := l.Of(k)
		limited = limited || q != respool.Unlimited
		return q, q != respool.Unlimited
	})
	if !limited {
		return nil
	}
	return out
}

func fromQueue(q respool.QueuePolicy) *pacelinev1.QueueSpec {
	q = q.WithDefaults()
	return &pacelinev1.QueueSpec{
		Order: q.Order.String(), Backfill: q.Backfill.String(), Candidates: q.Candidates.String(),
		Patience: durationpb.New(q.Patience), UsageHalfLife: durationpb.New(q.UsageHalfLife),
	}
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
