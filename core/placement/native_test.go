package placement_test

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/paceline-sched/paceline/core/execution"
	"github.com/paceline-sched/paceline/core/host"
	"github.com/paceline-sched/paceline/core/placement"
	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/workload"
)

const maxHosts = 7

// world is a table and the naive oracle under the same history.
type world struct {
	table   *host.Table
	oracle  oracle
	native  *placement.Native
	classes []*placement.Class
	twin    *host.Host // what every host but its identity is a copy of; nil: each is drawn
}

func hostID(n int) workload.HostID { return workload.HostID{15: byte(n + 1)} }

func drawHost(t *rapid.T, n int) host.Host {
	h := host.Host{
		ID: hostID(n), Name: fmt.Sprint("host-", n), Ready: rapid.IntRange(0, 7).Draw(t, "unready") > 0,
		Pool: rapid.SampledFrom([]string{"", "batch"}).Draw(t, "pool"), Attributes: map[string]string{},
	}
	for _, key := range []string{"zone", "rack"} {
		if v := rapid.SampledFrom([]string{"", "1", "2", "3"}).Draw(t, key); v != "" {
			h.Attributes[key] = v
		}
	}
	switch {
	case often(t, 1, "images"):
		h.Attributes = execution.WithFeatures(h.Attributes, execution.FeatureImage, execution.FeatureContainers)
	case often(t, 2, "all features"):
		h.Attributes = execution.WithFeatures(h.Attributes, execution.Features()...)
	}
	for _, k := range []resource.Kind{resource.CPU, resource.Memory, resource.Disk, resource.FirstNamed} {
		h.Capacity[k] = rapid.Int64Range(0, 20).Draw(t, "capacity")
	}
	h.Foreign[resource.CPU] = rapid.Int64Range(0, 2).Draw(t, "foreign")
	for range rapid.IntRange(0, 4).Draw(t, "devices") {
		d := host.Device{Model: rapid.SampledFrom([]string{"A", "B"}).Draw(t, "model"), Milli: rapid.SampledFrom([]int64{500, 1000, 1000}).Draw(t, "milli")}
		h.Devices = append(h.Devices, d)
		h.Capacity[resource.GPU] += d.Milli
	}
	if rapid.Bool().Draw(t, "ports") {
		h.Ports = []host.PortRange{{First: 5, Last: 8}, {First: 10, Last: rapid.Uint16Range(10, 14).Draw(t, "last")}}
	}
	return h
}

// often draws true n times in ten, so that most classes are simple and some are everything at once.
func often(t *rapid.T, n int, what string) bool { return rapid.IntRange(0, 9).Draw(t, what) < n }

func drawConstraint(t *rapid.T) workload.Constraint {
	return workload.Constraint{
		Key: rapid.SampledFrom([]string{"zone", "rack", "host", "absent"}).Draw(t, "key"),
		Op:  workload.Operator(rapid.IntRange(1, 6).Draw(t, "op")), Values: []string{rapid.SampledFrom([]string{"1", "2", "host-1"}).Draw(t, "value")},
	}
}

