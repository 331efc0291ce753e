package mesos_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/paceline-sched/paceline/hostmanagers/mesos/recordio"
)

const (
	schedulerPath = "/api/v1/scheduler"
	jsonType      = "application/json"
	protobufType  = "application/x-protobuf"
)

// subscription is one framework's stream, read by its own goroutine.
type subscription struct {
	t         testing.TB
	url       string
	response  *http.Response
	framework string
	events    chan map[string]any // closed at the end of the stream
	cancel    context.CancelFunc
}

// framework describes the test's own, with an id if it has one.
func frameworkInfo(id string) string {
	if id != "" {
		id = fmt.Sprintf(`"id":{"value":%q},`, id)
	}
	return `{` + id + `"user":"root","name":"conformance","roles":["` + role + `"],"failover_timeout":60,"checkpoint":true,` +
		`"capabilities":[{"type":"MULTI_ROLE"},{"type":"PARTITION_AWARE"},{"type":"RESERVATION_REFINEMENT"}]}`
}

func subscribe(t testing.TB, url, id string) *subscription {
	t.Helper()
	outer := ""
	if id != "" {
		outer = fmt.Sprintf(`"framework_id":{"value":%q},`, id)
	}
	ctx, cancel := context.WithCancel(t.Context())
	body := `{` + outer + `"type":"SUBSCRIBE","subscribe":{"framework_info":` + frameworkInfo(id) + `}}`
	s := &subscription{t: t, url: url, events: make(chan map[string]any, 1000), cancel: cancel}
	s.response = send(ctx, t, http.MethodPost, url+schedulerPath, map[string]string{"Content-Type": jsonType, "Accept": jsonType}, body) //nolint:bodyclose // the cleanup closes it
	if s.response.StatusCode != http.StatusOK || s.response.Header.Get("Mesos-Stream-Id") == "" || s.response.Header.Get("Content-Type") != jsonType {
		t.Fatalf("SUBSCRIBE is answered with %d, %v", s.response.StatusCode, s.response.Header)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer close(s.events)
		for records := recordio.NewReader(s.response.Body); ; {
			record, err := records.Next()
			if err != nil {
				return
			}
			var event map[string]any
			if err := json.Unmarshal(record, &event); err != nil {
				t.Errorf("an event cannot be read: %v", err)
			}
			s.events <- event
		}
	}()
	t.Cleanup(func() {
		cancel()
		_ = s.response.Body.Close()
		<-done
	})
	return s
}

// next waits for an event of a type and skips others; "": the end of the stream.
func (s *subscription) next(kind string) map[string]any {
	s.t.Helper()
	late := time.NewTimer(2 * time.Minute)
	defer late.Stop()
	for {
		select {
		case event, ok := <-s.events:
			if ok && event["type"] == kind || !ok && kind == "" {
				return event
			}
			if !ok {
				s.t.Fatalf("the stream ended before %s", kind)
			}
		case <-late.C:
			s.t.Fatalf("no %q came", kind)
		}
	}
}

// confirmed waits for SUBSCRIBED and the heartbeat that follows.
func (s *subscription) confirmed() *subscription {
	s.t.Helper()
	first := <-s.events
	if first["type"] != "SUBSCRIBED" {
		s.t.Fatalf("the first event is %v", first)
	}
	confirmation, _ := first["subscribed"].(map[string]any)
	id, _ := confirmation["framework_id"].(map[string]any)
	s.framework, _ = id["value"].(string)
	if interval, _ := confirmation["heartbeat_interval_seconds"].(float64); s.framework == "" || interval <= 0 {
		s.t.Fatalf("SUBSCRIBED is %v", confirmation)
	}
	s.next("HEARTBEAT")
	return s
}

