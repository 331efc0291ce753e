package cli

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/paceline-sched/paceline/cmd/paceline/internal/output"
	"github.com/paceline-sched/paceline/sdk/client"
	pacelinev1 "github.com/paceline-sched/paceline/sdk/gen/paceline/v1"
)

const clusterHelp = `A cell schedules over clusters. One that is added is kept in the cell's store: the server connects to it whenever it runs, and tries again for as
long as it cannot. Clusters of kind local and simulated are named by the server's flags, and only shown here.

A cluster that is out of contact keeps its runs and gets no new ones; the others go on.`

func (a *app) clusterCommand() *cobra.Command {
	return noun("cluster", "Add clusters and see how they fare", clusterHelp,
		noun("add", "Connect the cell to a cluster", clusterAddHelp, a.clusterAddMesos(), a.clusterAddKubernetes()), a.clusterList(), a.clusterGet(), a.clusterUpdate(), a.clusterRemove())
}

const clusterAddHelp = `Connect the cell to a cluster. The server begins at once, and the command does not wait for it unless it is told to.`

// specFlags are the settings of a cluster that all kinds have.
type specFlags struct {
	labels map[string]string
	shards uint32
}

func (f *specFlags) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringToStringVar(&f.labels, "label", nil, "labels, as key=value")
	flags.Uint32Var(&f.shards, "shards", 0, "into how many parts its hosts are cut, each of at most 16384 (default 1)")
}

// apply puts what was given on the command line into a spec and leaves the rest as it is.
func (f *specFlags) apply(cmd *cobra.Command, s *pacelinev1.ClusterSpec) {
	given := cmd.Flags().Changed
	if given("label") {
		s.Labels = maps.Clone(f.labels)
	}
	if given("shards") {
		s.Shards = f.shards
	}
}

// mesosFlags are the settings of a Mesos cluster.
type mesosFlags struct {
	masters, roles                                            []string
	principal, secretFile, secretEnv, caFile, user, framework string
	failover                                                  time.Duration
}

func (f *mesosFlags) set() *pflag.FlagSet {
	flags := pflag.NewFlagSet("mesos", pflag.ContinueOnError)
	flags.StringSliceVar(&f.masters, "master", nil, "addresses of masters: http://host:5050, or one zk://host:2181,host:2181/mesos")
	flags.StringSliceVar(&f.roles, "role", nil, "roles under which it takes offers (default paceline)")
	flags.StringVar(&f.principal, "principal", "", "who the cell is to the master")
	flags.StringVar(&f.secretFile, "secret-file", "", "file with the principal's secret, below the server's directory of secrets")
	flags.StringVar(&f.secretEnv, "secret-env", "", "variable of the server with the secret instead; it begins with PACELINE_SECRET_")
	flags.StringVar(&f.caFile, "master-ca-file", "", "file on the server's machine with the certificates that the masters' must chain to")
	flags.DurationVar(&f.failover, "failover-timeout", 0, "how long the master keeps tasks while no server speaks to it (default 168h)")
	flags.StringVar(&f.user, "user", "", "user who runs tasks on the agents (default: the server's)")
	flags.StringVar(&f.framework, "framework-name", "", "the cell's name at the master (default paceline)")
	return flags
}

func (f *mesosFlags) apply(cmd *cobra.Command, m *pacelinev1.MesosCluster) {
	given := cmd.Flags().Changed
	set(given("master"), &m.Masters, f.masters)
	set(given("role"), &m.Roles, f.roles)
	set(given("principal"), &m.Principal, f.principal)
	set(given("secret-file"), &m.SecretFile, f.secretFile)
	set(given("secret-env"), &m.SecretEnv, f.secretEnv)
	set(given("master-ca-file"), &m.CaFile, f.caFile)
	set(given("user"), &m.User, f.user)
	set(given("framework-name"), &m.FrameworkName, f.framework)
	set(given("failover-timeout"), &m.FailoverTimeout, durationpb.New(f.failover))
}

func set[T any](given bool, field *T, value T) {
	if given {
		*field = value
	}
}

