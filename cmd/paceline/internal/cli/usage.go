package cli

import (
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/paceline-sched/paceline/cmd/paceline/internal/output"
	pacelinev1 "github.com/paceline-sched/paceline/sdk/gen/paceline/v1"
)

// span is the time that a report is about, as flags say it.
type span struct {
	since, until string
	step         time.Duration
	csv          bool
}

func (s *span) flags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&s.since, "since", "24h", "beginning: so long ago, as in 90m or 7d, or a time as in 2026-11-21T08:00:00Z")
	cmd.Flags().StringVar(&s.until, "until", "", "end, in the same forms (default: now)")
	cmd.Flags().DurationVar(&s.step, "step", 0, "one row for every step of at least 1m (default: one for the whole span)")
	cmd.Flags().BoolVar(&s.csv, "csv", false, "write comma-separated values, amounts in unit-seconds: cpu_milli 3600000 is one processor for an hour")
}

// moment reads a time that is given absolutely or as how long ago.
func moment(text string, now time.Time) (time.Time, error) {
	if t, err := time.Parse(time.RFC3339, text); err == nil {
		return t, nil
	}
	ago := text
	days := time.Duration(0)
	if before, after, ok := strings.Cut(text, "d"); ok {
		n, err := strconv.Atoi(before)
		if err != nil || n < 0 || n > 36500 {
			return time.Time{}, badMoment(text)
		}
		days, ago = time.Duration(n)*24*time.Hour, after
		if ago == "" {
			return now.Add(-days), nil
		}
	}
	d, err := time.ParseDuration(ago)
	if err != nil || d < 0 {
		return time.Time{}, badMoment(text)
	}
	return now.Add(-days - d), nil
}

func badMoment(text string) error {
	return fmt.Errorf("%q is no time: give how long ago, as in 90m or 7d, or a time as in 2026-11-21T08:00:00Z", text)
}

// request turns the flags into what the server is asked.
func (s *span) request(pool string) (*pacelinev1.GetUsageRequest, error) {
	now := time.Now()
	since, err := moment(s.since, now)
	if err != nil {
		return nil, fmt.Errorf("--since: %w", err)
	}
	r := &pacelinev1.GetUsageRequest{Pool: pool, Since: timestamppb.New(since)}
	if s.until != "" {
		until, err := moment(s.until, now)
		if err != nil {
			return nil, fmt.Errorf("--until: %w", err)
		}
		r.Until = timestamppb.New(until)
	}
	if s.step != 0 {
		r.Step = durationpb.New(s.step)
	}
	return r, nil
}

func (a *app) poolUsage() *cobra.Command {
	var s span
	var by string
	cmd := &cobra.Command{
		Use:   "usage [POOL]",
		Short: "Show what pools, owners or jobs used, for charging it back",
		Long: `Show what the runs of a pool and the pools below it held: a run counts with all that it needs, from the moment at which it is bound to its
host to its end. Amounts are hours: cpu 12 is twelve processors for an hour, or one for twelve; memory is in GiB-hours.

The figures come from readings that are taken every minute (of owners, every ten) and kept at falling resolution: a minute for 2 hours,
10 minutes for 2 days, an hour for 90 days. By job, the figures are those of the jobs' whole lives.`,
		Example: `  paceline pool usage /prod --since 7d
  paceline pool usage --by owner --since 30d --csv > bill.csv
  paceline pool usage /research --by job
  paceline pool usage /prod/ads --since 24h --step 1h`,
		Args:              args(cobra.MaximumNArgs(1)),
		ValidArgsFunction: a.completePoolArgs,
		RunE: func(cmd *cobra.Command, names []string) error {
			if !slices.Contains([]string{"pool", "owner", "job"}, by) {
				return usage(cmd, fmt.Errorf("--by %q is unknown: it is one of pool, owner, job", by))
			}
			if by != "pool" && s.step != 0 {
				return usage(cmd, errors.New("--step goes with --by pool only"))
			}
			pool := strings.Join(names, "")
			if by == "job" {
				return a.showJobUsage(cmd.Context(), pool, s.csv)
			}
			return a.showUsage(cmd, pool, &s, by == "owner")
		},
	}
	s.flags(cmd)
	cmd.Flags().StringVar(&by, "by", "pool", "sum up by pool, owner or job")
	return cmd
}

