package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	"github.com/paceline-sched/paceline/cmd/paceline/internal/jobfile"
	"github.com/paceline-sched/paceline/cmd/paceline/internal/output"
	pacelinev1 "github.com/paceline-sched/paceline/sdk/gen/paceline/v1"
)

const poolHelp = `Pools share the capacity of a cell. Each has a reservation that it is guaranteed, a limit that it never exceeds and a share of what
is spare. A pool is named by its path, as in /prod/ads, or its id; / is the whole cell.`

func (a *app) poolCommand() *cobra.Command {
	return noun("pool", "Show and edit resource pools", poolHelp, a.poolTree(), a.poolGet(), a.poolExplain(), a.poolApply(), a.poolPlan(), a.poolMove(), a.poolDelete(),
		a.poolUsage(), a.poolReport())
}

func newPoolSpec() *pacelinev1.PoolSpec { return &pacelinev1.PoolSpec{} }

func (a *app) poolApply() *cobra.Command {
	var version uint64
	var files []string
	cmd := &cobra.Command{
		Use:   "apply [FILE...]",
		Short: "Create pools, or change them to what YAML files say",
		Long: `Create or change every pool of the files; - is standard input. Pools above go first, whatever their order in the files.
Applying a file again changes nothing.`,
		Example: `  paceline pool apply pools.yaml
  generate-pools | paceline pool apply -f -`,
		ValidArgsFunction: cobra.FixedCompletions(nil, cobra.ShellCompDirectiveDefault),
		RunE: func(cmd *cobra.Command, more []string) error {
			if len(files)+len(more) == 0 {
				return usage(cmd, errors.New("there is nothing to apply: name a file of pools, or - for standard input"))
			}
			documents, err := readFiles(a, append(files, more...), newPoolSpec)
			if err != nil {
				return err
			}
			if err := distinct(documents, "path", func(p *pacelinev1.PoolSpec) string { return "pool " + p.GetPath() }); err != nil {
				return err
			}
			if version != 0 && len(documents) > 1 {
				return &failure{code: ExitUsage, err: fmt.Errorf("--expected-version is for one pool; the files hold %d", len(documents))}
			}
			return a.applyPools(cmd.Context(), documents, version)
		},
	}
	poolFiles(cmd, &files)
	cmd.Flags().Uint64Var(&version, "expected-version", 0, "act only if this is the pool's version (0: whatever it is)")
	return cmd
}

// poolFiles lets files of pools be named by a flag, too.
func poolFiles(cmd *cobra.Command, files *[]string) {
	cmd.Flags().StringArrayVarP(files, "file", "f", nil, "a file of pools, as an argument names one; - is standard input")
}

func (a *app) applyPools(ctx context.Context, documents []jobfile.Document[*pacelinev1.PoolSpec], version uint64) error {
	p, err := a.printer()
	if err != nil {
		return err
	}
	c, err := a.connect()
	if err != nil {
		return err
	}
	defer c.Close()
	sortPools(documents)
	var pools []*pacelinev1.Pool
	for i := range documents {
		answer, err := call(ctx, c.Pools.ApplyPool, &pacelinev1.ApplyPoolRequest{Spec: documents[i].Message, ExpectedVersion: version})
		if err != nil {
			return partly(locate(&documents[i], err), i, len(documents))
		}
		for _, warning := range answer.GetWarnings() {
			fmt.Fprintf(a.Err, "Warning: %s: %s\n", answer.GetPool().GetSpec().GetPath(), warning)
		}
		if p.Format.ForPeople() {
			word := "changed"
			switch {
			case answer.GetCreated():
				word = "created"
			case answer.GetUnchanged():
				word = "unchanged"
			}
			a.say("pool %s %s", answer.GetPool().GetSpec().GetPath(), word)
		}
		pools = append(pools, answer.GetPool())
	}
	if p.Format.ForPeople() {
		return nil
	}
	return output.List(p, pools, poolColumns(pools), poolsEnvelope)
}

func poolsEnvelope(pools []*pacelinev1.Pool) proto.Message {
	return &pacelinev1.ListPoolsResponse{Pools: pools}
}

func poolPath(p *pacelinev1.Pool) string { return first(p.GetSpec().GetPath(), "/") }