func (a *app) clusterAddMesos() *cobra.Command {
	f := &mesosFlags{}
	return a.clusterAdd(&cobra.Command{
		Use:   "mesos NAME",
		Short: "Connect the cell to a Mesos cluster",
		Long: `Connect the cell to a Mesos cluster, as a framework of its own. Masters are named by their addresses, any of which may lead, or by the ZooKeeper ensemble
that knows the leader.

A secret is never given here: the server reads it from a file below its --secrets-dir, or from its environment, each time that it connects.`,
		Example: `  paceline cluster add mesos east --master http://10.0.0.1:5050,http://10.0.0.2:5050 --role batch
  paceline cluster add mesos east --master zk://zk1:2181,zk2:2181/mesos --principal paceline --secret-file east --wait`,
	}, f.set(), func(cmd *cobra.Command, spec *pacelinev1.ClusterSpec) error {
		if len(f.masters) == 0 {
			return fmt.Errorf("no master is named: give --master http://host:5050")
		}
		m := &pacelinev1.MesosCluster{}
		f.apply(cmd, m)
		spec.Settings = &pacelinev1.ClusterSpec_Mesos{Mesos: m}
		return nil
	})
}

// clusterAdd completes a command that adds a cluster of a kind. settings puts what was given into the spec, or says what is missing.
func (a *app) clusterAdd(cmd *cobra.Command, own *pflag.FlagSet, settings func(*cobra.Command, *pacelinev1.ClusterSpec) error) *cobra.Command {
	f := &specFlags{}
	var wait bool
	var timeout time.Duration
	cmd.Args = args(cobra.ExactArgs(1))
	cmd.RunE = func(cmd *cobra.Command, names []string) error {
		spec := &pacelinev1.ClusterSpec{Name: names[0]}
		if err := settings(cmd, spec); err != nil {
			return usage(cmd, err)
		}
		f.apply(cmd, spec)
		return a.withClusters(func(p *output.Printer, c *client.Client) error {
			answer, err := call(cmd.Context(), c.Clusters.AddCluster, &pacelinev1.AddClusterRequest{Spec: spec})
			if err != nil {
				return err
			}
			switch {
			case answer.GetExisted():
				a.say("cluster %s is there already, with the same settings", names[0])
			case !wait:
				a.say("cluster %s added; the server connects to it: see 'paceline cluster get %s'", names[0], names[0])
			default:
				a.say("cluster %s added", names[0])
			}
			if !wait {
				return a.tellCluster(p, answer.GetCluster())
			}
			return a.awaitCluster(cmd.Context(), p, c, names[0], timeout)
		})
	}
	f.add(cmd)
	cmd.Flags().AddFlagSet(own)
	cmd.Flags().BoolVar(&wait, "wait", false, "wait until it is connected")
	cmd.Flags().DurationVar(&timeout, "wait-timeout", time.Minute, "how long to wait")
	return cmd
}

func (a *app) withClusters(do func(*output.Printer, *client.Client) error) error {
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

// tellCluster prints a cluster for programs; people were told what was done.
func (a *app) tellCluster(p *output.Printer, cluster *pacelinev1.Cluster) error {
	if p.Format.ForPeople() {
		return nil
	}
	return output.One(p, cluster, clusterColumns(a.Now()))
}

// awaitCluster waits until a cluster is connected.
func (a *app) awaitCluster(ctx context.Context, p *output.Printer, c *client.Client, name string, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var last *pacelinev1.Cluster
	line := a.progress()
	interest := &pacelinev1.WatchEventsRequest{Kinds: []pacelinev1.EventKind{pacelinev1.EventKind_EVENT_KIND_CLUSTER}}
	err := follow(ctx, c, interest, func(ctx context.Context) (bool, error) {
		answer, err := call(ctx, c.Clusters.GetCluster, &pacelinev1.GetClusterRequest{Name: name})
		if err != nil {
			return false, err
		}
		last = answer.GetCluster()
		if last.GetState() == pacelinev1.ClusterState_CLUSTER_STATE_CONNECTED {
			return true, nil
		}
		line.show("cluster " + name + " is " + output.Enum(last.GetState()) + note(last))
		return false, nil
	})
	line.done()
	if err != nil {
		if ctx.Err() != nil && last != nil {
			return &failure{
				code: ExitTimeout, err: fmt.Errorf("cluster %s is %s after %v%s", name, output.Enum(last.GetState()), timeout, note(last)),
				hint: "the server goes on trying: see 'paceline cluster get " + name + "'",
			}
		}
		return err
	}
	a.say("cluster %s is connected: %s", name, output.Plural(last.GetHosts(), "host"))
	return a.tellCluster(p, last)
}

func note(c *pacelinev1.Cluster) string {
	if c.GetMessage() == "" {
		return ""
	}
	return ": " + c.GetMessage()
}

func (a *app) clusterList() *cobra.Command {
	var labels map[string]string
	var watch bool
	cmd := &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List clusters with what runs there",
		Example: `  paceline cluster list
  paceline cluster list --label region=eu -o wide --watch`,
		Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.connect()
			if err != nil {
				return err
			}
			defer c.Close()
			l := listing[*pacelinev1.Cluster]{
				layout: clusterColumns(a.Now()),
				envelope: func(clusters []*pacelinev1.Cluster) proto.Message {
					return &pacelinev1.ListClustersResponse{Clusters: clusters}
				},
				key: clusterName,
				read: func(ctx context.Context) ([]*pacelinev1.Cluster, bool, error) {
					answer, err := call(ctx, c.Clusters.ListClusters, &pacelinev1.ListClustersRequest{Labels: labels})
					return answer.GetClusters(), false, err
				},
				interest: &pacelinev1.WatchEventsRequest{},
			}
			if watch {
				return showAndWatch(cmd.Context(), a, c, l)
			}
			return show(cmd.Context(), a, l)
		},
	}
	cmd.Flags().StringToStringVar(&labels, "label", nil, "clusters with these labels, as key=value")
	cmd.Flags().BoolVar(&watch, "watch", false, "keep the list up to date")
	return cmd
}

