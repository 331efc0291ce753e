package host_test

import (
	"fmt"
	"maps"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/paceline-sched/paceline/core/host"
	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/workload"
)

const stateHosts = 6

// follower repeats what a journal is told on a table of its own.
type follower struct {
	t     *rapid.T
	table *host.Table
}

func (f follower) must(err error) {
	if err != nil {
		f.t.Fatalf("a follower cannot repeat a change: %v", err)
	}
}

func (f follower) Upserted(row host.Row, h *host.Host) {
	at, err := f.table.Upsert(*h)
	f.must(err)
	if at != row {
		f.t.Fatalf("host %s stands at row %d, at the follower's at %d", h.Name, row, at)
	}
}
func (f follower) Removed(row host.Row)                   { f.table.Remove(row) }
func (f follower) Drained(row host.Row, draining bool)    { f.table.SetDraining(row, draining) }
func (f follower) Took(row host.Row, o host.Occupant)     { f.must(f.table.Take(row, o)) }
func (f follower) Released(row host.Row, o host.Occupant) { f.must(f.table.Release(row, o)) }

// TestStateAndJournal: whoever begins with a state and repeats what the journal is told has the same table at every step, with the same numbers of rows and domains.
func TestStateAndJournal(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		table := host.New(&resource.Names{}, stateHosts)
		occupants := map[host.Row][]host.Occupant{}
		var f *follower
		row := func(t *rapid.T) host.Row { return host.Row(rapid.IntRange(0, stateHosts-1).Draw(t, "row")) }
		t.Repeat(map[string]func(*rapid.T){
			"upsert": func(t *rapid.T) {
				if _, err := table.Upsert(drawHost(t, rapid.IntRange(0, stateHosts-1).Draw(t, "host"))); err != nil {
					t.Fatal(err)
				}
			},
			"remove": func(t *rapid.T) {
				r := row(t)
				table.Remove(r)
				delete(occupants, r)
			},
			"drain": func(t *rapid.T) { table.SetDraining(row(t), rapid.Bool().Draw(t, "draining")) },
			"take": func(t *rapid.T) {
				r, o := row(t), drawOccupant(t)
				if table.Take(r, o) == nil {
					occupants[r] = append(occupants[r], o)
				}
			},
			"release": func(t *rapid.T) {
				if r := row(t); len(occupants[r]) > 0 {
					if err := table.Release(r, occupants[r][0]); err != nil {
						t.Fatal(err)
					}
					occupants[r] = occupants[r][1:]
				}
			},
			"follow": func(t *rapid.T) {
				copied, err := host.Restore(stateHosts, table.State())
				if err != nil {
					t.Fatal(err)
				}
				f = &follower{t, copied}
				table.SetJournal(f)
			},
			"": func(t *rapid.T) {
				if f == nil {
					return
				}
				f.t = t
				if a, b := stateText(table.State()), stateText(f.table.State()); a != b {
					t.Fatalf("the follower has\n%s\nthe table\n%s", b, a)
				}
				if a, b := derived(table), derived(f.table); a != b {
					t.Fatalf("the follower derives\n%s\nthe table\n%s", b, a)
				}
			},
		})
	})
}

// stateText is a state without what is told twice.
func stateText(s *host.State) string {
	s.Sort()
	var b strings.Builder
	for i := range s.Rows {
		r := &s.Rows[i]
		fmt.Fprint(&b, i, r.Draining, r.Used, r.Lanes, r.Ports)
		if r.Host != nil {
			h := *r.Host
			h.Attributes = nil
			fmt.Fprintf(&b, "%v", h)
		}
		for _, o := range r.Residents {
			fmt.Fprint(&b, o.Job, o.Exclusive, maps.Collect(o.Labels.All()), o.Occupants)
		}
		b.WriteByte('\n')
	}
	for _, c := range s.Columns {
		fmt.Fprintln(&b, c.Key, c.Values, c.Spare, c.IDs)
	}
	return b.String() + fmt.Sprint(s.Spare)
}

