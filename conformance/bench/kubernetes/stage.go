package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/paceline-sched/paceline/conformance/controlplane"
	"github.com/paceline-sched/paceline/conformance/controlplane/crowd"
)

// patience bounds one run.
const patience = 15 * time.Minute

// stage is a control plane of its own with its nodes, and who counts its pods.
type stage struct {
	*figures
	binary string
	plane  *controlplane.Plane
	crowd  *crowd.Crowd
	count  *crowd.Count
	begun  time.Time
	before map[string]time.Duration // processor time by program
	others map[string]int           // more programs that are measured, by process id
}

// once makes one run.
func (s *settings) once(ctx context.Context, f *figures, do func(ctx context.Context, st *stage) error) (err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	st := &stage{figures: f, binary: s.binary, others: map[string]int{}}
	if st.plane, err = controlplane.Start(ctx, controlplane.Config{Kwok: f.played, Log: os.Stderr}); err != nil {
		return fmt.Errorf("start a control plane: %w", err)
	}
	defer func() { err = errors.Join(err, st.plane.Close()) }()
	if st.crowd, err = crowd.Dial(st.plane.Kubeconfig()); err != nil {
		return err //nolint:wrapcheck // it says what it is of
	}
	defer st.crowd.Close()
	if err := st.crowd.Nodes(ctx, f.nodes, f.played); err != nil {
		return fmt.Errorf("make the nodes: %w", err)
	}
	counting, stop := context.WithCancel(ctx)
	if st.count, err = st.crowd.Count(counting); err != nil {
		stop()
		return err //nolint:wrapcheck // it says what it is of
	}
	defer st.count.Wait()
	defer stop()
	if err := st.settle(ctx); err != nil {
		return err
	}
	before, err := st.crowd.Traffic(ctx)
	if err != nil {
		return err //nolint:wrapcheck // it says what it is of
	}
	server := st.plane.PID(controlplane.APIServer)
	if err := do(ctx, st); err != nil {
		return err
	}
	if st.plane.PID(controlplane.APIServer) != server { // another one counts anew
		return nil
	}
	after, err := st.crowd.Traffic(ctx)
	if err != nil {
		return err //nolint:wrapcheck // it says what it is of
	}
	fmt.Fprintf(os.Stderr, "  of pods: %v\n", after.Since(before))
	return nil
}

// programs are those that are measured, by their process ids.
func (st *stage) programs() map[string]int {
	all := map[string]int{}
	for _, name := range []string{controlplane.APIServer, controlplane.Etcd, controlplane.Kwok, controlplane.KubeScheduler} {
		if pid := st.plane.PID(name); pid > 0 {
			all[name] = pid
		}
	}
	for name, pid := range st.others {
		all[name] = pid
	}
	return all
}

const (
	settleEvery = 250 * time.Millisecond
	settleFor   = 30 * time.Second
	settled     = settleEvery / 20 // of processor time, in each such time
)

// settle waits until the programs have nothing left to do of what came before, for some time at most: a program that never rests is measured as it is.
func (st *stage) settle(ctx context.Context) error {
	last, err := processorTimes(st.programs())
	for end := time.Now().Add(settleFor); err == nil && time.Now().Before(end); {
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait until the control plane rests: %w", ctx.Err())
		case <-time.After(settleEvery):
		}
		var now map[string]time.Duration
		if now, err = processorTimes(st.programs()); err != nil {
			break
		}
		worked := time.Duration(0)
		for name := range now {
			worked += now[name] - last[name]
		}
		if worked < settled {
			return nil
		}
		last = now
	}
	return err
}

// begin starts the clock and the meters.
func (st *stage) begin() (err error) {
	st.before, err = processorTimes(st.programs())
	st.begun = time.Now()
	return err
}

// end reads them: so many pods took from their beginning until now.
func (st *stage) end() error { return st.endAt(st.begun, time.Now()) }

func (st *stage) endAt(from, to time.Time) error {
	after, err := processorTimes(st.programs())
	if err != nil {
		return err
	}
	st.took = to.Sub(from)
	st.rate = float64(st.pods) / st.took.Seconds()
	st.whole = float64(st.pods) / (st.created + st.took).Seconds()
	st.bound = float64(st.pods) / (st.created + st.count.Bound().Last.Sub(from)).Seconds()
	st.cpu = map[string]float64{}
	for name, used := range after {
		st.cpu[name] = (used - st.before[name]).Seconds() * 1e3 / float64(st.pods)
	}
	return nil
}

// there reports whether so many pods are where a run ends: bound, or, where kubelets are played, running.
func (st *stage) there(pods int) func(crowd.Tally) bool {
	return func(t crowd.Tally) bool { return t.Bound >= pods && (!st.played || t.Running+t.Ended >= pods) }
}

// last is when the last pod came there.
func (st *stage) last() time.Time {
	if st.played {
		return st.count.Running().Last
	}
	return st.count.Bound().Last
}