func (a *app) poolTree() *cobra.Command {
	var watch bool
	cmd := &cobra.Command{
		Use:     "tree [POOL]",
		Aliases: []string{"list", "ls"},
		Short:   "Show pools with what they may use and what they use",
		Long: `Show the tree of pools. USED is what runs hold; ENTITLED is what the pool may use now, of its reservation and of what others leave;
RESERVED is what it is guaranteed. -o wide adds demand, limits, what one owner may use, revocable work, and the order of the queue.`,
		Example: `  paceline pool tree
  paceline pool tree /prod -o wide --watch`,
		Args:              args(cobra.MaximumNArgs(1)),
		ValidArgsFunction: a.completePoolArgs,
		RunE: func(cmd *cobra.Command, names []string) error {
			c, err := a.connect()
			if err != nil {
				return err
			}
			defer c.Close()
			root := strings.Join(names, "")
			l := listing[*pacelinev1.Pool]{
				envelope: poolsEnvelope,
				key:      (*pacelinev1.Pool).GetId,
				interest: &pacelinev1.WatchEventsRequest{Pool: root},
			}
			l.read = func(ctx context.Context) ([]*pacelinev1.Pool, bool, error) {
				pools, more, err := collect(maxLimit, func(size int32, token string) ([]*pacelinev1.Pool, string, error) {
					answer, err := call(ctx, c.Pools.ListPools, &pacelinev1.ListPoolsRequest{Root: root, PageSize: size, PageToken: token})
					return answer.GetPools(), answer.GetNextPageToken(), err
				})
				return pools, more, err
			}
			if watch {
				l.layout = poolColumns(nil)
				return showAndWatch(cmd.Context(), a, c, l)
			}
			return a.showTree(cmd.Context(), l)
		},
	}
	cmd.Flags().BoolVar(&watch, "watch", false, "keep the list up to date")
	return cmd
}

// showTree reads the pools first: which columns there are, and the branches before the names, depend on them.
func (a *app) showTree(ctx context.Context, l listing[*pacelinev1.Pool]) error {
	pools, more, err := l.read(ctx)
	if err != nil {
		return err
	}
	l.layout = poolColumns(pools)
	l.read = func(context.Context) ([]*pacelinev1.Pool, bool, error) { return pools, more, nil }
	return show(ctx, a, l)
}

func poolColumns(pools []*pacelinev1.Pool) output.Columns[*pacelinev1.Pool] {
	type pool = *pacelinev1.Pool
	branches := treeNames(pools)
	columns := []output.Column[pool]{
		{Header: "POOL", Value: func(p pool) string { return first(branches[p.GetId()], poolPath(p)) }},
		{Header: "KIND", Value: func(p pool) string { return first(p.GetSpec().GetKind(), "elastic") }},
		{Header: "SHARE", Value: shareOf},
	}
	var all []*pacelinev1.Quantities
	for _, p := range pools {
		all = append(all, p.GetReservation(), p.GetEntitlement(), p.GetUsage(), p.GetDemand())
	}
	names := resources(all...)
	for _, always := range []string{"memory_mib", "cpu_milli"} {
		if !slices.Contains(names, always) {
			names = slices.Insert(names, 0, always)
		}
	}
	for _, name := range names {
		title := strings.ToUpper(resourceTitle(name))
		wide := name == "disk_mib"
		cell := func(of func(pool) *pacelinev1.Quantities) func(pool) string {
			return func(p pool) string { return output.Quantity(name, amount(of(p), name)) }
		}
		columns = append(columns,
			output.Column[pool]{Header: title + " USED", Wide: wide, Value: cell(pool.GetUsage)},
			output.Column[pool]{Header: "ENTITLED", Wide: wide, Value: cell(pool.GetEntitlement)},
			output.Column[pool]{Header: "RESERVED", Wide: wide, Value: cell(pool.GetReservation)},
			output.Column[pool]{Header: "DEMAND", Wide: true, Value: cell(pool.GetDemand)},
			output.Column[pool]{Header: "LIMIT", Wide: true, Value: func(p pool) string {
				if !present(p.GetSpec().GetLimit(), name) {
					return output.Dash
				}
				return output.Quantity(name, amount(p.GetSpec().GetLimit(), name))
			}},
			output.Column[pool]{Header: "PER OWNER", Wide: true, Value: func(p pool) string {
				if !present(p.GetSpec().GetUserLimit(), name) {
					return output.Dash
				}
				return output.Quantity(name, amount(p.GetSpec().GetUserLimit(), name))
			}},
			output.Column[pool]{Header: "REVOCABLE", Wide: true, Value: cell(pool.GetRevocableUsage)})
	}
	columns = append(columns,
		output.Column[pool]{Header: "ORDER", Wide: true, Value: func(p pool) string { return output.OrDash(p.GetSpec().GetQueue().GetOrder()) }},
		output.Column[pool]{Header: "BACKFILL", Wide: true, Value: func(p pool) string { return output.OrDash(p.GetSpec().GetQueue().GetBackfill()) }},
		output.Column[pool]{Header: "CONTROLLERS", Wide: true, Value: func(p pool) string { return percentage(p.GetSpec().GetControllerPercent()) }},
	)
	columns = append(columns,
		output.Column[pool]{Header: "JOBS", Value: func(p pool) string { return number(p.GetJobs()) }},
		output.Column[pool]{Header: "WAITING", Value: func(p pool) string { return number(p.GetWaiting()) }},
		output.Column[pool]{Header: "VERSION", Wide: true, Value: func(p pool) string { return number(p.GetVersion()) }},
		output.Column[pool]{Header: "ID", Wide: true, Value: pool.GetId},
	)
	return output.Columns[pool]{Columns: columns, Name: poolPath}
}

