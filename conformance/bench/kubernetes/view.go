package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"syscall"
	"time"

	"github.com/paceline-sched/paceline/core/driver"
	"github.com/paceline-sched/paceline/hostmanagers/kubernetes"
	"github.com/paceline-sched/paceline/hostmanagers/kubernetes/manifest"
	"github.com/paceline-sched/paceline/hostmanagers/kubernetes/mirror"
)

// viewed is what a driver alone takes for all nodes and pods of a cluster.
type viewed struct {
	Nodes, Runs, Foreign        int
	Seconds                     float64 // from its start until it has the inventory
	HeapMiB, RSSMiB, PeakRSSMiB float64 // the heap is what is left when garbage was collected
	BaseHeapMiB                 float64 // before it started
}

// connectDriver is the process of its own that is measured.
func connectDriver(ctx context.Context, kubeconfig, owner, way string, out io.Writer) error {
	api, err := kubernetes.Connect(kubeconfig, "")
	if err != nil {
		return err //nolint:wrapcheck // it says what it is of
	}
	d, err := kubernetes.New(kubernetes.Config{API: api, Pods: manifest.Config{Owner: owner}, Paged: way != watched})
	if err != nil {
		return err //nolint:wrapcheck // it says what it is of
	}
	v := viewed{BaseHeapMiB: heap()}
	ctx, cancel := context.WithCancel(ctx)
	begun := time.Now()
	if err := d.Start(ctx, &listener{&v}); err != nil {
		cancel()
		return err //nolint:wrapcheck // it says what it is of
	}
	v.Seconds = time.Since(begun).Seconds()
	v.Foreign = d.Stats().Foreign
	v.HeapMiB = heap()
	if v.RSSMiB, err = resident(os.Getpid(), false); err == nil {
		v.PeakRSSMiB, err = resident(os.Getpid(), true)
	}
	runtime.KeepAlive(d)
	cancel()
	d.Wait()
	return errors.Join(err, json.NewEncoder(out).Encode(&v))
}

func heap() float64 {
	var s runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&s)
	return float64(s.HeapAlloc) / (1 << 20)
}

// listener hears the inventory.
type listener struct{ v *viewed }

func (l *listener) Inventory(i driver.Inventory) { l.v.Nodes, l.v.Runs = len(i.Hosts), len(i.Runs) }

func (*listener) HostsChanged([]driver.Host, []string) {}
func (*listener) Statuses([]driver.Status)             {}
func (*listener) Disconnected(error)                   {}

// fullView measures what many pods on many nodes take: a cell that runs them, its restart, and a driver alone.
func (s *settings) fullView(ctx context.Context) error {
	f := &figures{way: ourWay, what: "full view", nodes: slices.Max(s.nodes), pods: s.view}
	return s.once(ctx, f, func(ctx context.Context, st *stage) (err error) {
		c, err := startCell(ctx, st.binary, st.plane.Dir())
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, c.close()) }()
		return s.look(ctx, st, c)
	})
}

func (s *settings) look(ctx context.Context, st *stage, c *cell) error {
	if err := c.join(ctx, st.plane.Kubeconfig()); err != nil {
		return err
	}
	if err := c.awaitHosts(ctx, st.nodes); err != nil {
		return err
	}
	const job = "view"
	if err := c.submit(ctx, job, st.pods); err != nil {
		return err
	}
	if err := st.count.Await(st.there(st.pods)); err != nil {
		return fmt.Errorf("wait for the pods: %w: %s", err, c.log())
	}
	if err := c.await(ctx, "the cell knows of its pods", func() (bool, error) {
		runs, err := c.runs(ctx, job)
		return runs.Starting+runs.Running == st.pods, err
	}); err != nil {
		return err
	}
	before, err := resident(c.cmd.Process.Pid, true)
	if err != nil {
		return err
	}
	owner, err := st.crowd.Label(ctx, mirror.LabelOwner)
	if err != nil {
		return err //nolint:wrapcheck // it says what it is of
	}
	own, _, err := s.driver(ctx, st, owner, watched)
	if err != nil {
		return err
	}
	foreign, _, err := s.driver(ctx, st, "somebody-else", watched)
	if err != nil {
		return err
	}
	ready, err := c.readyHosts(ctx) // some are full
	if err != nil {
		return err
	}
	if err := c.stop(syscall.SIGKILL); err != nil {
		return err
	}
	begun := time.Now()
	if err := c.start(ctx); err != nil {
		return err
	}
	if err := c.awaitHosts(ctx, ready); err != nil {
		return err
	}
	took := time.Since(begun)
	runs, err := c.runs(ctx, job)
	if err != nil {
		return err
	}
	if runs.Starting+runs.Running != st.pods {
		return fmt.Errorf("after its restart the cell knows of %+v", runs)
	}
	after, err := resident(c.cmd.Process.Pid, true)
	if err != nil {
		return err
	}
	s.viewTable(st, own, foreign, before, after, took)
	return nil
}

// driver has a process of its own connect, which lists in one of the ways, and tells its processor time as well.
func (s *settings) driver(ctx context.Context, st *stage, owner, way string) (*viewed, time.Duration, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, 0, fmt.Errorf("find this program: %w", err)
	}
	cmd := exec.CommandContext(ctx, self, "-driver", st.plane.Kubeconfig(), "-owner", owner, "-list", way)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, 0, fmt.Errorf("connect a driver alone: %w", err)
	}
	v := &viewed{}
	if err := json.Unmarshal(out, v); err != nil {
		return nil, 0, fmt.Errorf("connect a driver alone: %w", err)
	}
	return v, cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime(), nil
}
