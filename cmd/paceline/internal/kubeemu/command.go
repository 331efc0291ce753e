// Package kubeemu is the verb "paceline kubernetes-emulator": it serves an emulated Kubernetes cluster until it is told to stop.
//
// It owns the flags and the wiring of one emulator. It decides nothing about Kubernetes.
//
// Concurrency: one goroutine serves; the command waits for it.
package kubeemu

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/paceline-sched/paceline/hostmanagers/kubernetes/emulator"
	"github.com/paceline-sched/paceline/hostmanagers/kubernetes/emulator/cluster"
)

// maxNodes bounds the nodes of one emulator.
const maxNodes = 100_000

type flags struct {
	listen     string
	nodes      int
	cpu        string
	memory     string
	gpus       int
	scheduler  bool
	kubeconfig string
	root       string
	lasting    time.Duration
	nodeGone   time.Duration
	faults     faults
}

const help = `Serve an emulated Kubernetes cluster over HTTP: an API server with nodes and their kubelets, for schedulers and controllers under development and for
tests. It answers as kube-apiserver 1.36 does, as far as recordings of one go, and authenticates nobody: keep it on loopback.

The kubeconfig that it writes is enough for kubectl: get, describe, apply, delete, logs, drain. Containers run as processes of this machine, by their
command alone: no images or volumes. With --pods-last they are pretended to run for that long.

Flags that begin with --fault make it suffer, as real clusters do, so that its clients can be seen to survive.

A cell takes it as any other: write the kubeconfig below the server's directory of secrets, and see 'paceline cluster add kubernetes --help'.`

// NewCommand returns the verb.
func NewCommand() *cobra.Command {
	var f flags
	cmd := &cobra.Command{
		Use:   "kubernetes-emulator",
		Short: "Serve an emulated Kubernetes cluster",
		Long:  help,
		Example: `  paceline kubernetes-emulator --nodes 3 --kubeconfig emulated.yaml
  paceline kubernetes-emulator --listen 127.0.0.1:6444 --nodes 1000 --pods-last 5s`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd.Context(), cmd.OutOrStdout()) },
	}
	fs := cmd.Flags()
	fs.StringVar(&f.listen, "listen", "127.0.0.1:8001", "address to serve on")
	fs.IntVar(&f.nodes, "nodes", 2, "how many nodes")
	fs.StringVar(&f.cpu, "cpu", "8", "processors of a node, as a `quantity` of Kubernetes")
	fs.StringVar(&f.memory, "memory", "16Gi", "memory of a node, as a `quantity` of Kubernetes")
	fs.IntVar(&f.gpus, "gpus", 0, "GPUs of a node, called nvidia.com/gpu")
	fs.BoolVar(&f.scheduler, "scheduler", false, "bind pods that ask for the default scheduler to the first node with room")
	fs.StringVar(&f.kubeconfig, "kubeconfig", "", "`file` to write what kubectl needs to (default one in a temporary directory, removed at the end)")
	fs.StringVar(&f.root, "root", "", "`directory` of what containers write (default a temporary one, removed at the end)")
	fs.DurationVar(&f.lasting, "pods-last", -1, "pretend that containers run this long and end well, instead of running them (default: they are run)")
	fs.Lookup("pods-last").DefValue = "0s" // not to be shown: -1ns says nothing
	fs.DurationVar(&f.nodeGone, "node-gone", cluster.DefaultNodeGone, "how long a node may be silent, or deleted, before the controllers act")
	f.faults.register(fs)
	return cmd
}

func (f *flags) run(ctx context.Context, out io.Writer) (err error) {
	r, err := f.start(ctx)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "an emulated Kubernetes cluster of %d nodes serves %s; kubectl --kubeconfig %s get nodes\n", f.nodes, r.url, r.kubeconfig)
	select {
	case <-ctx.Done():
		return r.stop()
	case err := <-r.served:
		r.served <- nil // it was told
		return errors.Join(err, r.stop())
	}
}

// running is an emulator that serves.
type running struct {
	url, kubeconfig string
	emulator        *emulator.Emulator
	served          chan error // one error, once it serves no more
	local           *emulator.Local
	temporary       string // the directory to remove at the end
	relieve         context.CancelFunc
	suffering       sync.WaitGroup
}

