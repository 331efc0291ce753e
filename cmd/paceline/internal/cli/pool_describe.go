package cli

import (
	"github.com/paceline-sched/paceline/cmd/paceline/internal/output"
	pacelinev1 "github.com/paceline-sched/paceline/sdk/gen/paceline/v1"
)

func (a *app) describePool(p *output.Printer, pool *pacelinev1.Pool) error {
	spec := pool.GetSpec()
	var f facts
	f.add("Pool", "%s", poolPath(pool))
	f.add("Id", "%s", pool.GetId())
	kind := first(spec.GetKind(), "elastic")
	if spec.GetReserveRest() {
		kind += ", reserves what its siblings leave"
	}
	f.add("Kind", "%s", kind)
	f.add("Share", "%s", shareOf(pool))
	f.add("Queue", "%s", queueOf(spec.GetQueue()))
	if by := pool.GetEntitledBy(); by != "" {
		f.add("Entitled by", "%s", by)
	}
	if percent := spec.GetControllerPercent(); percent > 0 {
		f.add("Controllers", "at most %d%% of what it could be entitled to", percent)
	}
	if percent := spec.GetRevocablePercent(); percent > 0 {
		f.add("Revocable work", "at most %d%% of the cell's slack", percent)
	}
	f.add("Placement", "%s", spec.GetPlacementPolicy())
	f.add("Jobs", "%d, %d waiting", pool.GetJobs(), pool.GetWaiting())
	f.add("Version", "%d", pool.GetVersion())
	f.add("Made", "%s", a.since(pool.GetCreateTime()))
	f.add("Changed", "%s", a.since(pool.GetUpdateTime()))
	if err := f.write(p); err != nil {
		return err
	}
	for _, t := range []struct {
		title string
		rows  [][]string
	}{
		{"Resources:", resourceRows(pool)},
		{"Revocable work, in a ledger of its own:", revocableRows(pool)},
		{"Clusters, with the entitlement split by their capacities:", clusterRows(pool)},
		{"Owners:", ownerRows(pool)},
	} {
		if err := table(p, t.title, t.rows); err != nil {
			return err
		}
	}
	return nil
}

// queueOf says how work waits; the times are said where they matter.
func queueOf(q *pacelinev1.QueueSpec) string {
	if q == nil {
		return ""
	}
	text := first(q.GetOrder(), "priority-fifo")
	if text == "fair-user" || q.GetCandidates() == "fair-user" {
		text += ", use counts half after " + output.Span(q.GetUsageHalfLife().AsDuration())
	}
	if q.GetBackfill() == "" || q.GetBackfill() == "none" {
		return text + ", no back-fill"
	}
	text += ", back-fill " + q.GetBackfill()
	if q.GetCandidates() != q.GetOrder() {
		text += " tried " + q.GetCandidates()
	}
	return text + ", patience " + output.Span(q.GetPatience().AsDuration())
}

// limitOf writes a ceiling, which may be absent or 0.
func limitOf(q *pacelinev1.Quantities, name string) string {
	if !present(q, name) {
		return output.Dash
	}
	return output.Quantity(name, amount(q, name))
}

func resourceRows(pool *pacelinev1.Pool) [][]string {
	rows := [][]string{{"RESOURCE", "USED", "NOT PREEMPTIBLE", "ENTITLED", "RESERVED", "LIMIT", "DEMAND"}}
	perOwner, controllers := len(resources(pool.GetSpec().GetUserLimit())) > 0, pool.GetSpec().GetControllerPercent() > 0
	if controllers {
		rows[0] = append(rows[0], "CONTROLLERS")
	}
	if perOwner {
		rows[0] = append(rows[0], "PER OWNER")
	}
	for _, name := range resources(pool.GetReservation(), pool.GetEntitlement(), pool.GetUsage(), pool.GetDemand(), pool.GetSpec().GetLimit()) {
		row := []string{
			resourceTitle(name), output.Quantity(name, amount(pool.GetUsage(), name)),
			output.Quantity(name, amount(pool.GetNonPreemptibleUsage(), name)), output.Quantity(name, amount(pool.GetEntitlement(), name)),
			output.Quantity(name, amount(pool.GetReservation(), name)), limitOf(pool.GetSpec().GetLimit(), name), output.Quantity(name, amount(pool.GetDemand(), name)),
		}
		if controllers {
			row = append(row, output.Quantity(name, amount(pool.GetControllerUsage(), name)))
		}
		if perOwner {
			row = append(row, limitOf(pool.GetSpec().GetUserLimit(), name))
		}
		rows = append(rows, row)
	}
	return rows
}

func revocableRows(pool *pacelinev1.Pool) [][]string {
	rows := [][]string{{"RESOURCE", "USED", "ENTITLED", "DEMAND"}}
	for _, name := range resources(pool.GetRevocableUsage(), pool.GetRevocableEntitlement(), pool.GetRevocableDemand()) {
		rows = append(rows, []string{
			resourceTitle(name), output.Quantity(name, amount(pool.GetRevocableUsage(), name)),
			output.Quantity(name, amount(pool.GetRevocableEntitlement(), name)), output.Quantity(name, amount(pool.GetRevocableDemand(), name)),
		})
	}
	return rows
}

func clusterRows(pool *pacelinev1.Pool) [][]string {
	rows := [][]string{{"CLUSTER", "RESOURCE", "CAPACITY", "ENTITLED", "USED", "REVOCABLE"}}
	for _, c := range pool.GetClusters() {
		title := c.GetCluster()
		for _, name := range resources(c.GetCapacity(), c.GetUsage(), c.GetRevocableUsage()) {
			rows = append(rows, []string{
				title, resourceTitle(name), output.Quantity(name, amount(c.GetCapacity(), name)), output.Quantity(name, amount(c.GetEntitlement(), name)),
				output.Quantity(name, amount(c.GetUsage(), name)), output.Quantity(name, amount(c.GetRevocableUsage(), name)),
			})
			title = ""
		}
	}
	return rows
}

func ownerRows(pool *pacelinev1.Pool) [][]string {
	rows := [][]string{{"OWNER", "RESOURCE", "USED", "LIMIT"}}
	for _, o := range pool.GetOwners() {
		title := output.OrDash(o.GetOwner())
		for _, name := range resources(o.GetUsage()) {
			rows = append(rows, []string{title, resourceTitle(name), output.Quantity(name, amount(o.GetUsage(), name)), limitOf(o.GetLimit(), name)})
			title = ""
		}
	}
	return rows
}
