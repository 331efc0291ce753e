package server

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/paceline-sched/paceline/core/api/gate"
)

// Defaults are what the commands take from their process.
type Defaults struct {
	DataDir         string
	Version, Commit string
	GOGC            string // as the environment has it
}

// NewCommands returns `dev`, `server`, and what a server starts by itself.
func NewCommands(d Defaults) []*cobra.Command {
	return []*cobra.Command{newDevCommand(d), newServerCommand(d), newCompileCommand()}
}

// options are flags before they become a Config.
type options struct {
	config    Config
	logFormat string
	logLevel  string
	readyFile string
	gcPercent int
}

const devHelp = `Start everything in this process, without any other dependency: the store, the core, the API, and a cluster of virtual hosts on this
machine that run real processes. Their resources are this machine's, divided; --local-cpu gives them more or less.

With --mesos-agents a Mesos cluster is emulated beside it, which the cell reaches over HTTP as any other; its tasks end with this process.
With --kube-nodes it is a Kubernetes cluster, likewise; what is printed says how kubectl sees it.

On the first start a token is made in the data directory, where commands on this machine look for it. Interrupt it to stop; running
tasks go on, and the next start takes them up again.`

func newDevCommand(d Defaults) *cobra.Command {
	o := &options{}
	cmd := &cobra.Command{
		Use:   "dev",
		Short: "Run a whole cell on this machine",
		Long:  devHelp,
		Example: `  paceline dev
  paceline dev --local-hosts 3 --local-cpu 4000 --simulated-hosts 1000
  paceline dev --mesos-agents 3 --kube-nodes 3`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd, d) },
	}
	o.common(cmd, d)
	o.clusters(cmd, 3)
	cmd.Flags().IntVar(&o.config.MesosAgents, "mesos-agents", 0, "agents of an emulated Mesos cluster that run real processes, too; 0: none")
	cmd.Flags().IntVar(&o.config.KubeNodes, "kube-nodes", 0, "nodes of an emulated Kubernetes cluster whose pods run real processes, too; 0: none")
	return cmd
}

const serverHelp = `Run a cell: the store, the core and the API, with the clusters that the flags name.

A listener that others than this machine can reach wants a TLS certificate and a token file; without them the server refuses to
start.

Under overload calls are refused with RESOURCE_EXHAUSTED and the time after which to try again; nothing was done for them. No principal
may hold more calls, streams or bytes of requests than are left, so one that asks for too much is refused and the others are not. A client
that reads nothing for 30 seconds is cut off. Each connection takes a file descriptor, and half of them stay for the store and for tasks:
raise the limit of open files (ulimit -n) where more clients than that come.`

func newServerCommand(d Defaults) *cobra.Command {
	o := &options{}
	cmd := &cobra.Command{
		Use:   "server",
		Short: "Run a cell's server",
		Long:  serverHelp,
		Example: `  paceline server --data-dir /var/lib/paceline --local-hosts 1
  paceline server --data-dir /var/lib/paceline --listen 0.0.0.0:7411 --tls-cert cell.pem --tls-key cell.key --token-file tokens.yaml`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd, d) },
	}
	o.common(cmd, d)
	o.clusters(cmd, 0)
	cmd.AddCommand(newRestoreCommand(d))
	return cmd
}

func (o *options) common(cmd *cobra.Command, d Defaults) {
	f := cmd.Flags()
	f.StringVar(&o.config.DataDir, "data-dir", d.DataDir, "directory of the store, the token and local runs")
	f.StringVar(&o.config.Cell, "cell", "default", "name of the cell; a store belongs to one cell for good")
	f.StringVar(&o.config.Listen, "listen", DefaultAddress, "host:port of the API; port 0 takes a free one")
	f.StringVar(&o.config.TLSCert, "tls-cert", "", "PEM file with the server's certificate and chain")
	f.StringVar(&o.config.TLSKey, "tls-key", "", "PEM file with the certificate's key")
	f.StringVar(&o.config.TokenFile, "token-file", "", "who may call (default: token in the data directory)")
	f.DurationVar(&o.config.JobRetention, "job-retention", 24*time.Hour, "how long ended jobs are kept")
	f.Int64Var(&o.config.DiskReserve, "disk-reserve-mib", 512, "free MiB below which the store takes no more writes")
	f.IntVar(&o.config.MaxCalls, "max-calls", gate.DefaultCalls, "calls in progress at once; as many more wait for their turn")
	f.IntVar(&o.config.MaxStreams, "max-streams", gate.DefaultStreams, "watches, logs and backups open at once")
	f.IntVar(&o.config.MaxConnections, "max-connections", 0, "connections open at once (default: half of the limit of open files, at most 16384)")
	f.StringVar(&o.config.AdmissionDir, "admission-dir", "", "directory of bundles of admission rules, taken up as they change; see also 'paceline admission'")
	f.StringVar(&o.config.AdmissionKeys, "admission-keys", "", "directory of public keys (ID.pem), of which one must have signed each bundle of admission rules")
	f.StringVar(&o.config.PolicyKeys, "policy-keys", "", "directory of public keys (ID.pem, Ed25519), of which one must have signed each policy")
	f.StringVar(&o.config.SecretsDir, "secrets-dir", "", "directory below which the secret files of clusters lie (default: secrets in the data directory)")
	f.StringVar(&o.config.DecisionLogDir, "decision-log-dir", "", "directory of the log of decisions, which 'paceline policy replay' reads (default: decisions in the data directory)")
	f.Int64Var(&o.config.DecisionLogMiB, "decision-log-mib", defaultDecisionLog, "MiB of it that are kept; 0: nothing is recorded")
	f.IntVar(&o.gcPercent, "gc-percent", 0, "garbage that may gather in memory, in percent of what is in use; less costs processor time (default: GOGC, or 50)")
	f.StringVar(&o.logFormat, "log-format", "text", "form of the log on standard error: text or json")
	f.StringVar(&o.logLevel, "log-level", "info", "least level that is logged: debug, info, warn or error")
	f.StringVar(&o.readyFile, "ready-file", "", "write the API's address to this file once it takes calls")
}