// call makes a call of the framework's with a stream id, and holds the answer to what is wanted.
func (s *subscription) call(stream, call string, code int, text string) {
	s.t.Helper()
	header := map[string]string{"Content-Type": jsonType}
	if stream != "" {
		header["Mesos-Stream-Id"] = stream
	}
	body := fmt.Sprintf(`{"framework_id":{"value":%q},%s}`, s.framework, call)
	if got := ask(s.t, http.MethodPost, s.url+schedulerPath, header, body); got.code != code || !strings.HasPrefix(got.body, text) || text == "" && got.body != "" {
		s.t.Errorf("%s is answered with %d %q, want %d %q", call, got.code, got.body, code, text)
	}
}

func (s *subscription) streamID() string { return s.response.Header.Get("Mesos-Stream-Id") }

// TestRefusals sends what a master refuses, and holds it to the words by which a client tells one refusal from another.
func TestRefusals(t *testing.T) {
	t.Parallel()
	w := theCluster(t)
	subscribeCall := `{"type":"SUBSCRIBE","subscribe":{"framework_info":` + frameworkInfo("") + `}}`
	for _, test := range []struct {
		method  string
		headers string // "Name: value", separated by "|"
		body    string
		code    int
		text    string
	}{
		{"GET", "", "", 405, "405 Method Not Allowed. Expecting one of { 'POST' }, but received 'GET'."},
		{"POST", "", "{}", 400, "Expecting 'Content-Type' to be present"},
		{"POST", "Content-Type: text/html", "{}", 415, "Expecting 'Content-Type' of application/json or application/x-protobuf"},
		{"POST", "Content-Type: application/json; charset=utf-8", "{}", 415, "Expecting 'Content-Type' of"},
		{"POST", "Content-Type: " + jsonType, "{", 400, "Failed to parse body into JSON: syntax error"},
		{"POST", "Content-Type: " + protobufType, "\xff", 400, "Failed to parse body into Call protobuf"},
		{"POST", "Content-Type: " + jsonType, "{}", 400, "Failed to validate scheduler::Call: Expecting 'type' to be present"},
		{"POST", "Content-Type: " + jsonType, `{"type":"REVIVE"}`, 400, "Failed to validate scheduler::Call: Expecting 'framework_id' to be present"},
		{"POST", "Content-Type: " + jsonType, `{"type":"REVIVE","framework_id":{"value":"nobody"}}`, 400, "Framework cannot be found"},
		{"POST", "Content-Type: " + jsonType, `{"type":"SUBSCRIBE"}`, 400, "Failed to validate scheduler::Call: Expecting 'subscribe' to be present"},
		{"POST", "Content-Type: " + jsonType + "|Accept: text/html", subscribeCall, 406, "Expecting 'Accept' to allow 'application/x-protobuf' or 'application/json'"},
		{"POST", "Content-Type: " + jsonType + "|Accept: " + jsonType + "|Mesos-Stream-Id: x", subscribeCall, 400, "Subscribe calls should not include the 'Mesos-Stream-Id' header"},
	} {
		header := map[string]string{}
		for pair := range strings.SplitSeq(test.headers, "|") {
			if name, value, ok := strings.Cut(pair, ": "); ok {
				header[name] = value
			}
		}
		got := ask(t, test.method, w.url+schedulerPath, header, test.body)
		if got.code != test.code || !strings.HasPrefix(got.body, test.text) {
			t.Errorf("%s %q %q is answered with %d %q, want %d %q", test.method, test.headers, test.body, got.code, got.body, test.code, test.text)
		}
	}
}

