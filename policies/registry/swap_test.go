package registry_test

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/paceline-sched/paceline/core/host"
	"github.com/paceline-sched/paceline/core/placement"
	"github.com/paceline-sched/paceline/core/rollout"
	"github.com/paceline-sched/paceline/core/workload"
	"github.com/paceline-sched/paceline/policies/registry"
)

// TestHotSwaps swaps versions under load, every tenth a bad one: no task is lost, and each bad one is rolled back and reported.
func TestHotSwaps(t *testing.T) {
	l := newLoad(t, 2)
	l.swap(50)
	l.stop()
	t.Log(l)
}

// TestSwapSoak does so for long, and asks besides that nothing is held up and that memory stays flat. It is `make soak-policies`.
func TestSwapSoak(t *testing.T) {
	if os.Getenv("PACELINE_POLICY_SOAK") == "" {
		t.Skip("set PACELINE_POLICY_SOAK to swap 1,000 times under 10,000,000 calls")
	}
	const swaps, calls, step = 1000, 10_000_000, 100
	l := newLoad(t, runtime.NumCPU())
	var heaps []uint64
	for n := 0; n < swaps; n += step {
		l.swap(step)
		wait := time.NewTicker(10 * time.Millisecond)
		for l.batches.Load() < int64(calls)*int64(n+step)/swaps {
			<-wait.C
		}
		wait.Stop()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		heaps = append(heaps, m.HeapInuse)
		t.Logf("%v; heap %d MiB, from the system %d MiB", l, m.HeapInuse>>20, m.Sys>>20)
	}
	l.stop()
	if n := l.lateOurs.Load(); n > 0 {
		t.Errorf("%d batches were held up for more than 100 ms by more than other work on the machine, the longest for %v: %v", n, time.Duration(l.slowestOurs.Load()), l)
	}
	if half := len(heaps) / 2; slices.Max(heaps[half:]) > slices.Max(heaps[1:half])*5/4 {
		t.Errorf("the heap grows: %v", heaps)
	}
}

// tooLate is how long no batch may take, whatever policies do.
const tooLate = 100 * time.Millisecond

// load is shards that place without end under one policy.
type load struct {
	t       testing.TB
	r       *registry.Registry
	good    []rollout.Digest
	bad     []rollout.Digest
	names   map[rollout.Digest]string
	swapped int

	batches, tasks atomic.Int64
	// Of batches: how many took longer than tooLate, and the longest; and the same of the part of that time that processors were ours, or idle: what other work on the machine
	// took is not. What is left are the batch itself, locks, compiling and the collector.
	late, lateOurs, slowest, slowestOurs atomic.Int64

	cancel context.CancelFunc
	done   sync.WaitGroup
}

func newLoad(t testing.TB, shards int) *load {
	c := newCell(t)
	config := quick(c)
	config.CompareShare = 0.05
	l := &load{t: t, r: open(t, config), names: map[rollout.Digest]string{}}
	for _, name := range []string{"bestfit", "firstfit", "trap", "loop", "bomb", "rows", "start"} {
		digest := push(t, l.r, "p", name)
		l.names[digest] = name
		if name == "bestfit" || name == "firstfit" {
			l.good = append(l.good, digest)
		} else {
			l.bad = append(l.bad, digest)
		}
	}
	l.activate(l.good[0])
	ctx, cancel := context.WithCancel(t.Context())
	l.cancel = cancel
	l.done.Go(func() { l.r.Run(ctx) })
	for n := range shards {
		s := l.r.Source(fmt.Sprintf("c/%d", n))
		l.done.Go(func() {
			defer s.Close()
			l.place(ctx, s, newTable(t, 256))
		})
	}
	return l
}

func (l *load) String() string {
	return fmt.Sprintf("%4d swaps, %8d batches, %8d tasks: the slowest batch took %v, %v without what other work on the machine took; %d took more than 100 ms, %d without that",
		l.swapped, l.batches.Load(), l.tasks.Load(), time.Duration(l.slowest.Load()), time.Duration(l.slowestOurs.Load()), l.late.Load(), l.lateOurs.Load())
}

func (l *load) stop() {
	l.cancel()
	l.done.Wait()
}

func (l *load) activate(digest rollout.Digest) {
	l.t.Helper()
	change(l.t, l.r, rollout.Move{Policy: "p", Digest: digest, To: rollout.Active})
}

