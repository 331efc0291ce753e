package replay

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/paceline-sched/paceline/core/preemption"
	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/policies/decision"
	"github.com/paceline-sched/paceline/policies/wasm"
	"github.com/paceline-sched/paceline/sdk/policyabi"
)

// kindFlag is which kind of policies a command is about.
func kindFlag(cmd *cobra.Command, kind *string) {
	cmd.Flags().StringVar(kind, "kind", policyabi.Place.String(), "place, or quota or preempt: what policies of these were asked, and what they answered")
}

// asksPolicies reports whether a kind is one whose questions are recorded, for which flags that choose batches mean nothing.
func asksPolicies(cmd *cobra.Command, kind string) (bool, error) {
	switch kind {
	case policyabi.Place.String():
		return false, nil
	case policyabi.Quota.String(), policyabi.Preempt.String():
		for _, name := range []string{"pool", "shard", "only"} {
			if f := cmd.Flag(name); f != nil && f.Changed {
				return false, mistakef("--%s chooses among batches of placement: leave it out with --kind %s", name, kind)
			}
		}
		return true, nil
	}
	return false, mistakef("--kind %q is none of place, quota, preempt", kind)
}

// questions visits the recorded questions of a kind.
func questions(dir string, wanted decision.Range, kind string, visit func(*decision.Question) error) error {
	dir = decision.QuestionsDir(dir)
	if _, err := os.Stat(dir); err != nil {
		return mistakef("no questions are recorded in %s: a server of this version records them", dir)
	}
	wanted.Shard = ""
	_, err := decision.Visit(dir, wanted, func(e decision.Event) error {
		q := e.Question
		if q == nil || (q.Snapshot != nil) != (kind == policyabi.Quota.String()) || q.At < wanted.Since || wanted.Until != 0 && q.At > wanted.Until {
			return nil
		}
		return visit(q)
	})
	return err
}

// asked is a question as it is shown.
type asked struct {
	Time       time.Time `json:"time"`
	Kind       string    `json:"kind"`
	By         string    `json:"by"`
	Took       string    `json:"took"`
	Error      string    `json:"error,omitempty"`
	Pools      []pool    `json:"pools,omitempty"`
	Candidates []victim  `json:"candidates,omitempty"` // who goes first stands first
}

type pool struct {
	Path        string `json:"path"`
	Demand      string `json:"demand"`
	Usage       string `json:"usage"`
	Entitlement string `json:"entitlement,omitempty"`
}

type victim struct {
	Job      string `json:"job"`
	Pool     string `json:"pool"`
	Priority int32  `json:"priority"`
	Gang     int32  `json:"gang,omitempty"`
	Runs     int32  `json:"runs"`
	Rank     int32  `json:"rank"`
}

func newAsked(kind string, q *decision.Question) asked {
	a := asked{Time: time.Unix(0, q.At).UTC(), Kind: kind, By: q.By, Took: q.Took.String(), Error: q.Err}
	if q.Snapshot != nil {
		for i := range q.Snapshot.Rows {
			r := &q.Snapshot.Rows[i]
			p := pool{Path: r.Path, Demand: amounts(q.Snapshot.Kinds, &r.Demand), Usage: amounts(q.Snapshot.Kinds, &r.Usage)}
			if q.Err == "" {
				p.Entitlement = amounts(q.Snapshot.Kinds, &q.Entitlements[i])
			}
			a.Pools = append(a.Pools, p)
		}
	}
	for _, i := range order(q.Ranks) {
		c := &q.Contenders[i]
		a.Candidates = append(a.Candidates, victim{c.Job.String(), c.Pool.String(), c.Priority, c.Gang, c.Runs, q.Ranks[i]})
	}
	return a
}

func amounts(kinds []string, v *resource.Vector) string {
	var parts []string
	for k, name := range kinds {
		if v[k] != 0 {
			parts = append(parts, fmt.Sprintf("%s=%d", name, v[k]))
		}
	}
	return orDash(strings.Join(parts, ","))
}

// order lists contenders, who goes first first: the ranked by rank, the others behind them.
func order(ranks []int32) []int {
	list := make([]int, len(ranks))
	for i := range list {
		list[i] = i
	}
	last := func(i int) int64 {
		if ranks[i] < 0 {
			return 1 << 32
		}
		return int64(ranks[i])
	}
	slices.SortStableFunc(list, func(a, b int) int { return cmp.Compare(last(a), last(b)) })
	return list
}

// readAsked returns the newest questions, by time.
func readAsked(dir string, wanted decision.Range, kind string, f *filter) ([]asked, error) {
	list := []asked{}
	err := questions(dir, wanted, kind, func(q *decision.Question) error {
		if f.answered(q) {
			list = append(list, newAsked(kind, q))
		}
		if len(list) > 2*f.limit {
			list = append(list[:0], list[len(list)-f.limit:]...)
		}
		return nil
	})
	return list[max(0, len(list)-f.limit):], err
}