func (a *app) clusterGet() *cobra.Command {
	return &cobra.Command{
		Use:               "get NAME",
		Short:             "Show one cluster: its connection, what it has and what runs there",
		Example:           `  paceline cluster get east`,
		Args:              args(cobra.ExactArgs(1)),
		ValidArgsFunction: a.completeClusterArgs,
		RunE: func(cmd *cobra.Command, names []string) error {
			return a.withClusters(func(p *output.Printer, c *client.Client) error {
				answer, err := call(cmd.Context(), c.Clusters.GetCluster, &pacelinev1.GetClusterRequest{Name: names[0]})
				if err != nil {
					return err
				}
				return a.printCluster(p, answer.GetCluster())
			})
		},
	}
}

func (a *app) printCluster(p *output.Printer, c *pacelinev1.Cluster) error {
	if !p.Format.ForPeople() {
		return output.One(p, c, clusterColumns(a.Now()))
	}
	var f facts
	f.add("Cluster", "%s", c.GetSpec().GetName())
	kind := c.GetKind()
	if c.GetByFlags() {
		kind += ", named by the server's flags"
	}
	f.add("Kind", "%s", kind)
	f.add("State", "%s", output.Enum(c.GetState()))
	f.add("Note", "%s", c.GetMessage())
	f.add("Since", "%s", a.since(c.GetStateTime()))
	if c.GetAttempts() > 0 {
		f.add("Failed attempts", "%d", c.GetAttempts())
	}
	if c.GetNextAttemptTime() != nil {
		f.add("Next attempt", "%s", output.Clock(a.Now(), c.GetNextAttemptTime()))
	}
	if c.GetLastError() != "" && c.GetLastError() != c.GetMessage() {
		f.add("Last error", "%s", c.GetLastError())
	}
	f.add("Last error at", "%s", a.since(c.GetLastErrorTime()))
	f.add("Hosts", "%d, %d of them ready", c.GetHosts(), c.GetReadyHosts())
	f.add("Live runs", "%d", c.GetRuns())
	f.add("Can do", "%s", strings.Join(c.GetCapabilities(), ", "))
	f.add("Knows the cell as", "%s", c.GetIdentity())
	f.add("Labels", "%s", output.Pairs(c.GetSpec().GetLabels()))
	mesosFacts(&f, c.GetSpec().GetMesos())
	kubernetesFacts(&f, c.GetSpec().GetKubernetes())
	f.add("Version", "%s", clusterVersion(c))
	f.add("Added", "%s", a.since(c.GetCreateTime()))
	if c.GetVersion() > 1 {
		f.add("Changed", "%s by %s", a.since(c.GetUpdateTime()), first(c.GetUpdatedBy(), "nobody"))
	}
	if err := f.write(p); err != nil {
		return err
	}
	rows := [][]string{{"RESOURCE", "CAPACITY", "USED", "FREE"}}
	for _, name := range resources(c.GetCapacity(), c.GetUsed()) {
		capacity, used := amount(c.GetCapacity(), name), amount(c.GetUsed(), name)
		rows = append(rows, []string{resourceTitle(name), output.Quantity(name, capacity), output.Quantity(name, used), output.Quantity(name, capacity-used)})
	}
	if err := table(p, "Resources:", rows); err != nil {
		return err
	}
	rows = [][]string{{"SHARD", "READY", "HOSTS", "NOTE"}}
	for _, s := range c.GetShards() {
		ready := "no"
		if s.GetReady() {
			ready = "yes"
		}
		rows = append(rows, []string{s.GetId(), ready, number(s.GetHosts()), output.OrDash(s.GetMessage())})
	}
	if err := table(p, "Shards:", rows); err != nil {
		return err
	}
	return table(p, "It says of itself:", pairRows("DETAIL", c.GetDetails()))
}