// swap makes so many swaps, each once all shards have gone on since the last.
func (l *load) swap(n int) {
	l.t.Helper()
	look := time.NewTicker(100 * time.Microsecond)
	defer look.Stop()
	until := func(what string, is func() bool) {
		l.t.Helper()
		for deadline := time.Now().Add(2 * time.Minute); !is(); <-look.C {
			if time.Now().After(deadline) {
				l.t.Fatalf("never: %s: %s", what, stages(l.r, "p"))
			}
		}
	}
	for range n {
		l.swapped++
		before := l.batches.Load()
		if l.swapped%10 != 0 {
			l.activate(l.good[l.swapped%len(l.good)])
			until("batches go on", func() bool { return l.batches.Load() > before+20 })
			continue
		}
		bad := l.bad[l.swapped/10%len(l.bad)]
		l.activate(bad)
		stage := func() *rollout.Version {
			book := l.r.Book()
			return book.Find("p").Version(bad)
		}
		until(l.names[bad]+" is rolled back", func() bool { return stage().Stage == rollout.RolledBack })
		if v := stage(); v.By != "" || v.Why == "" || !strings.Contains(strings.Join(l.r.Report().Warnings, "\n"), bad.Short()) {
			l.t.Fatalf("%s was rolled back by %q because %q: %q", l.names[bad], v.By, v.Why, l.r.Report().Warnings)
		}
	}
}

// place places and releases until ctx ends. Every task must find a host, as there is room for all.
func (l *load) place(ctx context.Context, s *registry.Source, table *host.Table) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	m := newMachine()
	defer m.close()
	classes := make([]*placement.Class, 4)
	for i := range classes {
		classes[i] = class(workload.Batch, "p", int64(100*(i+1)))
	}
	type held struct {
		class *placement.Class
		list  []placement.Assignment
	}
	var live []held
	for n := 0; ctx.Err() == nil; n++ {
		c := classes[n%len(classes)]
		if n%sampleEvery == 0 {
			m.look()
		}
		began := time.Now()
		p, _ := s.Placer("p")
		got := p.Place(table, []placement.Request{{Class: c, Count: 1 + n%8}})
		took := time.Since(began)
		ours := took
		if took > tooLate {
			ours = time.Duration(float64(took) * m.share())
		}
		if len(got) != 1 || got[0].Refused > 0 || len(got[0].Assignments) != 1+n%8 {
			l.t.Errorf("%d tasks are lost: %+v", 1+n%8, got)
			return
		}
		l.tasks.Add(int64(len(got[0].Assignments)))
		l.batches.Add(1)
		note(took, &l.late, &l.slowest)
		note(ours, &l.lateOurs, &l.slowestOurs)
		if live = append(live, held{c, got[0].Assignments}); len(live) <= 64 {
			continue
		}
		for _, a := range live[0].list {
			if err := table.Release(a.Row, live[0].class.Occupant(a.Devices, a.Ports)); err != nil {
				l.t.Error(err)
				return
			}
		}
		live = live[1:]
	}
}

// note counts a time that is too long, and keeps the longest.
func note(d time.Duration, late, longest *atomic.Int64) {
	if d > tooLate {
		late.Add(1)
	}
	for {
		was := longest.Load()
		if int64(d) <= was || longest.CompareAndSwap(was, int64(d)) {
			return
		}
	}
}

// sampleEvery is how many batches go by between two looks at the machine.
const sampleEvery = 16

// machine tells which part of the processors this process had, or might have had. Under other work a batch waits for a processor of its own, or for another of our threads that has none: that is nobody's
// fault here.
type machine struct {
	file       *os.File // nil: the kernel does not tell, and all time is ours
	at         time.Time
	self, idle time.Duration
}

func newMachine() *machine {
	file, err := os.Open("/proc/stat")
	if err != nil {
		file = nil
	}
	m := &machine{file: file}
	m.look()
	return m
}

func (m *machine) close() {
	if m.file != nil {
		_ = m.file.Close() // it is only read
	}
}

// look begins anew.
func (m *machine) look() { m.at, m.self, m.idle = time.Now(), processTime(), m.idleTime() }

// share is the part of all processors that was this process's, or nobody's, since the last look.
func (m *machine) share() float64 {
	went := time.Since(m.at) * time.Duration(runtime.NumCPU())
	if m.file == nil || went <= 0 {
		return 1
	}
	return min(float64(processTime()-m.self+m.idleTime()-m.idle)/float64(went), 1)
}

// idleTime is for how long processors had nothing to do.
func (m *machine) idleTime() time.Duration {
	if m.file == nil {
		return 0
	}
	const tick = 10 * time.Millisecond // of the kernel's accounts
	var raw [256]byte
	n, _ := m.file.ReadAt(raw[:], 0) // the end of the file is no error here
	fields := strings.Fields(string(raw[:n]))
	if len(fields) < 6 {
		return 0
	}
	idle, _ := strconv.ParseInt(fields[4], 10, 64) // numbers, as the kernel writes them
	waiting, _ := strconv.ParseInt(fields[5], 10, 64)
	return time.Duration(idle+waiting) * tick
}

// processTime is how long this process has computed.
func processTime() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
