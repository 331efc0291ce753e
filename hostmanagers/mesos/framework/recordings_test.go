package framework_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"

	mesos "github.com/mesos/mesos-go/api/v1/lib"
	"github.com/mesos/mesos-go/api/v1/lib/scheduler"

	"github.com/paceline-sched/paceline/core/driver"
	"github.com/paceline-sched/paceline/core/workload"
	"github.com/paceline-sched/paceline/hostmanagers/mesos/framework"
	"github.com/paceline-sched/paceline/hostmanagers/mesos/recordings"
)

// ids gives recorded tasks, whose names are words, the ids of runs: the machine kills tasks with other names.
type ids struct {
	runs  map[string]workload.RunID
	names map[workload.RunID]string
}

func (i *ids) of(name string) workload.RunID {
	id, known := i.runs[name]
	if !known {
		id = workload.RunID{Job: workload.JobID{7}, Instance: uint32(len(i.runs)), Generation: 1, Run: 1} //nolint:gosec // a few
		i.runs[name], i.names[id] = id, name
	}
	return id
}

// recorded reads the events of a stage, as the master wrote them in protobuf, with the seconds at which they came.
func recorded(t *testing.T, archive *recordings.Archive, stage string) (events []*scheduler.Event, at []float64) {
	t.Helper()
	raw := archive.File("protobuf/" + stage + ".events.recordio.bin")
	for reader := bytes.NewBuffer(raw); ; {
		length, err := reader.ReadString('\n')
		if errors.Is(err, io.EOF) {
			break
		}
		n, err := strconv.Atoi(strings.TrimSpace(length))
		if err != nil {
			t.Fatalf("%s: %v", stage, err)
		}
		e := new(scheduler.Event)
		if err := e.Unmarshal(reader.Next(n)); err != nil {
			t.Fatalf("%s: %v", stage, err)
		}
		events = append(events, e)
	}
	lines, _, err := archive.Events("protobuf/" + stage)
	if err != nil || len(lines) < len(events) {
		t.Fatalf("%s: %d events and %d lines, %v", stage, len(events), len(lines), err)
	}
	for i := range events {
		at = append(at, lines[i].Seconds)
	}
	return events, at
}

// hearRecording gives a machine a recorded stream, launches nothing, and returns the last state of each task by its recorded name.
func hearRecording(t *testing.T, archive *recordings.Archive, stage string) map[string]driver.Status {
	t.Helper()
	machine, err := framework.New(framework.Config{Roles: []string{"rec"}})
	if err != nil {
		t.Fatal(err)
	}
	tasks := &ids{map[string]workload.RunID{}, map[workload.RunID]string{}}
	last := map[string]driver.Status{}
	var out framework.Output
	var tokens []driver.Token
	note := func(statuses []driver.Status) {
		for _, s := range statuses {
			name := tasks.names[s.Run]
			// An id may be used again, so only another end is a contradiction.
			if before := last[name]; before.State.Traits().Terminal && s.State.Traits().Terminal && before.State != s.State && s.Token != 0 {
				t.Errorf("%s: task %s ended as %s and then as %s", stage, name, before.State, s.State)
			}
			last[name] = s
			tokens = append(tokens, s.Token)
		}
	}
	take := func() {
		for _, n := range out.News {
			if n.Inventory != nil {
				note(n.Inventory.Runs)
			}
			note(n.Statuses)
		}
	}
	start := began.UnixNano()
	events, at := recorded(t, archive, stage)
	for i, e := range events {
		now := start + int64(at[i]*1e9)
		if e.Subscribed != nil {
			machine.Subscribed(now, e.Subscribed.GetMasterInfo().GetID(), &out)
			take()
			machine.Learn(now, &framework.Census{}, &out)
			take()
			machine.Event(now, &scheduler.Event{Update: &scheduler.Event_Update{Status: markerAnswer(now)}}, &out)
			take()
			continue
		}
		if e.Update != nil {
			name := e.Update.Status.TaskID.Value
			e.Update.Status.TaskID.Value = tasks.of(name).String()
		}
		machine.Event(now, e, &out)
		take()
		machine.Acknowledge(now, tokens, &out)
		take()
		tokens = tokens[:0]
	}
	machine.Wake(start+int64(at[len(at)-1]*1e9)+int64(10e9), &out)
	take()
	return last
}

func markerAnswer(now int64) mesos.TaskStatus {
	return mesos.TaskStatus{
		TaskID: mesos.TaskID{Value: "paceline.end-of-reconciliation." + strconv.FormatInt(now, 10)}, State: mesos.TASK_UNKNOWN.Enum(),
	}
}

