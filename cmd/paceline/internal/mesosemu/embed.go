package mesosemu

import (
	"context"
	"errors"
	"fmt"
	"net"

	"github.com/paceline-sched/paceline/hostmanagers/mesos/emulator"
	"github.com/paceline-sched/paceline/hostmanagers/mesos/emulator/cluster"
)

// Embedded is an emulated cluster inside another program.
type Embedded struct {
	Agents          int     // named agent-1 and so on
	CPUs, MemoryMiB float64 // of each
	Root            string  // directory of what tasks write; what runs there from before is ended
}

// Embed serves an emulated cluster on a free port of this machine until stop is called, which ends its tasks.
func Embed(ctx context.Context, m Embedded) (url string, stop func() error, err error) {
	const diskMiB = 10_000
	f := &flags{agents: m.Agents, cpus: m.CPUs, mem: m.MemoryMiB, disk: diskMiB, root: m.Root, lasting: -1}
	if err := f.check(); err != nil {
		return "", nil, err
	}
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, fmt.Errorf("serve an emulated Mesos master: %w", err)
	}
	cfg, local, err := f.config(l.Addr())
	if err != nil {
		return "", nil, errors.Join(err, l.Close())
	}
	e, err := emulator.New(cfg)
	if err != nil {
		return "", nil, errors.Join(err, l.Close(), f.cleanUp(local))
	}
	local.Serve(e)
	e.Do(func(c *cluster.Cluster) {
		for n := range f.agents {
			c.AddAgent(cluster.Agent{
				Hostname: fmt.Sprintf("agent-%d", n+1), Port: 5051 + n%50_000, Resources: cluster.Plain(f.cpus, f.mem, f.disk, 31000, 32000),
			})
		}
	})
	served := make(chan error, 1)
	go func() { served <- e.Serve(l) }()
	return "http://" + l.Addr().String(), func() error {
		e.Close()
		return errors.Join(<-served, f.cleanUp(local))
	}, nil
}
