// Package cli is the verbs of the command line: what a user says to a server, and how the answer is shown.
//
// It owns commands, their help, their exit codes and the wording of errors. It reaches servers through sdk/client only, as any
// program of a user does; servers themselves and simulations are commands that main hands in. Each command runs on the
// goroutine of its caller; one that watches starts one more and waits for it.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/paceline-sched/paceline/cmd/paceline/internal/config"
	"github.com/paceline-sched/paceline/cmd/paceline/internal/output"
	"github.com/paceline-sched/paceline/sdk/client"
)

// Config is what the process gives the command line.
type Config struct {
	Version string // of this binary; empty: unknown
	In      io.Reader
	Out     io.Writer
	Err     io.Writer
	Env     config.Env
	Now     func() time.Time
	// Terminal says whether Out and Err are a terminal, where lines may be redrawn.
	Terminal bool
	// Servers are commands that run servers, Simulations the verbs of sim; both are made elsewhere.
	Servers     []*cobra.Command
	Simulations []*cobra.Command
	// Rules is what the verbs of admission need beside a server.
	Rules RulesTools
	// Policies are the verbs of policy that need no server.
	Policies []*cobra.Command
}

// app is the state of one command line.
type app struct {
	Config
	flags     config.Flags
	format    string
	noHeaders bool
}

// Run carries out one command line and returns its exit code.
func Run(ctx context.Context, c Config, args []string) int {
	a := &app{Config: c}
	root := a.root()
	root.SetArgs(args)
	root.SetIn(c.In)
	root.SetOut(c.Out)
	root.SetErr(c.Err)
	err := root.ExecuteContext(ctx)
	return a.report(err)
}

// NewRoot returns the whole command tree, for documentation.
func NewRoot(c Config) *cobra.Command { return (&app{Config: c}).root() }

const rootHelp = `Paceline schedules batch jobs, services and daemons over clusters of machines.

Start everything on this machine with 'paceline dev', then run a job:

  paceline job run job.yaml --wait

A command finds its server by, in this order: flags, the environment (PACELINE_ADDRESS, PACELINE_TOKEN, PACELINE_TOKEN_FILE,
PACELINE_CA_FILE, PACELINE_CONTEXT, PACELINE_TIMEOUT), the context in use of the configuration file (PACELINE_CONFIG, by default
~/.config/paceline/config.yaml), and at last the server on this machine.

Exit codes:
  0    done
  1    the work failed; job plan: there are changes
  2    the command line or a file is wrong
  3    there is no such job, task, pool, cluster or host
  4    the server refused: permission, precondition, version, quota
  5    the server cannot be reached or cannot answer now
  124  time-out
  130  interrupted
  255  job plan: the plan could not be made`

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:           "paceline",
		Short:         "A scheduler for many clusters",
		Long:          rootHelp,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          known,
		RunE:          help,
	}
	root.CompletionOptions.HiddenDefaultCmd = false
	root.AddGroup(
		&cobra.Group{ID: groupWork, Title: "Work:"},
		&cobra.Group{ID: groupCapacity, Title: "Capacity:"},
		&cobra.Group{ID: groupRules, Title: "Rules:"},
		&cobra.Group{ID: groupServer, Title: "Servers:"},
		&cobra.Group{ID: groupSelf, Title: "This command:"},
	)
	flags := root.PersistentFlags()
	flags.StringVar(&a.flags.ConfigFile, "config", "", "configuration file")
	flags.StringVar(&a.flags.Context, "context", "", "context of the configuration file to use")
	flags.StringVar(&a.flags.Address, "address", "", "server, as URL or host:port (default "+config.DefaultAddress+")")
	flags.StringVar(&a.flags.TokenFile, "token-file", "", "file with the token to send")
	flags.StringVar(&a.flags.CAFile, "ca-file", "", "file with the certificates that the server's must chain to")
	flags.DurationVar(&a.flags.Timeout, "timeout", 0, "bound of one request (default 30s)")
	flags.StringVarP(&a.format, "output", "o", string(output.Table), strings.Join(output.Formats, ", "))
	flags.BoolVar(&a.noHeaders, "no-headers", false, "leave out the headers of tables")
	must(root.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(fixed(output.Formats), cobra.ShellCompDirectiveNoFileComp)))
	must(root.RegisterFlagCompletionFunc("context", a.completeContexts))
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error { return usage(cmd, err) })

	add(root, groupWork, a.jobCommand(), a.taskCommand(), a.eventsCommand())
	add(root, groupCapacity, a.poolCommand(), a.clusterCommand(), a.hostCommand())
	add(root, groupRules, a.admissionCommand(), a.policyCommand())
	add(root, groupServer, a.backupCommand())
	adopt(a.Servers)
	adopt(a.Simulations)
	add(root, groupServer, a.Servers...)
	add(root, groupServer, noun("sim", "Run the decision core on real inputs, without a cluster", "", a.Simulations...))
	add(root, groupSelf, a.contextCommand(), a.versionCommand())
	root.SetHelpCommandGroupID(groupSelf)
	root.SetCompletionCommandGroupID(groupSelf)
	return root
}

