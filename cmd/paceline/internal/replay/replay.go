// Package replay shows the log of decisions to people, and gives what was decided to other policies.
//
// It owns the verbs for that and their output; policies/decision owns the log. It reads a directory, of a server that runs or of one that does not, and never writes there. Each
// command runs on the goroutine of its caller.
package replay

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/paceline-sched/paceline/core/placement"
	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/workload"
	"github.com/paceline-sched/paceline/policies/decision"
	"github.com/paceline-sched/paceline/policies/native"
	"github.com/paceline-sched/paceline/policies/wasm"
	"github.com/paceline-sched/paceline/sdk/policyabi"
)

// NewCommands returns the verbs of policy that read the log of decisions. dataDir is that of a server that is told nothing else.
func NewCommands(dataDir string, now func() time.Time) []*cobra.Command {
	return []*cobra.Command{newReplayCommand(dataDir, now), newDiffCommand(dataDir, now), newDecisionsCommand(dataDir, now)}
}

// mistakeError tells the command line that the user has to mend something.
type mistakeError struct{ error }

func (mistakeError) Mistake() {}

func mistakef(format string, args ...any) error { return mistakeError{fmt.Errorf(format, args...)} }

// source is which part of which log is wanted.
type source struct {
	dataDir, dir string
	since, until string
	shard        string
	set          []string // values of configurations
}

func (s *source) flags(cmd *cobra.Command, dataDir string) {
	f := cmd.Flags()
	f.StringVar(&s.dataDir, "data-dir", dataDir, "data directory of the server, of which the log is a part")
	f.StringVar(&s.dir, "log", "", "directory of the log itself (default: decisions in the data directory)")
	f.StringVar(&s.since, "since", "", "from when on: a time such as 2026-03-01T12:00:00Z, or how long ago, such as 1h (default: all that is kept); replay and diff begin with the segment in which it falls")
	f.StringVar(&s.until, "until", "", "up to when, likewise (default: now)")
	f.StringVar(&s.shard, "shard", "", "one shard alone, such as simulated/0")
}

func (s *source) setFlag(cmd *cobra.Command) {
	cmd.Flags().StringArrayVar(&s.set, "set", nil, "a value of the configuration of every policy that has it, as key=value; may be repeated (default: what the policies say themselves)")
}

// wanted reads the flags.
func (s *source) wanted(now time.Time) (dir string, r decision.Range, err error) {
	dir = s.dir
	if dir == "" {
		dir = filepath.Join(s.dataDir, "decisions")
	}
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return "", r, mistakef("there is no log of decisions in %s: run this where the server runs, and name its --data-dir or --log", dir)
	}
	r.Shard = s.shard
	if r.Since, err = moment("since", s.since, now); err != nil {
		return "", r, err
	}
	r.Until, err = moment("until", s.until, now)
	return dir, r, err
}

// moment reads a time or how long ago it was; "" is 0.
func moment(flag, text string, now time.Time) (int64, error) {
	if text == "" {
		return 0, nil
	}
	if ago, err := time.ParseDuration(text); err == nil {
		return now.Add(-ago).UnixNano(), nil
	}
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return 0, mistakef("--%s %q is neither a time such as 2026-03-01T12:00:00Z nor a duration such as 1h", flag, text)
	}
	return at.UnixNano(), nil
}

const estimates = `What differs is counted task by task. Tasks that wait longer, that find room sooner and that lose their host are followed: a task ends when its recorded twin ends. What
the recorded cell would have asked for next, had it decided otherwise, nobody knows; so the longer the time, the more of this is an estimate. Room that was made by
preemption is taken on the same hosts, and nobody is looked for who could make it elsewhere: "no room for" counts how often others would have had to go there.

With --kind quota or preempt the questions that policies of these were asked are asked again: which pools gain or lose, or who would go first. Each stands alone.`

const replayHelp = `Give recorded batches to another policy and count what would differ. The recorded policy differs in nothing from itself.

A policy is a module's file, or built in. Of placement, native stands for what the built-in policies were recorded to do; best-fit, pack, spread, fgd,
least-residue and load-aware are for all tasks. Of quota there are max-min, drf, bands and static; of preemption least-work-lost and gang-cost.

` + estimates

