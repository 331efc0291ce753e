package registry_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/paceline-sched/paceline/core/host"
	"github.com/paceline-sched/paceline/core/placement"
	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/rollout"
	"github.com/paceline-sched/paceline/core/scheduler"
	"github.com/paceline-sched/paceline/core/workload"
	"github.com/paceline-sched/paceline/policies/registry"
	"github.com/paceline-sched/paceline/policies/wasm"
	"github.com/paceline-sched/paceline/policies/wasm/kit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// cell is a store made of a cell's decision core: what it wrote, and nothing else, is what a next start finds.
type cell struct {
	mu       sync.Mutex
	state    *scheduler.State
	image    *scheduler.Image
	archives map[[32]byte][]byte
	epoch    uint64
	now      int64
	fail     error // of the next edits
	lose     error // in place of the answers to the next edits, which are made
}

func newCell(t testing.TB) *cell {
	c := &cell{image: scheduler.NewImage(), archives: map[[32]byte][]byte{}, now: 1}
	c.start(t)
	return c
}

func (c *cell) start(t testing.TB) {
	t.Helper()
	c.epoch++
	state, groups, err := scheduler.Start(scheduler.Config{}, c.image, c.epoch, c.now)
	if err != nil {
		t.Fatal(err)
	}
	c.state = state
	c.write(groups)
}

func (c *cell) write(groups []scheduler.Group) {
	for _, g := range groups {
		c.image.ApplyGroup(g)
		for _, w := range g.Writes {
			if a, ok := w.Record.(scheduler.ArchiveRecord); ok {
				if delete(c.archives, a.Digest); !w.Delete {
					c.archives[a.Digest] = a.Archive
				}
			}
		}
	}
}

func (c *cell) Do(_ context.Context, caller scheduler.Caller, command scheduler.Command) (scheduler.Answer, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.fail != nil {
		return scheduler.Answer{}, c.fail
	}
	c.now++
	out := c.state.Step(c.now, []scheduler.Event{scheduler.Call{Token: 1, Caller: caller, Command: command}})
	c.write(out.Groups)
	for _, e := range out.External {
		if r, ok := e.(scheduler.Reply); ok {
			return r.Answer, c.lose
		}
	}
	return scheduler.Answer{}, fmt.Errorf("no answer")
}

func (c *cell) Read(_ context.Context, look func(scheduler.Reader)) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	look(c.state.Reader())
	return nil
}

func (c *cell) Archive(digest [32]byte) ([]byte, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.archives[digest], nil
}

// quick is a kit that looks a little, and comparisons of everything.
func quick(c *cell) registry.Config {
	return registry.Config{
		Store: c, CompareShare: 1e6, Kit: kit.Options{Rounds: 1, Calls: 200, Scenes: []string{"random tables"}},
		Wasm: wasm.Config{Limits: wasm.Limits{StartFuel: registry.StartFuel}},
	}
}

func open(t testing.TB, config registry.Config) *registry.Registry {
	t.Helper()
	r := registry.New(config)
	if err := r.Open(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	return r
}

func source(t testing.TB, r *registry.Registry, shard string) *registry.Source {
	t.Helper()
	s := r.Source(shard)
	t.Cleanup(s.Close)
	return s
}

func guest(t testing.TB, name string) []byte {
	t.Helper()
	path := filepath.Join("testdata", "guests", name+".wasm")
	if name == "bestfit" {
		path = filepath.Join("..", "wasm", path)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func push(t testing.TB, r *registry.Registry, policy, name string) rollout.Digest {
	t.Helper()
	digest, err := r.Push(t.Context(), "ann", rollout.Upload{Policy: policy, Module: guest(t, name)})
	if err != nil {
		t.Fatal(err)
	}
	return digest
}

func change(t testing.TB, r *registry.Registry, event rollout.Event) []rollout.Moved {
	t.Helper()
	moves, err := r.Change(t.Context(), "ann", event)
	if err != nil {
		t.Fatal(err)
	}
	return moves
}

func stages(r *registry.Registry, policy string) string {
	out := ""
	book := r.Book()
	if p := book.Find(policy); p != nil {
		for _, v := range p.Versions {
			out += fmt.Sprintf("%s=%s ", v.Digest.Short()[:4], v.Stage)
		}
	}
	return out
}

// newTable has hosts of two sizes; the first is the largest.
func newTable(t testing.TB, n int) *host.Table {
	t.Helper()
	names, err := resource.NewNames(nil)
	if err != nil {
		t.Fatal(err)
	}
	table := host.New(names, max(n, 1))
	for i := range n {
		h := host.Host{
			ID: workload.HostID{0: byte(i), 1: byte(i >> 8), 15: 1}, Name: fmt.Sprintf("h%d", i), Ready: true,
			Capacity: resource.Vector{resource.CPU: int64(64000 >> (i % 3)), resource.Memory: int64(65536 >> (i % 3)), resource.Disk: 1 << 20},
		}
		if _, err := table.Upsert(h); err != nil {
			t.Fatal(err)
		}
	}
	return table
}

func class(kind workload.Kind, policy string, cpu int64) *placement.Class {
	return placement.NewClass(workload.JobID{1}, &workload.JobSpec{
		Kind: kind, Template: workload.TaskTemplate{Needs: resource.Vector{resource.CPU: cpu, resource.Memory: 64}}, Placement: workload.Placement{Strategy: workload.Strategy(policy)},
	}, nil)
}

// place asks for room for tasks of a class of a pool, and returns the rows.
func place(t testing.TB, s *registry.Source, table *host.Table, c *placement.Class, n int, pool string) []host.Row {
	t.Helper()
	p, ok := s.Placer(string(c.Placement.Strategy))
	if !ok {
		t.Fatalf("nobody places under %q", c.Placement.Strategy)
	}
	got := p.Place(table, []placement.Request{{Class: c, Count: n, Pool: pool}})
	if len(got) != 1 || got[0].Refused > 0 {
		t.Fatalf("%d tasks of class %d found no host: %+v", n, c.ID, got)
	}
	var rows []host.Row
	for _, a := range got[0].Assignments {
		rows = append(rows, a.Row)
	}
	return rows
}
