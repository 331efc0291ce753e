package host_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/paceline-sched/paceline/core/host"
	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/workload"
)

// model is the naive table: what was told, nothing derived.
type model struct {
	hosts     map[workload.HostID]host.Host
	draining  map[workload.HostID]bool
	occupants map[workload.HostID][]host.Occupant
}

var (
	selectors  = []map[string]string{nil, {"app": "a"}, {"app": "b"}, {"app": "a", "tier": "x"}}
	topologies = []string{"zone", "rack", workload.TopologyHost, "nowhere"}
)

func hostID(n int) workload.HostID { return workload.HostID{15: byte(n + 1)} }

func drawHost(t *rapid.T, n int) host.Host {
	h := host.Host{
		ID: hostID(n), Name: fmt.Sprint("host-", n), Ready: rapid.Bool().Draw(t, "ready"),
		Pool:       rapid.SampledFrom([]string{"", "batch"}).Draw(t, "pool"),
		Attributes: map[string]string{},
	}
	for _, key := range []string{"zone", "rack"} {
		if v := rapid.SampledFrom([]string{"", "1", "2", "x"}).Draw(t, key); v != "" {
			h.Attributes[key] = v
		}
	}
	for _, k := range []resource.Kind{resource.CPU, resource.Memory, resource.FirstNamed} {
		h.Capacity[k] = rapid.Int64Range(0, 9).Draw(t, "capacity")
		h.Foreign[k] = rapid.Int64Range(0, 2).Draw(t, "foreign")
	}
	for range rapid.IntRange(0, 3).Draw(t, "devices") {
		d := host.Device{Model: rapid.SampledFrom([]string{"A", "B"}).Draw(t, "model"), Milli: rapid.SampledFrom([]int64{500, 1000}).Draw(t, "milli")}
		h.Devices = append(h.Devices, d)
		h.Capacity[resource.GPU] += d.Milli
	}
	for range rapid.IntRange(0, 2).Draw(t, "ranges") {
		first := rapid.Uint16Range(1, 12).Draw(t, "first")
		h.Ports = append(h.Ports, host.PortRange{First: first, Last: first + rapid.Uint16Range(0, 4).Draw(t, "span")})
	}
	return h
}

func drawOccupant(t *rapid.T) host.Occupant {
	o := host.Occupant{
		Job: workload.JobID{byte(rapid.IntRange(0, 2).Draw(t, "job"))}, Exclusive: rapid.IntRange(0, 3).Draw(t, "exclusive") == 0,
		Labels:  host.NewLabelSet(rapid.SampledFrom(selectors).Draw(t, "labels")),
		Needs:   resource.Vector{resource.CPU: rapid.Int64Range(0, 4).Draw(t, "cpu"), resource.FirstNamed: rapid.Int64Range(0, 2).Draw(t, "named")},
		Devices: host.DeviceSet(rapid.Uint16Range(0, 7).Draw(t, "set")), Milli: rapid.SampledFrom([]int64{300, 1000}).Draw(t, "share"),
	}
	o.Needs[resource.GPU] = o.Milli * int64(bitCount(o.Devices))
	for range rapid.IntRange(0, 2).Draw(t, "ports") {
		o.Ports = append(o.Ports, rapid.Uint16Range(1, 16).Draw(t, "port"))
	}
	return o
}

func bitCount(s host.DeviceSet) int {
	n := 0
	for ; s != 0; s &= s - 1 {
		n++
	}
	return n
}