func newReplayCommand(dataDir string, now func() time.Time) *cobra.Command {
	var s source
	var policies []string
	var kind string
	o := decision.Options{}
	cmd := &cobra.Command{
		Use:   "replay --policy POLICY",
		Short: "Give recorded batches to another policy and count what would differ",
		Long:  replayHelp,
		Example: `  paceline policy replay --policy new.wasm --since 1h
  paceline policy replay --policy native --policy pack --data-dir /var/lib/paceline -o json
  paceline policy replay --kind quota --policy drf --since 1h`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			asks, err := asksPolicies(cmd, kind)
			if err != nil {
				return err
			}
			if len(policies) == 0 {
				return mistakef("name the policy to replay with: --policy new.wasm, or one that is built in: %s", strings.Join(builtIn(kind), ", "))
			}
			if asks {
				return askAgain(cmd, &s, kind, policies, o.Differences, now())
			}
			return run(cmd, &s, policies, o, now())
		},
	}
	s.flags(cmd, dataDir)
	s.setFlag(cmd)
	kindFlag(cmd, &kind)
	cmd.Flags().StringArrayVar(&policies, "policy", nil, "a module's file, or one that is built in; may be repeated")
	limits(cmd, &o)
	return cmd
}

func limits(cmd *cobra.Command, o *decision.Options) {
	cmd.Flags().StringSliceVar(&o.Only, "only", nil, "strategies or policies of jobs whose batches are given to the policy; the others are answered as the built-in one did (default: all)")
	cmd.Flags().IntVar(&o.Differences, "differences", 10, "how many differences to list for each policy")
}

const diffHelp = `Give recorded batches to two policies and count where they differ from each other, and each from what was recorded.

` + estimates

func newDiffCommand(dataDir string, now func() time.Time) *cobra.Command {
	var s source
	var kind string
	o := decision.Options{}
	cmd := &cobra.Command{
		Use:   "diff POLICY POLICY",
		Short: "Count where two policies differ on recorded batches",
		Long:  diffHelp,
		Example: `  paceline policy diff old.wasm new.wasm --since 1h
  paceline policy diff best-fit new.wasm --log ./decisions`,
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, given []string) error {
			asks, err := asksPolicies(cmd, kind)
			if err != nil {
				return err
			}
			if asks {
				return askAgain(cmd, &s, kind, given, o.Differences, now())
			}
			return run(cmd, &s, given, o, now())
		},
	}
	s.flags(cmd, dataDir)
	s.setFlag(cmd)
	kindFlag(cmd, &kind)
	limits(cmd, &o)
	return cmd
}

// strategies are those of the built-in placer; native stands for the one under which each task was recorded.
var strategies = []string{"native", string(workload.StrategyBestFit), string(workload.StrategyPack), string(workload.StrategySpread)}

// is reports whether a built-in policy is one of a kind.
func is(name, kind string) bool {
	p := native.Find(name)
	return p != nil && ofKind(p.Capability().Kinds, kind)
}

func ofKind(kinds []policyabi.Kind, kind string) bool {
	return slices.ContainsFunc(kinds, func(k policyabi.Kind) bool { return k.String() == kind })
}

// builtIn are the policies of a kind that are no files.
func builtIn(kind string) []string {
	var list []string
	if kind == policyabi.Place.String() {
		list = slices.Clone(strategies)
	}
	for _, name := range native.Names() {
		if is(name, kind) && !slices.Contains(list, name) {
			list = append(list, name)
		}
	}
	return list
}

