package cli

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/paceline-sched/paceline/cmd/paceline/internal/output"
	"github.com/paceline-sched/paceline/sdk/client"
	pacelinev1 "github.com/paceline-sched/paceline/sdk/gen/paceline/v1"
)

const policyHelp = `Policies are WebAssembly modules, in any language that compiles to it, that decide in the scheduler's place. There are four kinds:

  place    where tasks go. A job chooses its policy by placement.strategy, a pool by placement_policy, and a cell has a default for each kind of
           job; best-fit, pack and spread are built in
  preempt  whose work makes room first. A cell has one, or goes by overage and priority
  quota    what pools are entitled to. A cell has one, or shares by max-min
  route    which cluster work goes to. It can be pushed and judged; nothing asks it yet

A server keeps versions of a policy under their digest. A version is pushed, watched in shadow, tried as a canary (of placement alone) and activated;
one that fails, is slow or leaves tasks without a host is rolled back by itself. Whatever a policy does, work goes on: the built-in policy decides
where it does not. What policies and the scheduler say to each other is in docs/policy-abi.md.

new, build, test, inspect, verify, bench and sign need no server: what passes verify is what a server takes.`

func (a *app) policyCommand() *cobra.Command {
	adopt(a.Policies)
	verbs := []*cobra.Command{
		a.policyPush(), a.policyList(), a.policyGet(), a.policyShadow(), a.policyCanary(), a.policyActivate(), a.policyRollback(), a.policyRetire(),
		a.policyDefault(),
	}
	return noun("policy", "Make, judge and measure policies, and bring them into force", policyHelp, append(verbs, a.Policies...)...)
}

func (a *app) policyPush() *cobra.Command {
	var kind, signature string
	var version uint64
	var set []string
	cmd := &cobra.Command{
		Use:   "push NAME FILE",
		Short: "Keep a version of a policy",
		Long: `Push a module. The server checks it, brings it up and tries it on tables of its own first, and refuses what fails there. It decides nothing
until it is activated. A signature is read from FILE.sig when there is one; a server with --policy-keys wants one.

A module may be of several kinds. A policy is of one: --kind says which.

--set gives a value of the policy's configuration in place of its default. The same module with other values is another version, with a digest of its own.`,
		Example: `  paceline policy push tight tight.wasm
  paceline policy push tight tight.wasm --set reserve=250
  paceline policy push bands bands.wasm --kind quota
  paceline policy shadow tight`,
		Args: args(cobra.ExactArgs(2)),
		RunE: func(cmd *cobra.Command, given []string) error {
			module, err := os.ReadFile(given[1])
			if err != nil {
				return &failure{code: ExitUsage, err: fmt.Errorf("read the module: %w", err)}
			}
			request := &pacelinev1.PushPolicyRequest{Name: given[0], Kind: kind, Module: module, ExpectedVersion: version, Config: map[string]string{}}
			for _, s := range set {
				key, value, ok := strings.Cut(s, "=")
				if !ok {
					return &failure{code: ExitUsage, err: fmt.Errorf("--set %q: it is key=value", s)}
				}
				request.Config[key] = value
			}
			path := first(signature, given[1]+".sig")
			if request.Signature, err = os.ReadFile(path); err != nil && (signature != "" || !os.IsNotExist(err)) {
				return &failure{code: ExitUsage, err: fmt.Errorf("read the signature: %w", err)}
			}
			return a.withBundles(func(p *output.Printer, c *client.Client) error {
				answer, err := call(cmd.Context(), c.Policies.PushPolicy, request)
				if err != nil {
					return err
				}
				return a.tellStage(p, answer.GetPolicy(), answer.GetDigest())
			})
		},
	}
	cmd.Flags().StringVar(&kind, "kind", "", "place, preempt, quota or route (default: the first that the module names)")
	cmd.Flags().StringVar(&signature, "signature", "", "file with the module's signature (default: FILE.sig, if it is there)")
	cmd.Flags().StringArrayVar(&set, "set", nil, "a value of the policy's configuration, as key=value; may be repeated (default: what the policy says itself)")
	expectPolicy(cmd, &version)
	return cmd
}