// finalStates reads from the recorded JSON what the last word on each task was, but for answers about tasks that are over.
func finalStates(t *testing.T, archive *recordings.Archive, stage string) map[string]string {
	t.Helper()
	lines, _, err := archive.Events("protobuf/" + stage)
	if err != nil {
		t.Fatal(err)
	}
	final := map[string]string{}
	for _, line := range lines {
		var e struct {
			Update struct {
				Status struct {
					TaskID  struct{ Value string } `json:"task_id"`
					State   string
					Message string
				}
			}
		}
		if err := json.Unmarshal(line.JSON, &e); err != nil {
			t.Fatal(err)
		}
		s := e.Update.Status
		if s.State == "" || s.State == "TASK_GONE" && final[s.TaskID.Value] != "" || strings.HasPrefix(s.Message, "Task has duplicate ID") && final[s.TaskID.Value] != "" {
			continue
		}
		final[s.TaskID.Value] = s.State
	}
	return final
}

// TestRecordedStreams lets the machine hear what a real master said, stage by stage: every task ends, in the core's words, as the master said that it
// did.
func TestRecordedStreams(t *testing.T) {
	t.Parallel()
	archive, err := recordings.Load()
	if err != nil {
		t.Fatal(err)
	}
	means := map[string][]workload.RunState{
		"TASK_STAGING": {workload.RunStarting}, "TASK_STARTING": {workload.RunStarting}, "TASK_RUNNING": {workload.RunRunning},
		"TASK_KILLING": {workload.RunKilling}, "TASK_FINISHED": {workload.RunSucceeded}, "TASK_FAILED": {workload.RunFailed},
		"TASK_KILLED": {workload.RunKilled, workload.RunFailed, workload.RunLost}, "TASK_ERROR": {workload.RunFailed}, "TASK_LOST": {workload.RunLost},
		"TASK_DROPPED": {workload.RunLost}, "TASK_UNREACHABLE": {workload.RunUnreachable}, "TASK_GONE": {workload.RunLost},
		"TASK_GONE_BY_OPERATOR": {workload.RunLost}, "TASK_UNKNOWN": {workload.RunLost},
	}
	stages, told := 0, 0
	for _, file := range archive.Names("protobuf/") {
		stage, ok := strings.CutSuffix(strings.TrimPrefix(file, "protobuf/"), ".events.recordio.bin")
		if !ok || archive.File("protobuf/"+stage+".events.jsonl") == nil || stage == "16-operator-subscribe" { // the operator's stream is not a framework's
			continue
		}
		stages++
		last := hearRecording(t, archive, stage)
		final := finalStates(t, archive, stage)
		for _, name := range slices.Sorted(maps.Keys(final)) {
			got, known := last[name]
			if !known {
				continue // an answer about a task that is none of the framework's, or an end that was never under way
			}
			told++
			if !slices.Contains(means[final[name]], got.State) {
				t.Errorf("%s: task %s was last %s, and is told as %s", stage, name, final[name], got.State)
			}
		}
	}
	if stages < 40 || told < 60 {
		t.Errorf("only %d stages with %d tasks were heard", stages, told)
	}
	t.Logf("%d stages, %d tasks", stages, told)
}

// TestStage02 names what is told of the tasks that stage launched, one of a kind each.
func TestStage02(t *testing.T) {
	t.Parallel()
	archive, err := recordings.Load()
	if err != nil {
		t.Fatal(err)
	}
	type end struct {
		state        workload.RunState
		reason       workload.Reason
		code, signal int32
	}
	want := map[string]end{
		"t-check":  {workload.RunFailed, workload.ReasonUnhealthy, 0, 15},
		"t-fail":   {workload.RunFailed, workload.ReasonExited, 3, 0},
		"t-fetch":  {workload.RunFailed, workload.ReasonLaunchFailed, 0, 0},
		"t-finish": {workload.RunSucceeded, workload.ReasonExited, 0, 0},
		"t-kill":   {workload.RunKilled, workload.ReasonNone, 0, 15},
		"t-nocmd":  {workload.RunFailed, workload.ReasonExited, 1, 0},
		"t-signal": {workload.RunFailed, workload.ReasonSignalled, 0, 9},
		"t-term":   {workload.RunKilled, workload.ReasonNone, 0, 9},
	}
	got := map[string]end{}
	for name, s := range hearRecording(t, archive, "02-launch") {
		got[name] = end{s.State, s.Reason, s.ExitCode, s.Signal}
		if s.Message == "" || s.At.IsZero() {
			t.Errorf("%s is told without words or time: %+v", name, s)
		}
	}
	if !maps.Equal(got, want) {
		t.Errorf("told %v\nwant %v", got, want)
	}
}
