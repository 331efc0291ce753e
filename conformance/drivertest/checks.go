package drivertest

import (
	"context"
	"fmt"
	"io"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/paceline-sched/paceline/core/driver"
	"github.com/paceline-sched/paceline/core/workload"
)

const (
	// crowd and each size the check of concurrent use.
	crowd, each = 6, 8
	// longGrace is longer than any check: a run that only ends after it was not killed politely.
	longGrace = time.Hour
	// firmGrace is waited for where a shorter one may have no effect.
	firmGrace = 3 * time.Second
)

// Checks returns every demand on a driver.
func Checks() []Check {
	return []Check{
		{"InventoryComesFirst", inventoryComesFirst},
		{"ARunIsReportedToItsEnd", aRunIsReportedToItsEnd},
		{"ExitCodesAreReported", exitCodesAreReported},
		{"WhatCannotStartHasFailed", whatCannotStartHasFailed},
		{"ADuplicateLaunchStartsNothing", aDuplicateLaunchStartsNothing},
		{"APoliteKillEndsARun", aPoliteKillEndsARun},
		{"AFinalKillEndsADeafRun", aFinalKillEndsADeafRun},
		{"AKillOfAnUnknownRunIsAnswered", aKillOfAnUnknownRunIsAnswered},
		{"AKillOfAnEndedRunChangesNothing", aKillOfAnEndedRunChangesNothing},
		{"AnEndIsKeptUntilAcknowledged", anEndIsKeptUntilAcknowledged},
		{"ReconcileAnswersForEveryRun", reconcileAnswersForEveryRun},
		{"ANewConnectionFindsLiveRuns", aNewConnectionFindsLiveRuns},
		{"AnEndWhileAwayIsReported", anEndWhileAwayIsReported},
		{"AfterADisconnectionComesAnInventory", afterADisconnectionComesAnInventory},
		{"ARemovedHostTakesItsRuns", aRemovedHostTakesItsRuns},
		{"HealthIsReported", healthIsReported},
		{"SicknessEndsARun", sicknessEndsARun},
		{"OutputCanBeRead", outputCanBeRead},
		{"CallsMayBeConcurrent", callsMayBeConcurrent},
		{"AfterTheEndNothingIsTaken", afterTheEndNothingIsTaken},
	}
}

func inventoryComesFirst(s *session) {
	inventory := s.connect() // the recorder objects to anything before
	if len(inventory.Hosts) == 0 {
		s.Errorf("the inventory has no hosts")
	}
	for _, h := range inventory.Hosts {
		if h.Capacity["cpu_milli"] <= 0 || h.Capacity["memory_mib"] <= 0 {
			s.Errorf("host %s has the capacity %v", h.Name, h.Capacity)
		}
		var gpu int64
		for _, d := range h.Devices {
			gpu += d.Milli
		}
		if gpu != h.Capacity["gpu_milli"] {
			s.Errorf("host %s has gpu_milli %d, and devices of %d", h.Name, h.Capacity["gpu_milli"], gpu)
		}
	}
	if len(inventory.Runs) != 0 {
		s.Errorf("a fresh cluster has the runs %v", inventory.Runs)
	}
}

func aRunIsReportedToItsEnd(s *session) {
	s.connect()
	l := s.start(func(l *driver.Launch) { s.cluster.Work.Exit(l, 0) })
	s.expect(s.terminal(l.Run), workload.RunSucceeded, workload.ReasonExited, 0)
	for _, status := range s.sink.history(l.Run) {
		if status.Token == 0 || status.Host != l.Host {
			s.Errorf("a status has token %d and host %q: %+v", status.Token, status.Host, status)
		}
	}
}

func exitCodesAreReported(s *session) {
	s.connect()
	l := s.start(func(l *driver.Launch) { s.cluster.Work.Exit(l, 42) })
	s.expect(s.terminal(l.Run), workload.RunFailed, workload.ReasonExited, 42)
}

func whatCannotStartHasFailed(s *session) {
	if s.cluster.Work.Bad == nil {
		s.Skip("everything starts on this cluster")
	}
	s.connect()
	l := s.start(s.cluster.Work.Bad)
	end := s.terminal(l.Run)
	s.expect(end, workload.RunFailed, workload.ReasonLaunchFailed, 0)
	if end.Message == "" {
		s.Errorf("nobody is told why")
	}
}

