package cli

import (
	"context"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/paceline-sched/paceline/cmd/paceline/internal/config"
	"github.com/paceline-sched/paceline/cmd/paceline/internal/output"
	pacelinev1 "github.com/paceline-sched/paceline/sdk/gen/paceline/v1"

	"github.com/paceline-sched/paceline/sdk/client"
)

// The bounds of completion: it must not keep a user waiting, nor flood the shell.
const (
	completionTimeout = 2 * time.Second
	maxCompletions    = 200
)

type completion = func(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective)

// complete asks the server for names. Without a server there are none: completion has no way to complain.
func (a *app) complete(cmd *cobra.Command, prefix string, names func(context.Context, *client.Client) ([]string, error)) ([]cobra.Completion, cobra.ShellCompDirective) {
	c, err := a.connect()
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	defer c.Close()
	parent := cmd.Context()
	if parent == nil {
		parent = context.Background()
	}
	ctx, cancel := context.WithTimeout(parent, completionTimeout)
	defer cancel()
	all, err := names(ctx, c)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var matching []cobra.Completion
	for _, name := range all {
		if strings.HasPrefix(name, prefix) && len(matching) < maxCompletions {
			matching = append(matching, name)
		}
	}
	return matching, cobra.ShellCompDirectiveNoFileComp
}

// completeJobs completes job names for the first most arguments; 0: for all.
func (a *app) completeJobs(most int) completion {
	return func(cmd *cobra.Command, given []string, prefix string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if most > 0 && len(given) >= most {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return a.complete(cmd, prefix, func(ctx context.Context, c *client.Client) ([]string, error) {
			answer, err := call(ctx, c.Jobs.ListJobs, &pacelinev1.ListJobsRequest{PageSize: maxPage})
			if err != nil {
				return nil, err
			}
			var names []string
			for _, job := range answer.GetJobs() {
				name := summaryPath(job)
				if !strings.HasPrefix(prefix, "/") {
					name = strings.TrimPrefix(name, "/default/")
				}
				names = append(names, name)
			}
			return names, nil
		})
	}
}

func (a *app) completePools(cmd *cobra.Command, _ []string, prefix string) ([]cobra.Completion, cobra.ShellCompDirective) {
	return a.complete(cmd, prefix, func(ctx context.Context, c *client.Client) ([]string, error) {
		answer, err := call(ctx, c.Pools.ListPools, &pacelinev1.ListPoolsRequest{PageSize: maxPage})
		if err != nil {
			return nil, err
		}
		var names []string
		for _, pool := range answer.GetPools() {
			names = append(names, poolPath(pool))
		}
		return names, nil
	})
}

func (a *app) completePoolArgs(cmd *cobra.Command, given []string, prefix string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if len(given) > 0 && cmd.Name() != "delete" {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return a.completePools(cmd, given, prefix)
}

func (a *app) completeHosts(cmd *cobra.Command, _ []string, prefix string) ([]cobra.Completion, cobra.ShellCompDirective) {
	return a.complete(cmd, prefix, func(ctx context.Context, c *client.Client) ([]string, error) {
		answer, err := call(ctx, c.Hosts.ListHosts, &pacelinev1.ListHostsRequest{PageSize: maxPage})
		if err != nil {
			return nil, err
		}
		var names []string
		for _, host := range answer.GetHosts() {
			names = append(names, hostPath(host.GetCluster(), host.GetName()))
		}
		return names, nil
	})
}

func (a *app) completeHostArgs(cmd *cobra.Command, given []string, prefix string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if len(given) > 0 && cmd.Name() == "get" {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return a.completeHosts(cmd, given, prefix)
}

func (a *app) completeContexts(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
	file, err := config.Load(config.Path(a.flags, a.Env))
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var names []cobra.Completion
	for _, c := range file.Contexts {
		names = append(names, c.Name)
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

func completeEnum(e protoreflect.Enum) completion {
	return cobra.FixedCompletions(fixed(output.EnumNames(e.Descriptor())), cobra.ShellCompDirectiveNoFileComp)
}