// expectPolicy adds the flag that keeps from acting on a policy that changed meanwhile.
func expectPolicy(cmd *cobra.Command, version *uint64) {
	cmd.Flags().Uint64Var(version, "expected-version", 0, "act only if this is the policy's version (0: whatever it is)")
}

// tellStage says where a version stands now.
func (a *app) tellStage(p *output.Printer, policy *pacelinev1.Policy, digest string) error {
	if !p.Format.ForPeople() {
		return output.One(p, policy, policyColumns(a.Now()))
	}
	for _, v := range policy.GetVersions() {
		if v.GetDigest() == digest {
			a.say("policy %s: version %s is %s", policy.GetName(), shortDigest(digest), stageText(v))
		}
	}
	return nil
}

func stageText(v *pacelinev1.PolicyVersion) string {
	s := output.Enum(v.GetStage())
	switch {
	case v.GetScope().GetPool() != "":
		s += " for pool " + v.GetScope().GetPool()
	case v.GetScope().GetPercent() > 0:
		s += fmt.Sprintf(" for %d%% of the classes", v.GetScope().GetPercent())
	}
	return s
}

// gateFlags are what may roll a version back.
type gateFlags struct {
	strikes, slow, unplaced, divergence int32
	slowCall                            time.Duration
}

func (g *gateFlags) add(cmd *cobra.Command) {
	f := cmd.Flags()
	f.Int32Var(&g.strikes, "max-faults", 0, "faults within 10 min that roll it back; -1: never (default 3)")
	f.DurationVar(&g.slowCall, "slow-call", 0, "how long a call may take (default 10ms)")
	f.Int32Var(&g.slow, "max-slow", 0, "calls in 1000 that may take longer; -1: all (default 100)")
	f.Int32Var(&g.unplaced, "max-unplaced", 0, "of placement: tasks in 1000 that it may leave without a host where there is room; -1: all (default 20)")
	f.Int32Var(&g.divergence, "max-divergence", 0, "tasks in 1000 that it may place elsewhere, or what ELSEWHERE of 'policy list' counts of other kinds (default: all)")
}

func (g *gateFlags) gates() *pacelinev1.PolicyGates {
	out := &pacelinev1.PolicyGates{Strikes: g.strikes, SlowPermille: g.slow, UnplacedPermille: g.unplaced, DivergencePermille: g.divergence}
	if g.slowCall != 0 {
		out.SlowCall = durationpb.New(g.slowCall)
	}
	return out
}

// policyMove is a verb that brings a version to a stage.
func (a *app) policyMove(cmd *cobra.Command, stage pacelinev1.PolicyStage, scope func() *pacelinev1.PolicyScope) *cobra.Command {
	gates := &gateFlags{}
	gates.add(cmd)
	var version uint64
	expectPolicy(cmd, &version)
	cmd.Long += "\n\nDIGEST is the beginning of the version's; without it the newest version is taken. What breaks a gate is rolled back by itself, and 'policy get' says why."
	cmd.Args = args(cobra.RangeArgs(1, 2))
	cmd.RunE = func(cmd *cobra.Command, given []string) error {
		request := &pacelinev1.MovePolicyRequest{Name: given[0], Stage: stage, Gates: gates.gates(), ExpectedVersion: version}
		if scope != nil {
			request.Scope = scope()
		}
		if len(given) > 1 {
			request.Digest = given[1]
		}
		return a.withBundles(func(p *output.Printer, c *client.Client) error {
			answer, err := call(cmd.Context(), c.Policies.MovePolicy, request)
			if err != nil {
				return err
			}
			if err := a.tellStage(p, answer.GetPolicy(), answer.GetDigest()); err != nil {
				return err
			}
			if p.Format.ForPeople() && stage == pacelinev1.PolicyStage_POLICY_STAGE_ACTIVE && answer.GetPolicy().GetKind() == "route" {
				a.say("nothing asks policies of routes yet")
			}
			named := stage != pacelinev1.PolicyStage_POLICY_STAGE_ACTIVE || answer.GetPolicy().GetKind() != "place"
			if p.Format.ForPeople() && !named && len(answer.GetPolicy().GetDefaultFor()) == 0 && !cmd.Flags().Changed("default") {
				a.say("it places for jobs and pools that name it; 'paceline policy default %s --kind batch' has it place for all that name none", given[0])
			}
			return nil
		})
	}
	return cmd
}

