package replay

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/paceline-sched/paceline/core/host"
	"github.com/paceline-sched/paceline/core/placement"
	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/policies/decision"
)

// entry is a decision as it is shown.
type entry struct {
	Time     time.Time `json:"time"`
	Shard    string    `json:"shard"`
	Sequence uint64    `json:"sequence"`
	Revision uint64    `json:"table_revision"`
	Strategy string    `json:"strategy,omitempty"` // that was asked for
	Served   []server  `json:"served,omitempty"`
	Took     string    `json:"took"`
	Requests []request `json:"requests"`
}

type server struct {
	By       string `json:"by"`
	Digest   string `json:"digest,omitempty"`
	Requests int    `json:"requests"`
	Calls    int    `json:"calls,omitempty"`
	Fuel     int64  `json:"fuel,omitempty"`
	Faults   int    `json:"faults,omitempty"`
}

type request struct {
	Class   string            `json:"class"`
	Pool    string            `json:"pool,omitempty"`
	Labels  map[string]string `json:"labels,omitempty"`
	Needs   string            `json:"needs"`
	Gang    bool              `json:"gang,omitempty"`
	Seed    uint64            `json:"seed"`
	Tasks   int               `json:"tasks"`
	Hosts   []string          `json:"hosts,omitempty"`
	Refused int               `json:"refused,omitempty"`
	Reasons map[string]int    `json:"reasons,omitempty"`
}

// filter says which entries are shown.
type filter struct {
	policy, pool string
	limit        int
}

const decisionsHelp = `Show recorded batches of placement, the newest last: who asked what of whom, and which hosts came of it. -o json has everything, why tasks were refused
among it. A batch joins tasks of many jobs: it knows their pools, labels and needs, not their names.

With --kind quota or preempt it shows what policies of these were asked, or would have been, and what they answered: -o json has the pools with what they were given, or the jobs in the
order in which they would go.`

func newDecisionsCommand(dataDir string, now func() time.Time) *cobra.Command {
	var s source
	var f filter
	var kind string
	cmd := &cobra.Command{
		Use:   "decisions",
		Short: "Show what policies decided, as it was recorded",
		Long:  decisionsHelp,
		Example: `  paceline policy decisions --since 10m
  paceline policy decisions --policy 3f9a --pool /prod -o json
  paceline policy decisions --kind preempt`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			asJSON, err := wantsJSON(cmd)
			if err != nil {
				return err
			}
			dir, wanted, err := s.wanted(now())
			if err != nil {
				return err
			}
			if f.limit < 1 {
				return mistakef("--limit %d: show at least one", f.limit)
			}
			asks, err := asksPolicies(cmd, kind)
			if err != nil {
				return err
			}
			if asks {
				return showAsked(cmd.OutOrStdout(), dir, wanted, kind, &f, asJSON)
			}
			list, err := read(dir, wanted, &f)
			if err != nil {
				return err
			}
			if asJSON {
				return writeJSON(cmd.OutOrStdout(), list)
			}
			tell(cmd.OutOrStdout(), list)
			return nil
		},
	}
	s.flags(cmd, dataDir)
	kindFlag(cmd, &kind)
	cmd.Flags().StringVar(&f.policy, "policy", "", "only what this policy or strategy served, by name or by the beginning of its digest")
	cmd.Flags().StringVar(&f.pool, "pool", "", "only batches with tasks of this pool or one below it")
	cmd.Flags().IntVar(&f.limit, "limit", 50, "how many at most, the newest ones")
	return cmd
}

// holds reports whether a decision is wanted.
func (f *filter) holds(d *decision.Decision) bool {
	served := f.policy == "" || f.policy == d.Strategy
	for i := range d.Served {
		s := &d.Served[i]
		digest := strings.TrimPrefix(s.Digest, "sha256:")
		served = served || f.policy == s.By || (digest != "" && strings.HasPrefix(digest, strings.TrimPrefix(f.policy, "sha256:")))
	}
	pool := f.pool == ""
	for i := range d.Requests {
		p := d.Requests[i].Pool
		pool = pool || p == f.pool || strings.HasPrefix(p, strings.TrimSuffix(f.pool, "/")+"/")
	}
	return served && pool
}