// start serves an emulated cluster.
func (f *flags) start(ctx context.Context) (_ *running, err error) {
	nodes, err := f.config()
	if err != nil {
		return nil, err
	}
	r := &running{kubeconfig: f.kubeconfig, served: make(chan error, 1)}
	if r.temporary, err = os.MkdirTemp("", "kubernetes-emulator-"); err != nil {
		return nil, fmt.Errorf("make a directory for the emulator: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.cleanUp())
		}
	}()
	cfg := emulator.Config{Faults: f.faults.request(), Cluster: cluster.Config{
		Nodes: nodes, Scheduler: f.scheduler, NodeGone: f.nodeGone, Seed: uint64(time.Now().UnixNano()), //nolint:gosec // a seed
	}}
	if f.lasting >= 0 {
		cfg.Cluster.Behave = cluster.Lasting(f.lasting)
	} else {
		root := f.root
		if root == "" {
			root = filepath.Join(r.temporary, "containers")
		}
		if r.local, err = emulator.NewLocal(root); err != nil {
			return nil, err
		}
		cfg.Processes = r.local
	}
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", f.listen)
	if err != nil {
		return nil, fmt.Errorf("serve on %s: %w", f.listen, err)
	}
	if r.kubeconfig == "" {
		r.kubeconfig = filepath.Join(r.temporary, "kubeconfig")
	}
	if err := os.WriteFile(r.kubeconfig, emulator.Kubeconfig(l.Addr().String()), 0o600); err != nil {
		return nil, errors.Join(fmt.Errorf("write the kubeconfig: %w", err), l.Close())
	}
	cfg.Cluster.UID = uidOf(l.Addr().String())
	if r.emulator, err = emulator.New(cfg); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	if r.local != nil {
		r.local.Serve(r.emulator)
	}
	r.url = "http://" + l.Addr().String()
	go func() { r.served <- r.emulator.Serve(l) }() // ends with the emulator, and stop waits for it
	suffering, relieve := context.WithCancel(context.WithoutCancel(ctx))
	r.relieve = relieve
	r.suffering.Go(func() { f.faults.inflict(suffering, r.emulator, nodes) })
	return r, nil
}

// uidOf is the UID of the cluster at an address: an emulator that starts anew there stands for the same one, with nothing left in it.
func uidOf(address string) string {
	sum := sha256.Sum256([]byte("an emulated Kubernetes cluster at " + address))
	return fmt.Sprintf("%x-%x-%x-%x-%x", sum[:4], sum[4:6], sum[6:8], sum[8:10], sum[10:16])
}

// stop ends everything: what containers run, too.
func (r *running) stop() error {
	r.relieve()
	r.suffering.Wait()
	r.emulator.Close()
	return errors.Join(<-r.served, r.cleanUp())
}

func (r *running) cleanUp() error {
	var err error
	if r.local != nil {
		err = r.local.Close()
	}
	return errors.Join(err, os.RemoveAll(r.temporary))
}

// config says what nodes there are.
func (f *flags) config() ([]cluster.NodeConfig, error) {
	if f.nodes < 1 || f.nodes > maxNodes {
		return nil, fmt.Errorf("--nodes is %d: it must be from 1 to %d", f.nodes, maxNodes)
	}
	if f.nodeGone <= 0 {
		return nil, fmt.Errorf("--node-gone is %v: it must be above 0", f.nodeGone)
	}
	if err := f.faults.check(); err != nil {
		return nil, err
	}
	if f.gpus < 0 {
		return nil, fmt.Errorf("--gpus is %d: it must be 0 or more", f.gpus)
	}
	of := map[string]string{"cpu": f.cpu, "memory": f.memory}
	if f.gpus > 0 {
		of["nvidia.com/gpu"] = fmt.Sprint(f.gpus)
	}
	capacity, err := cluster.Quantities(of)
	if err != nil {
		return nil, fmt.Errorf("--cpu or --memory: %w", err)
	}
	nodes := make([]cluster.NodeConfig, f.nodes)
	for n := range nodes {
		nodes[n] = cluster.NodeConfig{Name: fmt.Sprintf("node-%d", n+1), Capacity: capacity}
	}
	return nodes, nil
}