func (a *app) policyShadow() *cobra.Command {
	return a.policyMove(&cobra.Command{
		Use:   "shadow NAME [DIGEST]",
		Short: "Watch a version without letting it decide",
		Long: `Ask a version, too, what it would do with the work of its name, on the same hosts, and count how that differs from what is done. As long as no
version of its name is active, the work is also that which chooses no policy. Asking takes some hundredths of the time at most, so of much work it
is a sample. A version of quota or preemption is asked once a second about the cell as it is.`,
		Example: `  paceline policy shadow tight
  paceline policy list`,
	}, pacelinev1.PolicyStage_POLICY_STAGE_SHADOW, nil)
}

func (a *app) policyCanary() *cobra.Command {
	var pool string
	var percent uint32
	cmd := &cobra.Command{
		Use:   "canary NAME [DIGEST]",
		Short: "Let a version decide for a part of the work",
		Long: `Let a version decide for the work of a pool and those below it, or for a share of the classes of tasks, the same ones everywhere. The
work is that of its name and, as long as no version of its name is active, that which chooses no policy.

Policies of other kinds have no canary: entitlements, and an order, are decided as one. Watch them in shadow, then activate them.`,
		Example: `  paceline policy canary tight --percent 5
  paceline policy canary tight --pool /dev --max-divergence 200`,
	}
	a.policyMove(cmd, pacelinev1.PolicyStage_POLICY_STAGE_CANARY, func() *pacelinev1.PolicyScope {
		return &pacelinev1.PolicyScope{Pool: pool, Percent: percent}
	})
	cmd.Flags().StringVar(&pool, "pool", "", "path of the pool whose work it decides for")
	cmd.Flags().Uint32Var(&percent, "percent", 0, "share of the classes that it decides for")
	cmd.MarkFlagsMutuallyExclusive("pool", "percent")
	cmd.MarkFlagsOneRequired("pool", "percent")
	return cmd
}

// jobKinds are the kinds of jobs that have a default policy.
var jobKinds = []string{"batch", "service", "daemon"}

func (a *app) policyActivate() *cobra.Command {
	var kinds []string
	cmd := a.policyMove(&cobra.Command{
		Use:   "activate NAME [DIGEST]",
		Short: "Let a version decide",
		Long: `Let a version decide for all the work of its name, in place of the one before. It is in force when the command returns; what is placed already
stays where it is. A former version is activated in the same way. Its work is that of jobs and pools that name the policy, and with --default all of a
kind that name none.

Of quota, of preemption and of routes a cell has one policy in force each: it takes the place of the one before, whatever that is called.`,
		Example: `  paceline policy activate tight
  paceline policy activate tight 3f9a
  paceline policy activate tight --default batch --default service
  paceline policy activate bands`,
	}, pacelinev1.PolicyStage_POLICY_STAGE_ACTIVE, nil)
	move := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, given []string) error {
		for _, kind := range kinds { // before anything is changed
			if !slices.Contains(jobKinds, kind) {
				return &failure{code: ExitUsage, err: fmt.Errorf("--default %s: there are jobs of the kinds %s", kind, strings.Join(jobKinds, ", "))}
			}
		}
		if len(kinds) > 0 {
			if err := a.wantPlaces(cmd.Context(), given); err != nil {
				return err
			}
		}
		if err := move(cmd, given); err != nil {
			return err
		}
		for _, kind := range kinds {
			if err := a.setDefault(cmd.Context(), given[0], kind); err != nil {
				return fmt.Errorf("it is active, but not the default for %s jobs: %w", kind, err)
			}
		}
		return nil
	}
	cmd.Flags().StringSliceVar(&kinds, "default", nil, "kind of jobs that it places where nothing else is chosen: batch, service, daemon")
	return cmd
}