func (a *app) poolReport() *cobra.Command {
	var s span
	cmd := &cobra.Command{
		Use:   "report [POOL]",
		Short: "Show how fairly pools fared: entitlement, use and what was lacking",
		Long: `Show averages over a span of time, of every resource that somebody wanted:

  ENTITLED   what the pool could have used
  DEMANDED   what it used and waited for
  USED       what its runs held
  LACKED     what it was entitled to, demanded and did not have
  OVER       what it used beyond its entitlement
  SERVED     the part of its due (entitled and demanded) that it had

The last line is Jain's index over the pools that wanted something: 100 % when all were served alike.`,
		Example: `  paceline pool report --since 7d
  paceline pool report /prod --since 2026-11-01T00:00:00Z --until 2026-11-08T00:00:00Z --csv`,
		Args:              args(cobra.MaximumNArgs(1)),
		ValidArgsFunction: a.completePoolArgs,
		RunE: func(cmd *cobra.Command, names []string) error {
			return a.showReport(cmd, strings.Join(names, ""), &s)
		},
	}
	s.flags(cmd)
	return cmd
}

func (a *app) fetchUsage(cmd *cobra.Command, pool string, s *span) (*pacelinev1.GetUsageResponse, error) {
	request, err := s.request(pool)
	if err != nil {
		return nil, usage(cmd, err)
	}
	c, err := a.connect()
	if err != nil {
		return nil, err
	}
	defer c.Close()
	answer, err := call(cmd.Context(), c.Usage.GetUsage, request)
	if err == nil && answer.GetPointsCut() {
		fmt.Fprintln(a.Err, "Warning: there are more rows than the server gives at once: ask for a longer --step, a shorter time or one pool")
	}
	return answer, err
}

func (a *app) showUsage(cmd *cobra.Command, pool string, s *span, byOwner bool) error {
	p, err := a.printer()
	if err != nil {
		return err
	}
	answer, err := a.fetchUsage(cmd, pool, s)
	switch {
	case err != nil:
		return err
	case !s.csv && !p.Format.ForPeople():
		return p.Message(answer)
	}
	t := usageTable{}
	switch {
	case byOwner:
		t.keys = []string{"POOL", "OWNER"}
		for _, o := range answer.GetOwners() {
			t.add(o.GetUsed(), o.GetPath(), o.GetOwner())
		}
	case s.step != 0:
		t.keys = []string{"UNTIL", "POOL"}
		for _, point := range answer.GetPoints() {
			t.add(point.GetAmounts().GetUsed(), point.GetTime().AsTime().Format(time.RFC3339), point.GetPath())
		}
	default:
		t.keys = []string{"POOL"}
		for _, row := range answer.GetPools() {
			t.add(row.GetAmounts().GetUsed(), row.GetPath())
		}
	}
	return a.writeUsage(p, &t, s.csv)
}

func (a *app) showJobUsage(ctx context.Context, pool string, asCSV bool) error {
	p, err := a.printer()
	if err != nil {
		return err
	}
	c, err := a.connect()
	if err != nil {
		return err
	}
	defer c.Close()
	jobs, more, err := collect(maxLimit, func(size int32, token string) ([]*pacelinev1.JobUsage, string, error) {
		answer, err := call(ctx, c.Usage.ListJobUsage, &pacelinev1.ListJobUsageRequest{Pool: pool, PageSize: size, PageToken: token})
		return answer.GetJobs(), answer.GetNextPageToken(), err
	})
	switch {
	case err != nil:
		return err
	case !asCSV && !p.Format.ForPeople():
		return p.Message(&pacelinev1.ListJobUsageResponse{Jobs: jobs})
	}
	if more {
		fmt.Fprintf(a.Err, "Warning: only the first %d jobs are shown: name a pool\n", len(jobs))
	}
	t := usageTable{keys: []string{"POOL", "OWNER", "JOB", "STATE"}}
	for _, j := range jobs {
		t.add(j.GetUsed(), j.GetPool(), j.GetOwner(), j.GetName(), output.Enum(j.GetState()))
	}
	return a.writeUsage(p, &t, asCSV)
}

// usageTable is rows of names with resource-seconds.
type usageTable struct {
	keys    []string
	names   [][]string
	amounts []*pacelinev1.Quantities
}

func (t *usageTable) add(used *pacelinev1.Quantities, names ...string) {
	t.names, t.amounts = append(t.names, names), append(t.amounts, used)
}