func run(cmd *cobra.Command, s *source, policies []string, o decision.Options, now time.Time) error {
	asJSON, err := wantsJSON(cmd)
	if err != nil {
		return err
	}
	dir, wanted, err := s.wanted(now)
	if err != nil {
		return err
	}
	o.Range = wanted
	faults := map[string]*wasm.Fault{}
	set, err := readSettings(s.set)
	if err != nil {
		return err
	}
	for _, name := range policies {
		c, free, err := contender(cmd.Context(), name, set, faults)
		if err != nil {
			return err
		}
		defer free() //nolint:revive // a handful of policies, which all are needed until the end
		o.Contenders = append(o.Contenders, c)
	}
	if err := set.unused(); err != nil {
		return err
	}
	report, err := decision.Replay(cmd.Context(), dir, o)
	if err != nil {
		return err
	}
	for _, name := range policies {
		if f := faults[name]; f != nil {
			fmt.Fprintf(cmd.ErrOrStderr(), "the first fault of %s: %v\n", name, f)
		}
	}
	if asJSON {
		return writeJSON(cmd.OutOrStdout(), report)
	}
	table(cmd.OutOrStdout(), report)
	return nil
}

// callWork is how much work one call of a policy holds, where the log does not say: it must not depend on how fast this machine is.
const callWork = 1 << 16

// contender makes a policy of its name or file. Its first fault is noted.
func contender(ctx context.Context, name string, set settings, faults map[string]*wasm.Fault) (decision.Contender, func(), error) {
	if slices.Contains(strategies, name) {
		strategy := workload.Strategy(name)
		if name == "native" {
			strategy = ""
		}
		return decision.Builtin(name, strategy), func() {}, nil
	}
	version, err := load(ctx, name, policyabi.Place.String(), set)
	if err != nil {
		return decision.Contender{}, nil, err
	}
	slot := &wasm.Slot{}
	slot.Swap(version)
	c := decision.Contender{Name: filepath.Base(name), Digest: version.Digest().String(), New: func(names *resource.Names) (placement.Placer, error) {
		return wasm.NewPlacer(wasm.PlacerConfig{Slot: slot, Names: names, CallWork: callWork, OnFault: func(f *wasm.Fault) {
			if faults[name] == nil {
				faults[name] = f
			}
		}}), nil
	}}
	return c, func() {
		slot.Swap(nil)
		version.Release()
	}, nil
}

// notOf refuses a policy of another kind.
func notOf(name, kind string) error {
	if kind == policyabi.Place.String() {
		return mistakef("policy %s is none of placement: give --kind quota or --kind preempt for what those are asked", name)
	}
	return mistakef("policy %s is none of %s", name, kind)
}

// load makes a policy that is built in, or of a module's file, ready.
func load(ctx context.Context, name, kind string, set settings) (*wasm.Version, error) {
	if native.Find(name) != nil {
		if !is(name, kind) {
			return nil, notOf(name, kind)
		}
		values, err := set.of(&wasm.Module{Capability: native.Find(name).Capability()})
		if err != nil {
			return nil, err
		}
		return native.Load(name, wasm.Config{Values: values})
	}
	binary, err := os.ReadFile(name)
	if err != nil {
		return nil, mistakef("policy %s: it is neither built in (%s) nor a file that can be read: %w", name, strings.Join(builtIn(kind), ", "), err)
	}
	module, err := wasm.Check(binary, wasm.Limits{})
	if err != nil {
		return nil, mistakef("policy %s: %w", name, err)
	}
	if !ofKind(module.Capability.Kinds, kind) {
		return nil, notOf(name, kind)
	}
	values, err := set.of(module)
	if err != nil {
		return nil, err
	}
	version, err := wasm.Load(ctx, module, wasm.Config{Values: values})
	if err != nil {
		return nil, mistakef("policy %s: %w", name, err)
	}
	return version, nil
}

// wantsJSON reads -o: a table for people, or JSON.
func wantsJSON(cmd *cobra.Command) (bool, error) {
	format := "table"
	if f := cmd.Flag("output"); f != nil {
		format = f.Value.String()
	}
	switch format {
	case "table", "wide":
		return false, nil
	case "json":
		return true, nil
	}
	return false, mistakef("-o %s: this command writes table, wide or json", format)
}

func writeJSON(w io.Writer, v any) error {
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	encoder.SetEscapeHTML(false)
	return encoder.Encode(v)
}
