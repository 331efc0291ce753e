package placement_test

import (
	"reflect"
	"testing"

	"pgregory.net/rapid"

	"github.com/paceline-sched/paceline/core/host"
	"github.com/paceline-sched/paceline/core/placement"
	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/workload"
)

// TestGangsOfDomains sends gangs with a topology through one Native while the table changes, and holds them against the oracle: every member
// may stand where it does, a required domain is one, and for classes that can be counted a gang is refused only where it must be, and goes to
// the tightest domain.
func TestGangsOfDomains(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		w := &world{native: placement.NewNative()}
		w.start(t)
		t.Repeat(map[string]func(*rapid.T){
			"gang":   w.gang,
			"join":   w.join,
			"place":  w.place,
			"upsert": func(t *rapid.T) { w.upsert(t, rapid.IntRange(0, maxHosts-1).Draw(t, "host")) },
			"end":    w.end,
			"":       w.check,
		})
	})
}

func drawTopology(t *rapid.T) placement.Within {
	return placement.Within{
		Key: rapid.SampledFrom([]string{"zone", "rack", "host", "absent"}).Draw(t, "topology"), Required: rapid.Bool().Draw(t, "required"),
	}
}

func (w *world) gang(t *rapid.T) {
	within := drawTopology(t)
	if often(t, 2, "anywhere") {
		within = placement.Within{}
	}
	var requests []placement.Request
	for range rapid.IntRange(1, 2).Draw(t, "requests") {
		requests = append(requests, placement.Request{
			Class: rapid.SampledFrom(w.classes).Draw(t, "class"), Count: rapid.IntRange(1, 6).Draw(t, "count"), Gang: true, Unit: 1, Within: within,
		})
	}
	before := dump(w.table)
	got := w.native.Place(w.table, requests)
	rooms := w.rooms(&requests[0], within.Key)
	if got[0].Refused > 0 {
		for i := range got {
			if len(got[i].Assignments) > 0 || got[i].Refused != requests[i].Count || got[i].Reasons.GangLargest > requests[i].Count {
				t.Fatalf("half a gang: %+v", got)
			}
		}
		if dump(w.table) != before {
			t.Fatal("a refusal changed the table")
		}
		w.checkRefused(t, requests, rooms)
		return
	}
	domains := map[string]bool{}
	for i := range got {
		w.adopt(t, &requests[i], got[i].Assignments)
		for _, a := range got[i].Assignments {
			domains[w.domain(int(a.Row), within.Key)] = true
		}
	}
	if within.Key != "" && within.Required && (len(domains) != 1 || domains[""]) {
		t.Fatalf("a gang that must stay together is in %v", domains)
	}
	if len(requests) == 1 && countable(requests[0].Class) && within.Key != "" {
		w.checkTightest(t, requests[0].Count, rooms, domains)
	}
}

// adopt enters what was placed into the oracle's books, which must allow each in turn.
func (w *world) adopt(t *rapid.T, r *placement.Request, placed []placement.Assignment) {
	if len(placed) > r.Count || (r.Gang && len(placed) < r.Count) {
		t.Fatalf("%d of %d", len(placed), r.Count)
	}
	for _, a := range placed {
		h := w.oracle.hosts[a.Row]
		if reason := w.oracle.refusal(r.Class, h); reason != placement.NumReasons {
			t.Fatalf("a member was placed on %s, which refuses it for %s", h.Name, reason)
		}
		h.tasks = append(h.tasks, oracleTask{r.Class, a.Devices, a.Ports})
	}
}

func (w *world) domain(row int, key string) string {
	h := w.oracle.hosts[row]
	if key == workload.TopologyHost {
		return h.Name
	}
	return h.Attributes[key]
}

// countable reports whether tasks of the class leave the fit of other hosts alone.
func countable(c *placement.Class) bool {
	return len(c.Placement.Affinities) == 0 && len(c.Placement.Spreads) == 0
}

// rooms fills a copy of every domain, as far as 7 tasks, one more than any gang here.
func (w *world) rooms(r *placement.Request, key string) map[string]int {
	rooms := map[string]int{}
	if !countable(r.Class) {
		return rooms
	}
	for row, h := range w.oracle.hosts {
		if h == nil {
			continue
		}
		had := len(h.tasks)
		for w.oracle.place(r.Class, h.ID) >= 0 && len(h.tasks) < had+20 {
			rooms[w.domain(row, key)]++
		}
		h.tasks = h.tasks[:had]
	}
	return rooms
}

func (w *world) checkRefused(t *rapid.T, requests []placement.Request, rooms map[string]int) {
	r := &requests[0]
	if len(requests) > 1 || !countable(r.Class) {
		return
	}
	total := 0
	for domain, n := range rooms {
		total += n
		if n >= r.Count && domain != "" && r.Within.Key != "" {
			t.Fatalf("a gang of %d was refused, and domain %s has room for %d", r.Count, domain, n)
		}
	}
	if !r.Within.Required && total >= r.Count {
		t.Fatalf("a gang of %d that may be split was refused, and there is room for %d", r.Count, total)
	}
}

