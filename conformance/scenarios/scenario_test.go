package scenarios

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/paceline-sched/paceline/core/driver"
	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/respool"
	"github.com/paceline-sched/paceline/core/scheduler"
	"github.com/paceline-sched/paceline/core/shard"
	"github.com/paceline-sched/paceline/core/workload"
)

var update = flag.Bool("update", false, "write what happens into the scenarios")

// TestScenarios runs every story. A block is commands, a line "----", and what they print; "go test -update" records it anew.
func TestScenarios(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scenarios: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) { runScenario(t, file) })
	}
}

func runScenario(t *testing.T, file string) {
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t)
	var out strings.Builder
	blocks := strings.Split(strings.TrimSpace(string(raw)), "\n\n")
	for n, block := range blocks {
		commands, want, _ := strings.Cut(block, "\n----")
		want = strings.Trim(want, "\n")
		got := w.block(commands)
		if got != want && !*update {
			t.Fatalf("%s, block %d:\n%s\n---- got\n%s\n---- want\n%s", file, n+1, commands, got, want)
		}
		if n > 0 {
			out.WriteString("\n")
		}
		out.WriteString(commands + "\n")
		if isStory(commands) {
			continue
		}
		out.WriteString("----\n" + got)
		if got != "" {
			out.WriteString("\n")
		}
	}
	if *update {
		if err := os.WriteFile(file, []byte(out.String()), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func isStory(block string) bool {
	for line := range strings.Lines(block) {
		if !strings.HasPrefix(line, "#") {
			return false
		}
	}
	return true
}

func (w *world) block(commands string) string {
	var out []string
	for line := range strings.Lines(commands) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		if text := strings.TrimRight(w.command(strings.Fields(line)), "\n"); text != "" {
			out = append(out, text)
		}
	}
	return strings.Join(out, "\n")
}

func (w *world) command(f []string) string {
	args := parseArgs(f[1:])
	switch f[0] {
	case "cluster":
		return w.addCluster(args)
	case "host", "lose-host":
		return w.changeHost(f[0], args)
	case "disconnect", "reconnect", "mute", "unmute", "stubborn", "mortal", "hang", "unhang", "reattach":
		if f[0] == "hang" && args.named["after"] != "" { // so many batches
			w.clusters[args.word(w, 0)].answers = int(args.number(w, "after", 0)) + 1
			return ""
		}
		return w.mood(f[0], args.word(w, 0))
	case "healthy", "unhealthy":
		return w.health(f[0], args)
	case "records":
		return w.records()
	case "leases":
		return strconv.Itoa(w.clusters[args.word(w, 0)].machine.Stats().Held)
	case "env":
		return w.environment(args)
	case "kills":
		return strconv.Itoa(w.clusters[args.word(w, 0)].kills)
	case "hold", "commit":
		return w.durability(f[0])
	case "finish":
		return w.finish(args)
	case "advance":
		return w.advance(args.word(w, 0))
	case "crash":
		w.cfg.PreemptionsPerSecond = int(args.number(w, "preemptions", int64(w.cfg.PreemptionsPerSecond))) // of the next core
		w.crash(int(args.number(w, "lose", 0)))
		return ""
	case "rate": // of preemptions, from the next start on
		w.cfg.PreemptionsPerSecond = int(args.number(w, "preemptions", 0))
		w.crash(0)
		return ""
	case "policy":
		return w.policy(args)
	case "plan-pools":
		return w.planPools(f[1:])
	case "run", "plan":
		return w.submit(f[0], args)
	case "why":
		return w.why(args.word(w, 0))
	case "stop", "delete", "restart", "drain", "undrain", "pool", "delete-pool", "move-pool":
		return w.mutate(f[0], args)
	case "jobs", "tasks", "pools", "hosts", "ledgers", "clusters", "owners", "explain", "changes", "gangs", "waiting", "policies", "entitled":
		return w.show(f[0], args)
	}
	w.fatal(fmt.Sprintf("unknown command %q", f[0]))
	return ""
}

type arguments struct {
	words []string
	named map[string]string
}

func parseArgs(f []string) arguments {
	a := arguments{named: map[string]string{}}
	for _, word := range f {
		if key, value, ok := strings.Cut(word, "="); ok {
			a.named[key] = value
		} else {
			a.words = append(a.words, word)
		}
	}
	return a
}

func (a arguments) word(w *world, n int) string {
	if n >= len(a.words) {
		w.fatal(fmt.Sprintf("argument %d is missing in %v", n+1, a))
	}
	return a.words[n]
}

func (a arguments) has(flag string) bool { return slices.Contains(a.words, flag) }

func (a arguments) number(w *world, key string, otherwise int64) int64 {
	text, ok := a.named[key]
	if !ok {
		return otherwise
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		w.fatal(fmt.Sprintf("%s: %v", key, err))
	}
	return n
}

func (a arguments) duration(w *world, key string) time.Duration {
	if a.named[key] == "" {
		return 0
	}
	d, err := time.ParseDuration(a.named[key])
	if err != nil {
		w.fatal(err.Error())
	}
	return d
}

// addCluster reads "cluster NAME host=cpu:mem:gpus..." with hosts named by the key; "rack." prefixes give a rack: r1.a=...
func (w *world) addCluster(a arguments) string {
	c := &cluster{name: a.word(w, 0), of: a.word(w, 0), runs: map[workload.RunID]*clusterRun{}}
	for _, name := range sortedKeys(a.named) {
		if name == "of" { // another shard of that cluster
			c.of = a.named[name]
			continue
		}
		c.hosts = append(c.hosts, w.hostOf(name, a.named[name]))
	}
	w.clusters[c.name] = c
	w.connect(c)
	w.settle()
	return ""
}

func sortedKeys(m map[string]string) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

func (w *world) hostOf(name, size string) driver.Host {
	rack, _, _ := strings.Cut(name, ".")
	parts := strings.Split(size, ":")
	q := make([]int64, 3)
	for n, p := range parts {
		v, err := strconv.ParseInt(p, 10, 64)
		if err != nil || n >= len(q) {
			w.fatal(fmt.Sprintf("host %s: size %q", name, size))
		}
		q[n] = v
	}
	lastPort := uint16(31009) // few, so that ports run out
	if strings.Contains(name, "new") {
		lastPort = 31999
	}
	h := driver.Host{
		Name: name, Ready: true, Attributes: map[string]string{"rack": rack},
		Capacity: map[string]int64{"cpu_milli": q[0], "memory_mib": q[1], "gpu_milli": q[2] * 1000},
		Ports:    []driver.PortRange{{First: 31000, Last: lastPort}},
	}
	for range q[2] {
		h.Devices = append(h.Devices, driver.Device{Model: "T4", Milli: 1000})
	}
	return h
}

func (w *world) changeHost(verb string, a arguments) string {
	c := w.clusters[a.word(w, 0)]
	if verb == "lose-host" {
		name := a.word(w, 1)
		c.hosts = slices.DeleteFunc(c.hosts, func(h driver.Host) bool { return h.Name == name })
		for _, r := range c.runs {
			if r.status.Host == name {
				r.acked = true // gone with the host
			}
		}
		c.inbox = append(c.inbox, shard.HostsUpdated{Removed: []string{name}})
	}
	for _, name := range sortedKeys(a.named) {
		h := w.hostOf(name, a.named[name])
		c.hosts = append(c.hosts, h)
		c.inbox = append(c.inbox, shard.HostsUpdated{Changed: []driver.Host{h}})
	}
	w.settle()
	return ""
}

func (w *world) mood(verb, name string) string {
	c := w.clusters[name]
	switch verb {
	case "disconnect":
		c.lost = true
		c.inbox = append(c.inbox, shard.DriverLost{Reason: "the connection broke"})
	case "reconnect":
		c.lost = false
		c.inbox = append(c.inbox, c.inventory())
	case "mute", "unmute":
		c.mute = verb == "mute"
	case "stubborn", "mortal":
		c.stubborn = verb == "stubborn"
	case "hang", "unhang":
		c.hung = verb == "hang"
	case "reattach": // the same shard under a new assignment, as after a broken connection
		w.events = append(w.events, scheduler.ShardAttached{Shard: shard.ID(c.name + "/0"), Cluster: c.of})
	}
	w.settle()
	return ""
}

// records counts the durable records of jobs and instances, the ones that belong to nothing among them.
func (w *world) records() string {
	jobs, tasks, orphans := 0, 0, 0
	for _, j := range w.image.Jobs {
		here := 0
		for n := range j.Tasks {
			if j.Tasks[n].Job != (workload.JobID{}) {
				here++
			}
		}
		if j.Job.ID == (workload.JobID{}) {
			orphans += here
		} else {
			jobs, tasks = jobs+1, tasks+here
		}
	}
	return fmt.Sprintf("%d jobs, %d instances, %d orphans", jobs, tasks, orphans)
}

// durability lets groups wait ("hold"), or makes all of them durable ("commit").
func (w *world) durability(verb string) string {
	w.holding = verb == "hold"
	if !w.holding {
		w.release()
		w.settle()
	}
	return ""
}

// health makes the live instances of "job/instance", or all with "job/*", pass or fail their checks.
func (w *world) health(verb string, a arguments) string {
	w.eachLive(a.word(w, 0), func(id workload.RunID, _ scheduler.TaskView) {
		w.clusterOf(id).say(id, driver.Status{State: workload.RunRunning, Healthy: verb == "healthy"})
	})
	w.settle()
	return ""
}

// clusterOf finds the cluster that a run was sent to; nil: none yet.
func (w *world) clusterOf(id workload.RunID) *cluster {
	for _, name := range w.clusterNames() {
		if c := w.clusters[name]; c.runs[id] != nil {
			return c
		}
	}
	return nil
}

// environment prints what a live member of a gang was told of it, or the path of its pool that a run was told.
func (w *world) environment(a arguments) string {
	var lines []string
	w.eachLive(a.word(w, 0), func(id workload.RunID, _ scheduler.TaskView) {
		env := w.clusterOf(id).runs[id].env
		if a.has("pool") {
			lines = append(lines, env["PACELINE_POOL"])
			return
		}
		for _, name := range sortedKeys(env) {
			if short, ours := strings.CutPrefix(name, "PACELINE_GANG_"); ours {
				lines = append(lines, short+"="+env[name])
			}
		}
	})
	return strings.Join(lines, "\n")
}

// eachLive visits the live runs of "job/instance", or of all instances with "job/*".
func (w *world) eachLive(which string, visit func(workload.RunID, scheduler.TaskView)) {
	at := strings.LastIndex(which, "/")
	instance := which[at+1:]
	job := w.job(which[:at])
	for i := range job.Instances {
		if instance != "*" && instance != strconv.Itoa(int(i)) {
			continue
		}
		task, _ := w.state.Reader().Task(job.ID, i)
		id := workload.RunID{Job: job.ID, Instance: i, Generation: task.Generation, Run: task.Run}
		if !task.RunState.Live() {
			continue
		}
		// What has ended in the cluster says nothing more, even if the cell has not heard of the end yet.
		c := w.clusterOf(id)
		if c == nil {
			continue
		}
		if r := c.runs[id]; !r.acked && !r.status.State.Traits().Terminal {
			visit(id, task)
		}
	}
}

// finish ends the live run of "job/instance", or of every instance with "job/*".
func (w *world) finish(a arguments) string {
	w.eachLive(a.word(w, 0), func(id workload.RunID, _ scheduler.TaskView) {
		s := driver.Status{State: workload.RunSucceeded, Reason: workload.ReasonExited, ExitCode: int32(a.number(w, "exit", 0))}
		if s.ExitCode != 0 {
			s.State = workload.RunFailed
		}
		w.clusterOf(id).say(id, s)
	})
	w.settle()
	return ""
}

func (w *world) advance(by string) string {
	d, err := time.ParseDuration(by)
	if err != nil {
		w.fatal(err.Error())
	}
	target := w.now + int64(d)
	for {
		next := w.wake
		for _, c := range w.clusters {
			if c.out.NextWake != 0 && !c.hung && (next == 0 || c.out.NextWake < next) {
				next = c.out.NextWake
			}
		}
		if next == 0 || next > target {
			break
		}
		w.now = max(w.now, next)
		for _, name := range w.clusterNames() {
			if c := w.clusters[name]; c.out.NextWake != 0 && !c.hung && c.out.NextWake <= w.now {
				c.inbox = append(c.inbox, shard.Wake{})
			}
		}
		w.settle()
	}
	w.now = target
	w.settle()
	if w.idle > 0 && !w.holding {
		w.check()
	}
	return ""
}

func (w *world) do(command scheduler.Command) scheduler.Answer {
	w.token++
	w.answers = nil
	w.events = append(w.events, scheduler.Call{Token: w.token, Caller: scheduler.Caller{Principal: "ann"}, Command: command})
	w.settle()
	_, plans := command.(scheduler.PlanJob)
	_, explains := command.(scheduler.ExplainJob)
	if len(w.answers) == 0 && (w.holding || plans || explains) {
		return scheduler.Answer{} // it waits for durability with the rest, or for a shard that does not answer
	}
	if len(w.answers) != 1 || w.answers[0].Token != w.token {
		w.fatal(fmt.Sprintf("%T got %d answers", command, len(w.answers)))
	}
	return w.answers[0]
}

// only reads "only=FIRST-LAST,...".
func (a arguments) only(w *world) (list []workload.InstanceRange) {
	for _, text := range strings.FieldsFunc(a.named["only"], func(r rune) bool { return r == ',' }) {
		var r workload.InstanceRange
		if n, _ := fmt.Sscanf(text, "%d-%d", &r.First, &r.Last); n < 2 {
			w.fatal(fmt.Sprintf("range %q", text))
		}
		list = append(list, r)
	}
	return list
}

// gang reads "gang", "min=N", "topology=KEY" with "!" behind a required one, and "groups=NAME:FIRST-LAST[:MIN],...".
func (a arguments) gang(w *world) *workload.GangSpec {
	groups := a.named["groups"]
	if !a.has("gang") && groups == "" {
		return nil
	}
	g := &workload.GangSpec{MinSize: uint32(a.number(w, "min", 0))}
	g.Topology.Key, g.Topology.Required = strings.CutSuffix(a.named["topology"], "!")
	g.MinSize = min(g.MinSize, uint32(a.number(w, "n", 1)))
	for _, text := range strings.FieldsFunc(groups, func(r rune) bool { return r == ',' }) {
		var group workload.GangGroup
		var r workload.InstanceRange
		name, rest, _ := strings.Cut(text, ":")
		if n, _ := fmt.Sscanf(rest, "%d-%d:%d", &r.First, &r.Last, &group.MinSize); n < 2 {
			w.fatal(fmt.Sprintf("group %q", text))
		}
		if last := uint32(a.number(w, "n", 1)) - 1; r.First > last {
			continue
		} else if r.Last = min(r.Last, last); group.MinSize > r.Last-r.First+1 {
			group.MinSize = 0
		}
		group.Name, group.Instances = name, []workload.InstanceRange{r}
		g.Groups = append(g.Groups, group)
	}
	return g
}

func (w *world) submit(verb string, a arguments) string {
	spec := &workload.JobSpec{
		Name: a.word(w, 0), Pool: w.pool(a.named["pool"]).Pool.ID, Kind: workload.Batch, Instances: uint32(a.number(w, "n", 1)),
		Priority: int32(a.number(w, "priority", 0)), Gang: a.gang(w), MaxRunning: uint32(a.number(w, "window", 0)),
		Deadline: a.duration(w, "deadline"), Preemptible: !a.has("pinned"),
		Owner: a.named["owner"], Controller: a.has("controller"), Revocable: a.has("revocable"),
		RunTime: a.duration(w, "time"),
		Retry:   workload.RetryPolicy{MaxRetries: uint32(a.number(w, "retries", 0))},
		Template: workload.TaskTemplate{
			Command: []string{"work"}, KillGrace: 10 * time.Second,
			Needs: resource.Vector{resource.CPU: a.number(w, "cpu", 100), resource.Memory: a.number(w, "mem", 0), resource.GPU: a.number(w, "gpu", 0)},
		},
	}
	if a.named["preempted"] == "kill" {
		spec.OnPreemption = workload.PreemptKill
	}
	if a.has("checked") {
		spec.Template.Health = &workload.HealthCheck{Exec: []string{"true"}}
	}
	for range a.number(w, "ports", 0) {
		spec.Template.Ports = append(spec.Template.Ports, workload.Port{Name: fmt.Sprintf("p%d", len(spec.Template.Ports))})
	}
	if rack := a.named["rack"]; rack != "" {
		spec.Placement.Constraints = []workload.Constraint{{Key: "rack", Op: workload.OpIn, Values: []string{rack}}}
	}
	if cluster := a.named["on"]; cluster != "" {
		spec.Placement.Clusters = []string{cluster}
	}
	if pool := a.named["hostpool"]; pool != "" {
		spec.Placement.HostPool = pool
	}
	spec.Placement.Strategy = workload.Strategy(a.named["policy"])
	if models := a.named["model"]; models != "" {
		spec.Template.GPUModels = strings.Split(models, ",")
	}
	if a.has("apart") { // no two of its tasks on one host
		spec.Labels = map[string]string{"job": spec.Name}
		spec.Placement.Affinities = []workload.Affinity{{Selector: spec.Labels, Topology: workload.TopologyHost, Anti: true}}
	}
	switch a.named["kind"] {
	case "service":
		spec.Kind, spec.Preemptible = workload.Service, a.has("preemptible") || a.has("revocable")
		spec.MaxUnavailable = uint32(a.number(w, "unavailable", int64(spec.Instances)))
	case "daemon":
		spec.Kind, spec.Instances, spec.Preemptible = workload.Daemon, 0, a.has("preemptible") || a.has("revocable")
	}
	if text := a.named["big"]; text != "" { // big=INSTANCE:CPU overrides one instance
		i, cpu, _ := strings.Cut(text, ":")
		n, _ := strconv.Atoi(i)
		c, _ := strconv.ParseInt(cpu, 10, 64)
		spec.Overrides = []workload.Override{{Instance: uint32(n), Needs: &resource.Vector{resource.CPU: c}}}
	}
	if verb == "plan" {
		return w.plan(spec, a.has("rehearse"))
	}
	command := scheduler.SubmitJob{ID: workload.JobID(w.newID()), Spec: spec, SpecBytes: 100}
	if key := a.named["key"]; key != "" {
		command.Idempotency = &scheduler.IdempotencyKey{Principal: "ann", Method: "CreateJob", Key: key}
		command.RequestHash = [32]byte{0: byte(spec.Instances)}
	}
	answer := w.do(command)
	switch {
	case answer.Err != nil:
		return refusal(answer.Err)
	case answer.Existed:
		return "was there already: " + answer.Job.ID.String()[:4]
	}
	return ""
}

// newID draws the next identity.
func (w *world) newID() workload.ID {
	w.nextID++
	return workload.ID{0: byte(w.nextID), 1: byte(w.nextID >> 8)}
}

func refusal(err *scheduler.Error) string {
	text := err.Kind.String() + ": " + err.Error()
	if err.Field != "" {
		text = err.Field + ": " + text
	}
	return text
}

func (w *world) plan(spec *workload.JobSpec, rehearse bool) string {
	answer := w.do(scheduler.PlanJob{Spec: spec})
	if answer.Err != nil {
		return refusal(answer.Err)
	}
	p := answer.Plan
	if p == nil {
		return "no answer yet"
	}
	text := fmt.Sprintf("changes %d, checked %d, admitted %d, placeable %d", len(p.Changes), p.Checked, p.Admitted, p.Placeable)
	for _, name := range sortedKeys(mapOf(p.Hosts)) {
		text += fmt.Sprintf("\n%s %d", name, p.Hosts[name])
	}
	for _, r := range p.Pending {
		text += fmt.Sprintf("\n%s %d: %s", r.Kind, r.Instances, r.Message)
	}
	if v := p.Preemption; v != nil {
		text += fmt.Sprintf("\n%d would start after %v if %d made room:", v.Instances, v.Wait, v.Runs)
		for _, run := range v.Victims {
			text += fmt.Sprintf("\n  %s/%d on %s of %s: %s", run.Name, run.Instance, run.Host, run.Pool, run.Why)
		}
	}
	if !rehearse {
		return text
	}
	for n := range p.Rehearsals {
		r := &p.Rehearsals[n]
		text += fmt.Sprintf("\ncluster %s would be asked for %d: instance %d on %s, devices %v", r.Cluster, r.Instances, r.Launch.Run.Instance,
			r.Launch.Host, r.Launch.Devices)
		for _, key := range sortedKeys(r.Launch.Env) {
			text += fmt.Sprintf("\n  %s=%s", strings.TrimPrefix(key, "PACELINE_"), r.Launch.Env[key])
		}
	}
	return text
}

func mapOf(m map[string]int) map[string]string {
	keys := map[string]string{}
	for k := range m {
		keys[k] = ""
	}
	return keys
}

// job finds the newest job of a name; "/pool:name" tells apart those of different pools.
func (w *world) job(name string) scheduler.JobView {
	filter := scheduler.JobFilter{Name: name}
	if pool, short, ok := strings.Cut(name, ":"); ok {
		filter = scheduler.JobFilter{Name: short, Pools: []workload.PoolID{w.pool(pool).Pool.ID}}
	}
	jobs, _ := w.state.Reader().Jobs(0, 1<<20, filter)
	if len(jobs) == 0 {
		w.fatal(fmt.Sprintf("no job %s", name))
	}
	return jobs[len(jobs)-1]
}

func (w *world) pool(path string) scheduler.PoolView {
	if path == "" {
		path = "/default"
	}
	p, ok := w.state.Reader().Pool(path)
	if !ok {
		w.fatal(fmt.Sprintf("no pool %s", path))
	}
	return p
}

func (w *world) mutate(verb string, a arguments) string {
	name := a.word(w, 0)
	version := uint64(a.number(w, "version", 0))
	var answer scheduler.Answer
	switch verb {
	case "stop", "delete":
		answer = w.do(scheduler.StopJob{Job: w.job(name).ID, ExpectedVersion: version, Delete: verb == "delete"})
	case "restart":
		answer = w.do(scheduler.RestartJob{
			Job: w.job(name).ID, ExpectedVersion: version, Batch: uint32(a.number(w, "batch", 1)), Only: a.only(w), Grace: a.duration(w, "grace"),
			Gangs: strings.FieldsFunc(a.named["gangs"], func(r rune) bool { return r == ',' }),
		})
	case "drain", "undrain":
		cluster, host, _ := strings.Cut(name, "/")
		answer = w.do(scheduler.DrainHost{Host: shard.HostID(cluster, host), Draining: verb == "drain"})
	case "pool":
		answer = w.do(w.applyPool(name, version, a))
	case "delete-pool":
		answer = w.do(scheduler.DeletePool{Path: name, ExpectedVersion: version})
	case "move-pool":
		answer = w.do(scheduler.MovePool{Path: name, NewPath: a.word(w, 1), ExpectedVersion: version})
	}
	if answer.Err != nil {
		return refusal(answer.Err)
	}
	return ""
}

// planPools plans edits that are written as the commands that make them, with "then" in between.
func (w *world) planPools(words []string) string {
	var edits []scheduler.Command
	for _, one := range strings.Split(strings.Join(words, " "), " then ") {
		f := strings.Fields(one)
		a := parseArgs(f[1:])
		switch f[0] {
		case "pool":
			edits = append(edits, w.applyPool(a.word(w, 0), 0, a))
		case "move-pool":
			edits = append(edits, scheduler.MovePool{Path: a.word(w, 0), NewPath: a.word(w, 1)})
		case "delete-pool":
			edits = append(edits, scheduler.DeletePool{Path: a.word(w, 0)})
		}
	}
	effects, err := w.state.Reader().PlanPools(scheduler.Caller{Principal: "ann"}, edits)
	if err != nil {
		return refusal(err)
	}
	var out strings.Builder
	for n := range effects {
		e := &effects[n]
		out.WriteString(e.Path)
		switch {
		case e.Deleted:
			out.WriteString(" deleted")
		case e.OldPath == "":
			out.WriteString(" created")
		case e.OldPath != e.Path:
			out.WriteString(" from " + e.OldPath)
		case e.Changed:
			out.WriteString(" changed")
		}
		fmt.Fprintf(&out, " entitled %d then %d, uses %d, over by %d then %d\n", e.Before[resource.CPU], e.After[resource.CPU], e.Usage[resource.CPU],
			e.OverBefore[resource.CPU], e.OverAfter[resource.CPU])
		for _, j := range e.Exposed {
			fmt.Fprintf(&out, "  exposed: %s, %d of %d instances with %d\n", j.Name, j.Going, j.Instances, j.Usage[resource.CPU])
		}
		if e.ExposedJobs > 0 {
			fmt.Fprintf(&out, "  in all: %d jobs, %d runs\n", e.ExposedJobs, e.ExposedRuns)
		}
	}
	return out.String()
}

func (w *world) applyPool(path string, version uint64, a arguments) scheduler.ApplyPool {
	p := respool.Pool{Kind: respool.Elastic, Share: a.number(w, "share", 1), ReserveRest: a.has("rest")}
	if a.has("static") {
		p.Kind = respool.Static
	}
	p.Reservation[resource.CPU] = a.number(w, "cpu", 0)
	if _, ok := a.named["limit"]; ok {
		p.Limit = p.Limit.With(resource.CPU, a.number(w, "limit", 0))
	}
	if _, ok := a.named["user"]; ok {
		p.UserLimit = p.UserLimit.With(resource.CPU, a.number(w, "user", 0))
	}
	p.ControllerPercent, p.RevocablePercent = uint8(a.number(w, "controllers", 0)), uint8(a.number(w, "revocable", 0))
	p.Queue, p.PlacementPolicy = a.queue(w), a.named["policy"]
	return scheduler.ApplyPool{ID: workload.PoolID(w.newID()), Path: path, Pool: p, ExpectedVersion: version}
}

// queue reads "order=ORDER", "easy", "candidates=ORDER" (if it is another), "patience=TIME" and "half-life=TIME".
func (a arguments) queue(w *world) respool.QueuePolicy {
	order := func(name string, otherwise respool.Order) respool.Order {
		text, given := a.named[name]
		if !given {
			return otherwise
		}
		o, known := respool.ParseOrder(text)
		if !known {
			w.fatal(fmt.Sprintf("order %q", text))
		}
		return o
	}
	q := respool.QueuePolicy{Order: order("order", respool.OrderPriorityFIFO), Patience: a.duration(w, "patience"), UsageHalfLife: a.duration(w, "half-life")}
	q.Candidates = order("candidates", q.Order)
	if a.has("easy") {
		q.Backfill = respool.BackfillEASY
	}
	return q
}
