package cli

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	"github.com/paceline-sched/paceline/cmd/paceline/internal/output"
	pacelinev1 "github.com/paceline-sched/paceline/sdk/gen/paceline/v1"
)

const hostHelp = `Hosts are the machines of all clusters, named cluster/host or by id.`

func (a *app) hostCommand() *cobra.Command {
	return noun("host", "Show hosts and keep work from them", hostHelp, a.hostList(), a.hostGet(), a.hostDrain(), a.hostUndrain())
}

func (a *app) hostList() *cobra.Command {
	var cluster, pool string
	var states []string
	var attributes map[string]string
	var limit int
	var watch bool
	cmd := &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List hosts with what is used of them",
		Example: `  paceline host list
  paceline host list --cluster local --attribute rack=r1 -o wide`,
		Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkLimit(limit); err != nil {
				return err
			}
			wanted, err := enums[pacelinev1.HostState]("state", states)
			if err != nil {
				return err
			}
			c, err := a.connect()
			if err != nil {
				return err
			}
			defer c.Close()
			l := listing[*pacelinev1.Host]{
				layout:   hostColumns(a.Now()),
				envelope: func(hosts []*pacelinev1.Host) proto.Message { return &pacelinev1.ListHostsResponse{Hosts: hosts} },
				key:      (*pacelinev1.Host).GetId,
				read: func(ctx context.Context) ([]*pacelinev1.Host, bool, error) {
					return collect(limit, func(size int32, token string) ([]*pacelinev1.Host, string, error) {
						answer, err := call(ctx, c.Hosts.ListHosts, &pacelinev1.ListHostsRequest{
							Cluster: cluster, HostPool: pool, States: wanted, Attributes: attributes, PageSize: size, PageToken: token,
						})
						return answer.GetHosts(), answer.GetNextPageToken(), err
					})
				},
				interest: &pacelinev1.WatchEventsRequest{},
			}
			if watch {
				return showAndWatch(cmd.Context(), a, c, l)
			}
			return show(cmd.Context(), a, l)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&cluster, "cluster", "", "hosts of this cluster")
	flags.StringVar(&pool, "host-pool", "", "hosts of this host pool")
	flags.StringSliceVar(&states, "state", nil, "hosts in these states: "+enumHelp(pacelinev1.HostState(0)))
	flags.StringToStringVar(&attributes, "attribute", nil, "hosts with these attributes, as key=value")
	flags.IntVar(&limit, "limit", defaultLimit, "show at most so many")
	flags.BoolVar(&watch, "watch", false, "keep the list up to date")
	must(cmd.RegisterFlagCompletionFunc("cluster", a.completeClusters))
	must(cmd.RegisterFlagCompletionFunc("state", completeEnum(pacelinev1.HostState(0))))
	return cmd
}

func (a *app) hostGet() *cobra.Command {
	return &cobra.Command{
		Use:               "get HOST",
		Short:             "Show one host",
		Example:           `  paceline host get local/host-0`,
		Args:              args(cobra.ExactArgs(1)),
		ValidArgsFunction: a.completeHostArgs,
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
			answer, err := call(cmd.Context(), c.Hosts.GetHost, &pacelinev1.GetHostRequest{Host: names[0]})
			if err != nil {
				return err
			}
			return a.printHost(p, answer.GetHost())
		},
	}
}