// TestTableFollowsModel applies random histories and compares everything that the table derives as it goes with the naive model, and with
// a table that is built from the model in one go.
func TestTableFollowsModel(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		table := host.New(&resource.Names{}, 6)
		m := model{map[workload.HostID]host.Host{}, map[workload.HostID]bool{}, map[workload.HostID][]host.Occupant{}}
		versions := map[host.Row]uint64{}
		t.Repeat(map[string]func(*rapid.T){
			"upsert": func(t *rapid.T) {
				h := drawHost(t, rapid.IntRange(0, 7).Draw(t, "host"))
				_, known := m.hosts[h.ID]
				_, err := table.Upsert(h)
				if full := !known && len(m.hosts) == 6; (err != nil) != full {
					t.Fatalf("upsert into a table of %d of 6 hosts: %v", len(m.hosts), err)
				}
				if err == nil {
					m.hosts[h.ID] = h
				}
			},
			"remove": func(t *rapid.T) {
				id := m.pick(t)
				row, _ := table.Lookup(id)
				table.Remove(row)
				delete(m.hosts, id)
				delete(m.draining, id)
				delete(m.occupants, id)
			},
			"drain": func(t *rapid.T) {
				id := m.pick(t)
				row, _ := table.Lookup(id)
				m.draining[id] = rapid.Bool().Draw(t, "draining")
				table.SetDraining(row, m.draining[id])
			},
			"take": func(t *rapid.T) {
				id := m.pick(t)
				row, _ := table.Lookup(id)
				o := drawOccupant(t)
				if err := table.Take(row, o); err != nil {
					t.Fatal(err)
				}
				m.occupants[id] = append(m.occupants[id], o)
			},
			"release": func(t *rapid.T) {
				id := m.pick(t)
				if len(m.occupants[id]) == 0 {
					t.Skip("empty")
				}
				row, _ := table.Lookup(id)
				i := rapid.IntRange(0, len(m.occupants[id])-1).Draw(t, "which")
				if err := table.Release(row, m.occupants[id][i]); err != nil {
					t.Fatal(err)
				}
				m.occupants[id] = slices.Delete(m.occupants[id], i, i+1)
			},
			"without": func(t *rapid.T) {
				id := m.pick(t)
				row, _ := table.Lookup(id)
				all := m.occupants[id]
				out := slices.Clone(all[:rapid.IntRange(0, len(all)).Draw(t, "out")])
				if rapid.IntRange(0, 4).Draw(t, "stranger") == 0 {
					out = append(out, host.Occupant{Job: workload.JobID{99}})
					before := table.Revision()
					if err := table.Without(row, out, func() { t.Fatal("looked") }); err == nil || table.Revision() != before {
						t.Fatalf("an occupant who is not there was left out: %v", err)
					}
					return
				}
				before, wanted := table.Revision(), uint64(0)
				err := table.Without(row, out, func() {
					m.occupants[id] = slices.Clone(all[len(out):])
					m.check(t, table)
					if rapid.Bool().Draw(t, "takes") {
						o := drawOccupant(t)
						if err := table.Take(row, o); err != nil {
							t.Fatal(err)
						}
						m.occupants[id] = append(m.occupants[id], o)
						wanted = 1
					}
				})
				if err != nil || table.Revision() != before+wanted {
					t.Fatalf("revision %d became %d: %v", before, table.Revision(), err)
				}
				m.occupants[id] = append(m.occupants[id], out...)
			},
			"count": func(t *rapid.T) {
				table.Counter(drawSelector(t), rapid.SampledFrom(topologies).Draw(t, "topology"))
			},
			"": func(t *rapid.T) {
				for row := range host.Row(table.Rows()) {
					if table.Version(row) < versions[row] {
						t.Fatalf("the version of row %d went back from %d to %d", row, versions[row], table.Version(row))
					}
					versions[row] = table.Version(row)
				}
				m.check(t, table)
				m.check(t, m.build(t))
			},
		})
	})
}

func drawSelector(t *rapid.T) host.Selector {
	return host.Selector{
		Job:    workload.JobID{byte(rapid.IntRange(0, 2).Draw(t, "selected job"))},
		Labels: host.NewLabelSet(rapid.SampledFrom(selectors).Draw(t, "selector")),
	}
}

func (m *model) ids() []workload.HostID {
	return slices.SortedFunc(maps.Keys(m.hosts), func(a, b workload.HostID) int { return workload.ID(a).Compare(workload.ID(b)) })
}

func (m *model) pick(t *rapid.T) workload.HostID {
	if len(m.hosts) == 0 {
		t.Skip("no hosts")
	}
	return rapid.SampledFrom(m.ids()).Draw(t, "id")
}

func (m *model) build(t *rapid.T) *host.Table {
	table := host.New(&resource.Names{}, 6)
	for _, id := range m.ids() {
		row, err := table.Upsert(m.hosts[id])
		if err != nil {
			t.Fatal(err)
		}
		table.SetDraining(row, m.draining[id])
		for _, o := range m.occupants[id] {
			if err := table.Take(row, o); err != nil {
				t.Fatal(err)
			}
		}
	}
	return table
}