// answered reports whether a question is wanted. Of a digest its answer names the beginning only.
func (f *filter) answered(q *decision.Question) bool {
	if f.policy == "" || f.policy == q.By {
		return true
	}
	name, short, versioned := strings.Cut(q.By, "@")
	digest := strings.TrimPrefix(f.policy, "sha256:")
	return f.policy == name || versioned && digest != "" && (strings.HasPrefix(short, digest) || strings.HasPrefix(digest, short))
}

func showAsked(out io.Writer, dir string, wanted decision.Range, kind string, f *filter, asJSON bool) error {
	list, err := readAsked(dir, wanted, kind, f)
	if err != nil {
		return err
	}
	if asJSON {
		return writeJSON(out, list)
	}
	tellAsked(out, list)
	return nil
}

func tellAsked(out io.Writer, list []asked) {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "TIME\tKIND\tPOLICY\tABOUT\tTOOK\tFIRST TO GO\tERROR")
	for i := range list {
		a := &list[i]
		about, first := plural(len(a.Pools), "pool"), ""
		if len(a.Candidates) > 0 {
			about, first = plural(len(a.Candidates), "candidate"), a.first()
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", a.Time.Format(time.DateTime), a.Kind, a.By, about, a.Took, orDash(first), orDash(a.Error))
	}
	w.Flush()
}

// first is who goes first, of several alike one.
func (a *asked) first() string {
	alike := 0
	for i := range a.Candidates {
		if a.Candidates[i].Rank == a.Candidates[0].Rank {
			alike++
		}
	}
	if alike > 1 {
		return fmt.Sprintf("%s or %s", a.Candidates[0].Job, plural(alike-1, "other"))
	}
	return a.Candidates[0].Job
}

// answers is what one policy says to recorded questions, beside what was said then.
type answers struct {
	Name      string            `json:"name"`
	Digest    string            `json:"digest"`
	Questions int               `json:"questions"`
	Same      int               `json:"same_answers"`
	Faults    int               `json:"faults"`
	Pools     []*poolDifference `json:"pools,omitempty"` // that gain or lose, by path
	Pairs     int               `json:"pairs,omitempty"` // of candidates that were compared
	Turned    int               `json:"pairs_in_the_other_order,omitempty"`
	First     int               `json:"another_goes_first,omitempty"` // questions
	Firsts    []firstDifference `json:"first_differences,omitempty"`
}

// poolDifference is what a pool gains or loses, in the mean over all questions about it.
type poolDifference struct {
	Path      string  `json:"path"`
	Resource  string  `json:"resource"`
	Questions int     `json:"questions"`
	More      int     `json:"more"` // questions in which the policy gives it more
	Less      int     `json:"less"`
	Recorded  float64 `json:"recorded_mean"`
	Given     float64 `json:"given_mean"`
}

type firstDifference struct {
	Time     time.Time `json:"time"`
	Recorded victim    `json:"recorded"`
	Given    victim    `json:"given"`
}

// answerer asks one policy.
type answerer struct {
	answers
	version *wasm.Version
	slot    *wasm.Slot
	quota   *wasm.Quota
	ranker  *wasm.Ranker
	fault   *wasm.Fault // the first
	pools   map[[2]string]*poolDifference
}

func newAnswerer(ctx context.Context, name, kind string, set settings) (*answerer, error) {
	version, err := load(ctx, name, kind, set)
	if err != nil {
		return nil, err
	}
	a := &answerer{version: version, slot: &wasm.Slot{}, pools: map[[2]string]*poolDifference{}}
	a.Name, a.Digest = filepath.Base(name), version.Digest().String()
	a.slot.Swap(version)
	config := wasm.AskConfig{Slot: a.slot, Moment: func() (uint64, time.Time) { return 0, time.Unix(0, 0) }, OnFault: func(f *wasm.Fault) {
		if a.fault == nil {
			a.fault = f
		}
	}}
	a.quota, a.ranker = wasm.NewQuota(config), wasm.NewRanker(config)
	return a, nil
}

func (a *answerer) close() {
	a.quota.Close()
	a.ranker.Close()
	a.slot.Swap(nil)
	a.version.Release()
}

// ask gives the policy a recorded question, unless that has no answer to compare with.
func (a *answerer) ask(q *decision.Question, differences int) {
	if q.Err != "" {
		return
	}
	a.Questions++
	var same bool
	var err error
	if q.Snapshot != nil {
		same, err = a.askQuota(q)
	} else {
		same, err = a.askRanks(q, differences)
	}
	switch {
	case err != nil:
		a.Faults++
	case same:
		a.Same++
	}
}

func (a *answerer) askQuota(q *decision.Question) (same bool, err error) {
	given, err := a.quota.Entitle(q.Snapshot)
	if err != nil {
		return false, err
	}
	same = true
	for row := 1; row < len(given); row++ {
		for k, name := range q.Snapshot.Kinds {
			was, is := q.Entitlements[row][k], given[row][k]
			key := [2]string{q.Snapshot.Rows[row].Path, name}
			d := a.pools[key]
			if d == nil {
				d = &poolDifference{Path: key[0], Resource: name}
				a.pools[key] = d
			}
			d.Questions++
			d.Recorded += float64(was)
			d.Given += float64(is)
			if is > was {
				d.More++
			} else if is < was {
				d.Less++
			}
			same = same && is == was
		}
	}
	return same, nil
}