func drawClass(t *rapid.T) *placement.Class {
	spec := &workload.JobSpec{Kind: workload.Batch, Labels: map[string]string{"app": rapid.SampledFrom([]string{"a", "b"}).Draw(t, "app")}}
	n := &spec.Template.Needs
	n[resource.CPU] = rapid.Int64Range(0, 6).Draw(t, "cpu")
	n[resource.Memory] = rapid.Int64Range(0, 4).Draw(t, "memory")
	if often(t, 2, "more kinds") {
		n[resource.Disk], n[resource.FirstNamed] = rapid.Int64Range(0, 6).Draw(t, "disk"), rapid.Int64Range(0, 3).Draw(t, "named")
	}
	if often(t, 3, "gpu") {
		n[resource.GPU] = rapid.SampledFrom([]int64{200, 500, 1000, 2000, 1500}).Draw(t, "gpu need")
		if often(t, 4, "model") {
			spec.Template.GPUModels = []string{"A"}
		}
	}
	for range rapid.IntRange(-4, 2).Draw(t, "port needs") {
		spec.Template.Ports = append(spec.Template.Ports, workload.Port{Number: rapid.SampledFrom([]uint16{0, 0, 6}).Draw(t, "port")})
	}
	if len(spec.Template.Ports) == 2 && spec.Template.Ports[0] == spec.Template.Ports[1] {
		spec.Template.Ports[0].Number = 0
	}
	if often(t, 2, "execution") {
		spec.Template.Execution = rapid.SampledFrom([]*execution.Spec{
			{User: "ada"}, {Main: execution.Container{Image: "app"}}, {Main: execution.Container{Image: "app"}, Artifacts: []execution.Artifact{{URI: "x"}}},
		}).Draw(t, "execution is")
	}
	p := &spec.Placement
	p.Strategy = rapid.SampledFrom([]workload.Strategy{"", workload.StrategyBestFit, workload.StrategyPack, workload.StrategySpread}).Draw(t, "strategy")
	if often(t, 3, "constraint") {
		p.Constraints = append(p.Constraints, drawConstraint(t))
	}
	if often(t, 2, "preference") {
		p.Preferences = append(p.Preferences, workload.Preference{Constraint: drawConstraint(t), Weight: rapid.Int32Range(1, 100).Draw(t, "weight")})
	}
	topology := rapid.SampledFrom([]string{"zone", "rack", "host"})
	for range rapid.IntRange(-3, 2).Draw(t, "affinities") {
		p.Affinities = append(p.Affinities, workload.Affinity{
			Selector: map[string]string{"app": rapid.SampledFrom([]string{"a", "b"}).Draw(t, "to")}, Topology: topology.Draw(t, "topology"),
			Anti: rapid.Bool().Draw(t, "anti"), Weight: rapid.SampledFrom([]int32{0, 50}).Draw(t, "affinity weight"),
		})
	}
	for range rapid.IntRange(-3, 2).Draw(t, "spreads") {
		p.Spreads = append(p.Spreads, workload.Spread{Topology: topology.Draw(t, "over"), MaxSkew: rapid.Uint32Range(0, 2).Draw(t, "skew")})
	}
	p.Exclusive = often(t, 1, "exclusive")
	if often(t, 1, "host pool") {
		p.HostPool = "batch"
	}
	return placement.NewClass(workload.JobID{byte(rapid.IntRange(1, 3).Draw(t, "job"))}, spec, nil)
}

// gathers reports whether a gang of the class may be tried in one domain after another.
func gathers(c *placement.Class) bool {
	return slices.ContainsFunc(c.Placement.Affinities, func(a workload.Affinity) bool {
		return !a.Anti && a.Weight == 0 && covers(c.Labels, a.Selector)
	})
}

// TestNativeFollowsOracle sends random requests through one Native while hosts come, change, drain and go, and holds every choice,
// device, port and reason against the oracle: once among hosts of all kinds, once among hosts that are alike, where ties decide.
func TestNativeFollowsOracle(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"mixed", "twins", "mixed again", "twins again"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rapid.Check(t, func(t *rapid.T) { followOracle(t, strings.HasPrefix(name, "twins")) })
		})
	}
}

func followOracle(t *rapid.T, twins bool) {
	w := &world{native: placement.NewNative()}
	if twins {
		twin := drawHost(t, 0)
		w.twin = &twin
	}
	w.start(t)
	t.Repeat(map[string]func(*rapid.T){
		"place":  func(t *rapid.T) { w.place(t) },
		"place2": func(t *rapid.T) { w.place(t) },
		"plan":   func(t *rapid.T) { w.plan(t) },
		"upsert": func(t *rapid.T) { w.upsert(t, rapid.IntRange(0, maxHosts-1).Draw(t, "host")) },
		"remove": func(t *rapid.T) { w.remove(t) },
		"drain":  func(t *rapid.T) { w.drain(t) },
		"end":    func(t *rapid.T) { w.end(t) },
		"":       func(t *rapid.T) { w.check(t) },
	})
}