// check compares a table with the model, host by host, counter by counter.
func (m *model) check(t *rapid.T, table *host.Table) {
	if table.Len() != len(m.hosts) {
		t.Fatalf("%d hosts, want %d", table.Len(), len(m.hosts))
	}
	for _, id := range m.ids() {
		row, ok := table.Lookup(id)
		if !ok || table.ID(row) != id {
			t.Fatalf("host %s is at row %d (%v), where %s stands", id, row, ok, table.ID(row))
		}
		m.checkHost(t, table, id, row)
	}
	for _, selector := range selectors {
		for _, topology := range topologies {
			m.checkCounter(t, table, selector, topology)
		}
	}
}

func (m *model) checkHost(t *rapid.T, table *host.Table, id workload.HostID, row host.Row) {
	h := m.hosts[id]
	free := h.Capacity.Sub(h.Foreign)
	var lanes [host.MaxDevices]int64
	for i, d := range h.Devices {
		lanes[i] = d.Milli
	}
	exclusive := false
	taken := map[uint16]bool{}
	for _, o := range m.occupants[id] {
		free = free.Sub(o.Needs)
		for i := range lanes {
			if o.Devices>>i&1 != 0 {
				lanes[i] -= o.Milli
			}
		}
		exclusive = exclusive || o.Exclusive
		for _, p := range o.Ports {
			taken[p] = true
		}
	}
	if got := table.Free(row); got != free {
		t.Fatalf("%s: free %v, want %v", h.Name, got, free)
	}
	if got, _ := table.Lanes(row); *got != lanes {
		t.Fatalf("%s: lanes %v, want %v", h.Name, *got, lanes)
	}
	whole := int64(0)
	for _, l := range lanes {
		if l >= 1000 {
			whole++
		}
	}
	if table.WholeFree()[row] != whole || table.LargestShare()[row] != max(slices.Max(lanes[:]), 0) {
		t.Fatalf("%s: %d whole, largest %d; lanes %v", h.Name, table.WholeFree()[row], table.LargestShare()[row], lanes)
	}
	if table.Tasks(row) != len(m.occupants[id]) || table.Exclusive().Has(row) != exclusive || table.Usable().Has(row) != (h.Ready && !m.draining[id]) {
		t.Fatalf("%s: tasks %d, exclusive %v, usable %v", h.Name, table.Tasks(row), table.Exclusive().Has(row), table.Usable().Has(row))
	}
	m.checkPorts(t, table, row, &h, taken)
	left, share := m.scores(&h, free)
	if table.Leftover()[row] != left || table.FreeShare()[row] != share {
		t.Fatalf("%s: leftover %d, share %d; want %d, %d", h.Name, table.Leftover()[row], table.FreeShare()[row], left, share)
	}
}

func (m *model) checkPorts(t *rapid.T, table *host.Table, row host.Row, h *host.Host, taken map[uint16]bool) {
	var open []uint16
	for port := uint16(1); port < 32; port++ {
		offered := slices.ContainsFunc(h.Ports, func(r host.PortRange) bool { return r.First <= port && port <= r.Last })
		if offered && !taken[port] {
			open = append(open, port)
		}
		if table.PortsFit(row, []uint16{port}) != (offered && !taken[port]) {
			t.Fatalf("%s: port %d offered %v taken %v, but fits is %v", h.Name, port, offered, taken[port], !offered || taken[port])
		}
	}
	if got := table.PortsFree()[row]; got != int64(len(open)) {
		t.Fatalf("%s: %d free ports, want %v", h.Name, got, open)
	}
	if len(open) >= 3 { // the last one fixed, the rest the lowest
		want := []uint16{open[0], open[len(open)-1], open[1]}
		if got := table.PickPorts(row, []uint16{0, open[len(open)-1], 0}); !slices.Equal(got, want) {
			t.Fatalf("%s: picked %v of %v, want %v", h.Name, got, open, want)
		}
	}
}

// scores is the two score columns by their definition.
func (m *model) scores(h *host.Host, free resource.Vector) (left, share int64) {
	var weights, kinds int64
	for k := range free {
		largest := int64(0)
		for _, other := range m.hosts {
			largest = max(largest, other.Capacity[k])
		}
		if largest == 0 {
			continue
		}
		power := int64(1)
		for power < largest {
			power *= 2
		}
		weight := int64(1)
		if resource.Kind(k) == resource.GPU {
			weight = 64
		}
		weights += weight
		if room := h.Capacity[k]; room > 0 {
			f := min(max(free[k], 0), room)
			left += weight * (f << 22 / power)
			share += f << 22 / room
			kinds++
		}
	}
	if kinds == 0 {
		return 0, 0
	}
	return left * 256 / weights, share * 256 / kinds
}

