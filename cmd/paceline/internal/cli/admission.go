package cli

import (
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	"github.com/paceline-sched/paceline/cmd/paceline/internal/output"
	"github.com/paceline-sched/paceline/sdk/client"
	pacelinev1 "github.com/paceline-sched/paceline/sdk/gen/paceline/v1"
)

const admissionHelp = `Rules of admission say which jobs are accepted, refused with a reason, warned of, or changed. They are written in Rego and come as
bundles: a directory with .rego and data files, or the tar.gz file that OPA's tools make of one.

The bundles of a server are those pushed to it and those of its --admission-dir. Every version that is pushed is kept under its digest; one
of a bundle's versions decides, and one may be watched beside it, in shadow, to see what it would say.`

func (a *app) admissionCommand() *cobra.Command {
	verbs := []*cobra.Command{
		a.admissionPush(), a.admissionList(), a.admissionGet(), a.admissionUse("activate", pacelinev1.BundleUse_BUNDLE_USE_ACTIVE),
		a.admissionUse("shadow", pacelinev1.BundleUse_BUNDLE_USE_SHADOW), a.admissionRemove(), a.admissionDecisions(),
	}
	adopt(a.Rules.Commands)
	return noun("admission", "Keep the rules by which jobs are accepted", admissionHelp, append(verbs, a.Rules.Commands...)...)
}

// withBundles runs what needs a printer and a server.
func (a *app) withBundles(do func(p *output.Printer, c *client.Client) error) error {
	p, err := a.printer()
	if err != nil {
		return err
	}
	c, err := a.connect()
	if err != nil {
		return err
	}
	defer c.Close()
	return do(p, c)
}

func (a *app) admissionPush() *cobra.Command {
	var activate, shadow bool
	var version uint64
	cmd := &cobra.Command{
		Use:   "push NAME BUNDLE",
		Short: "Keep a version of a bundle, and put it in use if asked to",
		Long: `Push a bundle, a directory or a tar.gz file. The server reads, verifies and compiles it first and refuses what cannot be used. Without
--activate or --shadow the version is only kept.`,
		Example: `  paceline admission push labels ./labels --shadow
  paceline admission push labels labels.tar.gz --activate`,
		Args: args(cobra.ExactArgs(2)),
		RunE: func(cmd *cobra.Command, given []string) error {
			archive, err := a.Rules.Pack(given[1])
			if err != nil {
				return &failure{code: ExitUsage, err: fmt.Errorf("read the bundle %s: %w", given[1], err)}
			}
			request := &pacelinev1.PushBundleRequest{Name: given[0], Archive: archive, ExpectedVersion: version}
			switch {
			case activate:
				request.Use = pacelinev1.BundleUse_BUNDLE_USE_ACTIVE
			case shadow:
				request.Use = pacelinev1.BundleUse_BUNDLE_USE_SHADOW
			}
			return a.withBundles(func(p *output.Printer, c *client.Client) error {
				answer, err := call(cmd.Context(), c.Admission.PushBundle, request)
				if err != nil {
					return err
				}
				return a.tellUse(p, answer.GetBundle(), answer.GetDigest())
			})
		},
	}
	cmd.Flags().BoolVar(&activate, "activate", false, "let it decide at once")
	cmd.Flags().BoolVar(&shadow, "shadow", false, "watch it at once; it decides nothing")
	cmd.Flags().Uint64Var(&version, "expected-version", 0, "act only if this is the bundle's version (0: whatever it is)")
	cmd.MarkFlagsMutuallyExclusive("activate", "shadow")
	return cmd
}

// tellUse says what a version does now.
func (a *app) tellUse(p *output.Printer, b *pacelinev1.Bundle, digest string) error {
	if !p.Format.ForPeople() {
		return output.One(p, b, bundleColumns(a.Now()))
	}
	for _, v := range b.GetVersions() {
		if v.GetDigest() == digest {
			a.say("bundle %s: version %s is %s", b.GetName(), shortDigest(digest), useText(v.GetUse()))
		}
	}
	return nil
}

func useText(use pacelinev1.BundleUse) string {
	switch use {
	case pacelinev1.BundleUse_BUNDLE_USE_ACTIVE:
		return "active"
	case pacelinev1.BundleUse_BUNDLE_USE_SHADOW:
		return "in shadow"
	case pacelinev1.BundleUse_BUNDLE_USE_UNSPECIFIED:
	}
	return "kept"
}