// mesosFacts lists the settings of a Mesos cluster.
func mesosFacts(f *facts, m *pacelinev1.MesosCluster) {
	f.add("Masters", "%s", strings.Join(m.GetMasters(), ", "))
	f.add("Roles", "%s", strings.Join(m.GetRoles(), ", "))
	f.add("Principal", "%s", m.GetPrincipal())
	switch {
	case m.GetSecretFile() != "":
		f.add("Secret", "in the file %s", m.GetSecretFile())
	case m.GetSecretEnv() != "":
		f.add("Secret", "in the variable %s", m.GetSecretEnv())
	}
	f.add("CA file", "%s", m.GetCaFile())
	if m.GetFailoverTimeout() != nil {
		f.add("Failover time-out", "%s", output.Span(m.GetFailoverTimeout().AsDuration()))
	}
	f.add("User of tasks", "%s", m.GetUser())
	f.add("Framework", "%s", m.GetFrameworkName())
}

func clusterVersion(c *pacelinev1.Cluster) string {
	if c.GetVersion() == 0 {
		return ""
	}
	return number(c.GetVersion())
}

func clusterName(c *pacelinev1.Cluster) string { return c.GetSpec().GetName() }

func clusterColumns(now time.Time) output.Columns[*pacelinev1.Cluster] {
	type cluster = *pacelinev1.Cluster
	share := func(c cluster, name string) string {
		capacity := amount(c.GetCapacity(), name)
		if capacity == 0 && amount(c.GetUsed(), name) == 0 {
			return output.Dash
		}
		return output.Quantity(name, amount(c.GetUsed(), name)) + "/" + output.Quantity(name, capacity)
	}
	return output.Columns[cluster]{
		Name: clusterName,
		Columns: []output.Column[cluster]{
			{Header: "CLUSTER", Value: clusterName},
			{Header: "KIND", Value: func(c cluster) string { return output.OrDash(c.GetKind()) }},
			{Header: "STATE", Value: func(c cluster) string { return output.Enum(c.GetState()) }},
			{Header: "SINCE", Value: func(c cluster) string { return output.Age(now, c.GetStateTime()) }},
			{Header: "HOSTS", Value: func(c cluster) string { return fmt.Sprintf("%d/%d", c.GetReadyHosts(), c.GetHosts()) }},
			{Header: "RUNS", Value: func(c cluster) string { return number(c.GetRuns()) }},
			{Header: "CPU", Value: func(c cluster) string { return share(c, "cpu_milli") }},
			{Header: "MEMORY", Value: func(c cluster) string { return share(c, "memory_mib") }},
			{Header: "GPU", Value: func(c cluster) string { return share(c, "gpu_milli") }},
			{Header: "SHARDS", Wide: true, Value: func(c cluster) string { return fmt.Sprintf("%d", len(c.GetShards())) }},
			{Header: "ATTEMPTS", Wide: true, Value: func(c cluster) string { return number(c.GetAttempts()) }},
			{Header: "VERSION", Wide: true, Value: func(c cluster) string { return output.OrDash(clusterVersion(c)) }},
			{Header: "LABELS", Wide: true, Value: func(c cluster) string { return output.Pairs(c.GetSpec().GetLabels()) }},
			{Header: "NOTE", Wide: true, Value: func(c cluster) string { return output.OrDash(c.GetMessage()) }},
		},
	}
}