// wantPlaces refuses a policy that cannot be a default.
func (a *app) wantPlaces(ctx context.Context, given []string) error {
	if len(given) == 0 {
		return nil // which is refused elsewhere
	}
	return a.withBundles(func(_ *output.Printer, c *client.Client) error {
		answer, err := call(ctx, c.Policies.GetPolicy, &pacelinev1.GetPolicyRequest{Name: given[0]})
		if err != nil {
			return err
		}
		if kind := answer.GetPolicy().GetKind(); kind != "place" {
			return &failure{code: ExitUsage, err: fmt.Errorf("policy %s is of kind %s: --default is for policies that place", given[0], kind)}
		}
		return nil
	})
}

func (a *app) policyRollback() *cobra.Command {
	var why string
	var version uint64
	cmd := &cobra.Command{
		Use:   "rollback NAME",
		Short: "Take a version out of force",
		Long: `Take the version in shadow or canary out of force or, when there is none, the active one: then the one that was active before is again, unless it
was rolled back itself, and else the default places the work. Of quota and of preemption the built-in policy decides then.`,
		Example: `  paceline policy rollback tight --why "leaves GPUs idle"`,
		Args:    args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, given []string) error {
			return a.withBundles(func(p *output.Printer, c *client.Client) error {
				answer, err := call(cmd.Context(), c.Policies.RollBackPolicy, &pacelinev1.RollBackPolicyRequest{Name: given[0], Why: why, ExpectedVersion: version})
				if err != nil {
					return err
				}
				return a.tellForce(p, answer.GetPolicy())
			})
		},
	}
	cmd.Flags().StringVar(&why, "why", "", "a note for the policy's story")
	expectPolicy(cmd, &version)
	return cmd
}

func (a *app) policyRetire() *cobra.Command {
	var version uint64
	cmd := &cobra.Command{
		Use:   "retire NAME",
		Short: "Take a policy out of force",
		Long: `Take all versions of a policy out of force. Jobs and pools that name it are placed by the default, which job explain says; new ones that name it
are refused. After a policy of quota the cell shares by max-min again, after one of preemption work goes by overage and priority. Versions are kept.`,
		Example: `  paceline policy retire tight`,
		Args:    args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, given []string) error {
			return a.withBundles(func(p *output.Printer, c *client.Client) error {
				answer, err := call(cmd.Context(), c.Policies.RetirePolicy, &pacelinev1.RetirePolicyRequest{Name: given[0], ExpectedVersion: version})
				if err != nil {
					return err
				}
				return a.tellForce(p, answer.GetPolicy())
			})
		},
	}
	expectPolicy(cmd, &version)
	return cmd
}

// tellForce says what of a policy is in force.
func (a *app) tellForce(p *output.Printer, policy *pacelinev1.Policy) error {
	if !p.Format.ForPeople() {
		return output.One(p, policy, policyColumns(a.Now()))
	}
	for _, v := range versionsInForce(policy) {
		a.say("policy %s: version %s is %s", policy.GetName(), shortDigest(v.GetDigest()), stageText(v))
	}
	if len(versionsInForce(policy)) == 0 {
		a.say("policy %s: no version is in force", policy.GetName())
	}
	return nil
}