func aDuplicateLaunchStartsNothing(s *session) {
	s.connect()
	l := s.start(s.cluster.Work.Forever)
	s.running(l.Run)
	again := func(state workload.RunState) {
		s.Helper()
		before := s.sink.count(l.Run)
		if err := s.driver.Launch(context.Background(), []driver.Launch{l}); err != nil {
			s.Fatalf("a second Launch: %v", err)
		}
		s.await("the present status", func() bool { return s.sink.count(l.Run) > before })
		if last := s.sink.last(l.Run); last.State != state {
			s.Errorf("a duplicate launch is answered with %s, want %s", last.State, state)
		}
	}
	again(workload.RunRunning)
	s.kill(0, l.Run)
	end := s.terminal(l.Run)
	again(end.State)
}

func aPoliteKillEndsARun(s *session) {
	s.connect()
	l := s.start(s.cluster.Work.Forever)
	s.running(l.Run)
	s.kill(longGrace, l.Run)
	if end := s.terminal(l.Run); end.State != workload.RunKilled {
		s.Errorf("a killed run ended as %+v", end)
	}
}

func aFinalKillEndsADeafRun(s *session) {
	if s.cluster.Work.Deaf == nil {
		s.Skip("no task is deaf on this cluster")
	}
	s.connect()
	l := s.start(s.cluster.Work.Deaf)
	s.await("a healthy run", func() bool { last := s.sink.last(l.Run); return last.Healthy })
	grace := longGrace
	if s.cluster.Firm {
		grace = firmGrace
	}
	s.kill(grace, l.Run)
	s.kill(0, l.Run) // the later, shorter grace counts
	if end := s.terminal(l.Run); end.State != workload.RunKilled || end.Signal != 9 {
		s.Errorf("a deaf run ended as %+v", end)
	}
}

func aKillOfAnUnknownRunIsAnswered(s *session) {
	s.connect()
	l := s.launches(1, s.cluster.Work.Forever)[0]
	s.kill(longGrace, l.Run)
	s.expect(s.terminal(l.Run), workload.RunLost, workload.ReasonNotFound, 0)
}

func aKillOfAnEndedRunChangesNothing(s *session) {
	s.connect()
	l := s.start(func(l *driver.Launch) { s.cluster.Work.Exit(l, 0) })
	s.terminal(l.Run)
	before := s.sink.count(l.Run)
	s.kill(0, l.Run)
	s.await("an answer", func() bool { return s.sink.count(l.Run) > before })
	last := s.sink.last(l.Run)
	s.expect(last, workload.RunSucceeded, workload.ReasonExited, 0)
}

func anEndIsKeptUntilAcknowledged(s *session) {
	s.connect()
	l := s.start(func(l *driver.Launch) { s.cluster.Work.Exit(l, 3) })
	s.terminal(l.Run)
	for range 2 {
		s.disconnect()
		kept, ok := find(s.connect(), l.Run)
		if !ok {
			s.Fatalf("an end that nobody acknowledged is forgotten")
		}
		s.expect(kept, workload.RunFailed, workload.ReasonExited, 3)
	}
	s.acknowledge(0, 1<<62) // of nothing
	last := s.sink.last(l.Run)
	s.acknowledge(last.Token)
	s.acknowledge(last.Token) // twice does no harm
	s.disconnect()
	kept, ok := find(s.connect(), l.Run)
	if ok != s.cluster.Keeps {
		s.Errorf("whether an acknowledged end is reported again: %v, and it should be %v: %+v", ok, s.cluster.Keeps, kept)
	}
	if ok {
		s.expect(kept, workload.RunFailed, workload.ReasonExited, 3)
		s.acknowledge(kept.Token)
	}
}

func reconcileAnswersForEveryRun(s *session) {
	s.connect()
	live := s.start(s.cluster.Work.Forever)
	over := s.start(func(l *driver.Launch) { s.cluster.Work.Exit(l, 0) })
	stranger := s.launches(1, s.cluster.Work.Forever)[0]
	s.running(live.Run)
	s.terminal(over.Run)
	s.reconcile(live.Run, over.Run, stranger.Run)
	for id, want := range map[workload.RunID]workload.RunState{
		live.Run: workload.RunRunning, over.Run: workload.RunSucceeded, stranger.Run: workload.RunLost,
	} {
		if last := s.sink.last(id); last.State != want {
			s.Errorf("asked for run %s, the driver said %s, want %s", id, last.State, want)
		}
	}
	before := [2]int{s.sink.count(live.Run), s.sink.count(over.Run)}
	s.reconcile()
	s.await("the states of all runs", func() bool { return s.sink.count(live.Run) > before[0] && s.sink.count(over.Run) > before[1] })
}