func (a *app) clusterUpdate() *cobra.Command {
	f, mesos, kubernetes := &specFlags{}, &mesosFlags{}, &kubernetesFlags{}
	var version uint64
	ofMesos, ofKubernetes := mesos.set(), kubernetes.set()
	cmd := &cobra.Command{
		Use:   "update NAME",
		Short: "Change the settings of a cluster",
		Long: `Change the settings of a cluster that was added: those that are given, and no others. A list or the labels are replaced as a whole. The server connects anew
with them, and runs go on meanwhile. The kind of a cluster stays: see 'paceline cluster add' for which settings are whose.`,
		Example: `  paceline cluster update east --master http://10.0.0.3:5050
  paceline cluster update west --default-image registry.example.com/base:2
  paceline cluster update east --shards 2 --label region=eu`,
		Args:              args(cobra.ExactArgs(1)),
		ValidArgsFunction: a.completeClusterArgs,
		RunE: func(cmd *cobra.Command, names []string) error {
			return a.withClusters(func(p *output.Printer, c *client.Client) error {
				answer, err := call(cmd.Context(), c.Clusters.GetCluster, &pacelinev1.GetClusterRequest{Name: names[0]})
				if err != nil {
					return err
				}
				spec, former := answer.GetCluster().GetSpec(), answer.GetCluster().GetVersion()
				f.apply(cmd, spec)
				if m := spec.GetMesos(); m != nil {
					mesos.apply(cmd, m)
				} else if err := foreign(cmd, ofMesos, answer.GetCluster()); err != nil {
					return usage(cmd, err)
				}
				if k := spec.GetKubernetes(); k != nil {
					err = kubernetes.apply(cmd, k)
				} else {
					err = foreign(cmd, ofKubernetes, answer.GetCluster())
				}
				if err != nil {
					return usage(cmd, err)
				}
				changed, err := call(cmd.Context(), c.Clusters.UpdateCluster, &pacelinev1.UpdateClusterRequest{Spec: spec, ExpectedVersion: cmp.Or(version, former)})
				if err != nil {
					return err
				}
				switch now := changed.GetCluster().GetVersion(); now {
				case former:
					a.say("cluster %s is unchanged", names[0])
				default:
					a.say("cluster %s updated to version %d", names[0], now)
				}
				return a.tellCluster(p, changed.GetCluster())
			})
		},
	}
	f.add(cmd)
	cmd.Flags().Uint64Var(&version, "expected-version", 0, clusterVersionHelp)
	cmd.Flags().AddFlagSet(ofMesos)
	cmd.Flags().AddFlagSet(ofKubernetes)
	return cmd
}

const clusterVersionHelp = "act only if this is the cluster's version (0: whatever it is)"

// foreign finds a setting that was given and is one of another kind of cluster.
func foreign(cmd *cobra.Command, settings *pflag.FlagSet, c *pacelinev1.Cluster) error {
	var err error
	settings.VisitAll(func(flag *pflag.Flag) {
		if err == nil && cmd.Flags().Changed(flag.Name) {
			err = fmt.Errorf("cluster %s is of kind %s, and --%s is a setting of another kind", c.GetSpec().GetName(), c.GetKind(), flag.Name)
		}
	})
	return err
}

func (a *app) clusterRemove() *cobra.Command {
	var force bool
	var version uint64
	cmd := &cobra.Command{
		Use:     "remove NAME",
		Aliases: []string{"rm"},
		Short:   "Take leave of a cluster and forget it",
		Long: `Take leave of a cluster and forget it. It is refused while live runs are there.

With --force the cluster is told to end them, if it can be reached; they count as lost and are tried again on other clusters, as after any loss. A Mesos
cluster that cannot be reached ends them once it gives up on the cell, a Kubernetes cluster when somebody deletes the pods: until then they may go on beside
their successors.`,
		Example: `  paceline cluster remove east
  paceline cluster remove east --force`,
		Args:              args(cobra.ExactArgs(1)),
		ValidArgsFunction: a.completeClusterArgs,
		RunE: func(cmd *cobra.Command, names []string) error {
			return a.withClusters(func(p *output.Printer, c *client.Client) error {
				answer, err := call(cmd.Context(), c.Clusters.RemoveCluster, &pacelinev1.RemoveClusterRequest{Name: names[0], Force: force, ExpectedVersion: version})
				if err != nil {
					return err
				}
				for _, warning := range answer.GetWarnings() {
					fmt.Fprintf(a.Err, "Warning: %s\n", warning)
				}
				if !p.Format.ForPeople() {
					return p.Message(answer)
				}
				if n := answer.GetLostRuns(); n > 0 {
					a.say("cluster %s removed; %d runs there count as lost and are tried again elsewhere", names[0], n)
					return nil
				}
				a.say("cluster %s removed", names[0])
				return nil
			})
		},
	}
	cmd.Flags().BoolVar(&force, "force", false, "also if live runs are there")
	cmd.Flags().Uint64Var(&version, "expected-version", 0, clusterVersionHelp)
	return cmd
}

func (a *app) completeClusters(cmd *cobra.Command, _ []string, prefix string) ([]cobra.Completion, cobra.ShellCompDirective) {
	return a.complete(cmd, prefix, func(ctx context.Context, c *client.Client) ([]string, error) {
		answer, err := call(ctx, c.Clusters.ListClusters, &pacelinev1.ListClustersRequest{})
		if err != nil {
			return nil, err
		}
		var names []string
		for _, cluster := range answer.GetClusters() {
			names = append(names, clusterName(cluster))
		}
		return names, nil
	})
}

func (a *app) completeClusterArgs(cmd *cobra.Command, given []string, prefix string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if len(given) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return a.completeClusters(cmd, given, prefix)
}