func shortDigest(digest string) string { return digest[:min(len(digest), 12)] }

func (a *app) admissionUse(verb string, use pacelinev1.BundleUse) *cobra.Command {
	var version uint64
	short, long := "Let a version of a bundle decide", "Let a version that is kept decide, in place of the one before. It is in force when the command returns; jobs that are there already stay."
	if use == pacelinev1.BundleUse_BUNDLE_USE_SHADOW {
		short = "Watch a version of a bundle, without letting it decide"
		long = "Put a version that is kept in shadow: it sees every job, what it would say is counted and logged, and it decides nothing. If it is the one\nthat decides, none does any more."
	}
	cmd := &cobra.Command{
		Use:     verb + " NAME [DIGEST]",
		Short:   short,
		Long:    long + "\n\nDIGEST is the beginning of the version's; without it the newest version is taken.",
		Example: "  paceline admission " + verb + " labels\n  paceline admission " + verb + " labels 3f9a",
		Args:    args(cobra.RangeArgs(1, 2)),
		RunE: func(cmd *cobra.Command, given []string) error {
			return a.withBundles(func(p *output.Printer, c *client.Client) error {
				request := &pacelinev1.UseBundleRequest{Name: given[0], Use: use, ExpectedVersion: version}
				if len(given) > 1 {
					request.Digest = given[1]
				}
				answer, err := call(cmd.Context(), c.Admission.UseBundle, request)
				if err != nil {
					return err
				}
				for _, v := range answer.GetBundle().GetVersions() {
					if v.GetUse() == use {
						return a.tellUse(p, answer.GetBundle(), v.GetDigest())
					}
				}
				return nil
			})
		},
	}
	cmd.Flags().Uint64Var(&version, "expected-version", 0, "act only if this is the bundle's version (0: whatever it is)")
	return cmd
}

func (a *app) admissionList() *cobra.Command {
	return &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List bundles with what is in force and how it fares",
		Long: `List every bundle with the version in use. SEEN counts the jobs that it was asked about since it is in force on this server, and DENIED,
WARNED, CHANGED and FAILED those of them of which it said so; of a bundle in shadow, what it would have said. ERROR is why it, or what has
come in its place since, cannot be used.`,
		Example: `  paceline admission list -o wide`,
		Args:    args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withBundles(func(p *output.Printer, c *client.Client) error {
				answer, err := call(cmd.Context(), c.Admission.ListBundles, &pacelinev1.ListBundlesRequest{})
				if err != nil {
					return err
				}
				if !p.Format.ForPeople() {
					return output.List(p, answer.GetBundles(), bundleColumns(a.Now()), func(list []*pacelinev1.Bundle) proto.Message {
						return &pacelinev1.ListBundlesResponse{Bundles: list}
					})
				}
				return output.List(p, inUse(answer.GetBundles()), bundleColumns(a.Now()), nil)
			})
		},
	}
}

// inUse makes one row of every version in use, and one of a bundle without any.
func inUse(bundles []*pacelinev1.Bundle) []*pacelinev1.Bundle {
	var rows []*pacelinev1.Bundle
	for _, b := range bundles {
		before := len(rows)
		for _, v := range b.GetVersions() {
			if v.GetUse() != pacelinev1.BundleUse_BUNDLE_USE_UNSPECIFIED || v.GetError() != "" {
				rows = append(rows, &pacelinev1.Bundle{Name: b.GetName(), Source: b.GetSource(), Version: b.GetVersion(), Versions: []*pacelinev1.BundleVersion{v}})
			}
		}
		if len(rows) == before {
			rows = append(rows, &pacelinev1.Bundle{Name: b.GetName(), Source: b.GetSource(), Version: b.GetVersion(), Versions: b.GetVersions()[:min(1, len(b.GetVersions()))]})
		}
	}
	return rows
}