func (a *app) setDefault(ctx context.Context, name, kind string) error {
	return a.withBundles(func(_ *output.Printer, c *client.Client) error {
		if _, err := call(ctx, c.Policies.SetDefaultPolicy, &pacelinev1.SetDefaultPolicyRequest{JobKind: kind, Name: name}); err != nil {
			return err
		}
		a.say("policy %s places %s jobs where nothing else is chosen", name, kind)
		return nil
	})
}

func (a *app) policyDefault() *cobra.Command {
	var kind string
	cmd := &cobra.Command{
		Use:   "default NAME",
		Short: "Choose the policy of placement for jobs that choose none",
		Long: `Choose the policy that places jobs of a kind where neither they nor their pools choose one: best-fit, pack, spread, or one with an active version.
It counts for whatever is placed from then on.`,
		Example: `  paceline policy default tight --kind batch
  paceline policy default best-fit --kind service`,
		Args: args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, given []string) error {
			return a.setDefault(cmd.Context(), given[0], kind)
		},
	}
	cmd.Flags().StringVar(&kind, "kind", "", "batch, service or daemon")
	must(cmd.MarkFlagRequired("kind"))
	must(cmd.RegisterFlagCompletionFunc("kind", cobra.FixedCompletions(jobKinds, cobra.ShellCompDirectiveNoFileComp)))
	return cmd
}

func (a *app) policyList() *cobra.Command {
	return &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List policies with what is in force and how it fares",
		Long: `List every policy with its versions in force. CALLS and FAULTS are counted since the version came to its stage, or the server started. ELSEWHERE is
the share of compared tasks that it places on other hosts than whoever would decide without it, and UNPLACED the share that it leaves without a
host of those that the other one places. Of quota ELSEWHERE is the share of entitlements that differ, of preemption that of pairs in the other order. SHARDS is how many placed with it last. What somebody should look at is told below.`,
		Example: `  paceline policy list
  paceline policy list -o wide`,
		Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withBundles(func(p *output.Printer, c *client.Client) error {
				answer, err := call(cmd.Context(), c.Policies.ListPolicies, &pacelinev1.ListPoliciesRequest{})
				if err != nil {
					return err
				}
				if !p.Format.ForPeople() {
					return output.List(p, answer.GetPolicies(), policyColumns(a.Now()), func(list []*pacelinev1.Policy) proto.Message {
						return &pacelinev1.ListPoliciesResponse{Policies: list, Warnings: answer.GetWarnings()}
					})
				}
				if err := output.List(p, byForce(answer.GetPolicies()), policyColumns(a.Now()), nil); err != nil {
					return err
				}
				a.warn(answer.GetWarnings())
				return nil
			})
		},
	}
}

// warn tells what somebody should look at.
func (a *app) warn(warnings []string) {
	for _, w := range warnings {
		fmt.Fprintln(a.Err, "warning: "+w)
	}
}

func versionsInForce(policy *pacelinev1.Policy) (list []*pacelinev1.PolicyVersion) {
	for _, v := range policy.GetVersions() {
		switch v.GetStage() {
		case pacelinev1.PolicyStage_POLICY_STAGE_ACTIVE, pacelinev1.PolicyStage_POLICY_STAGE_CANARY, pacelinev1.PolicyStage_POLICY_STAGE_SHADOW:
			list = append(list, v)
		default:
		}
	}
	return list
}

// byForce has a row for each version in force, or for the newest when none is.
func byForce(policies []*pacelinev1.Policy) (rows []*pacelinev1.Policy) {
	for _, p := range policies {
		list := versionsInForce(p)
		if len(list) == 0 {
			list = p.GetVersions()[:min(1, len(p.GetVersions()))]
		}
		if len(list) == 0 {
			rows = append(rows, p)
		}
		for _, v := range list {
			rows = append(rows, withVersion(p, v))
		}
	}
	return rows
}

