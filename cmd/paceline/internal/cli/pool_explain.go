package cli

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/paceline-sched/paceline/cmd/paceline/internal/output"
	pacelinev1 "github.com/paceline-sched/paceline/sdk/gen/paceline/v1"
)

func (a *app) poolExplain() *cobra.Command {
	var groups, remedied uint32
	cmd := &cobra.Command{
		Use:   "explain [POOL]",
		Short: "Say why tasks of a pool wait",
		Long: `Say why tasks of a pool, and of all below it, wait: how many for which reason; which tasks those are, taken together by what they ask for;
who goes first in each queue; and, for the largest groups, what would let the job start that has waited longest, and when it will start by
itself. Without POOL, or with /, it is the whole cell, as far as you may see it.

Every task that waits has one reason: the first that holds it up, in the order in which the reasons are listed. 'job explain' tells more of one
job.`,
		Example: `  paceline pool explain
  paceline pool explain /prod --groups 50
  paceline pool explain /prod/ads -o json`,
		Args:              args(cobra.MaximumNArgs(1)),
		ValidArgsFunction: a.completePoolArgs,
		RunE: func(cmd *cobra.Command, names []string) error {
			p, err := a.printer()
			if err != nil {
				return err
			}
			c, err := a.connect()
			if err != nil {
				return err
			}
			defer c.Close()
			answer, err := call(cmd.Context(), c.Pools.ExplainPool, &pacelinev1.ExplainPoolRequest{
				Pool: strings.Join(names, ""), MaxGroups: groups, MaxRemedied: &remedied,
			})
			if err != nil {
				return err
			}
			if p.Format.ForPeople() {
				return a.describeWaiting(p, answer.GetExplanation())
			}
			return p.Message(answer.GetExplanation())
		},
	}
	cmd.Flags().Uint32Var(&groups, "groups", 20, "show at most so many groups (1 to 100)")
	cmd.Flags().Uint32Var(&remedied, "remedies", 3, "say for so many of them what would let them start (0 to 10)")
	return cmd
}

func (a *app) describeWaiting(p *output.Printer, e *pacelinev1.PoolExplanation) error {
	var f facts
	f.add("Pool", "%s", e.GetPool())
	if e.GetJobs() == 0 {
		f.add("Waiting", "no task waits")
		return f.write(p)
	}
	f.add("Waiting", "%s of %s", output.Plural(e.GetTasks(), "task"), output.Plural(e.GetJobs(), "job"))
	if err := f.write(p); err != nil {
		return err
	}
	rows := [][]string{{"REASON", "TASKS", "JOBS", "GROUPS", "LONGEST"}}
	for _, r := range e.GetReasons() {
		rows = append(rows, []string{
			output.Enum(r.GetReason()), number(r.GetTasks()), number(r.GetJobs()), number(r.GetGroups()), output.Age(a.Now(), r.GetSinceTime()),
		})
	}
	if err := table(p, "Why tasks wait:", rows); err != nil {
		return err
	}
	if err := a.groupTable(p, e); err != nil {
		return err
	}
	if err := a.headTable(p, e); err != nil {
		return err
	}
	for _, g := range e.GetGroups() {
		if err := describeGroup(p, g); err != nil {
			return err
		}
	}
	return nil
}

func (a *app) groupTable(p *output.Printer, e *pacelinev1.PoolExplanation) error {
	rows := [][]string{{"POOL", "REASON", "TASKS", "JOBS", "EACH NEEDS", "WAITED LONGEST"}}
	for _, g := range e.GetGroups() {
		rows = append(rows, []string{
			g.GetPool(), output.Enum(g.GetReason()), number(g.GetTasks()), number(g.GetJobs()), classLine(g.GetClass()),
			fmt.Sprintf("%s, %s", g.GetExampleJob(), output.Age(a.Now(), g.GetSinceTime())),
		})
	}
	if err := table(p, "Which tasks those are:", rows); err != nil || e.GetMoreGroups() == 0 {
		return err
	}
	_, err := fmt.Fprintf(p.Out, "and %s with %s; see --groups\n", output.Plural(e.GetMoreGroups(), "more group"), output.Plural(e.GetMoreTasks(), "task"))
	return err
}

// classLine is what one task of a class needs.
func classLine(c *pacelinev1.TaskClass) string {
	if c.GetMixed() {
		return "various"
	}
	parts := []string{quantities(c.GetNeeds())}
	if n := c.GetGangSize(); n > 0 {
		gang := fmt.Sprintf("gang of %d", n)
		if least := c.GetGangMinSize(); least < n {
			gang += fmt.Sprintf(" (at least %d)", least)
		}
		parts = append(parts, gang)
	}
	for _, w := range []struct {
		on   bool
		word string
	}{{c.GetRevocable(), "revocable"}, {c.GetNonPreemptible(), "not preemptible"}, {c.GetController(), "controller"}} {
		if w.on {
			parts = append(parts, w.word)
		}
	}
	return strings.Join(append(parts, c.GetRestrictions()...), "; ")
}

func (a *app) headTable(p *output.Printer, e *pacelinev1.PoolExplanation) error {
	rows := [][]string{{"QUEUE OF", "JOBS", "FIRST", "WAITED", "REASON", "WHY"}}
	for _, h := range e.GetHeads() {
		queue := h.GetPool()
		if h.GetRevocable() {
			queue += " (revocable)"
		}
		rows = append(rows, []string{
			queue, number(h.GetQueueLength()), h.GetJob(), output.Age(a.Now(), h.GetSinceTime()), output.Enum(h.GetPending().GetReason()),
			output.OrDash(h.GetPending().GetMessage()),
		})
	}
	if err := table(p, "Who goes first:", rows); err != nil || e.GetMoreHeads() == 0 {
		return err
	}
	_, err := fmt.Fprintf(p.Out, "and %s\n", output.Plural(e.GetMoreHeads(), "more queue"))
	return err
}

// describeGroup writes what would let a group start, where that was asked.
func describeGroup(p *output.Printer, g *pacelinev1.WaitingGroup) error {
	var f facts
	f.add("Because", "%s", g.GetMessage())
	for n, r := range g.GetRemedies() {
		title := "Would start"
		if n > 0 {
			title = "or"
		}
		f.add(title, "if %s", r.GetMessage())
	}
	if start := g.GetEstimate(); start != nil {
		f.add("Starts", "%s", start.GetMessage())
	}
	for _, note := range g.GetNotes() {
		f.add("Note", "%s", note)
	}
	if len(f) == 0 {
		return nil
	}
	what := fmt.Sprintf("%s of %s (%s), by job %s, which has waited longest:", output.Plural(g.GetTasks(), "task"), g.GetPool(), output.Enum(g.GetReason()),
		jobPath(g.GetPool(), g.GetExampleJob()))
	if _, err := fmt.Fprintf(p.Out, "\n%s\n", what); err != nil {
		return err
	}
	return f.write(p)
}