func (m *model) checkCounter(t *rapid.T, table *host.Table, labels map[string]string, topology string) {
	for job := range byte(3) {
		want, total := map[string]int32{}, 0
		domain := func(id workload.HostID) string {
			if topology == workload.TopologyHost {
				return m.hosts[id].Name
			}
			return m.hosts[id].Attributes[topology]
		}
		selector := host.Selector{Job: workload.JobID{job}, Labels: host.NewLabelSet(labels)}
		for id := range m.hosts {
			for _, o := range m.occupants[id] {
				if (job == 0 || o.Job == selector.Job) && o.Labels.Covers(selector.Labels) {
					want[domain(id)]++
					total++
				}
			}
		}
		c := table.Counter(selector, topology)
		if c.Total() != total {
			t.Fatalf("counter %v over %s: total %d, want %d", labels, topology, c.Total(), total)
		}
		for id := range m.hosts {
			row, _ := table.Lookup(id)
			if c.At(row) != want[domain(id)] {
				t.Fatalf("counter %v over %s at %q: %d, want %d", labels, topology, domain(id), c.At(row), want[domain(id)])
			}
		}
	}
}

func TestConstraintOperators(t *testing.T) {
	t.Parallel()
	hosts := []map[string]string{{"n": "5", "s": "x"}, {"n": "12", "s": "y"}, {"n": "many"}, {}}
	table := host.New(&resource.Names{}, len(hosts))
	for i, attributes := range hosts {
		if _, err := table.Upsert(host.Host{ID: hostID(i), Name: fmt.Sprint("h", i), Attributes: attributes}); err != nil {
			t.Fatal(err)
		}
	}
	cases := []struct {
		key    string
		op     workload.Operator
		values string
		want   string // rows
	}{
		{"s", workload.OpIn, "x z", "0"},
		{"s", workload.OpNotIn, "x z", "1 2 3"},
		{"s", workload.OpExists, "", "0 1"},
		{"s", workload.OpNotExists, "", "2 3"},
		{"n", workload.OpGt, "5", "1"},
		{"n", workload.OpLt, "12", "0"},
		{"n", workload.OpGt, "five", ""},
		{"n", workload.OpGt, "1 2", ""},
		{"absent", workload.OpNotIn, "x", "0 1 2 3"},
		{"absent", workload.OpIn, "x", ""},
		{"absent", workload.OpGt, "1", ""},
		{"host", workload.OpIn, "h2", "2"},
		{"s", workload.Operator(99), "x", ""},
	}
	for _, c := range cases {
		constraint := workload.Constraint{Key: c.key, Op: c.op, Values: strings.Fields(c.values)}
		set := host.NewBitmap(table.Rows())
		var one, all []string
		for row := range host.Row(table.Rows()) {
			set.Set(row, true)
			if table.Meets(row, &constraint) {
				one = append(one, fmt.Sprint(row))
			}
			if table.Has(row) && table.Host(row).Meets(&constraint) != table.Meets(row, &constraint) {
				t.Errorf("%+v: of row %d the host and the table differ", constraint, row)
			}
		}
		table.Require(set, &constraint)
		set.Rows(func(row host.Row) bool {
			all = append(all, fmt.Sprint(row))
			return true
		})
		if strings.Join(one, " ") != c.want || strings.Join(all, " ") != c.want {
			t.Errorf("%+v: rows %v one by one, %v together, want %q", constraint, one, all, c.want)
		}
	}
}

// TestChanges follows a table by its changes alone, over a history longer than the table remembers.
func TestChanges(t *testing.T) {
	t.Parallel()
	table := host.New(&resource.Names{}, 10)
	start := table.Now()
	for i := range 10 {
		if _, err := table.Upsert(host.Host{ID: hostID(i), Name: fmt.Sprint(i), Capacity: resource.Vector{1 << 20}}); err != nil {
			t.Fatal(err)
		}
	}
	loaded := table.Now()
	rows := map[host.Row]bool{}
	if !table.Reshaped(start, func(r host.Row) { rows[r] = true }) || len(rows) != 10 {
		t.Fatalf("%d rows reshaped since the start, want 10", len(rows))
	}
	o := host.Occupant{Needs: resource.Vector{1}}
	for n := range 20_000 {
		before := table.Now()
		if err := table.Take(host.Row(n%10), o); err != nil {
			t.Fatal(err)
		}
		seen := host.NoRow
		if !table.Changed(before, func(r host.Row) { seen = r }) || seen != host.Row(n%10) {
			t.Fatalf("change %d was reported as one of row %d", n, seen)
		}
	}
	if table.Changed(loaded, func(host.Row) { t.Fatal("a forgotten history was replayed in part") }) {
		t.Fatal("20,000 changes were remembered")
	}
	if !table.Reshaped(loaded, func(host.Row) { t.Fatal("taking room reshaped a host") }) {
		t.Fatal("changes of shape were forgotten for changes of room")
	}
}

