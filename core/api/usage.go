package api

import (
	"context"
	"errors"
	"slices"
	"time"

	"connectrpc.com/connect"

	"github.com/paceline-sched/paceline/core/api/auth"
	"github.com/paceline-sched/paceline/core/api/spec"
	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/respool"
	"github.com/paceline-sched/paceline/core/scheduler"
	"github.com/paceline-sched/paceline/core/usage"
	pacelinev1 "github.com/paceline-sched/paceline/sdk/gen/paceline/v1"
	"github.com/paceline-sched/paceline/sdk/gen/paceline/v1/pacelinev1connect"
)

// defaultUsageSpan is how far back a report goes when nobody says.
const defaultUsageSpan = 24 * time.Hour

type usageService struct{ cell *cell }

var _ pacelinev1connect.UsageServiceHandler = (*usageService)(nil)

func (s *usageService) GetUsage(ctx context.Context, request *connect.Request[pacelinev1.GetUsageRequest]) (*connect.Response[pacelinev1.GetUsageResponse], error) {
	query, names, err := s.query(ctx, request.Msg)
	if err != nil {
		return nil, err
	}
	var now []usage.Sample // what came after the last reading
	if err := s.cell.engine.Read(ctx, func(r scheduler.Reader) { now = r.UsageNow() }); err != nil {
		return nil, err
	}
	var failed error
	report := usage.Compute(query, func(yield func(*usage.Sample) bool) {
		more := true
		failed = s.cell.engine.Samples(query.From(), func(sample *usage.Sample) bool {
			more = ctx.Err() == nil && yield(sample)
			return more
		})
		for n := range now {
			if !more || !yield(&now[n]) {
				return
			}
		}
	})
	if err := errors.Join(failed, ctx.Err()); err != nil {
		return nil, err
	}
	return connect.NewResponse(usageToWire(&query, &report, names)), nil
}

// query finds out which pool and span are meant, and whether the caller may see them.
func (s *usageService) query(ctx context.Context, in *pacelinev1.GetUsageRequest) (usage.Query, *resource.Names, error) {
	until := time.Now()
	if t := in.GetUntil(); t != nil {
		until = t.AsTime()
	}
	since := until.Add(-defaultUsageSpan)
	if t := in.GetSince(); t != nil {
		since = t.AsTime()
	}
	switch {
	case !since.Before(until):
		return usage.Query{}, nil, refuseField("since", "give an earlier beginning or a later end", "the span from %s to %s is empty",
			since.UTC().Format(time.RFC3339), until.UTC().Format(time.RFC3339))
	case time.Since(since) > usage.Retention+time.Hour:
		return usage.Query{}, nil, refuseField("since", "begin later", "%s is further back than readings are kept, which is %d days",
			since.UTC().Format(time.RFC3339), int(usage.Retention/(24*time.Hour)))
	}
	q := usage.Query{Since: since.UnixNano(), Until: until.UnixNano(), Root: auth.Root, Step: in.GetStep().AsDuration()}
	ref := in.GetPool()
	var found bool
	var names *resource.Names
	err := s.cell.engine.Read(ctx, func(r scheduler.Reader) {
		names = r.Names()
		if ref == "" || ref == auth.Root || ref == respool.RootID.String() {
			found = true
			return
		}
		var pool scheduler.PoolView
		if pool, found = findPool(r, ref); found {
			q.Root = pool.Path
		}
	})
	switch {
	case err != nil:
		return q, nil, err
	case !found:
		return q, nil, missingPool(ref)
	}
	return q, names, permit(ctx, q.Root, missingPool(ref))
}

func usageToWire(q *usage.Query, r *usage.Report, names *resource.Names) *pacelinev1.GetUsageResponse {
	out := &pacelinev1.GetUsageResponse{
		Since: timeToWire(q.Since), Until: timeToWire(q.Until), PointsCut: r.Cut, Fairness: map[string]float64{},
	}
	for n := range r.Rows {
		row := &r.Rows[n]
		out.Pools = append(out.Pools, &pacelinev1.PoolUsage{
			Path: row.Path, Leaf: row.Leaf, Since: timeToWire(row.From), Until: timeToWire(row.Until), Amounts: amountsToWire(&row.Amounts, names),
		})
	}
	for k := range resource.Kind(names.Len()) {
		if slices.ContainsFunc(r.Rows, func(row usage.Row) bool { return row.Leaf && row.Demanded[k] > 0 }) {
			out.Fairness[names.Name(k)] = usage.JainIndex(r.Rows, k)
		}
	}
	for n := range r.Owners {
		o := &r.Owners[n]
		out.Owners = append(out.Owners, &pacelinev1.OwnerUsage{Path: o.Path, Owner: o.Owner, Used: spec.FromVector(o.Held, names)})
	}
	for n := range r.Points {
		p := &r.Points[n]
		out.Points = append(out.Points, &pacelinev1.UsagePoint{Time: timeToWire(p.At), Path: p.Path, Amounts: amountsToWire(&p.Amounts, names)})
	}
	return out
}

func amountsToWire(a *usage.Amounts, names *resource.Names) *pacelinev1.UsageAmounts {
	return &pacelinev1.UsageAmounts{
		Used: spec.FromVector(a.Held, names), Entitled: spec.FromVector(a.Entitled, names), Demanded: spec.FromVector(a.Demanded, names),
		Deficit: spec.FromVector(a.Deficit, names), Overage: spec.FromVector(a.Overage, names),
	}
}

func (s *usageService) ListJobUsage(ctx context.Context, request *connect.Request[pacelinev1.ListJobUsageRequest]) (*connect.Response[pacelinev1.ListJobUsageResponse], error) {
	in := request.Msg
	filters := filterHash(in, "page_size", "page_token")
	position, err := decodePage(in.GetPageToken(), filters)
	if err != nil {
		return nil, err
	}
	after, err := decodeNumber(position)
	if err != nil {
		return nil, err
	}
	var page []scheduler.JobView
	var next uint64
	var names *resource.Names
	var refused error
	err = s.cell.engine.Read(ctx, func(r scheduler.Reader) {
		var seen visible
		names = r.Names()
		if seen, refused = visiblePools(accessOf(ctx), r, in.GetPool()); refused != nil || (!seen.all && len(seen.pools) == 0) {
			return
		}
		page, next = r.Jobs(after, pageSize(in.GetPageSize(), defaultPageSize), scheduler.JobFilter{Pools: seen.pools})
	})
	if err = errors.Join(err, refused); err != nil {
		return nil, err
	}
	out := &pacelinev1.ListJobUsageResponse{}
	for i := range page {
		j := &page[i]
		out.Jobs = append(out.Jobs, &pacelinev1.JobUsage{
			Id: j.ID.String(), Name: j.Spec.Name, Pool: j.PoolPath, Owner: j.Spec.Owner, State: jobStateToWire(j.State),
			Used: spec.FromVector(j.Held, names), CreateTime: timeToWire(j.Created), EndTime: timeToWire(j.Finished),
		})
	}
	if next != 0 {
		out.NextPageToken = encodePage(filters, encodeNumber(next))
	}
	return connect.NewResponse(out), nil
}