// read returns the newest entries that are wanted, by time; those of a shard are in the order of decisions.
func read(dir string, wanted decision.Range, f *filter) ([]entry, error) {
	list := []entry{} // JSON of none is a list, too
	byTime := func(a, b entry) int { return a.Time.Compare(b.Time) }
	shard := ""
	names := map[host.Row]string{}
	_, err := decision.Visit(dir, wanted, func(e decision.Event) error {
		switch {
		case e.Header != nil:
			shard = e.Header.Shard
		case e.State != nil:
			clear(names)
			for i := range e.State.Rows {
				if h := e.State.Rows[i].Host; h != nil {
					names[host.Row(i)] = h.Name //nolint:gosec // within a shard
				}
			}
		case e.Change != nil && e.Change.Host != nil:
			names[e.Change.Row] = e.Change.Host.Name
		case e.Decision != nil && e.Decision.At >= wanted.Since && f.holds(e.Decision):
			list = append(list, newEntry(shard, e.Decision, names))
			if len(list)-f.limit > f.limit {
				slices.SortStableFunc(list, byTime)
				list = append(list[:0], list[len(list)-f.limit:]...)
			}
		}
		return nil
	})
	slices.SortStableFunc(list, byTime)
	return list[max(0, len(list)-f.limit):], err
}

func newEntry(shard string, d *decision.Decision, names map[host.Row]string) entry {
	e := entry{Time: time.Unix(0, d.At).UTC(), Shard: shard, Sequence: d.Sequence, Revision: d.Revision, Strategy: d.Strategy, Took: d.Took.String()}
	for i := range d.Served {
		s := &d.Served[i]
		e.Served = append(e.Served, server{s.By, s.Digest, s.Requests, len(s.Calls), s.Fuel, s.Faults})
	}
	for i := range d.Requests {
		e.Requests = append(e.Requests, newRequest(&d.Requests[i], &d.Results[i], names))
	}
	return e
}

func newRequest(r *placement.Request, result *placement.Result, names map[host.Row]string) request {
	out := request{
		Class: fmt.Sprintf("%016x", uint64(r.Class.ID)), Pool: r.Pool, Labels: r.Class.Labels, Needs: needs(r.Class), Gang: r.Gang, Seed: r.Seed, Tasks: r.Count, Refused: result.Refused,
	}
	for _, a := range result.Assignments {
		out.Hosts = append(out.Hosts, names[a.Row])
	}
	for reason, n := range result.Reasons.Counts {
		if n > 0 && result.Refused > 0 {
			if out.Reasons == nil {
				out.Reasons = map[string]int{}
			}
			out.Reasons[placement.Reason(reason).String()] = n //nolint:gosec // below NumReasons
		}
	}
	return out
}

// tell writes entries for people, a line each.
func tell(out io.Writer, list []entry) {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "TIME\tSHARD\tBATCH\tPOLICY\tPOOL\tTASKS\tPLACED\tTOOK\tHOSTS")
	for i := range list {
		e := &list[i]
		tasks, placed := 0, 0
		var pools, on []string
		for n := range e.Requests {
			r := &e.Requests[n]
			tasks += r.Tasks
			placed += len(r.Hosts)
			pools, on = distinct(pools, r.Pool), append(on, r.Hosts...)
		}
		fmt.Fprintf(w, "%s\t%s\t%d\t%s\t%s\t%d\t%d\t%s\t%s\n", e.Time.Format(time.DateTime), e.Shard, e.Sequence, e.policy(), orDash(strings.Join(pools, ",")), tasks, placed, e.Took,
			hosts(on[:min(len(on), shownHosts)], len(on)))
	}
	w.Flush()
}

// shownHosts bounds the hosts of a line.
const shownHosts = 3

// policy is who served an entry.
func (e *entry) policy() string {
	var names []string
	for _, s := range e.Served {
		name := s.By
		if digest := strings.TrimPrefix(s.Digest, "sha256:"); digest != "" {
			name += "@" + digest[:min(len(digest), 12)]
		}
		names = distinct(names, name)
	}
	if len(names) == 0 {
		return orDash(e.Strategy)
	}
	return strings.Join(names, ",")
}

func distinct(list []string, s string) []string {
	for _, known := range list {
		if known == s {
			return list
		}
	}
	return append(list, s)
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// needs is what a task of a class takes. The log does not name extended resources beside it, so they go by their kind.
func needs(c *placement.Class) string {
	var names resource.Names
	return names.Format(c.Needs)
}