func TestRefusedInput(t *testing.T) {
	t.Parallel()
	many := map[string]string{}
	for i := range host.MaxAttributes + 1 {
		many[fmt.Sprint(i)] = ""
	}
	cases := map[string]struct {
		h    host.Host
		want string
	}{
		"devices":    {host.Host{Devices: make([]host.Device, 17)}, "17 devices"},
		"milli":      {host.Host{Devices: []host.Device{{Milli: 1001}}}, "1001 thousandths"},
		"capacity":   {host.Host{Capacity: resource.Vector{-1}}, "cpu_milli"},
		"foreign":    {host.Host{Foreign: resource.Vector{1: 1 << 41}}, "memory_mib"},
		"ports":      {host.Host{Ports: []host.PortRange{{5, 4}}}, "5-4"},
		"attributes": {host.Host{Attributes: many}, "257 attributes"},
	}
	for name, c := range cases {
		table := host.New(&resource.Names{}, 1)
		c.h.Name = "h"
		if _, err := table.Upsert(c.h); err == nil || !strings.Contains(err.Error(), c.want) || table.Len() != 0 {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
	table := host.New(&resource.Names{}, 1)
	row, err := table.Upsert(host.Host{Name: "h"})
	if err != nil {
		t.Fatal(err)
	}
	revision := table.Revision()
	for name, o := range map[string]host.Occupant{"need": {Needs: resource.Vector{-1}}, "share": {Devices: 1, Milli: 1001}} {
		if table.Take(row, o) == nil {
			t.Errorf("%s: taken", name)
		}
	}
	if table.Take(7, host.Occupant{}) == nil || table.Release(row, host.Occupant{}) == nil || table.Release(7, host.Occupant{}) == nil {
		t.Error("room of nobody was handled")
	}
	if table.Revision() != revision {
		t.Error("a refused call changed the table")
	}
}

// TestKeysAreBounded brings new attribute keys with every host, as a cluster with generated labels would.
func TestKeysAreBounded(t *testing.T) {
	t.Parallel()
	table := host.New(&resource.Names{}, 8)
	keys := func(from int) map[string]string {
		m := map[string]string{}
		for i := range 250 {
			m[fmt.Sprint("k", from+i)] = "v"
		}
		return m
	}
	for round := range 20 { // the same hosts, other keys each time: the old ones make room
		for h := range 2 {
			if _, err := table.Upsert(host.Host{ID: hostID(h), Name: "h", Attributes: keys(1000*round + 250*h)}); err != nil {
				t.Fatalf("round %d: %v", round, err)
			}
		}
	}
	var err error
	for h := range 8 {
		if _, err = table.Upsert(host.Host{ID: hostID(h), Name: "h", Attributes: keys(50_000 + 250*h)}); err != nil {
			break
		}
	}
	if err == nil || !strings.Contains(err.Error(), "attribute keys") {
		t.Fatalf("2,000 keys in use: %v", err)
	}
}

// TestCountersAreBounded asks for more counters than are kept; those asked for again count right.
func TestCountersAreBounded(t *testing.T) {
	t.Parallel()
	table := host.New(&resource.Names{}, 1)
	row, err := table.Upsert(host.Host{ID: hostID(0), Name: "h"})
	if err != nil {
		t.Fatal(err)
	}
	o := host.Occupant{Labels: host.NewLabelSet(map[string]string{"app": "a"})}
	for i := range 2*host.MaxCounters + 10 {
		if err := table.Take(row, o); err != nil {
			t.Fatal(err)
		}
		table.Counter(host.Selector{}, fmt.Sprint("topology-", i))
		if got := table.Counter(host.Selector{Labels: o.Labels}, workload.TopologyHost).At(row); int(got) != i+1 {
			t.Fatalf("counter after %d tasks: %d", i+1, got)
		}
	}
}
