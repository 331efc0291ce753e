package master_test

import (
	"bufio"
	"bytes"
	"errors"
	"regexp"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/mesos/mesos-go/api/v1/lib/scheduler"

	"github.com/paceline-sched/paceline/hostmanagers/mesos/emulator/wire"
	"github.com/paceline-sched/paceline/hostmanagers/mesos/master"
	"github.com/paceline-sched/paceline/hostmanagers/mesos/recordings"
)

// archive is what was recorded, unpacked once.
var archive = sync.OnceValues(recordings.Load)

// TestRecordedStreams plays every byte that a real master sent to a subscriber in protobuf, and holds what the handler hears to what was
// decoded when it was recorded: every event, in order, field by field.
func TestRecordedStreams(t *testing.T) {
	t.Parallel()
	recorded, err := archive()
	if err != nil {
		t.Fatal(err)
	}
	streams, events := 0, 0
	for _, name := range recorded.Names("protobuf/") {
		stage, ok := strings.CutSuffix(name, ".response.http.bin")
		if !ok || strings.Contains(stage, "operator") {
			continue
		}
		if recorded.File(stage+".events.jsonl") == nil {
			continue // the first bytes of a stream, kept for its head
		}
		lines, _, err := recorded.Events(stage)
		if err != nil {
			t.Fatal(err)
		}
		var want []*scheduler.Event
		for _, line := range lines {
			want = append(want, decoded(t, stage, line.JSON))
		}
		t.Run(strings.TrimPrefix(stage, "protobuf/"), func(t *testing.T) {
			virtual(t, func(t *testing.T) { playRecorded(t, recorded.File(name), want) })
		})
		streams, events = streams+1, events+len(want)
	}
	if streams < 40 || events < 450 {
		t.Errorf("only %d streams with %d events were played", streams, events)
	}
	t.Logf("%d streams, %d events", streams, events)
}

// quotedNumber is a number of 64 bits as the recorder wrote it.
var quotedNumber = regexp.MustCompile(`("(?:begin|end|nanoseconds)": *)"(\d+)"`)

// decoded reads an event that was decoded when it was recorded.
func decoded(t testing.TB, stage string, text []byte) *scheduler.Event {
	t.Helper()
	event := new(scheduler.Event)
	parsed, err := wire.ParseJSON(quotedNumber.ReplaceAll(text, []byte("$1$2")))
	if err == nil {
		err = wire.Assign(event, parsed)
	}
	if err != nil {
		t.Fatalf("%s: %s: %v", stage, text, err)
	}
	return event
}

func playRecorded(t *testing.T, stream []byte, want []*scheduler.Event) {
	t.Helper()
	f, _ := play(t, &script{stream: func(attempt int) string {
		if attempt > 1 {
			return refuse(503, "No leader elected") + "!"
		}
		return string(stream) + "!"
	}}, master.Config{})
	synctest.Wait()
	f.mu.Lock()
	defer f.mu.Unlock()
	heard := f.events
	for i, event := range want {
		switch event.Type {
		case scheduler.Event_SUBSCRIBED:
			if len(f.ids) != 1 || f.ids[0] != event.Subscribed.FrameworkID.Value {
				t.Fatalf("subscribed as %q, want %s: %v", f.ids, event.Subscribed.FrameworkID.Value, f.Status().Err)
			}
		case scheduler.Event_HEARTBEAT:
		case scheduler.Event_ERROR:
			toldOf(t, f, i, event.Error.Message)
		default:
			if len(heard) == 0 {
				t.Fatalf("event %d, %s, is missing", i, event.Type)
			}
			if got, want := wire.AppendJSON(nil, heard[0]), wire.AppendJSON(nil, event); !bytes.Equal(got, want) {
				t.Fatalf("event %d is\n%s\nwant\n%s", i, got, want)
			}
			heard = heard[1:]
		}
	}
	if len(heard) > 0 {
		t.Fatalf("%d events more than were recorded", len(heard))
	}
}

// toldOf holds that an ERROR event at that place of a stream was told.
func toldOf(t *testing.T, f *framework, at int, message string) {
	t.Helper()
	var told error
	switch {
	case at > 0:
		told = f.lost[0]
	default:
		told = <-f.ended
	}
	want := map[string]error{"Framework has been removed": master.ErrRemoved, "Framework failed over": master.ErrReplaced}[message]
	var refused *master.RefusedError
	if want != nil && errors.Is(told, want) || want == nil && errors.As(told, &refused) && refused.Text == message {
		return
	}
	t.Errorf("ERROR %q was told as %v", message, told)
}

// TestRecordedAnswers holds the pipe to a real master's answers to calls of mesos-go, as they came over one connection.
func TestRecordedAnswers(t *testing.T) {
	recorded, err := archive()
	if err != nil {
		t.Fatal(err)
	}
	virtual(t, func(t *testing.T) {
		stream := recorded.File("mesos-go/17-protobuf.conn-01.received.http.bin")
		answers := recorded.File("mesos-go/17-protobuf.conn-02.received.http.bin")
		count := bytes.Count(answers, []byte("HTTP/1.1 "))
		id := "25c123ec-c6a9-469e-b95a-63bdd264f495-0006"
		_, streamID, _ := strings.Cut(string(stream), "Mesos-Stream-Id: ")
		streamID, _, _ = strings.Cut(streamID, "\r\n")
		asked := 0
		f, _ := play(t, &script{
			stream:    func(int) string { return strings.TrimSuffix(string(stream), "0\r\n\r\n") }, // which the framework's last call caused
			framework: id, streamID: streamID,
			answer: func(*scheduler.Call, *bufio.Reader) string {
				if asked++; asked > 1 {
					return "HTTP/1.1 100 Continue\r\n\r\n" // all answers went out at once
				}
				return string(answers)
			},
		}, master.Config{})
		calls := make([]*scheduler.Call, count)
		for i := range calls {
			calls[i] = revive()
		}
		if errs := f.Send(t.Context(), calls...); errs != nil || count < 5 {
			t.Fatalf("%d recorded answers were read as %v", count, errs)
		}
		if f.heard(scheduler.Event_OFFERS) == 0 || f.heard(scheduler.Event_UPDATE) == 0 {
			t.Fatalf("%d events were heard", len(f.events))
		}
	})
}

// TestRecordedAgents reads a real master's list of agents.
func TestRecordedAgents(t *testing.T) {
	recorded, err := archive()
	if err != nil {
		t.Fatal(err)
	}
	virtual(t, func(t *testing.T) {
		f, _ := play(t, &script{operator: string(recorded.File("protobuf/16-operator.v1-get-agents.response.http"))}, master.Config{})
		agents, err := f.Agents(t.Context())
		if err != nil || len(agents) != 2 {
			t.Fatalf("%d agents (%v)", len(agents), err)
		}
		for _, a := range agents {
			if !a.Active || !strings.HasSuffix(a.AgentInfo.Hostname, ".local") || len(a.AgentInfo.Attributes) < 2 || len(a.TotalResources) < 4 {
				t.Errorf("agent %+v", a)
			}
		}
	})
}