// derived is what placement looks at beyond a state.
func derived(t *host.Table) string {
	var b strings.Builder
	fmt.Fprint(&b, t.Leftover(), t.FreeShare(), t.WholeFree(), t.LargestShare(), t.PortsFree(), t.Usable(), t.Exclusive())
	for row := range host.Row(t.Rows()) {
		if !t.Has(row) {
			continue
		}
		fmt.Fprint(&b, row, t.Free(row), t.Tasks(row))
		for _, key := range []string{"zone", "rack", workload.TopologyHost} {
			fmt.Fprint(&b, t.Domains(key).Of(row), " ")
		}
		for _, labels := range selectors {
			fmt.Fprint(&b, t.Counter(host.Selector{Labels: host.NewLabelSet(labels)}, "zone").At(row), " ")
		}
	}
	return b.String()
}

// TestRestoreRefuses: a state that no table can have comes from a file that lies.
func TestRestoreRefuses(t *testing.T) {
	t.Parallel()
	fresh := func() *host.State {
		table := host.New(&resource.Names{}, 3)
		for i := range 3 {
			if _, err := table.Upsert(host.Host{ID: hostID(i), Name: fmt.Sprint("h", i), Attributes: map[string]string{"zone": fmt.Sprint(i % 2)}}); err != nil {
				t.Fatal(err)
			}
		}
		if err := table.Take(0, host.Occupant{Needs: resource.Vector{1}}); err != nil {
			t.Fatal(err)
		}
		table.Remove(1)
		return table.State()
	}
	for name, spoil := range map[string]func(*host.State){
		"names":         func(s *host.State) { s.Names = []string{"Not A Name"} },
		"rows":          func(s *host.State) { s.Rows = append(s.Rows, s.Rows[2]) },
		"spare twice":   func(s *host.State) { s.Spare = []host.Row{1, 1} },
		"spare in use":  func(s *host.State) { s.Spare = []host.Row{0} },
		"spare missing": func(s *host.State) { s.Spare = nil },
		"host twice":    func(s *host.State) { s.Rows[2].Host = s.Rows[0].Host },
		"device":        func(s *host.State) { s.Rows[0].Host = &host.Host{Name: "h0", Devices: []host.Device{{Milli: -1}}} },
		"name":          func(s *host.State) { s.Columns[0].IDs[0] = s.Columns[0].IDs[2] },
		"value":         func(s *host.State) { s.Columns[1].IDs[0] = 99 },
		"value twice":   func(s *host.State) { s.Columns[1].Values[2] = s.Columns[1].Values[1]; s.Columns[1].IDs[2] = 2 },
		"spare value":   func(s *host.State) { s.Columns[1].Spare = append(s.Columns[1].Spare, 1) },
		"column":        func(s *host.State) { s.Columns[1].IDs = nil },
		"used":          func(s *host.State) { s.Rows[0].Used[0] = -1 },
		"lanes":         func(s *host.State) { s.Rows[0].Lanes[0] = -1 },
		"occupants":     func(s *host.State) { s.Rows[0].Residents[0].Occupants = 0 },
		"group twice":   func(s *host.State) { s.Rows[0].Residents = append(s.Rows[0].Residents, s.Rows[0].Residents[0]) },
	} {
		s := fresh()
		if _, err := host.Restore(3, s); err != nil {
			t.Fatalf("%s: the state itself is refused: %v", name, err)
		}
		spoil(s)
		if _, err := host.Restore(3, s); err == nil {
			t.Errorf("%s: restored", name)
		}
	}
}

func BenchmarkState(b *testing.B) {
	table := host.New(&resource.Names{}, 16384)
	for i := range 16384 {
		h := host.Host{
			ID: workload.HostID{0: byte(i), 1: byte(i >> 8), 15: 1}, Name: fmt.Sprint("h", i), Ready: true,
			Attributes: map[string]string{"zone": fmt.Sprint(i % 3), "rack": fmt.Sprint(i / 40)}, Capacity: resource.Vector{64000, 1 << 18, 1 << 20},
		}
		row, err := table.Upsert(h)
		if err != nil {
			b.Fatal(err)
		}
		for n := range 20 {
			if err := table.Take(row, host.Occupant{Job: workload.JobID{byte(n)}, Needs: resource.Vector{1000}}); err != nil {
				b.Fatal(err)
			}
		}
	}
	for b.Loop() {
		table.State()
	}
}