func bundleColumns(now time.Time) output.Columns[*pacelinev1.Bundle] {
	type bundle = *pacelinev1.Bundle
	version := func(show func(*pacelinev1.BundleVersion) string) func(bundle) string {
		return func(b bundle) string {
			if len(b.GetVersions()) == 0 {
				return output.Dash
			}
			return output.OrDash(show(b.GetVersions()[0]))
		}
	}
	type v = *pacelinev1.BundleVersion
	return output.Columns[bundle]{
		Name: bundle.GetName,
		Columns: []output.Column[bundle]{
			{Header: "BUNDLE", Value: bundle.GetName},
			{Header: "SOURCE", Value: bundle.GetSource},
			{Header: "USE", Value: version(func(v v) string { return useText(v.GetUse()) })},
			{Header: "DIGEST", Value: version(func(v v) string { return shortDigest(v.GetDigest()) })},
			{Header: "RULES", Value: version(func(v v) string { return strings.Join(v.GetRules(), ",") })},
			{Header: "SEEN", Value: version(func(v v) string { return number(v.GetEvaluated()) })},
			{Header: "DENIED", Value: version(func(v v) string { return number(v.GetDenied()) })},
			{Header: "WARNED", Value: version(func(v v) string { return number(v.GetWarned()) })},
			{Header: "CHANGED", Value: version(func(v v) string { return number(v.GetMutated()) })},
			{Header: "FAILED", Value: version(func(v v) string { return number(v.GetFailed()) })},
			{Header: "REVISION", Wide: true, Value: version(func(v v) string { return v.GetRevision() })},
			{Header: "ON FAILURE", Wide: true, Value: version(failureText)},
			{Header: "SIGNED BY", Wide: true, Value: version(func(v v) string { return v.GetSignedBy() })},
			{Header: "PUSHED BY", Wide: true, Value: version(func(v v) string { return v.GetPushedBy() })},
			{Header: "PUSHED", Wide: true, Value: version(func(v v) string { return output.Age(now, v.GetPushTime()) })},
			{Header: "READS", Wide: true, Value: version(func(v v) string { return strings.Join(v.GetInputs(), ",") })},
			{Header: "ERROR", Value: version(func(v v) string { return v.GetError() })},
		},
	}
}

func failureText(v *pacelinev1.BundleVersion) string {
	switch {
	case v.GetUse() == pacelinev1.BundleUse_BUNDLE_USE_UNSPECIFIED:
		return ""
	case v.GetFailOpen():
		return "open"
	}
	return "closed"
}

func (a *app) admissionGet() *cobra.Command {
	var file, digest string
	cmd := &cobra.Command{
		Use:   "get NAME",
		Short: "Show the versions of a bundle, or fetch one",
		Long:  `Show the versions that are kept of a pushed bundle, newest first. With --archive a version is written to a file.`,
		Example: `  paceline admission get labels
  paceline admission get labels --digest 3f9a --archive labels.tar.gz`,
		Args: args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, given []string) error {
			return a.withBundles(func(p *output.Printer, c *client.Client) error {
				answer, err := call(cmd.Context(), c.Admission.GetBundle, &pacelinev1.GetBundleRequest{Name: given[0], Digest: digest})
				switch {
				case err != nil:
					return err
				case file != "":
					if err := os.WriteFile(file, answer.GetArchive(), 0o600); err != nil {
						return &failure{code: ExitUsage, err: fmt.Errorf("write the bundle: %w", err)}
					}
					a.say("bundle %s: version %s is in %s", given[0], shortDigest(answer.GetDigest()), file)
					return nil
				case !p.Format.ForPeople():
					return output.One(p, answer.GetBundle(), bundleColumns(a.Now()))
				}
				var rows []*pacelinev1.Bundle
				for _, v := range answer.GetBundle().GetVersions() {
					rows = append(rows, &pacelinev1.Bundle{Name: answer.GetBundle().GetName(), Source: answer.GetBundle().GetSource(), Versions: []*pacelinev1.BundleVersion{v}})
				}
				return output.List(p, rows, bundleColumns(a.Now()), nil)
			})
		},
	}
	cmd.Flags().StringVar(&file, "archive", "", "write the version's tar.gz file here")
	cmd.Flags().StringVar(&digest, "digest", "", "beginning of the version's digest (default: the newest)")
	return cmd
}