// The groups of the help page.
const (
	groupWork     = "work"
	groupCapacity = "capacity"
	groupRules    = "rules"
	groupServer   = "server"
	groupSelf     = "self"
)

func add(root *cobra.Command, group string, commands ...*cobra.Command) {
	for _, c := range commands {
		c.GroupID = group
		root.AddCommand(c)
	}
}

// noun returns a command that only holds verbs.
func noun(name, short, long string, verbs ...*cobra.Command) *cobra.Command {
	c := &cobra.Command{Use: name, Short: short, Long: long, Args: known, RunE: help}
	c.AddCommand(verbs...)
	return c
}

// known refuses a word that is none of a command's verbs, with the one that it may have been meant for.
func known(cmd *cobra.Command, given []string) error {
	if len(given) == 0 {
		return nil
	}
	err := fmt.Errorf("%s has no verb %q", cmd.CommandPath(), given[0])
	cmd.SuggestionsMinimumDistance = 2
	if near := cmd.SuggestionsFor(given[0]); len(near) > 0 {
		return &failure{code: ExitUsage, err: err, hint: "did you mean " + strings.Join(near, " or ") + "?"}
	}
	return usage(cmd, err)
}

func help(cmd *cobra.Command, _ []string) error { return cmd.Help() }

func fixed(values []string) []cobra.Completion { return append([]cobra.Completion(nil), values...) }

// must is for calls that fail on a programming error only.
func must(err error) {
	if err != nil {
		panic(err)
	}
}

// args wraps a check of arguments so that its error carries the usage.
func args(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, given []string) error {
		if err := check(cmd, given); err != nil {
			form := strings.TrimSuffix(cmd.UseLine(), " [flags]")
			return usage(cmd, fmt.Errorf("%d arguments were given; the form is: %s", len(given), form))
		}
		return nil
	}
}

// adopt gives commands that were made elsewhere the errors of usage that ours have.
func adopt(commands []*cobra.Command) {
	for _, c := range commands {
		if c.Args != nil {
			c.Args = args(c.Args)
		}
		adopt(c.Commands())
	}
}

// printer returns the writer of results in the chosen format.
func (a *app) printer() (*output.Printer, error) {
	format, err := output.ParseFormat(a.format)
	if err != nil {
		return nil, &failure{code: ExitUsage, err: err}
	}
	return &output.Printer{Out: a.Out, Format: format, NoHeaders: a.noHeaders}, nil
}

// say tells the user something that is no result. With -o json and the like results alone go to Out, so this goes to Err.
func (a *app) say(format string, args ...any) {
	w := a.Out
	if f, err := output.ParseFormat(a.format); err != nil || !f.ForPeople() {
		w = a.Err
	}
	fmt.Fprintf(w, format+"\n", args...)
}

// settings returns where the server is and who the user is.
func (a *app) settings() (config.Settings, error) {
	file, err := config.Load(config.Path(a.flags, a.Env))
	if err == nil {
		var s config.Settings
		if s, err = config.Resolve(a.flags, a.Env, file); err == nil {
			return s, nil
		}
	}
	return config.Settings{}, &failure{code: ExitUsage, err: err}
}

// connect returns a client of the chosen server. It does not reach out yet.
func (a *app) connect() (*client.Client, error) {
	s, err := a.settings()
	if err != nil {
		return nil, err
	}
	token, err := s.ReadToken()
	if err != nil {
		return nil, tokenFailure(&s, err)
	}
	options := []client.Option{client.WithToken(token), client.WithTimeout(s.Timeout), client.WithUserAgent("paceline-cli/" + a.version())}
	if s.CAFile != "" {
		options = append(options, client.WithCAFile(s.CAFile))
	}
	c, err := client.New(s.Address, options...)
	if err != nil {
		return nil, &failure{code: ExitUsage, err: err}
	}
	return c, nil
}

func tokenFailure(s *config.Settings, err error) error {
	f := &failure{code: ExitUsage, err: err}
	if errors.Is(err, os.ErrPermission) {
		f.hint = fmt.Sprintf("%s belongs to the user who runs the server; use that user, or --token-file", s.TokenFile)
	}
	return f
}

func (a *app) version() string {
	if a.Version == "" {
		return "devel"
	}
	return a.Version
}
