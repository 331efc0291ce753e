// Command run starts a real Kubernetes control plane, runs a command beside it, and ends both. The command finds the administrator's
// kubeconfig in KUBECONFIG and in PACELINE_KUBECONFIG, and the plane's directory in PACELINE_CONTROLPLANE. With -kwok, nodes that are annotated
// kwok.x-k8s.io/node=fake have kubelets that play. With -kubelets N there are N real nodes, and everything runs in namespaces of its own; with
// -isolated the command does, without a control plane.
//
//	go run ./conformance/controlplane/run -kwok -- kubectl get nodes
//
// With -build it only builds the programs into the cache.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/paceline-sched/paceline/conformance/controlplane"
	"github.com/paceline-sched/paceline/conformance/controlplane/isolate"
)

func main() {
	isolate.Main()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		os.Exit(max(1, exit.ExitCode()))
	case err != nil:
		fmt.Fprintln(os.Stderr, "run:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("run", flag.ContinueOnError)
	cfg := controlplane.Config{Log: os.Stderr}
	flags.BoolVar(&cfg.Kwok, "kwok", false, "play the kubelets of nodes annotated kwok.x-k8s.io/node=fake")
	flags.BoolVar(&cfg.Scheduler, "scheduler", false, "run kube-scheduler")
	flags.BoolVar(&cfg.Controllers, "controllers", false, "run kube-controller-manager")
	flags.StringVar(&cfg.Dir, "dir", "", "keep certificates, data and logs in this empty directory")
	flags.IntVar(&cfg.Kubelets, "kubelets", 0, "run this many real kubelets; takes root")
	apart := flags.Bool("isolated", false, "run the command in namespaces of its own, without a control plane; takes root")
	build := flags.String("build", "", "only build these programs, separated by commas")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *build != "" {
		bin, err := controlplane.Build(ctx, os.Stderr, strings.Split(*build, ",")...)
		if err == nil {
			fmt.Fprintln(os.Stdout, bin)
		}
		return err
	}
	if flags.NArg() == 0 {
		return errors.New("say what to run beside the control plane: run [-kwok] [-scheduler] [-controllers] [-kubelets N] -- COMMAND")
	}
	if *apart || cfg.Kubelets > 0 && !isolate.Inside() {
		if err := fetch(ctx); err != nil {
			return err
		}
		if *apart {
			return isolate.Run(ctx, os.Stderr, flags.Args())
		}
		return isolate.Run(ctx, os.Stderr, append([]string{os.Args[0]}, args...))
	}
	plane, err := controlplane.Start(ctx, cfg)
	if err != nil {
		return err
	}
	command := exec.CommandContext(ctx, flags.Arg(0), flags.Args()[1:]...) //nolint:gosec // the user says what
	command.Cancel = func() error { return command.Process.Signal(syscall.SIGTERM) }
	command.WaitDelay = 10 * time.Second
	command.Stdin, command.Stdout, command.Stderr = os.Stdin, os.Stdout, os.Stderr
	command.Env = append(os.Environ(), "KUBECONFIG="+plane.Kubeconfig(), "PACELINE_KUBECONFIG="+plane.Kubeconfig(), "PACELINE_CONTROLPLANE="+plane.Dir())
	return errors.Join(command.Run(), plane.Close())
}

// fetch gets what real kubelets need while there is a network.
func fetch(ctx context.Context) error {
	if _, err := controlplane.Build(ctx, os.Stderr, controlplane.Etcd, controlplane.APIServer, controlplane.Kubelet, controlplane.KubeScheduler, controlplane.Controllers,
		controlplane.Kubectl); err != nil {
		return err
	}
	return controlplane.FetchRuntime(ctx, os.Stderr)
}