func aNewConnectionFindsLiveRuns(s *session) {
	s.connect()
	l := s.start(s.cluster.Work.Forever)
	s.running(l.Run)
	s.disconnect()
	found, ok := find(s.connect(), l.Run)
	if !ok || found.State != workload.RunRunning || found.Host != l.Host {
		s.Fatalf("the new connection finds %+v", found)
	}
	s.kill(longGrace, l.Run)
	if end := s.terminal(l.Run); end.State != workload.RunKilled {
		s.Errorf("the run that was found ended as %+v", end)
	}
}

func anEndWhileAwayIsReported(s *session) {
	s.connect()
	l := s.start(func(l *driver.Launch) { s.cluster.Work.Exit(l, 5) })
	s.disconnect() // a launch that was accepted is certain to be tried
	s.connect()
	s.expect(s.terminal(l.Run), workload.RunFailed, workload.ReasonExited, 5)
}

func afterADisconnectionComesAnInventory(s *session) {
	if s.cluster.Cut == nil {
		s.Skip("this cluster's connection cannot break")
	}
	s.connect()
	live := s.start(s.cluster.Work.Forever)
	over := s.start(func(l *driver.Launch) { s.cluster.Work.Exit(l, 0) })
	s.running(live.Run)
	s.cluster.Cut()
	s.await("the news of the disconnection", func() bool { return s.sink.disconnections() > 0 })
	s.cluster.Mend()
	s.await("a second inventory", func() bool { return s.sink.inventories() > 1 })
	if found, ok := find(s.sink.inventory(), live.Run); !ok || found.State != workload.RunRunning {
		s.Errorf("the second inventory has %+v", found)
	}
	s.expect(s.terminal(over.Run), workload.RunSucceeded, workload.ReasonExited, 0)
}

func aRemovedHostTakesItsRuns(s *session) {
	if s.cluster.RemoveHost == nil {
		s.Skip("hosts cannot be removed")
	}
	s.connect()
	l := s.start(s.cluster.Work.Forever)
	s.running(l.Run)
	s.cluster.RemoveHost(l.Host)
	s.await("the news of the removal", func() bool { return s.sink.lostHost(l.Host) })
	s.expect(s.terminal(l.Run), workload.RunLost, workload.ReasonHostLost, 0)
}

func healthIsReported(s *session) {
	if s.cluster.Work.Healthy == nil {
		s.Skip("the driver runs no health checks")
	}
	s.connect()
	plain := s.start(s.cluster.Work.Forever)
	if !s.running(plain.Run).Healthy {
		s.Errorf("a running task without a check is not healthy")
	}
	l := s.start(s.cluster.Work.Healthy)
	s.await("a healthy run", func() bool { last := s.sink.last(l.Run); return last.Healthy })
	s.disconnect()
	if found, _ := find(s.connect(), l.Run); !found.Healthy {
		s.Errorf("the new connection finds a healthy run as %+v", found)
	}
}

func sicknessEndsARun(s *session) {
	if s.cluster.Work.Sick == nil {
		s.Skip("the driver runs no health checks")
	}
	s.connect()
	l := s.start(s.cluster.Work.Sick)
	end := s.terminal(l.Run)
	if end.State != workload.RunFailed || end.Reason != workload.ReasonUnhealthy || end.Message == "" {
		s.Errorf("a sick run ended as %+v", end)
	}
	for _, status := range s.sink.history(l.Run) {
		if status.Healthy {
			s.Errorf("a sick run was reported healthy: %+v", status)
		}
	}
}