func (a *app) admissionRemove() *cobra.Command {
	var version uint64
	cmd := &cobra.Command{
		Use:   "remove NAME [DIGEST]",
		Short: "Forget a bundle, or a version that is not in use",
		Long:  `Forget a pushed bundle with all its versions, whether it is in use or not, or one version that is not.`,
		Example: `  paceline admission remove labels
  paceline admission remove labels 3f9a`,
		Args: args(cobra.RangeArgs(1, 2)),
		RunE: func(cmd *cobra.Command, given []string) error {
			return a.withBundles(func(_ *output.Printer, c *client.Client) error {
				request := &pacelinev1.RemoveBundleRequest{Name: given[0], ExpectedVersion: version}
				what := "bundle " + given[0]
				if len(given) > 1 {
					request.Digest = given[1]
					what += " version " + given[1]
				}
				if _, err := call(cmd.Context(), c.Admission.RemoveBundle, request); err != nil {
					return err
				}
				a.say("%s removed", what)
				return nil
			})
		},
	}
	cmd.Flags().Uint64Var(&version, "expected-version", 0, "act only if this is the bundle's version (0: whatever it is)")
	return cmd
}

func (a *app) admissionDecisions() *cobra.Command {
	var limit int32
	cmd := &cobra.Command{
		Use:   "decisions",
		Short: "Show the newest judgements of jobs",
		Long: `Show what the rules said of the last jobs, newest first; -o json has everything, the jobs among it. Values of environment variables
are masked. would-deny and the like is what a bundle in shadow would have said. A server keeps 256 of them, until it is started anew.`,
		Example: `  paceline admission decisions --limit 5
  paceline admission decisions -o json`,
		Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withBundles(func(p *output.Printer, c *client.Client) error {
				answer, err := call(cmd.Context(), c.Admission.ListDecisions, &pacelinev1.ListDecisionsRequest{Limit: limit})
				if err != nil {
					return err
				}
				return output.List(p, answer.GetDecisions(), a.decisionColumns(), func(list []*pacelinev1.Decision) proto.Message {
					return &pacelinev1.ListDecisionsResponse{Decisions: list}
				})
			})
		},
	}
	cmd.Flags().Int32Var(&limit, "limit", 50, "how many at most, up to 256")
	return cmd
}

func (a *app) decisionColumns() output.Columns[*pacelinev1.Decision] {
	type decision = *pacelinev1.Decision
	now := a.Now()
	path := func(d decision) string { return jobPath(d.GetPool(), d.GetJob()) }
	said := func(d decision) string {
		var parts []string
		for _, m := range append(append([]*pacelinev1.RuleMessage(nil), d.GetMessages()...), d.GetWarnings()...) {
			parts = append(parts, m.GetBundle()+": "+m.GetText())
		}
		for _, c := range d.GetChanges() {
			parts = append(parts, fmt.Sprintf("%s: %s -> %s", c.GetBundle(), c.GetField(), c.GetAfter()))
		}
		return output.OrDash(strings.Join(parts, "; "))
	}
	return output.Columns[decision]{
		Name: path,
		Columns: []output.Column[decision]{
			{Header: "TIME", Value: func(d decision) string { return output.Clock(now, d.GetTime()) }},
			{Header: "OUTCOME", Value: decision.GetOutcome},
			{Header: "SHADOW", Value: func(d decision) string { return output.OrDash(d.GetShadow()) }},
			{Header: "FOR", Value: decision.GetOperation},
			{Header: "JOB", Value: path},
			{Header: "PRINCIPAL", Value: decision.GetPrincipal},
			{Header: "SAID", Value: said},
			{Header: "TOOK", Wide: true, Value: func(d decision) string { return d.GetTook().AsDuration().String() }},
			{Header: "REMEMBERED", Wide: true, Value: func(d decision) string { return fmt.Sprint(d.GetRemembered()) }},
		},
	}
}

// sayRuleChanges tells what rules made of a job.
func (a *app) sayRuleChanges(verb string, changes []*pacelinev1.RuleChange) {
	for _, c := range changes {
		a.say("    rules of %s %s %s: %s -> %s", c.GetBundle(), verb, c.GetField(), first(c.GetBefore(), "absent"), c.GetAfter())
	}
}

// RulesTools are what this command line needs of the engine for rules, which is made elsewhere.
type RulesTools struct {
	// Pack reads a bundle, a directory or a tar.gz file.
	Pack func(path string) ([]byte, error)
	// Commands are verbs that need no server.
	Commands []*cobra.Command
}