func (w *world) start(t *rapid.T) {
	w.table = host.New(&resource.Names{}, maxHosts)
	for n := range rapid.IntRange(1, maxHosts).Draw(t, "hosts") {
		w.upsert(t, n)
	}
	for range rapid.IntRange(1, 4).Draw(t, "classes") {
		w.classes = append(w.classes, drawClass(t))
	}
}

func (w *world) upsert(t *rapid.T, n int) {
	var h host.Host
	if w.twin != nil {
		h = *w.twin
		h.ID, h.Name = hostID(n), fmt.Sprint("host-", n)
	} else {
		h = drawHost(t, n)
	}
	row, err := w.table.Upsert(h)
	if err != nil {
		t.Fatal(err)
	}
	for len(w.oracle.hosts) < w.table.Rows() {
		w.oracle.hosts = append(w.oracle.hosts, nil)
	}
	if old := w.oracle.hosts[row]; old != nil {
		old.Host = h
		for i := range old.tasks { // devices that went with the change are no longer anybody's
			old.tasks[i].devices &= 1<<len(h.Devices) - 1
		}
		w.rebook(t, row, old)
		return
	}
	w.oracle.hosts[row] = &oracleHost{Host: h}
}

// rebook has the table forget and replay a changed host, as after a restart, since the oracle counts lanes of present devices only.
func (w *world) rebook(t *rapid.T, row host.Row, h *oracleHost) {
	w.table.Remove(row)
	again, err := w.table.Upsert(h.Host)
	if err != nil || again != row {
		t.Fatalf("row %d became %d: %v", row, again, err)
	}
	w.table.SetDraining(row, h.draining)
	for _, task := range h.tasks {
		if err := w.table.Take(row, task.class.Occupant(task.devices, task.ports)); err != nil {
			t.Fatal(err)
		}
	}
}

func (w *world) pick(t *rapid.T) host.Row {
	var rows []host.Row
	for row, h := range w.oracle.hosts {
		if h != nil {
			rows = append(rows, host.Row(row))
		}
	}
	if rows == nil {
		t.Skip("no hosts")
	}
	return rapid.SampledFrom(rows).Draw(t, "row")
}

func (w *world) remove(t *rapid.T) {
	row := w.pick(t)
	w.table.Remove(row)
	w.oracle.hosts[row] = nil
}

func (w *world) drain(t *rapid.T) {
	row := w.pick(t)
	w.oracle.hosts[row].draining = rapid.Bool().Draw(t, "draining")
	w.table.SetDraining(row, w.oracle.hosts[row].draining)
}

func (w *world) end(t *rapid.T) {
	row := w.pick(t)
	h := w.oracle.hosts[row]
	if len(h.tasks) == 0 {
		t.Skip("empty")
	}
	i := rapid.IntRange(0, len(h.tasks)-1).Draw(t, "task")
	if err := w.table.Release(row, h.tasks[i].class.Occupant(h.tasks[i].devices, h.tasks[i].ports)); err != nil {
		t.Fatal(err)
	}
	h.tasks = slices.Delete(h.tasks, i, i+1)
}

func (w *world) drawRequest(t *rapid.T) placement.Request {
	r := placement.Request{
		Class: rapid.SampledFrom(w.classes).Draw(t, "class"), Count: rapid.IntRange(1, 9).Draw(t, "count"), Gang: often(t, 3, "gang"),
	}
	if often(t, 1, "pinned") {
		r.Host = hostID(rapid.IntRange(0, maxHosts-1).Draw(t, "pin"))
	}
	return r
}

