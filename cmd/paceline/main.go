// Command paceline is a scheduler for many clusters: the servers, the simulator and the command line that speaks to them, in one
// binary.
package main

import (
	"context"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/paceline-sched/paceline/cmd/paceline/internal/cli"
	"github.com/paceline-sched/paceline/cmd/paceline/internal/config"
	"github.com/paceline-sched/paceline/cmd/paceline/internal/kubeemu"
	"github.com/paceline-sched/paceline/cmd/paceline/internal/mesosemu"
	"github.com/paceline-sched/paceline/cmd/paceline/internal/policy"
	"github.com/paceline-sched/paceline/cmd/paceline/internal/replay"
	"github.com/paceline-sched/paceline/cmd/paceline/internal/rules"
	"github.com/paceline-sched/paceline/cmd/paceline/internal/server"
	"github.com/paceline-sched/paceline/cmd/paceline/internal/simpack"
	"github.com/paceline-sched/paceline/cmd/paceline/internal/simrun"
)

// version is set when the binary is linked.
var version string

func main() {
	os.Exit(run())
}

func run() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	return cli.Run(ctx, cli.Config{
		Version:  buildVersion(),
		In:       os.Stdin,
		Out:      os.Stdout,
		Err:      os.Stderr,
		Env:      os.Getenv,
		Now:      time.Now,
		Terminal: term.IsTerminal(int(os.Stdout.Fd())) && term.IsTerminal(int(os.Stderr.Fd())),
		Servers: append(server.NewCommands(server.Defaults{
			DataDir: config.DataDir(os.Getenv), Version: buildVersion(), GOGC: os.Getenv("GOGC"),
		}), mesosemu.NewCommand(), kubeemu.NewCommand()),
		Rules:       cli.RulesTools{Pack: rules.Pack, Commands: rules.NewCommands()},
		Policies:    append(policy.NewCommands(buildVersion()), replay.NewCommands(config.DataDir(os.Getenv), time.Now)...),
		Simulations: []*cobra.Command{simpack.NewCommand(), simrun.NewCommand()},
	}, os.Args[1:])
}

// buildVersion is the linked-in version, or the module's when 'go install' built the binary.
func buildVersion() string {
	if version != "" {
		return version
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "(devel)" {
		return info.Main.Version
	}
	return ""
}
