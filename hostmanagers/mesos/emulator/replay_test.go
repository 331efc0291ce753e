package emulator_test

import (
	"cmp"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	mesos "github.com/mesos/mesos-go/api/v1/lib"

	"github.com/paceline-sched/paceline/hostmanagers/mesos/emulator"
	"github.com/paceline-sched/paceline/hostmanagers/mesos/emulator/cluster"
	"github.com/paceline-sched/paceline/hostmanagers/mesos/emulator/wire"
	"github.com/paceline-sched/paceline/hostmanagers/mesos/recordings"
)

// TestReplay sends the emulator what was sent to a real master, at the same times, and holds every answer and every event to the recording.
func TestReplay(t *testing.T) {
	archive, err := recordings.Load()
	if err != nil {
		t.Fatal(err)
	}
	for _, enc := range []string{"json", "protobuf"} {
		for _, s := range scripts {
			if enc == "protobuf" && s.onlyJSON {
				continue
			}
			t.Run(enc+"/"+s.name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { replay(t, archive, enc, &s) })
			})
		}
	}
}

// action is something that happens at a time of a replay.
type action struct {
	at float64
	do func()
}

// replay plays one script.
func replay(t *testing.T, archive *recordings.Archive, enc string, s *script) {
	w := &world{t: t, archive: archive, pipes: newPipes(), start: time.Now(), ids: map[string]string{}, uuids: map[string]string{}, agents: map[string]string{}, enc: enc}
	scene := readScene(t, archive, enc, s)
	w.scene = scene
	if cost := s.allocation[enc]; cost > 0 {
		scene.cfg.AllocationTime = cost
	}
	if s.config != nil {
		s.config(&scene.cfg)
	}
	scene.cfg.Behave = w.behave(s, scene)
	scene.cfg.Order = w.order
	var err error
	if w.emulator, err = emulator.New(emulator.Config{Cluster: scene.cfg}); err != nil {
		t.Fatal(err)
	}
	w.work.Go(func() { _ = w.emulator.Serve(w.pipes) })
	w.emulator.Do(func(c *cluster.Cluster) {
		for _, a := range scene.agents {
			w.agents[a.Hostname] = c.AddAgent(a)
		}
	})
	actions := w.plan(s, resolve(t, archive, enc, s, scene.cfg.FirstAllocation))
	slices.SortStableFunc(actions, func(a, b action) int { return cmp.Compare(a.at, b.at) })
	for _, a := range actions {
		time.Sleep(time.Until(w.start.Add(seconds(a.at))))
		synctest.Wait()
		a.do()
		synctest.Wait()
	}
	time.Sleep(10 * time.Millisecond)
	synctest.Wait()
	w.emulator.Close()
	w.work.Wait()
	for _, sub := range w.subs {
		i := slices.IndexFunc(s.streams, func(st stream) bool { return enc+"/"+st.stage == sub.stage })
		compareStreams(t, sub, s.streams[i].drop > 0)
	}
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// plan arranges a script's streams, their calls, and its steps by time.
func (w *world) plan(s *script, streams []stream) []action {
	var actions []action
	for _, stream := range streams {
		stage := w.enc + "/" + stream.stage
		var sub *subscriber
		opens := stream.opens
		acknowledges := func(task, state string) bool { return stream.acknowledges(w.enc, task, state) }
		actions = append(actions, action{opens, func() { sub = w.subscribe(stage, acknowledges) }})
		calls, err := w.archive.Calls(stage)
		if err != nil {
			w.t.Fatal(err)
		}
		for _, call := range calls {
			if automatic.MatchString(call.Label) {
				continue
			}
			actions = append(actions, action{opens + call.Seconds, func() { w.send(stage + "." + call.Label) }})
		}
		if stream.drop > 0 {
			actions = append(actions, action{opens + stream.drop, func() { _ = sub.conn.Close() }})
		}
	}
	for _, step := range s.steps {
		at := step.at + anchor(w.t, w.archive, w.enc, step.after)
		if len(s.streams) > 1 && step.after != "" {
			at += openedAt(streams, step.after)
		}
		actions = append(actions, action{at, func() { step.do(w) }})
	}
	return actions
}

func openedAt(streams []stream, reference string) float64 {
	stage, _, _ := strings.Cut(reference, " ")
	for _, stream := range streams {
		if stream.stage == stage {
			return stream.opens
		}
	}
	return 0
}

// resolve gives streams that follow others, or the allocator's clock, their times.
func resolve(t *testing.T, archive *recordings.Archive, enc string, s *script, phase time.Duration) []stream {
	t.Helper()
	streams := slices.Clone(s.streams)
	for i := range streams {
		stream := &streams[i]
		if stream.after != "" {
			stream.opens += anchor(t, archive, enc, stream.after) + openedAt(streams[:i], stream.after)
		}
		if len(stream.align) == 0 {
			continue
		}
		offers := stream.opens
		for _, reference := range stream.align {
			offers += anchor(t, archive, enc, reference)
		}
		interval := (time.Second + 1700*time.Microsecond).Seconds()
		tick := phase.Seconds()
		for tick < offers {
			tick += interval
		}
		stream.opens += tick + 0.006 - offers
	}
	return streams
}

// anchor is when something was recorded, as "02-launch RESCIND#1": the first such event, or update to such a state, of the stage.
func anchor(t *testing.T, archive *recordings.Archive, enc, reference string) float64 {
	t.Helper()
	if reference == "" {
		return 0
	}
	stage, what, _ := strings.Cut(reference, " ")
	kind, number, _ := strings.Cut(what, "#")
	left, _ := strconv.Atoi(number) // negative: from the end
	events := slices.Clone(recordedEvents(t, archive, enc+"/"+stage).events)
	if left < 0 {
		left = -left
		slices.Reverse(events)
	}
	for _, e := range events {
		event := e.event
		if event["type"] == kind || at(event, "update", "status", "state") == kind ||
			at(event, "update", "status", "reason") == kind {
			if left--; left <= 0 {
				return e.at
			}
		}
	}
	t.Fatalf("the recording has no %s", reference)
	return 0
}

// automatic are the acknowledgements that a recorded framework made by itself.
var automatic = regexp.MustCompile(`^ack-\d+$`)

// scene is what a recording says of its cluster.
type scene struct {
	cfg    cluster.Config
	agents []cluster.Agent
	tasks  map[string][]*taskTimes // one for each launch
	begun  map[string]int
}

// taskTimes is when what happened to a task, in seconds of its stage.
type taskTimes struct {
	accepted, starting, running, killing, over float64
	asked                                      float64 // to be killed
	state, message                             string
	checks                                     []cluster.CheckResult
}

// readScene finds out which cluster a script needs, so that ids are the same.
func readScene(t *testing.T, archive *recordings.Archive, enc string, s *script) *scene {
	sc := &scene{tasks: map[string][]*taskTimes{}, begun: map[string]int{}}
	agents := map[string]cluster.Agent{}
	for _, stream := range s.streams {
		sc.acceptTimes(t, archive, enc+"/"+stream.stage, stream.opens)
	}
	for _, stream := range s.streams {
		for _, e := range recordedEvents(t, archive, enc+"/"+stream.stage).events {
			event := e.event
			switch event["type"] {
			case "SUBSCRIBED":
				sc.master(event)
			case "OFFERS":
				for _, o := range at(event, "offers", "offers").([]any) {
					addAgent(agents, o)
				}
			case "UPDATE":
				sc.update(at(event, "update", "status").(map[string]any), stream.opens+e.at)
			}
		}
	}
	if sc.cfg.FirstAllocation = seconds(s.tick[enc]); s.tick == nil {
		sc.cfg.FirstAllocation = findTick(t, archive, enc, s)
	}
	if !s.alone {
		for n, host := range []string{"agent-1.local", "agent-2.local"} {
			if _, ok := agents[host]; !ok {
				agents[host] = cluster.Agent{ID: sc.cfg.MasterID + "-S" + strconv.Itoa(7+n), Hostname: host, Port: 5051 + n, Resources: plainAgent()}
			}
		}
	}
	for _, host := range []string{"agent-1.local", "agent-2.local"} {
		if a, ok := agents[host]; ok {
			if s.agent != nil {
				s.agent(&a)
			}
			sc.agents = append(sc.agents, a)
		}
	}
	return sc
}

func (sc *scene) master(event map[string]any) {
	if sc.cfg.MasterID != "" {
		return
	}
	info := at(event, "subscribed", "master_info")
	sc.cfg.MasterID = fmt.Sprint(at(info, "id"))
	sc.cfg.Port = int(at(info, "port").(float64))
	id := fmt.Sprint(at(event, "subscribed", "framework_id", "value"))
	if number, ok := strings.CutPrefix(id, sc.cfg.MasterID+"-"); ok {
		sc.cfg.FirstFramework, _ = strconv.Atoi(number)
	}
	if domain := at(info, "domain"); domain != nil {
		sc.cfg.Domain = &mesos.DomainInfo{}
		_ = wire.Assign(sc.cfg.Domain, reparse(domain))
	}
}

// findTick finds the phase of the recorded allocator: the first offers that no call or return explains came with its clock.
func findTick(t *testing.T, archive *recordings.Archive, enc string, s *script) time.Duration {
	t.Helper()
	for _, stream := range s.streams {
		calls, err := archive.Calls(enc + "/" + stream.stage)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range recordedEvents(t, archive, enc+"/"+stream.stage).events {
			revived := slices.ContainsFunc(calls, func(c recordings.Call) bool {
				return c.Type == "REVIVE" && e.at >= c.Seconds && e.at < c.Seconds+0.05
			})
			if e.at < 0.07 || revived || e.event["type"] != "OFFERS" {
				continue
			}
			interval := time.Second + 1700*time.Microsecond
			return (seconds(stream.opens+e.at)-6*time.Millisecond)%interval + time.Millisecond
		}
	}
	return 500 * time.Millisecond
}

func reparse(value any) any {
	parsed, _ := wire.ParseJSON([]byte(asJSON(value)))
	return parsed
}

// plainAgent are the resources of the recorded agents.
func plainAgent() []mesos.Resource {
	scalar := func(name string, value float64) mesos.Resource {
		return mesos.Resource{Name: name, Type: mesos.SCALAR.Enum(), Scalar: &mesos.Value_Scalar{Value: value}}
	}
	return []mesos.Resource{
		scalar("cpus", 8), scalar("mem", 16384), scalar("disk", 100000),
		{Name: "ports", Type: mesos.RANGES.Enum(), Ranges: &mesos.Value_Ranges{Range: []mesos.Value_Range{{Begin: 31000, End: 32000}}}},
	}
}

// addAgent takes an agent from the first offer of it.
func addAgent(agents map[string]cluster.Agent, o any) {
	offer := &mesos.Offer{}
	if err := wire.Assign(offer, reparse(o)); err != nil {
		panic(err)
	}
	if _, known := agents[offer.Hostname]; known {
		return
	}
	resources := plainAgent()
	if offer.Hostname == "agent-1.local" && len(offer.Resources) > 6 || strings.Contains(asJSON(o), "revocable") || offer.Domain != nil {
		resources = offer.Resources
		for i := range resources {
			resources[i].AllocationInfo = nil
		}
	}
	agents[offer.Hostname] = cluster.Agent{
		ID: offer.AgentID.Value, Hostname: offer.Hostname, Port: int(offer.URL.Address.Port), Resources: resources, Attributes: offer.Attributes,
		Domain: offer.Domain,
	}
}

// task returns the latest launch of a task that had happened at a time.
func (sc *scene) task(id string, at float64, starting bool) *taskTimes {
	launches := sc.tasks[id]
	for _, begun := range []bool{!starting, false} { // one that was refused has no process
		for i := len(launches) - 1; i >= 0; i-- {
			if launches[i].accepted <= at && (launches[i].starting > 0 || !begun) {
				return launches[i]
			}
		}
	}
	sc.tasks[id] = append(launches, &taskTimes{})
	return sc.tasks[id][len(launches)]
}

// update learns when a task's process did what.
func (sc *scene) update(status map[string]any, at float64) {
	if source := status["source"]; source == "SOURCE_MASTER" || status["reason"] == "REASON_EXECUTOR_TERMINATED" {
		return
	}
	id, _ := status["task_id"].(map[string]any)["value"].(string)
	state := fmt.Sprint(status["state"])
	times := sc.task(id, at, state == "TASK_STARTING")
	switch reason := status["reason"]; {
	case state == "TASK_STARTING" && times.starting == 0:
		times.starting = at
	case state == "TASK_RUNNING" && (reason == "REASON_TASK_HEALTH_CHECK_STATUS_UPDATED" || reason == "REASON_TASK_CHECK_STATUS_UPDATED"):
		times.checks = append(times.checks, cluster.CheckResult{After: seconds(at - times.running), ExitCode: exitCode(status)})
	case state == "TASK_RUNNING" && times.running == 0:
		times.running = at
	case state == "TASK_KILLING":
		times.killing = at
	case times.over == 0 && state != "TASK_RUNNING" && state != "TASK_STARTING":
		times.over, times.state = at, state
		times.message, _ = status["message"].(string)
	}
}

func exitCode(status map[string]any) int {
	if code, ok := at(status, "check_status", "command", "exit_code").(float64); ok {
		return int(code)
	}
	if status["healthy"] == false {
		return 1
	}
	return 0
}

// acceptTimes learns when tasks were launched.
func (sc *scene) acceptTimes(t *testing.T, archive *recordings.Archive, stage string, opens float64) {
	t.Helper()
	calls, err := archive.Calls(stage)
	if err != nil {
		t.Fatal(err)
	}
	for _, call := range calls {
		request := archive.File(stage + "." + call.Label + ".request.json")
		if call.Type == "KILL" {
			for _, launch := range sc.tasks[string(taskIDs.FindSubmatch(request)[1])] {
				launch.asked = opens + call.Seconds
			}
		}
		if call.Type != "ACCEPT" {
			continue
		}
		seen := map[string]bool{}
		for _, id := range taskIDs.FindAllSubmatch(request, -1) {
			if seen[string(id[1])] {
				continue
			}
			seen[string(id[1])] = true
			sc.tasks[string(id[1])] = append(sc.tasks[string(id[1])], &taskTimes{accepted: opens + call.Seconds})
		}
	}
}

var taskIDs = regexp.MustCompile(`"task_id":\s*\{\s*"value":\s*"([^"]+)"`)

// behave gives every process the times of the recorded one: how fast they are is the machine's business, not the master's.
func (w *world) behave(s *script, sc *scene) func(*mesos.TaskInfo) cluster.Behaviour {
	return func(info *mesos.TaskInfo) cluster.Behaviour {
		id := info.TaskID.Value
		times := sc.launch(id)
		b := cluster.Behaviour{
			Start: seconds(times.starting - times.accepted), Run: seconds(times.running - times.starting), For: cluster.Forever,
			Checks: times.checks, Term: 10 * time.Millisecond,
		}
		byItself := times.over > 0 && times.killing == 0 && times.state != "TASK_KILLED"
		if byItself {
			b.For = seconds(times.over - times.running)
		} else if times.killing > 0 && strings.HasSuffix(times.message, "Terminated") {
			b.Term, b.EndSignal = seconds(times.over-times.killing), int(syscall.SIGTERM)
		} else if times.killing > 0 && !strings.HasPrefix(info.GetCommand().GetValue(), "trap") {
			b.Term, b.EndSignal = seconds(times.over-times.killing), int(syscall.SIGKILL)
		} else if times.asked > 0 && times.asked < times.over && times.killing == 0 {
			b.Term = seconds(times.over - times.asked)
		}
		if times.starting == 0 {
			b.Start, b.Run = seconds(times.over-times.accepted), 0
		}
		b.FetchFails = len(info.GetCommand().GetURIs()) > 0
		b.IgnoresTerm = strings.HasPrefix(info.GetCommand().GetValue(), "trap")
		if code, ok := strings.CutPrefix(times.message, "Command exited with status "); ok {
			b.Status.Code, _ = strconv.Atoi(code)
		}
		if byItself && strings.HasSuffix(times.message, "signal Killed") {
			b.Status.Signal = int(syscall.SIGKILL)
		}
		if info.MaxCompletionTime != nil {
			b.For = cluster.Forever
		}
		if s.adjust != nil {
			s.adjust(id, &b)
		}
		return b
	}
}

// order puts agents in the order of the offers that the recording has next; a real master shuffles.
func (w *world) order(hostnames []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, s := range slices.Backward(w.subs) {
		next := w.nextOffers(s)
		if next == nil {
			continue
		}
		theirs := offersByHost(next)
		slices.SortFunc(hostnames, func(a, b string) int {
			return cmp.Or(cmp.Compare(roleOf(next, a), roleOf(next, b)), cmp.Compare(len(theirs[a]), len(theirs[b])), cmp.Compare(theirs[a], theirs[b]))
		})
		return
	}
}

func roleOf(event map[string]any, host string) string {
	offers, _ := at(event, "offers", "offers").([]any)
	for _, o := range offers {
		if at(o, "hostname") == host {
			return fmt.Sprint(at(o, "allocation_info", "role"))
		}
	}
	return ""
}

// launch returns the times of the next launch of a task that led to a process.
func (sc *scene) launch(id string) *taskTimes {
	for sc.begun[id] < len(sc.tasks[id]) {
		times := sc.tasks[id][sc.begun[id]]
		sc.begun[id]++
		if times.starting > 0 || times.over > 0 || sc.begun[id] == len(sc.tasks[id]) {
			return times
		}
	}
	return &taskTimes{}
}

// TestEveryStageIsReplayedOrExcused counts what the replay covers.
func TestEveryStageIsReplayedOrExcused(t *testing.T) {
	archive, err := recordings.Load()
	if err != nil {
		t.Fatal(err)
	}
	numbers, covered := map[string]bool{}, map[string]bool{}
	for _, name := range archive.Names("json/") {
		numbers[stageNumber.FindString(path.Base(name))] = true
	}
	numbers["17"], numbers["28"] = true, true // mesos-go/
	for _, s := range scripts {
		covered[s.name] = true
	}
	for number := range numbers {
		if covered[number] == (leftOut[number] != "") {
			t.Errorf("stage %s: replayed %v, left out because of %q: it must be one of them", number, covered[number], leftOut[number])
		}
	}
	if got := float64(len(covered)) / float64(len(numbers)); got < 0.9 {
		t.Errorf("%d of %d stages are replayed; at least nine in ten must be", len(covered), len(numbers))
	}
	t.Logf("%d of %d stages are replayed", len(covered), len(numbers))
}

var stageNumber = regexp.MustCompile(`^\d+(b-task)?`)