func (w *world) place(t *rapid.T) {
	r := w.drawRequest(t)
	before := dump(w.table)
	got := w.native.Place(w.table, []placement.Request{r})[0]
	if r.Gang && r.Host == (workload.HostID{}) && gathers(r.Class) {
		w.checkGathered(t, &r, &got)
		return
	}
	want := w.expect(&r)
	if !reflect.DeepEqual(got, want) {
		t.Fatalf("%+v\nof %+v\ngot  %+v\nwant %+v", r, *r.Class, got, want)
	}
	if len(got.Assignments) == 0 && dump(w.table) != before {
		t.Fatalf("a refusal changed the table:\n%s\n%s", before, dump(w.table))
	}
}

func (w *world) expect(r *placement.Request) placement.Result {
	var want placement.Result
	for range r.Count {
		row := w.oracle.place(r.Class, r.Host)
		if row < 0 {
			break
		}
		tasks := w.oracle.hosts[row].tasks
		task := tasks[len(tasks)-1]
		want.Assignments = append(want.Assignments, placement.Assignment{Row: host.Row(row), Devices: task.devices, Ports: task.ports})
	}
	placed := len(want.Assignments)
	if placed == r.Count {
		return want
	}
	if r.Gang {
		for _, a := range want.Assignments {
			tasks := w.oracle.hosts[a.Row].tasks
			w.oracle.hosts[a.Row].tasks = tasks[:len(tasks)-1]
		}
		want.Assignments = nil
	}
	want.Refused = r.Count - len(want.Assignments)
	want.Reasons = w.oracle.reasons(r.Class, r.Host)
	if r.Gang {
		want.Reasons.GangLargest, want.Reasons.GangSize = placed, r.Count
	}
	return want
}

// checkGathered checks a gang that looks for a domain: what was placed keeps every rule, and a refusal means that no order of
// domains would have helped the greedy oracle.
func (w *world) checkGathered(t *rapid.T, r *placement.Request, got *placement.Result) {
	if got.Refused == 0 {
		if len(got.Assignments) != r.Count {
			t.Fatalf("a gang of %d was placed as %d", r.Count, len(got.Assignments))
		}
		for _, a := range got.Assignments {
			h := w.oracle.hosts[a.Row]
			if reason := w.oracle.refusal(r.Class, h); reason != placement.NumReasons {
				t.Fatalf("a member was placed on %s, which refuses it for %s", h.Name, reason)
			}
			h.tasks = append(h.tasks, oracleTask{r.Class, a.Devices, a.Ports})
		}
		return
	}
	if want := w.expect(r); want.Refused == 0 {
		t.Fatalf("a gang was refused that fits greedily: %+v", want)
	}
	reasons := w.oracle.reasons(r.Class, r.Host)
	reasons.GangLargest, reasons.GangSize = got.Reasons.GangLargest, r.Count
	if len(got.Assignments) != 0 || got.Refused != r.Count || got.Reasons != reasons || reasons.GangLargest >= r.Count {
		t.Fatalf("got %+v, want %+v", got, reasons)
	}
}

func (w *world) plan(t *rapid.T) {
	r := []placement.Request{w.drawRequest(t), w.drawRequest(t)}
	before := dump(w.table)
	first := w.native.Plan(w.table, r)
	if after := dump(w.table); after != before {
		t.Fatalf("a plan changed the table:\n%s\n%s", before, after)
	}
	if fresh := placement.NewNative().Plan(w.table, r); !reflect.DeepEqual(first, fresh) {
		t.Fatalf("what was learnt changed the answer:\n%+v\n%+v", first, fresh)
	}
}

func (w *world) check(t *rapid.T) {
	for row, h := range w.oracle.hosts {
		if h == nil {
			if w.table.Has(host.Row(row)) {
				t.Fatalf("row %d should be empty", row)
			}
			continue
		}
		if got, want := w.table.Free(host.Row(row)), h.free(); got != want {
			t.Fatalf("%s: free %v, want %v", h.Name, got, want)
		}
		for _, c := range w.classes {
			if got, want := c.Matches(w.table, host.Row(row)), h.matches(c) && h.hasModel(c); got != want {
				t.Fatalf("%s: matches %v, want %v", h.Name, got, want)
			}
			if got, want := c.Suits(w.table.Host(host.Row(row))), c.Matches(w.table, host.Row(row)); got != want {
				t.Fatalf("%s: suits %v, but matches %v", h.Name, got, want)
			}
		}
	}
}