func (o *options) clusters(cmd *cobra.Command, hosts int) {
	f := cmd.Flags()
	f.IntVar(&o.config.Local.Hosts, "local-hosts", hosts, "virtual hosts on this machine; 0: none")
	f.Int64Var(&o.config.Local.CPUMilli, "local-cpu", 0, "thousandths of a core of each local host (default: the machine's, divided)")
	f.Int64Var(&o.config.Local.MemoryMiB, "local-memory-mib", 0, "memory of each local host (default: the machine's, divided)")
	f.Uint16Var(&o.config.Local.Ports.First, "local-port-first", 0, "first port that local tasks may be given (default 20000)")
	f.Uint16Var(&o.config.Local.Ports.Last, "local-port-last", 0, "last port that local tasks may be given (default 31999)")
	f.IntVar(&o.config.Simulated.Hosts, "simulated-hosts", 0, "generated hosts that only pretend to run tasks; 0: none")
	f.StringVar(&o.config.Simulated.Inventory, "simulated-inventory", "", "CSV file of simulated hosts instead")
	f.DurationVar(&o.config.Simulated.Duration, "simulated-duration", 0, "how long a simulated run lasts whose job does not say (default: until killed)")
	f.DurationVar(&o.config.Simulated.LaunchLatency, "simulated-latency", 0, "time from a simulated launch to RUNNING")
	f.Uint64Var(&o.config.Simulated.Seed, "simulated-seed", 1, "seed of everything that happens by chance in the simulated cluster")
}

func (o *options) run(cmd *cobra.Command, d Defaults) error {
	log, err := newLog(cmd.ErrOrStderr(), o.logFormat, o.logLevel)
	if err != nil {
		return err
	}
	if err := limitGarbage(o.gcPercent, d.GOGC); err != nil {
		return err
	}
	if o.config.DecisionLogMiB == 0 {
		o.config.DecisionLogMiB = -1
	}
	o.config.Log, o.config.Version, o.config.Commit, o.config.Compile = log, d.Version, d.Commit, compileByItself
	var readyErr error
	ctx, cancel := context.WithCancel(cmd.Context())
	defer cancel()
	o.config.Emulated = func(url, kubeconfig string) {
		fmt.Fprintf(cmd.OutOrStdout(), "an emulated Kubernetes cluster serves at %s (kubectl --kubeconfig %s get nodes)\n", url, kubeconfig)
	}
	o.config.Started = func(address string) {
		if readyErr = o.announce(cmd.OutOrStdout(), address); readyErr != nil {
			cancel()
		}
	}
	if err := Run(ctx, o.config); err != nil {
		return err
	}
	return readyErr
}

func (o *options) announce(out io.Writer, address string) error {
	scheme := "http"
	if o.config.TLSCert != "" {
		scheme = "https"
	}
	token := o.config.TokenFile
	if token == "" {
		token = filepath.Join(o.config.DataDir, "token")
	}
	fmt.Fprintf(out, "cell %s serves at %s://%s (token in %s)\n", o.config.Cell, scheme, address, token)
	if o.readyFile == "" {
		return nil
	}
	temp := o.readyFile + ".tmp"
	if err := os.WriteFile(temp, []byte(scheme+"://"+address+"\n"), 0o600); err != nil {
		return fmt.Errorf("write the ready file: %w", err)
	}
	if err := os.Rename(temp, o.readyFile); err != nil {
		return fmt.Errorf("write the ready file: %w", err)
	}
	return nil
}

func newLog(w io.Writer, format, level string) (*slog.Logger, error) {
	var least slog.Level
	if err := least.UnmarshalText([]byte(level)); err != nil {
		return nil, &MistakeError{fmt.Errorf("log level %q is unknown: use debug, info, warn or error", level)}
	}
	options := &slog.HandlerOptions{Level: least}
	switch format {
	case "text":
		return slog.New(slog.NewTextHandler(w, options)), nil
	case "json":
		return slog.New(slog.NewJSONHandler(w, options)), nil
	}
	return nil, &MistakeError{fmt.Errorf("log format %q is unknown: use text or json", format)}
}

func newRestoreCommand(d Defaults) *cobra.Command {
	var dataDir, cell string
	cmd := &cobra.Command{
		Use:   "restore FILE",
		Short: "Fill an empty data directory from a backup",
		Long: `Fill an empty data directory with what 'paceline backup' saved. Watches that were open before the backup have to list again: the history
is a new one.`,
		Example: `  paceline server restore --data-dir /var/lib/paceline-new cell.backup`,
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, files []string) error {
			if err := Restore(cmd.Context(), dataDir, cell, files[0]); err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "restored %s into %s\n", files[0], dataDir)
			return nil
		},
	}
	cmd.Flags().StringVar(&dataDir, "data-dir", d.DataDir, "directory to fill; its store must be empty")
	cmd.Flags().StringVar(&cell, "cell", "default", "name of the cell that the backup is of")
	return cmd
}
