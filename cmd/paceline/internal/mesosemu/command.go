// Package mesosemu is the verb "paceline mesos-emulator": it serves an emulated Mesos cluster until it is told to stop.
//
// It owns the flags and the wiring of one emulator. It decides nothing about Mesos.
//
// Concurrency: one goroutine serves; the command waits for it.
package mesosemu

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/paceline-sched/paceline/hostmanagers/mesos/emulator"
	"github.com/paceline-sched/paceline/hostmanagers/mesos/emulator/cluster"
)

// maxAgents bounds the agents of one emulator.
const maxAgents = 100_000

type flags struct {
	listen          string
	agents          int
	cpus, mem, disk float64
	root            string
	lasting         time.Duration
	faults          faults
}

const help = `Serve an emulated Mesos cluster over HTTP: a master at /api/v1/scheduler with its agents, for frameworks under development and for tests. It answers
as a real master of 1.12 does, as far as recordings of one go, and authenticates nobody: keep it on loopback.

Tasks run as processes of this machine, by their command alone: no images, artefacts or isolation. With --tasks-last they are pretended to run for
that long.

Flags that begin with --fault make it suffer, as real clusters do, so that a framework can be seen to survive.`

// NewCommand returns the verb.
func NewCommand() *cobra.Command {
	var f flags
	cmd := &cobra.Command{
		Use:   "mesos-emulator",
		Short: "Serve an emulated Mesos cluster",
		Long:  help,
		Example: `  paceline mesos-emulator --agents 3
  paceline mesos-emulator --listen 127.0.0.1:5150 --agents 1000 --tasks-last 5s`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd.Context(), cmd.OutOrStdout()) },
	}
	fs := cmd.Flags()
	fs.StringVar(&f.listen, "listen", "127.0.0.1:5050", "address to serve on")
	fs.IntVar(&f.agents, "agents", 2, "how many agents")
	fs.Float64Var(&f.cpus, "cpus", 8, "processors of an agent")
	fs.Float64Var(&f.mem, "mem", 16384, "memory of an agent, in MiB")
	fs.Float64Var(&f.disk, "disk", 100000, "disk of an agent, in MiB")
	fs.StringVar(&f.root, "root", "", "`directory` of what tasks write (default a temporary one, removed at the end)")
	fs.DurationVar(&f.lasting, "tasks-last", -1, "pretend that tasks run this long and end well, instead of running them (default: they are run)")
	fs.Lookup("tasks-last").DefValue = "0s" // not to be shown: -1ns says nothing
	f.faults.register(fs)
	return cmd
}

func (f *flags) check() error {
	switch {
	case f.agents < 1 || f.agents > maxAgents:
		return fmt.Errorf("--agents is %d: it must be from 1 to %d", f.agents, maxAgents)
	case f.cpus <= 0 || f.mem <= 0 || f.disk < 0:
		return errors.New("--cpus and --mem must be above 0, --disk 0 or more")
	}
	return f.faults.check()
}

func (f *flags) run(ctx context.Context, out io.Writer) (err error) {
	if err := f.check(); err != nil {
		return err
	}
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", f.listen)
	if err != nil {
		return fmt.Errorf("serve on %s: %w", f.listen, err)
	}
	cfg, local, err := f.config(l.Addr())
	if err != nil {
		_ = l.Close() // nobody was served
		return err
	}
	defer func() { err = errors.Join(err, f.cleanUp(local)) }()
	e, err := emulator.New(cfg)
	if err != nil {
		_ = l.Close() // nobody was served
		return err
	}
	if local != nil {
		local.Serve(e)
	}
	agents := make([]string, f.agents)
	e.Do(func(c *cluster.Cluster) {
		for n := range agents {
			agents[n] = c.AddAgent(cluster.Agent{
				Hostname: fmt.Sprintf("agent-%d.local", n+1), Port: 5051 + n%50_000, Resources: cluster.Plain(f.cpus, f.mem, f.disk, 31000, 32000),
			})
		}
	})
	fmt.Fprintf(out, "an emulated Mesos master with %d agents serves http://%s/api/v1/scheduler\n", f.agents, l.Addr())
	served := make(chan error, 1)
	go func() { served <- e.Serve(l) }()
	suffering, relieve := context.WithCancel(ctx)
	var work sync.WaitGroup
	work.Go(func() { f.faults.inflict(suffering, e, agents) })
	defer work.Wait()
	defer relieve()
	select {
	case <-ctx.Done():
		e.Close()
		return <-served
	case err := <-served:
		e.Close()
		return err
	}
}

// config says what is emulated, and makes what runs tasks.
func (f *flags) config(address net.Addr) (cfg emulator.Config, local *emulator.Local, err error) {
	host, port, err := net.SplitHostPort(address.String())
	if err != nil {
		return cfg, nil, fmt.Errorf("the address %s has no port: %w", address, err)
	}
	cfg.Faults = f.faults.config()
	cfg.Cluster.Hostname, cfg.Cluster.IP = host, host
	if cfg.Cluster.Port, err = strconv.Atoi(port); err != nil {
		return cfg, nil, fmt.Errorf("the address %s has no number for a port: %w", address, err)
	}
	cfg.Cluster.Seed = uint64(time.Now().UnixNano()) //nolint:gosec // a seed
	if f.lasting >= 0 {
		cfg.Cluster.Behave = cluster.Lasting(f.lasting)
		return cfg, nil, nil
	}
	root := f.root
	if root == "" {
		if root, err = os.MkdirTemp("", "mesos-emulator-"); err != nil {
			return cfg, nil, fmt.Errorf("make a directory for tasks: %w", err)
		}
	}
	if local, err = emulator.NewLocal(root); err != nil {
		return cfg, nil, err
	}
	cfg.Processes = local
	return cfg, local, nil
}

// cleanUp ends what runs tasks.
func (f *flags) cleanUp(local *emulator.Local) error {
	if local == nil {
		return nil
	}
	err := local.Close()
	if f.root == "" {
		err = errors.Join(err, os.RemoveAll(local.Root()))
	}
	return err
}