func outputCanBeRead(s *session) {
	if s.cluster.Work.Print == nil {
		s.Skip("the driver keeps no output")
	}
	const text = "first line\nsecond line\n"
	s.connect()
	logs, ok := s.driver.(driver.LogReader)
	if !ok {
		s.Fatalf("the cluster prints, and its driver does not implement driver.LogReader")
	}
	l := s.start(func(l *driver.Launch) { s.cluster.Work.Print(l, text) })
	read := func(request driver.LogRequest) string {
		s.Helper()
		ctx, cancel := context.WithTimeout(context.Background(), s.cluster.Patience)
		defer cancel()
		r, err := logs.ReadLog(ctx, l.Run, request)
		if err != nil {
			s.Fatalf("ReadLog: %v", err)
		}
		defer func() { _ = r.Close() }()
		raw, err := io.ReadAll(r)
		if err != nil {
			s.Fatalf("read the output: %v", err)
		}
		return string(raw)
	}
	if got := read(driver.LogRequest{Follow: true}); got != text {
		s.Errorf("followed to the run's end, its output is %q", got)
	}
	s.terminal(l.Run)
	for offset, want := range map[int64]string{0: text, 6: text[6:], -5: text[len(text)-5:], int64(len(text)): ""} {
		if got := read(driver.LogRequest{Offset: offset}); got != want {
			s.Errorf("from %d on the output is %q, want %q", offset, got, want)
		}
	}
	if got := read(driver.LogRequest{Stream: driver.Stderr}); got != "" {
		s.Errorf("the other stream has %q", got)
	}
	if s.cluster.Keeps {
		s.acknowledge(s.sink.last(l.Run).Token)
		if got := read(driver.LogRequest{}); got != text {
			s.Errorf("once its end was acknowledged, its output is %q", got)
		}
		s.disconnect()
		s.connect()
		logs, _ = s.driver.(driver.LogReader)
		s.acknowledge(s.sink.last(l.Run).Token)
		if got := read(driver.LogRequest{Follow: true}); got != text {
			s.Errorf("for a new connection, its output is %q", got)
		}
	}
	stranger := s.launches(1, s.cluster.Work.Forever)[0]
	if _, err := logs.ReadLog(context.Background(), stranger.Run, driver.LogRequest{}); err == nil {
		s.Errorf("an unknown run has output")
	}
}

func callsMayBeConcurrent(s *session) {
	s.connect()
	list := s.launches(crowd*each, s.cluster.Work.Forever)
	for i := range list {
		if i%2 == 0 {
			s.cluster.Work.Exit(&list[i], 0)
		}
	}
	d := s.driver
	var done sync.WaitGroup
	failures := make(chan error, 4*crowd)
	for c := range crowd {
		mine := list[c*each : (c+1)*each]
		done.Add(1)
		go func() {
			defer done.Done()
			failures <- d.Launch(context.Background(), mine)
			var kills []driver.Kill
			for _, l := range mine {
				kills = append(kills, driver.Kill{Run: l.Run, Grace: longGrace})
			}
			if r, ok := d.(driver.Reconciler); ok {
				failures <- r.Reconcile(context.Background(), nil)
			}
			failures <- d.Kill(context.Background(), kills)
		}()
	}
	done.Wait()
	close(failures)
	for err := range failures {
		if err != nil {
			s.Errorf("a concurrent call: %v", err)
		}
	}
	for _, l := range list {
		end := s.terminal(l.Run)
		if end.State != workload.RunKilled && end.State != workload.RunSucceeded {
			s.Errorf("run %s ended as %+v", l.Run, end)
		}
		s.acknowledge(end.Token)
	}
	s.disconnect()
	for _, left := range s.connect().Runs {
		if !s.cluster.Keeps || left.State != workload.RunSucceeded {
			s.Errorf("an acknowledged run is reported again: %+v", left)
		}
	}
}

func afterTheEndNothingIsTaken(s *session) {
	before := goroutines()
	s.connect()
	l := s.start(s.cluster.Work.Forever)
	s.running(l.Run)
	d, more := s.driver, s.launches(1, s.cluster.Work.Forever)
	s.disconnect()
	// The one that waited for the driver may still be on its way out.
	s.await("the end of the driver's goroutines", func() bool {
		for id := range goroutines() {
			if !before[id] {
				return false
			}
		}
		return true
	})
	if err := d.Launch(context.Background(), more); err == nil {
		s.Errorf("a driver that has ended takes launches")
	}
	inventory := s.connect()
	if found, ok := find(inventory, more[0].Run); ok {
		s.Errorf("a refused launch left %+v", found)
	}
	if _, ok := find(inventory, l.Run); !ok {
		s.Errorf("the run did not survive its driver: %s", fmt.Sprint(inventory.Runs))
	}
}

// goroutines returns the numbers of all goroutines, which are never used again: a count alone would take one that ends for one that stays.
func goroutines() map[string]bool {
	stacks := make([]byte, 1<<20)
	stacks = stacks[:runtime.Stack(stacks, true)]
	ids := map[string]bool{}
	for block := range strings.SplitSeq(string(stacks), "\n\n") {
		// "goroutine 7 [running]:"
		if fields := strings.Fields(block); len(fields) > 1 && fields[0] == "goroutine" {
			ids[fields[1]] = true
		}
	}
	return ids
}
