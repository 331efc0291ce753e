package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"github.com/paceline-sched/paceline/cmd/paceline/internal/config"
	"github.com/paceline-sched/paceline/cmd/paceline/internal/output"
	pacelinev1 "github.com/paceline-sched/paceline/sdk/gen/paceline/v1"
)

func isBrokenPipe(err error) bool { return errors.Is(err, syscall.EPIPE) }

// versions is what 'version' tells.
type versions struct {
	Client   string `json:"client" yaml:"client"`
	Go       string `json:"go" yaml:"go"`
	Platform string `json:"platform" yaml:"platform"`
	Server   string `json:"server,omitempty" yaml:"server,omitempty"`
	Cell     string `json:"cell,omitempty" yaml:"cell,omitempty"`
	Address  string `json:"address,omitempty" yaml:"address,omitempty"`
	You      string `json:"you,omitempty" yaml:"you,omitempty"`
}

func (a *app) versionCommand() *cobra.Command {
	var clientOnly bool
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Show the versions of this command and of the server",
		Example: `  paceline version
  paceline version --client -o json`,
		Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			p, err := a.printer()
			if err != nil {
				return err
			}
			v := versions{Client: a.version(), Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
			var unreachable error
			if !clientOnly {
				unreachable = a.askServer(cmd, &v)
			}
			return errors.Join(a.printVersions(p, v), unreachable)
		},
	}
	cmd.Flags().BoolVar(&clientOnly, "client", false, "do not ask the server")
	return cmd
}

func (a *app) askServer(cmd *cobra.Command, v *versions) error {
	c, err := a.connect()
	if err != nil {
		return err
	}
	defer c.Close()
	info, err := call(cmd.Context(), c.Admin.GetInfo, &pacelinev1.GetInfoRequest{})
	if err != nil {
		return err
	}
	v.Server, v.Cell, v.Address = info.GetVersion(), info.GetCell(), c.Address()
	var bindings []string
	for _, b := range info.GetBindings() {
		bindings = append(bindings, fmt.Sprintf("%s in %s", output.Enum(b.GetRole()), b.GetPool()))
	}
	if v.You = info.GetPrincipal(); len(bindings) > 0 {
		v.You += ", " + strings.Join(bindings, ", ")
	}
	return nil
}

func (a *app) printVersions(p *output.Printer, v versions) error {
	switch {
	case p.Format == output.Name:
		_, err := fmt.Fprintln(p.Out, v.Client)
		return err
	case !p.Format.ForPeople():
		return encode(p, v)
	}
	var f facts
	f.add("Client", "%s (%s, %s)", v.Client, v.Go, v.Platform)
	f.add("Server", "%s", v.Server)
	f.add("Cell", "%s", v.Cell)
	f.add("Address", "%s", v.Address)
	f.add("You", "%s", v.You)
	return f.write(p)
}

// encode writes what is no message as JSON or YAML.
func encode(p *output.Printer, value any) error {
	if p.Format == output.YAML {
		return yaml.NewEncoder(p.Out).Encode(value)
	}
	encoder := json.NewEncoder(p.Out)
	encoder.SetIndent("", "  ")
	return encoder.Encode(value)
}

const contextHelp = `A context names a server in the configuration file, with what it takes to reach it. One of them is in use, unless --context or
PACELINE_CONTEXT says otherwise.`

func (a *app) contextCommand() *cobra.Command {
	return noun("context", "Choose between servers", contextHelp, a.contextList(), a.contextUse(), a.contextSet(), a.contextDelete())
}

// editConfig changes the configuration file.
func (a *app) editConfig(edit func(*config.File) error) error {
	path := config.Path(a.flags, a.Env)
	file, err := config.Load(path)
	if err != nil {
		return &failure{code: ExitUsage, err: err}
	}
	if err := edit(&file); err != nil {
		return err
	}
	return config.Save(path, file)
}

func (a *app) contextList() *cobra.Command {
	return &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List contexts; * marks the one in use",
		Args:    args(cobra.NoArgs),
		RunE: func(*cobra.Command, []string) error {
			p, err := a.printer()
			if err != nil {
				return err
			}
			path := config.Path(a.flags, a.Env)
			file, err := config.Load(path)
			if err != nil {
				return &failure{code: ExitUsage, err: err}
			}
			inUse := first(a.flags.Context, a.Env("PACELINE_CONTEXT"), file.CurrentContext)
			if p.Format == output.JSON || p.Format == output.YAML {
				return encode(p, file)
			}
			rows := [][]string{{"", "CONTEXT", "ADDRESS", "TOKEN FILE"}}
			for _, c := range file.Contexts {
				if p.Format == output.Name {
					fmt.Fprintln(p.Out, c.Name)
					continue
				}
				mark := ""
				if c.Name == inUse {
					mark = "*"
				}
				rows = append(rows, []string{mark, c.Name, first(c.Address, config.DefaultAddress), output.OrDash(c.TokenFile)})
			}
			if p.Format == output.Name {
				return nil
			}
			if len(rows) == 1 {
				fmt.Fprintf(a.Err, "There are no contexts in %s.\n", path)
				return nil
			}
			return p.Rows(rows)
		},
	}
}

func (a *app) contextUse() *cobra.Command {
	return &cobra.Command{
		Use:               "use NAME",
		Short:             "Use a context from now on",
		Example:           `  paceline context use prod`,
		Args:              args(cobra.ExactArgs(1)),
		ValidArgsFunction: a.completeContexts,
		RunE: func(_ *cobra.Command, names []string) error {
			return a.editConfig(func(file *config.File) error {
				if _, err := file.Find(names[0]); err != nil {
					return &failure{code: ExitNotFound, err: err}
				}
				file.CurrentContext = names[0]
				a.say("context %s is in use", names[0])
				return nil
			})
		},
	}
}

func (a *app) contextSet() *cobra.Command {
	return &cobra.Command{
		Use:   "set NAME",
		Short: "Add a context, or change it, to what the flags give",
		Long: `Add a context, or change it, to what --address, --token-file and --ca-file give; what is not given stays as it is. The first context is
in use at once.`,
		Example:           `  paceline context set prod --address https://paceline.example.com:7411 --token-file ~/.paceline-token`,
		Args:              args(cobra.ExactArgs(1)),
		ValidArgsFunction: a.completeContexts,
		RunE: func(_ *cobra.Command, names []string) error {
			return a.editConfig(func(file *config.File) error {
				c := file.Put(names[0])
				c.Address = first(a.flags.Address, c.Address)
				c.TokenFile = first(a.flags.TokenFile, c.TokenFile)
				c.CAFile = first(a.flags.CAFile, c.CAFile)
				file.CurrentContext = first(file.CurrentContext, names[0])
				a.say("context %s set", names[0])
				return nil
			})
		},
	}
}

func (a *app) contextDelete() *cobra.Command {
	return &cobra.Command{
		Use:               "delete NAME",
		Aliases:           []string{"rm"},
		Short:             "Remove a context from the configuration file",
		Args:              args(cobra.ExactArgs(1)),
		ValidArgsFunction: a.completeContexts,
		RunE: func(_ *cobra.Command, names []string) error {
			return a.editConfig(func(file *config.File) error {
				if err := file.Remove(names[0]); err != nil {
					return &failure{code: ExitNotFound, err: err}
				}
				a.say("context %s deleted", names[0])
				return nil
			})
		},
	}
}
