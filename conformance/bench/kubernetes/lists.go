package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/paceline-sched/paceline/conformance/controlplane"
)

// The ways to list; watched is that of a driver that nobody told otherwise.
const (
	watched = "watches"
	paged   = "pages"
)

// listWays are how a driver may learn of all nodes and pods.
var listWays = []struct{ name, what string }{
	{watched, "by watches"}, {paged, "in pages"},
}

// listed is what one driver took for its first view, and the API server for giving it.
type listed struct {
	viewed
	driver, server, store time.Duration // processor time
	before, peak          float64       // what is resident of the API server, in MiB
}

// lists measures how drivers learn of many pods of others, each on an API server that has just started: what it wrote before would hide what it
// takes for that.
func (s *settings) lists(ctx context.Context) error {
	f := &figures{way: ourWay, what: "lists", nodes: slices.Max(s.nodes), pods: s.view}
	return s.once(ctx, f, func(ctx context.Context, st *stage) error {
		if err := st.crowd.Pods(ctx, st.pods, st.nodes); err != nil {
			return fmt.Errorf("create the pods: %w", err)
		}
		if err := st.count.Await(st.there(st.pods)); err != nil {
			return fmt.Errorf("wait for the pods: %w", err)
		}
		rows := [][]string{{
			fmt.Sprintf("%s pods of others on %s nodes, listed", number(float64(st.pods), 0), number(float64(st.nodes), 0)),
			"until the view is whole, s", "driver, CPU s", "at its peak, MiB", "API server, CPU s", "etcd, CPU s", "API server before, MiB", "at its peak, MiB",
		}}
		for range s.rounds {
			for _, way := range listWays {
				l, err := s.list(ctx, st, way.name)
				if err != nil {
					return fmt.Errorf("list %s: %w", way.what, err)
				}
				rows = append(rows, []string{
					way.what, number(l.Seconds, 2), number(l.driver.Seconds(), 2), number(l.PeakRSSMiB, 0),
					number(l.server.Seconds(), 2), number(l.store.Seconds(), 2), number(l.before, 0), number(l.peak, 0),
				})
			}
		}
		s.write(rows)
		return nil
	})
}

func (s *settings) list(ctx context.Context, st *stage, way string) (l listed, err error) {
	if err := st.plane.CrashAPIServer(ctx); err != nil {
		return l, fmt.Errorf("restart the API server: %w", err)
	}
	if err := st.settle(ctx); err != nil {
		return l, err
	}
	server := st.plane.PID(controlplane.APIServer)
	if l.before, err = resident(server, false); err != nil {
		return l, err
	}
	if err := forgetPeak(server); err != nil {
		return l, err
	}
	before, err := processorTimes(st.programs())
	if err != nil {
		return l, err
	}
	v, used, err := s.driver(ctx, st, "somebody-else", way)
	if err != nil {
		return l, err
	}
	if v.Foreign != st.pods || v.Nodes != st.nodes {
		return l, fmt.Errorf("the driver knows of %d pods and %d nodes", v.Foreign, v.Nodes)
	}
	after, err := processorTimes(st.programs())
	if err != nil {
		return l, err
	}
	l.viewed, l.driver = *v, used
	l.server, l.store = after[controlplane.APIServer]-before[controlplane.APIServer], after[controlplane.Etcd]-before[controlplane.Etcd]
	l.peak, err = resident(server, true)
	return l, err
}

// forgetPeak has the kernel begin anew with the peak of what is resident of a process.
func forgetPeak(pid int) error {
	if err := os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", pid), []byte("5"), 0); err != nil {
		return fmt.Errorf("measure memory: %w", err)
	}
	return nil
}