func (a *app) writeUsage(p *output.Printer, t *usageTable, asCSV bool) error {
	kinds := resources(t.amounts...)
	rows := [][]string{slices.Clone(t.keys)}
	for _, kind := range kinds {
		if asCSV {
			rows[0] = append(rows[0], kind+"_seconds")
		} else {
			rows[0] = append(rows[0], strings.ToUpper(hoursTitle(kind)))
		}
	}
	for n, names := range t.names {
		row := slices.Clone(names)
		for _, kind := range kinds {
			seconds := amount(t.amounts[n], kind)
			if asCSV {
				row = append(row, strconv.FormatInt(seconds, 10))
			} else {
				row = append(row, hours(kind, seconds))
			}
		}
		rows = append(rows, row)
	}
	if asCSV {
		return a.writeCSV(rows)
	}
	if len(t.names) == 0 {
		fmt.Fprintln(a.Err, "Nothing was used in this time.")
	}
	return p.Rows(rows)
}

func (a *app) writeCSV(rows [][]string) error {
	for n := range rows[0] {
		rows[0][n] = strings.ToLower(rows[0][n])
	}
	w := csv.NewWriter(a.Out)
	if err := w.WriteAll(rows); err != nil {
		return fmt.Errorf("write comma-separated values: %w", err)
	}
	return nil
}

// hoursTitle names a resource counted in hours.
func hoursTitle(kind string) string {
	switch kind {
	case "memory_mib", "disk_mib":
		return resourceTitle(kind) + " GiB-h"
	}
	return resourceTitle(kind) + " h"
}

// hours turns unit-seconds into hours of what people count in.
func hours(kind string, seconds int64) string {
	scale := 3600.0
	switch kind {
	case "cpu_milli", "gpu_milli":
		scale *= 1000
	case "memory_mib", "disk_mib":
		scale *= 1024
	}
	return strconv.FormatFloat(float64(seconds)/scale, 'f', 2, 64)
}

func (a *app) showReport(cmd *cobra.Command, pool string, s *span) error {
	p, err := a.printer()
	if err != nil {
		return err
	}
	answer, err := a.fetchUsage(cmd, pool, s)
	switch {
	case err != nil:
		return err
	case !s.csv && !p.Format.ForPeople():
		return p.Message(answer)
	}
	rows := [][]string{{"POOL", "RESOURCE", "ENTITLED", "DEMANDED", "USED", "LACKED", "OVER", "SERVED"}}
	if s.step != 0 {
		rows[0] = slices.Insert(rows[0], 0, "UNTIL")
		for _, point := range answer.GetPoints() {
			at := point.GetTime().AsTime()
			rows = append(rows, reportRows(point.GetAmounts(), s.step, s.csv, at.Format(time.RFC3339), point.GetPath())...)
		}
	} else {
		for _, row := range answer.GetPools() {
			length := row.GetUntil().AsTime().Sub(row.GetSince().AsTime())
			rows = append(rows, reportRows(row.GetAmounts(), length, s.csv, row.GetPath())...)
		}
	}
	if s.csv {
		return a.writeCSV(rows)
	}
	if len(rows) == 1 {
		fmt.Fprintln(a.Err, "No pool wanted anything in this time.")
	}
	if err := p.Rows(rows); err != nil {
		return err
	}
	var fairness []string
	for _, kind := range append(slices.Clone(builtin), "") {
		if index, ok := answer.GetFairness()[kind]; ok {
			fairness = append(fairness, fmt.Sprintf("%s %.1f %%", resourceTitle(kind), 100*index))
		}
	}
	if len(fairness) > 0 {
		_, err = fmt.Fprintf(p.Out, "\nFairness between pools: %s\n", strings.Join(fairness, ", "))
	}
	return err
}

// reportRows is one row for each resource that the pool wanted: averages for people, unit-seconds for programs.
func reportRows(amounts *pacelinev1.UsageAmounts, length time.Duration, raw bool, names ...string) [][]string {
	var rows [][]string
	seconds := max(int64(length/time.Second), 1)
	for _, kind := range resources(amounts.GetDemanded(), amounts.GetUsed(), amounts.GetOverage()) {
		row := slices.Clone(names)
		if raw {
			row = append(row, kind)
		} else {
			row = append(row, resourceTitle(kind))
		}
		for _, q := range []*pacelinev1.Quantities{
			amounts.GetEntitled(), amounts.GetDemanded(), amounts.GetUsed(), amounts.GetDeficit(), amounts.GetOverage(),
		} {
			if raw {
				row = append(row, strconv.FormatInt(amount(q, kind), 10))
			} else {
				row = append(row, output.Quantity(kind, amount(q, kind)/seconds))
			}
		}
		due := min(amount(amounts.GetEntitled(), kind), amount(amounts.GetDemanded(), kind))
		served := 1.0
		if due > 0 {
			served = max(0, 1-float64(amount(amounts.GetDeficit(), kind))/float64(due))
		}
		rows = append(rows, append(row, fmt.Sprintf("%.1f %%", 100*served)))
	}
	return rows
}