func (w *world) checkTightest(t *rapid.T, count int, rooms map[string]int, domains map[string]bool) {
	tightest := 0
	for domain, n := range rooms {
		if domain != "" && n >= count && (tightest == 0 || n < tightest) {
			tightest = n
		}
	}
	if tightest == 0 {
		return // it was split, as it may be
	}
	for domain := range domains {
		if len(domains) != 1 || (rooms[domain] != tightest && rooms[domain] < 20) {
			t.Fatalf("a gang of %d went to %v of %v", count, domains, rooms)
		}
	}
}

// join adds single tasks to a domain.
func (w *world) join(t *rapid.T) {
	within := drawTopology(t)
	within.Domain = rapid.SampledFrom([]string{"1", "2", "3", "host-0"}).Draw(t, "domain")
	r := placement.Request{Class: rapid.SampledFrom(w.classes).Draw(t, "class"), Count: rapid.IntRange(1, 4).Draw(t, "count"), Within: within}
	rooms := w.rooms(&r, within.Key)
	got := w.native.Place(w.table, []placement.Request{r})[0]
	w.adopt(t, &r, got.Assignments)
	there := 0
	for _, a := range got.Assignments {
		if w.domain(int(a.Row), within.Key) == within.Domain {
			there++
		} else if within.Required {
			t.Fatalf("a task that must go to %s is in %s", within.Domain, w.domain(int(a.Row), within.Key))
		}
	}
	if got.Refused != r.Count-len(got.Assignments) {
		t.Fatalf("%+v for %d", got, r.Count)
	}
	if countable(r.Class) && there != min(rooms[within.Domain], r.Count) {
		t.Fatalf("%d of %d tasks are in %s, which has room for %d", there, r.Count, within.Domain, rooms[within.Domain])
	}
}

// TestElasticGangWantsRoomToGrow: the tightest domain would hold the gang for now, another one all that may join it.
func TestElasticGangWantsRoomToGrow(t *testing.T) {
	for want, rack := range map[int]string{0: "small", 3: "small", 5: "large"} {
		w := newTable(t, map[string]int64{"small": 3, "large": 6})
		got := placement.NewNative().Place(w, []placement.Request{{
			Class: unitClass(), Count: 2, Gang: true, Unit: 1, Want: want, Within: placement.Within{Key: "rack", Required: true},
		}})[0]
		if got.Refused > 0 || w.Host(got.Assignments[0].Row).Attributes["rack"] != rack {
			t.Errorf("a gang of 2 that may grow to %d goes to %+v", want, got)
		}
	}
}

// TestPartOfAGangStaysTogether: what a gang that gathers over tables takes of one is in as few racks as can be.
func TestPartOfAGangStaysTogether(t *testing.T) {
	w := newTable(t, map[string]int64{"r1": 2, "r2": 4, "r3": 3})
	r := placement.Request{Class: unitClass(), Count: 6, Within: placement.Within{Key: "rack"}}
	for _, want := range []map[string]int{{"r2": 4, "r3": 2}, {"r1": 2, "r3": 1}} {
		got := placement.NewNative().Place(w, []placement.Request{r})[0]
		racks := map[string]int{}
		for _, a := range got.Assignments {
			racks[w.Host(a.Row).Attributes["rack"]]++
		}
		if !reflect.DeepEqual(racks, want) || got.Refused != r.Count-len(got.Assignments) {
			t.Errorf("6 tasks are in %v, with %d refused", racks, got.Refused)
		}
	}
}

// TestRefusedGangNamesBestDomain is what a user reads.
func TestRefusedGangNamesBestDomain(t *testing.T) {
	w := newTable(t, map[string]int64{"r1": 3, "r2": 5, "r3": 4})
	r := placement.Request{Class: unitClass(), Count: 7, Gang: true, Unit: 1, Within: placement.Within{Key: "rack", Required: true}}
	got := placement.NewNative().Place(w, []placement.Request{r})[0].Reasons
	if got.GangLargest != 5 || got.GangSize != 7 || got.GangDomain != "r2" || got.Counts[placement.ReasonGang] != 3 {
		t.Errorf("%+v", got)
	}
	r.Within.Required = false
	split := placement.NewNative().Place(w, []placement.Request{r})[0]
	racks := map[string]int{}
	for _, a := range split.Assignments {
		racks[w.Host(a.Row).Attributes["rack"]]++
	}
	if racks["r2"] != 5 || racks["r3"] != 2 {
		t.Errorf("a gang that is split takes the roomiest racks first, not %v", racks)
	}
}

func unitClass() *placement.Class {
	spec := &workload.JobSpec{Kind: workload.Batch}
	spec.Template.Needs[0] = 1
	return placement.NewClass(workload.JobID{}, spec, nil)
}

func newTable(t *testing.T, racks map[string]int64) *host.Table {
	table := host.New(&resource.Names{}, maxHosts)
	for rack, cpu := range racks {
		h := host.Host{ID: workload.HostID{0: rack[0], 1: rack[1]}, Name: rack, Ready: true, Attributes: map[string]string{"rack": rack}}
		h.Capacity[0] = cpu
		if _, err := table.Upsert(h); err != nil {
			t.Fatal(err)
		}
	}
	return table
}
