package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	"github.com/paceline-sched/paceline/cmd/paceline/internal/jobfile"
	"github.com/paceline-sched/paceline/cmd/paceline/internal/output"
	"github.com/paceline-sched/paceline/sdk/client"
	pacelinev1 "github.com/paceline-sched/paceline/sdk/gen/paceline/v1"
)

func (a *app) poolMove() *cobra.Command {
	var version uint64
	cmd := &cobra.Command{
		Use:     "move POOL NEWPATH",
		Aliases: []string{"mv", "rename"},
		Short:   "Put a pool below another one, or rename it",
		Long: `Give a pool a new path: another parent, another name, or both. All below it goes along, and everything that runs there runs on. Ids stay;
jobs are found under the new path from then on. It takes the operator role in the pools above both paths, and reservations and limits must
fit at the new place. 'pool plan --move' says what it would do to others.`,
		Example: `  paceline pool move /a/web /b/web
  paceline pool move /dev /development`,
		Args: args(cobra.ExactArgs(2)),
		ValidArgsFunction: func(cmd *cobra.Command, _ []string, text string) ([]string, cobra.ShellCompDirective) {
			return a.completePoolArgs(cmd, nil, text) // NEWPATH begins with the path of a pool, too
		},
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
			answer, err := call(cmd.Context(), c.Pools.MovePool, &pacelinev1.MovePoolRequest{Pool: names[0], NewPath: names[1], ExpectedVersion: version})
			switch pool := answer.GetPool(); {
			case err != nil:
				return err
			case p.Format.ForPeople():
				a.say("pool %s is %s now", names[0], poolPath(pool))
				return nil
			default:
				return output.One(p, pool, poolColumns([]*pacelinev1.Pool{pool}))
			}
		},
	}
	cmd.Flags().Uint64Var(&version, "expected-version", 0, "act only if this is the pool's version (0: whatever it is)")
	return cmd
}

func (a *app) poolPlan() *cobra.Command {
	var files, moves, deletes []string
	cmd := &cobra.Command{
		Use:   "plan [FILE...]",
		Short: "Say what edits of pools would do to entitlements",
		Long: `Say what 'pool apply', 'pool move' and 'pool delete' would do, without changing anything: what each pool would be entitled to at the
demand of the moment, who would use more than that, and whose work would make room first. All edits count together, in the order: files
(pools above first), moves, deletions.

Exit code 0: nothing would change. 1: there are changes. 255: the plan could not be made.`,
		Example: `  paceline pool plan pools.yaml
  paceline pool plan --move /a/web=/b/web --delete /old`,
		ValidArgsFunction: cobra.FixedCompletions(nil, cobra.ShellCompDirectiveDefault),
		RunE: func(cmd *cobra.Command, more []string) error {
			if len(files)+len(more)+len(moves)+len(deletes) == 0 {
				return &failure{code: ExitPlanError, err: errors.New("there is nothing to plan: give files, --move or --delete"), hint: cmd.CommandPath() + " --help has examples"}
			}
			changes, err := a.planPools(cmd.Context(), append(files, more...), moves, deletes)
			if err != nil {
				f := explain(err)
				return &failure{code: ExitPlanError, err: f.err, hint: f.hint}
			}
			if changes {
				return silently()
			}
			return nil
		},
	}
	poolFiles(cmd, &files)
	cmd.Flags().StringArrayVar(&moves, "move", nil, "a move, as OLDPATH=NEWPATH")
	cmd.Flags().StringArrayVar(&deletes, "delete", nil, "a pool to delete")
	return cmd
}

func (a *app) planPools(ctx context.Context, files, moves, deletes []string) (changes bool, err error) {
	documents, err := readFiles(a, files, newPoolSpec)
	if err != nil {
		return false, err
	}
	sortPools(documents)
	request := &pacelinev1.PlanPoolRequest{}
	for i := range documents {
		request.Edits = append(request.Edits, &pacelinev1.PoolEdit{Edit: &pacelinev1.PoolEdit_Apply{Apply: documents[i].Message}})
	}
	for _, move := range moves {
		from, to, ok := strings.Cut(move, "=")
		if !ok || from == "" || to == "" {
			return false, fmt.Errorf("--move %q: write it as OLDPATH=NEWPATH", move)
		}
		request.Edits = append(request.Edits, &pacelinev1.PoolEdit{Edit: &pacelinev1.PoolEdit_Move{Move: &pacelinev1.MovePoolRequest{Pool: from, NewPath: to}}})
	}
	for _, pool := range deletes {
		request.Edits = append(request.Edits, &pacelinev1.PoolEdit{Edit: &pacelinev1.PoolEdit_Delete{Delete: &pacelinev1.DeletePoolRequest{Pool: pool}}})
	}
	p, err := a.printer()
	if err != nil {
		return false, err
	}
	c, err := a.connect()
	if err != nil {
		return false, err
	}
	defer c.Close()
	plan, err := call(ctx, c.Pools.PlanPool, request)
	if err != nil {
		return false, locateEdit(documents, err)
	}
	changes = len(plan.GetEffects()) > 0
	if !p.Format.ForPeople() {
		return changes, p.Message(plan)
	}
	return changes, a.describePoolPlan(p, plan.GetEffects())
}