func withVersion(p *pacelinev1.Policy, v *pacelinev1.PolicyVersion) *pacelinev1.Policy {
	return &pacelinev1.Policy{
		Name: p.GetName(), Kind: p.GetKind(), BuiltIn: p.GetBuiltIn(), DefaultFor: p.GetDefaultFor(), Serving: p.GetServing(), Versions: []*pacelinev1.PolicyVersion{v}, Version: p.GetVersion(),
	}
}

func policyColumns(now time.Time) output.Columns[*pacelinev1.Policy] {
	type policy = *pacelinev1.Policy
	type v = *pacelinev1.PolicyVersion
	version := func(show func(v) string) func(policy) string {
		return func(p policy) string {
			if len(p.GetVersions()) == 0 {
				return output.Dash
			}
			return output.OrDash(show(p.GetVersions()[0]))
		}
	}
	fare := func(show func(*pacelinev1.PolicyFare) string) func(policy) string {
		return version(func(v v) string {
			if v.GetFare() == nil {
				return ""
			}
			return show(v.GetFare())
		})
	}
	stage := func(p policy) string {
		if p.GetBuiltIn() {
			return "built-in"
		}
		return version(func(v v) string { return output.Enum(v.GetStage()) })(p)
	}
	return output.Columns[policy]{
		Name: policy.GetName,
		Columns: []output.Column[policy]{
			{Header: "POLICY", Value: policy.GetName},
			{Header: "KIND", Value: policy.GetKind},
			{Header: "STAGE", Value: stage},
			{Header: "DIGEST", Value: version(func(v v) string { return shortDigest(v.GetDigest()) })},
			{Header: "SINCE", Value: version(func(v v) string { return output.Age(now, v.GetSince()) })},
			{Header: "CALLS", Value: fare(func(f *pacelinev1.PolicyFare) string { return number(f.GetCalls()) })},
			{Header: "FAULTS", Value: fare(func(f *pacelinev1.PolicyFare) string { return number(f.GetFaults()) })},
			{Header: "ELSEWHERE", Value: fare(func(f *pacelinev1.PolicyFare) string { return share(f.GetElsewhere(), f.GetCompared()) })},
			{Header: "UNPLACED", Value: fare(func(f *pacelinev1.PolicyFare) string {
				return share(f.GetReference()-min(f.GetPlaced(), f.GetReference()), f.GetReference())
			})},
			{Header: "SHARDS", Value: shardsText},
			{Header: "DEFAULT FOR", Value: func(p policy) string { return output.OrDash(strings.Join(p.GetDefaultFor(), ",")) }},
			{Header: "CANARY", Wide: true, Value: version(func(v v) string {
				if v.GetScope() == nil {
					return ""
				}
				return strings.TrimPrefix(stageText(v), "canary for ")
			})},
			{Header: "CALL TIME", Wide: true, Value: fare(func(f *pacelinev1.PolicyFare) string { return f.GetCallTime().AsDuration().String() })},
			{Header: "TASKS", Wide: true, Value: fare(func(f *pacelinev1.PolicyFare) string { return number(f.GetTasks()) })},
			{Header: "LEFTOVER", Wide: true, Value: fare(func(f *pacelinev1.PolicyFare) string { return fmt.Sprintf("%+.1f", f.GetLeftoverPermille()) })},
			{Header: "CALLS ITSELF", Wide: true, Value: version(v.GetCallsItself)},
			{Header: "CONFIG", Wide: true, Value: version(func(v v) string { return settings(v.GetConfig()) })},
			{Header: "SIGNED BY", Wide: true, Value: version(v.GetSignedBy)},
			{Header: "BY", Wide: true, Value: version(v.GetBy)},
			{Header: "WHY", Wide: true, Value: version(v.GetWhy)},
		},
	}
}

// settings are values of a configuration, by key.
func settings(config map[string]string) string {
	var list []string
	for _, key := range slices.Sorted(maps.Keys(config)) {
		list = append(list, key+"="+config[key])
	}
	return strings.Join(list, ",")
}