// dump renders everything of a table that placement may change.
func dump(t *host.Table) string {
	var s string
	for row := range host.Row(t.Rows()) {
		if !t.Has(row) {
			continue
		}
		lanes, _ := t.Lanes(row)
		s += fmt.Sprintln(t.ID(row), t.Free(row), *lanes, t.WholeFree()[row], t.LargestShare()[row], t.PortsFree()[row], t.Tasks(row),
			t.Leftover()[row], t.FreeShare()[row], t.Exclusive().Has(row), t.PickPorts(row, make([]uint16, 4)))
		for _, app := range []string{"a", "b"} {
			for _, topology := range []string{"zone", "rack", "host"} {
				s += fmt.Sprint(t.Counter(host.Selector{Labels: host.NewLabelSet(map[string]string{"app": app})}, topology).At(row), " ")
			}
		}
	}
	return s
}

func TestClassIsItsContent(t *testing.T) {
	t.Parallel()
	base := func() *workload.JobSpec {
		return &workload.JobSpec{
			Kind: workload.Batch, Labels: map[string]string{"a": "1", "b": "2", "c": "3"},
			Template: workload.TaskTemplate{Needs: resource.Vector{1, 2}, GPUModels: []string{"x", "y"}, Ports: []workload.Port{{Name: "p"}}},
			Placement: workload.Placement{Constraints: []workload.Constraint{
				{Key: "k", Op: workload.OpIn, Values: []string{"1", "2"}}, {Key: "l", Op: workload.OpExists},
			}},
		}
	}
	id := func(edit func(*workload.JobSpec)) placement.ClassID {
		s := base()
		edit(s)
		return placement.NewClass(workload.JobID{7}, s, nil).ID
	}
	same := map[string]func(*workload.JobSpec){
		"nothing":          func(*workload.JobSpec) {},
		"order of models":  func(s *workload.JobSpec) { s.Template.GPUModels = []string{"y", "x", "y"} },
		"order of values":  func(s *workload.JobSpec) { s.Placement.Constraints[0].Values = []string{"2", "1"} },
		"order of wishes":  func(s *workload.JobSpec) { slices.Reverse(s.Placement.Constraints) },
		"where labels are": func(s *workload.JobSpec) { s.Template.Labels = map[string]string{"a": "1"} },
		"port names":       func(s *workload.JobSpec) { s.Template.Ports[0].Name = "q" },
		"command, name":    func(s *workload.JobSpec) { s.Template.Command, s.Name = []string{"x"}, "n" },
	}
	want := id(func(*workload.JobSpec) {})
	for name, edit := range same {
		if id(edit) != want {
			t.Errorf("%s changes the class", name)
		}
	}
	seen := map[placement.ClassID]string{want: "base"}
	other := map[string]func(*workload.JobSpec){
		"kind":      func(s *workload.JobSpec) { s.Kind = workload.Service },
		"needs":     func(s *workload.JobSpec) { s.Template.Needs[0]++ },
		"models":    func(s *workload.JobSpec) { s.Template.GPUModels = []string{"xy"} },
		"labels":    func(s *workload.JobSpec) { s.Labels["a"] = "2" },
		"port":      func(s *workload.JobSpec) { s.Template.Ports[0].Number = 80 },
		"op":        func(s *workload.JobSpec) { s.Placement.Constraints[0].Op = workload.OpNotIn },
		"values":    func(s *workload.JobSpec) { s.Placement.Constraints[0].Values = []string{"12"} },
		"strategy":  func(s *workload.JobSpec) { s.Placement.Strategy = workload.StrategyPack },
		"a choice":  func(s *workload.JobSpec) { s.Placement.Strategy = workload.StrategyBestFit }, // the default may be another one
		"pool":      func(s *workload.JobSpec) { s.Placement.HostPool = "p" },
		"clusters":  func(s *workload.JobSpec) { s.Placement.Clusters = []string{"p"} },
		"exclusive": func(s *workload.JobSpec) { s.Placement.Exclusive = true },
		"spread":    func(s *workload.JobSpec) { s.Placement.Spreads = []workload.Spread{{Topology: "z"}} },
		"affinity":  func(s *workload.JobSpec) { s.Placement.Affinities = []workload.Affinity{{Topology: "z"}} },
		"preference": func(s *workload.JobSpec) {
			s.Placement.Preferences = []workload.Preference{{Constraint: workload.Constraint{Key: "z"}, Weight: 1}}
		},
	}
	for name, edit := range other {
		got := id(edit)
		if twin, taken := seen[got]; taken {
			t.Errorf("%s and %s make one class", name, twin)
		}
		seen[got] = name
	}
	if a, b := placement.NewClass(workload.JobID{1}, base(), nil), placement.NewClass(workload.JobID{2}, base(), nil); a.ID != b.ID || a.Job != (workload.JobID{}) {
		t.Error("equal work of two jobs makes two classes")
	}
}