// percentage writes a bound; 0 is none.
func percentage(n uint32) string {
	if n == 0 {
		return output.Dash
	}
	return fmt.Sprintf("%d%%", n)
}

func shareOf(p *pacelinev1.Pool) string {
	if p.GetSpec() == nil || p.GetSpec().Share == nil {
		return "1"
	}
	return number(p.GetSpec().GetShare())
}

// treeNames draws branches before the names of pools, by id. The pools come in the order of the tree.
func treeNames(pools []*pacelinev1.Pool) map[string]string {
	names := make(map[string]string, len(pools))
	known := make(map[string]bool, len(pools))
	last := map[string]string{} // parent to its last child
	for _, p := range pools {
		known[p.GetId()] = true
		last[p.GetParentId()] = p.GetId()
	}
	indent := map[string]string{} // what stands before a pool's children
	for _, p := range pools {
		if !known[p.GetParentId()] {
			names[p.GetId()] = poolPath(p)
			continue
		}
		path := poolPath(p)
		branch, below := "├─ ", "│  "
		if last[p.GetParentId()] == p.GetId() {
			branch, below = "└─ ", "   "
		}
		names[p.GetId()] = indent[p.GetParentId()] + branch + path[strings.LastIndexByte(path, '/')+1:]
		indent[p.GetId()] = indent[p.GetParentId()] + below
	}
	return names
}

func (a *app) poolGet() *cobra.Command {
	var spec bool
	cmd := &cobra.Command{
		Use:     "get POOL",
		Aliases: []string{"describe"},
		Short:   "Show one pool",
		Example: `  paceline pool get /prod/ads
  paceline pool get /prod/ads --spec > ads.yaml`,
		Args:              args(cobra.ExactArgs(1)),
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
			answer, err := call(cmd.Context(), c.Pools.GetPool, &pacelinev1.GetPoolRequest{Pool: names[0]})
			switch pool := answer.GetPool(); {
			case err != nil:
				return err
			case spec:
				return p.Message(pool.GetSpec())
			case p.Format.ForPeople():
				return a.describePool(p, pool)
			case p.Format == output.Name:
				return output.One(p, pool, poolColumns(nil))
			default:
				return p.Message(pool)
			}
		},
	}
	cmd.Flags().BoolVar(&spec, "spec", false, "only its spec, as a file that 'pool apply' reads")
	return cmd
}

func (a *app) poolDelete() *cobra.Command {
	var version uint64
	cmd := &cobra.Command{
		Use:               "delete POOL...",
		Aliases:           []string{"rm"},
		Short:             "Remove pools that have neither jobs nor pools below",
		Long:              "Remove pools that have neither jobs nor pools below them. Lower pools go first, whatever their order.",
		Example:           `  paceline pool delete /prod/ads`,
		Args:              args(cobra.MinimumNArgs(1)),
		ValidArgsFunction: a.completePoolArgs,
		RunE: func(cmd *cobra.Command, names []string) error {
			if version != 0 && len(names) > 1 {
				return usage(cmd, errors.New("--expected-version is for one pool"))
			}
			c, err := a.connect()
			if err != nil {
				return err
			}
			defer c.Close()
			slices.SortStableFunc(names, func(x, y string) int { return strings.Count(y, "/") - strings.Count(x, "/") })
			for i, name := range names {
				if _, err := call(cmd.Context(), c.Pools.DeletePool, &pacelinev1.DeletePoolRequest{Pool: name, ExpectedVersion: version}); err != nil {
					return partly(err, i, len(names))
				}
				a.say("pool %s deleted", name)
			}
			return nil
		},
	}
	cmd.Flags().Uint64Var(&version, "expected-version", 0, "act only if this is the pool's version (0: whatever it is)")
	return cmd
}