// share is a part as a percentage.
func share(part, all uint64) string {
	if all == 0 {
		return ""
	}
	return fmt.Sprintf("%.1f%%", 100*float64(part)/float64(all))
}

// shardsText is how many shards placed with the version last, of those that placed anything under the name.
func shardsText(p *pacelinev1.Policy) string {
	if len(p.GetVersions()) == 0 || len(p.GetServing()) == 0 {
		return output.Dash
	}
	n := 0
	for _, s := range p.GetServing() {
		if s.GetDigest() == p.GetVersions()[0].GetDigest() {
			n++
		}
	}
	return fmt.Sprintf("%d/%d", n, len(p.GetServing()))
}

func (a *app) policyGet() *cobra.Command {
	var file, digest string
	cmd := &cobra.Command{
		Use:   "get NAME",
		Short: "Show a policy with its story, or fetch a module",
		Long:  `Show the versions that are kept of a policy, newest first, what places with them in each shard, and what became of them and why. With --module a version is written to a file.`,
		Example: `  paceline policy get tight
  paceline policy get tight --digest 3f9a --module tight.wasm`,
		Args: args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, given []string) error {
			return a.withBundles(func(p *output.Printer, c *client.Client) error {
				answer, err := call(cmd.Context(), c.Policies.GetPolicy, &pacelinev1.GetPolicyRequest{Name: given[0], Digest: digest, Module: file != ""})
				switch {
				case err != nil:
					return err
				case file != "":
					if err := os.WriteFile(file, answer.GetModule(), 0o600); err != nil {
						return &failure{code: ExitUsage, err: fmt.Errorf("write the module: %w", err)}
					}
					a.say("policy %s: version %s is in %s", given[0], shortDigest(answer.GetDigest()), file)
					return nil
				case !p.Format.ForPeople():
					return output.One(p, answer.GetPolicy(), policyColumns(a.Now()))
				}
				return a.describePolicy(p, answer)
			})
		},
	}
	cmd.Flags().StringVar(&file, "module", "", "write the version's module here")
	cmd.Flags().StringVar(&digest, "digest", "", "beginning of the version's digest (default: the newest)")
	return cmd
}

func (a *app) describePolicy(p *output.Printer, answer *pacelinev1.GetPolicyResponse) error {
	policy := answer.GetPolicy()
	var rows []*pacelinev1.Policy
	for _, v := range policy.GetVersions() {
		rows = append(rows, withVersion(policy, v))
	}
	if len(rows) == 0 {
		rows = append(rows, policy)
	}
	if err := output.List(p, rows, policyColumns(a.Now()), nil); err != nil {
		return err
	}
	for _, v := range policy.GetVersions() {
		if len(v.GetConfig()) > 0 {
			fmt.Fprintf(p.Out, "version %s is configured with %s\n", shortDigest(v.GetDigest()), settings(v.GetConfig()))
		}
	}
	serving := [][]string{{"SHARD", "DIGEST", "LAST"}}
	for _, s := range policy.GetServing() {
		serving = append(serving, []string{s.GetShard(), first(shortDigest(s.GetDigest()), "default"), a.since(s.GetTime())})
	}
	if err := table(p, "Placed with, by shard:", serving); err != nil {
		return err
	}
	story := [][]string{{"TIME", "DIGEST", "FROM", "TO", "BY", "WHY"}}
	for _, m := range policy.GetStory() {
		story = append(story, []string{
			output.Clock(a.Now(), m.GetTime()), shortDigest(m.GetDigest()), output.Enum(m.GetFrom()), output.Enum(m.GetTo()), first(m.GetBy(), "a gate"), output.OrDash(m.GetWhy()),
		})
	}
	if err := table(p, "Story, newest first:", story); err != nil {
		return err
	}
	a.warn(answer.GetWarnings())
	return nil
}