// sortPools puts pools above first, whatever their order in the files.
func sortPools(documents []jobfile.Document[*pacelinev1.PoolSpec]) {
	slices.SortStableFunc(documents, func(x, y jobfile.Document[*pacelinev1.PoolSpec]) int {
		return strings.Count(x.Message.GetPath(), "/") - strings.Count(y.Message.GetPath(), "/")
	})
}

// locateEdit moves what a server says about an edit that came from a file to the line in it.
func locateEdit(documents []jobfile.Document[*pacelinev1.PoolSpec], err error) error {
	var remote *connect.Error
	if !errors.As(err, &remote) || !aboutRequest(remote.Code()) {
		return err
	}
	f := explainRemote(err, remote)
	var problems jobfile.Problems
	for _, v := range client.Detail(err).GetViolations() {
		for i := range documents {
			field, here := strings.CutPrefix(v.GetField(), fmt.Sprintf("edits[%d].", i))
			if !here {
				continue
			}
			problems = append(problems, documents[i].Problem(strings.TrimPrefix(field, "apply."), v.GetMessage()))
		}
	}
	if len(problems) == 0 {
		return err
	}
	return &failure{code: f.code, err: problems, hint: f.hint}
}

// describePoolPlan writes a plan: a line for each pool and resource in which something differs, then who would make room.
func (a *app) describePoolPlan(p *output.Printer, effects []*pacelinev1.PoolEffect) error {
	if len(effects) == 0 {
		a.say("= no pool would change")
		return nil
	}
	rows := [][]string{{"POOL", "EDIT", "RESOURCE", "USED", "ENTITLED", "WOULD BE", "OVER BY"}}
	exposed := [][]string{{"POOL", "JOB", "OWNER", "PRIORITY", "WOULD GO", "OF", "USED"}}
	for _, e := range effects {
		rows = append(rows, effectRows(e)...)
		for _, j := range e.GetExposed() {
			exposed = append(exposed, []string{
				e.GetPath(), j.GetName(), output.OrDash(j.GetOwner()), fmt.Sprint(j.GetPriority()), fmt.Sprint(j.GetGoing()), fmt.Sprint(j.GetInstances()),
				quantities(j.GetUsage()),
			})
		}
		if more := int(e.GetExposedJobs()) - len(e.GetExposed()); more > 0 {
			exposed = append(exposed, []string{e.GetPath(), fmt.Sprintf("and %d more", more), output.Dash, output.Dash, output.Dash, output.Dash, output.Dash})
		}
		if e.GetExposedRuns() > 0 {
			exposed = append(exposed, []string{e.GetPath(), "in all", output.Dash, output.Dash, fmt.Sprint(e.GetExposedRuns()), output.Dash, output.Dash})
		}
	}
	if err := p.Rows(rows); err != nil {
		return err
	}
	return table(p, "Would be over their entitlement, and make room when others need it, in this order:", exposed)
}

func effectRows(e *pacelinev1.PoolEffect) (rows [][]string) {
	name, edit := e.GetPath(), output.Dash
	switch {
	case e.GetDeleted():
		edit = "deleted"
	case e.GetOldPath() == "":
		edit = "created"
	case e.GetOldPath() != e.GetPath():
		edit = "from " + e.GetOldPath()
	case e.GetChanged():
		edit = "changed"
	}
	for _, resource := range resources(e.GetEntitlementBefore(), e.GetEntitlementAfter(), e.GetOverageAfter()) {
		before, after := amount(e.GetEntitlementBefore(), resource), amount(e.GetEntitlementAfter(), resource)
		over := amount(e.GetOverageAfter(), resource)
		if before == after && over == 0 {
			continue
		}
		row := []string{
			name, edit, resourceTitle(resource), output.Quantity(resource, amount(e.GetUsage(), resource)), output.Quantity(resource, before),
			output.Quantity(resource, after), output.Dash,
		}
		if over > 0 {
			row[len(row)-1] = output.Quantity(resource, over)
		}
		rows, name, edit = append(rows, row), "", ""
	}
	if len(rows) == 0 {
		rows = append(rows, []string{name, edit, output.Dash, output.Dash, output.Dash, output.Dash, output.Dash})
	}
	return rows
}