func TestClassOfOverride(t *testing.T) {
	t.Parallel()
	spec := &workload.JobSpec{
		Labels:   map[string]string{"a": "job", "b": "job", "c": "job"},
		Template: workload.TaskTemplate{Labels: map[string]string{"b": "template", "c": "template"}, Needs: resource.Vector{1}},
	}
	c := placement.NewClass(workload.JobID{}, spec, &workload.Override{Needs: &resource.Vector{5}, Labels: map[string]string{"c": "override"}})
	if want := map[string]string{"a": "job", "b": "template", "c": "override"}; !maps.Equal(c.Labels, want) || c.Needs != (resource.Vector{5}) {
		t.Fatalf("labels %v, needs %v", c.Labels, c.Needs)
	}
}

// TestFeatures: what a task is made of decides which hosts it may go to, and a mere command is the same class as ever.
func TestFeatures(t *testing.T) {
	t.Parallel()
	table := host.New(&resource.Names{}, maxHosts)
	for n, attributes := range []map[string]string{
		{},
		execution.WithFeatures(nil, execution.FeatureCommand), execution.WithFeatures(nil, execution.FeatureImage),
		execution.WithFeatures(nil, execution.Features()...),
	} {
		if _, err := table.Upsert(host.Host{ID: hostID(n), Name: fmt.Sprint(n), Ready: true, Attributes: attributes}); err != nil {
			t.Fatal(err)
		}
	}
	image := execution.Container{Image: "app"}
	for _, c := range []struct {
		spec *execution.Spec
		want []string
	}{
		{nil, []string{"0", "1", "3"}},
		{&execution.Spec{}, []string{"1", "3"}},
		{&execution.Spec{Main: image}, []string{"2", "3"}},
		{&execution.Spec{Main: image, Sidecars: []execution.Container{image}}, []string{"3"}},
	} {
		job := &workload.JobSpec{Template: workload.TaskTemplate{Execution: c.spec}}
		class := placement.NewClass(workload.JobID{}, job, nil)
		var got []string
		for row := range host.Row(table.Rows()) {
			if class.Matches(table, row) {
				got = append(got, table.Host(row).Name)
			}
		}
		refused := placement.NewNative().Explain(table, class).Counts[placement.ReasonConstraint]
		if !slices.Equal(got, c.want) || refused != 4-len(got) {
			t.Errorf("%+v may go to %v, want %v; %d are refused", c.spec, got, c.want, refused)
		}
	}
	before := placement.NewClass(workload.JobID{}, &workload.JobSpec{Kind: workload.Batch}, nil)
	if got := fmt.Sprintf("%x", uint64(before.ID)); got != "9efd96113c1307ab" {
		t.Errorf("the class of a mere command has become %s", got)
	}
}