func (a *app) printHost(p *output.Printer, host *pacelinev1.Host) error {
	if !p.Format.ForPeople() {
		return output.One(p, host, hostColumns(a.Now()))
	}
	var f facts
	f.add("Host", "%s", hostPath(host.GetCluster(), host.GetName()))
	f.add("Id", "%s", host.GetId())
	f.add("In its cluster", "%s", host.GetClusterId())
	f.add("State", "%s", output.Enum(host.GetState()))
	f.add("Note", "%s", host.GetMessage())
	f.add("Host pool", "%s", host.GetHostPool())
	f.add("Live runs", "%d", host.GetRuns())
	f.add("GPUs", "%s", gpuModels(host.GetDevices()))
	f.add("Can run", "%s", hostFeatures(host))
	f.add("Changed", "%s", a.since(host.GetChangeTime()))
	if err := f.write(p); err != nil {
		return err
	}
	rows := [][]string{{"RESOURCE", "CAPACITY", "USED", "BY OTHERS", "FREE"}}
	for _, name := range resources(host.GetCapacity(), host.GetUsed(), host.GetForeign()) {
		capacity, used, foreign := amount(host.GetCapacity(), name), amount(host.GetUsed(), name), amount(host.GetForeign(), name)
		rows = append(rows, []string{
			resourceTitle(name), output.Quantity(name, capacity), output.Quantity(name, used), output.Quantity(name, foreign),
			output.Quantity(name, capacity-used-foreign),
		})
	}
	if err := table(p, "Resources:", rows); err != nil {
		return err
	}
	if err := table(p, "Attributes:", pairRows("ATTRIBUTE", attributes(host))); err != nil {
		return err
	}
	return table(p, "Its cluster says:", pairRows("DETAIL", host.GetDetails()))
}

// pairRows lists names with their values.
func pairRows(title string, pairs map[string]string) [][]string {
	rows := [][]string{{title, "VALUE"}}
	for _, key := range slices.Sorted(maps.Keys(pairs)) {
		rows = append(rows, []string{key, pairs[key]})
	}
	return rows
}

// featurePrefix begins the attributes with which a host says what it can do for a task.
const featurePrefix = "can/"

// hostFeatures lists what a host says that it can do.
func hostFeatures(h *pacelinev1.Host) string {
	var can []string
	for _, key := range slices.Sorted(maps.Keys(h.GetAttributes())) {
		if feature, is := strings.CutPrefix(key, featurePrefix); is && h.GetAttributes()[key] == "yes" {
			can = append(can, feature)
		}
	}
	return strings.Join(can, ", ")
}

// attributes are those of a host that are no features.
func attributes(h *pacelinev1.Host) map[string]string {
	out := maps.Clone(h.GetAttributes())
	maps.DeleteFunc(out, func(key, _ string) bool { return strings.HasPrefix(key, featurePrefix) })
	return out
}

// gpuModels counts devices by model.
func gpuModels(devices []*pacelinev1.Device) string {
	counts := map[string]int{}
	for _, d := range devices {
		counts[first(d.GetModel(), "unknown model")]++
	}
	var parts []string
	for _, model := range slices.Sorted(maps.Keys(counts)) {
		parts = append(parts, fmt.Sprintf("%d × %s", counts[model], model))
	}
	return strings.Join(parts, ", ")
}

func (a *app) hostDrain() *cobra.Command {
	return a.hostVerb("drain", "Keep new work from hosts; what runs there goes on", "draining", func(ctx context.Context, name string) error {
		c, err := a.connect()
		if err != nil {
			return err
		}
		defer c.Close()
		_, err = call(ctx, c.Hosts.DrainHost, &pacelinev1.DrainHostRequest{Host: name})
		return err
	})
}

func (a *app) hostUndrain() *cobra.Command {
	return a.hostVerb("undrain", "Let hosts take work again", "taking work", func(ctx context.Context, name string) error {
		c, err := a.connect()
		if err != nil {
			return err
		}
		defer c.Close()
		_, err = call(ctx, c.Hosts.UndrainHost, &pacelinev1.UndrainHostRequest{Host: name})
		return err
	})
}

func (a *app) hostVerb(verb, short, done string, act func(context.Context, string) error) *cobra.Command {
	return &cobra.Command{
		Use:               verb + " HOST...",
		Short:             short,
		Example:           "  paceline host " + verb + " local/host-0",
		Args:              args(cobra.MinimumNArgs(1)),
		ValidArgsFunction: a.completeHostArgs,
		RunE: func(cmd *cobra.Command, names []string) error {
			for i, name := range names {
				if err := act(cmd.Context(), name); err != nil {
					return partly(err, i, len(names))
				}
				a.say("host %s %s", name, done)
			}
			return nil
		},
	}
}