func (a *answerer) askRanks(q *decision.Question, differences int) (same bool, err error) {
	ranks, err := a.ranker.Rank(q.Contenders)
	if err != nil {
		return false, err
	}
	builtIn := preemption.BuiltIn(q.Contenders)
	was, is := preemption.Advised(q.Ranks, builtIn), preemption.Advised(ranks, builtIn)
	turned := 0
	for i := range was {
		for j := range i {
			a.Pairs++
			if was[i] < was[j] && is[i] > is[j] || was[i] > was[j] && is[i] < is[j] {
				turned++
			}
		}
	}
	a.Turned += turned
	if first, other := order(was)[0], order(is)[0]; was[first] < was[other] && is[other] < is[first] {
		if a.First++; len(a.Firsts) < differences {
			shown := func(i int, ranks []int32) victim {
				c := &q.Contenders[i]
				return victim{c.Job.String(), c.Pool.String(), c.Priority, c.Gang, c.Runs, ranks[i]}
			}
			a.Firsts = append(a.Firsts, firstDifference{time.Unix(0, q.At).UTC(), shown(first, was), shown(other, is)})
		}
	}
	return turned == 0, nil
}

// finish turns sums into means, and leaves out pools for which nothing changes.
func (a *answerer) finish() *answers {
	for _, key := range slices.SortedFunc(maps.Keys(a.pools), func(x, y [2]string) int { return slices.Compare(x[:], y[:]) }) {
		if d := a.pools[key]; d.More+d.Less > 0 {
			d.Recorded /= float64(d.Questions)
			d.Given /= float64(d.Questions)
			a.Pools = append(a.Pools, d)
		}
	}
	return &a.answers
}

// askAgain gives recorded questions to policies.
func askAgain(cmd *cobra.Command, s *source, kind string, policies []string, differences int, now time.Time) error {
	asJSON, err := wantsJSON(cmd)
	if err != nil {
		return err
	}
	dir, wanted, err := s.wanted(now)
	if err != nil {
		return err
	}
	set, err := readSettings(s.set)
	if err != nil {
		return err
	}
	var all []*answerer
	for _, name := range policies {
		a, err := newAnswerer(cmd.Context(), name, kind, set)
		if err != nil {
			return err
		}
		defer a.close() //nolint:revive // a handful of policies, which all are needed until the end
		all = append(all, a)
	}
	if err := set.unused(); err != nil {
		return err
	}
	n := 0
	if err := questions(dir, wanted, kind, func(q *decision.Question) error {
		n++
		for _, a := range all {
			a.ask(q, differences)
		}
		return cmd.Context().Err()
	}); err != nil {
		return err
	}
	if n == 0 {
		return mistakef("no question to a policy of %s is recorded in that time", kind)
	}
	var reports []*answers
	for _, a := range all {
		if a.fault != nil {
			fmt.Fprintf(cmd.ErrOrStderr(), "the first fault of %s: %v\n", a.Name, a.fault)
		}
		reports = append(reports, a.finish())
	}
	if asJSON {
		return writeJSON(cmd.OutOrStdout(), reports)
	}
	for _, a := range reports {
		a.tell(cmd.OutOrStdout(), differences)
	}
	return nil
}

func (a *answers) tell(out io.Writer, differences int) {
	fmt.Fprintf(out, "%s: %s, %d answered as recorded, %s\n", a.Name, plural(a.Questions, "question"), a.Same, plural(a.Faults, "fault"))
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	if len(a.Pools) > 0 {
		fmt.Fprintln(w, "POOL\tRESOURCE\tRECORDED\tGIVEN\tMORE\tLESS\tOF")
	}
	for _, d := range a.Pools {
		fmt.Fprintf(w, "%s\t%s\t%.1f\t%.1f\t%d\t%d\t%d\n", d.Path, d.Resource, d.Recorded, d.Given, d.More, d.Less, d.Questions)
	}
	if a.Pairs > 0 {
		fmt.Fprintf(out, "of %d pairs of candidates %d are in the other order; another goes first in %s\n", a.Pairs, a.Turned, plural(a.First, "question"))
	}
	if len(a.Firsts) > 0 && differences > 0 {
		fmt.Fprintln(w, "TIME\tFIRST AS RECORDED\tPRIORITY\tRUNS\tFIRST NOW\tPRIORITY\tRUNS")
	}
	for _, d := range a.Firsts {
		fmt.Fprintf(w, "%s\t%s\t%d\t%d\t%s\t%d\t%d\n", d.Time.Format(time.TimeOnly), d.Recorded.Job, d.Recorded.Priority, d.Recorded.Runs, d.Given.Job, d.Given.Priority, d.Given.Runs)
	}
	w.Flush()
}