// TestALifeOfAFramework goes through what the driver counts on from the first subscription to the last.
func TestALifeOfAFramework(t *testing.T) {
	t.Parallel()
	w := theCluster(t)
	first := subscribe(t, w.url, "").confirmed()
	t.Cleanup(func() { teardown(t, w.url, &identity{id: first.framework}) })
	first.next("OFFERS")
	const revive = `"type":"REVIVE"`
	first.call("", revive, 400, "All non-subscribe calls should include the 'Mesos-Stream-Id' header")
	first.call("x", revive, 400, "The stream ID 'x' included in this request didn't match the stream ID currently associated with framework ID "+first.framework)
	first.call(first.streamID(), revive, 202, "")
	first.call(first.streamID(), `"type":"ACKNOWLEDGE","acknowledge":{"agent_id":{"value":"a"},"task_id":{"value":"t"},"uuid":"eA=="}`, 400, "Failed to validate scheduler::Call: Not a valid UUID")
	first.call(first.streamID(), `"type":"DECLINE","decline":{"offer_ids":[{"value":"none"}]}`, 202, "")

	first.call(first.streamID(), `"type":"RECONCILE","reconcile":{"tasks":[{"task_id":{"value":"no-such-task"}}]}`, 202, "")
	update, _ := first.next("UPDATE")["update"].(map[string]any)
	status, _ := update["status"].(map[string]any)
	if status["state"] != "TASK_UNKNOWN" || status["reason"] != "REASON_RECONCILIATION" || status["uuid"] != nil {
		t.Errorf("an unknown task is %v", status)
	}

	second := subscribe(t, w.url, first.framework).confirmed()
	if second.framework != first.framework || second.streamID() == first.streamID() {
		t.Errorf("the second subscription is %s on stream %s, the first was %s on %s", second.framework, second.streamID(), first.framework, first.streamID())
	}
	failed, _ := first.next("ERROR")["error"].(map[string]any)
	if failed["message"] != "Framework failed over" {
		t.Errorf("the first subscription is told %v", failed)
	}
	first.next("")
	first.call(first.streamID(), revive, 400, "The stream ID")
	second.next("OFFERS")

	second.cancel()
	second.next("")
	gone := func() bool {
		got := ask(t, http.MethodPost, w.url+schedulerPath, map[string]string{"Content-Type": jsonType, "Mesos-Stream-Id": second.streamID()},
			fmt.Sprintf(`{"framework_id":{"value":%q},%s}`, first.framework, revive))
		return got.code == http.StatusForbidden && got.body == "Framework is not subscribed"
	}
	for deadline := time.Now().Add(2 * time.Minute); !gone(); {
		if time.Now().After(deadline) {
			t.Fatal("a framework whose connection is gone is not told that it is not subscribed")
		}
	}

	third := subscribe(t, w.url, first.framework).confirmed()
	third.call(third.streamID(), `"type":"TEARDOWN"`, 202, "")
	third.next("")
	third.call(third.streamID(), revive, 400, "Framework cannot be found")
	refused, _ := subscribe(t, w.url, first.framework).next("ERROR")["error"].(map[string]any)
	if refused["message"] != "Framework has been removed" {
		t.Errorf("a removed framework is told %v", refused)
	}
}

// TestTheOperatorAPI asks for what the driver and people ask for.
func TestTheOperatorAPI(t *testing.T) {
	t.Parallel()
	w := theCluster(t)
	if got := ask(t, http.MethodGet, w.url+"/health", nil, ""); got.code != http.StatusOK {
		t.Errorf("/health answers %d", got.code)
	}
	for _, kind := range []string{"AGENTS", "TASKS", "MASTER"} {
		got := ask(t, http.MethodPost, w.url+"/api/v1", map[string]string{"Content-Type": jsonType, "Accept": jsonType}, `{"type":"GET_`+kind+`"}`)
		var response map[string]any
		if err := json.Unmarshal([]byte(got.body), &response); err != nil || got.code != http.StatusOK || response["type"] != "GET_"+kind {
			t.Fatalf("GET_%s answers %d %q (%v)", kind, got.code, got.body, err)
		}
		list, _ := response["get_"+strings.ToLower(kind)].(map[string]any)
		if agents, _ := list["agents"].([]any); kind == "AGENTS" && len(agents) == 0 {
			t.Error("there are no agents")
		}
	}
}
