package emulator_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	mesos "github.com/mesos/mesos-go/api/v1/lib"
	"github.com/mesos/mesos-go/api/v1/lib/scheduler"

	"github.com/paceline-sched/paceline/hostmanagers/mesos/emulator"
	"github.com/paceline-sched/paceline/hostmanagers/mesos/emulator/cluster"
	"github.com/paceline-sched/paceline/hostmanagers/mesos/emulator/wire"
	"github.com/paceline-sched/paceline/hostmanagers/mesos/recordings"
	"github.com/paceline-sched/paceline/hostmanagers/mesos/recordio"
)

// pipes is a listener in memory, so that virtual time passes only when everybody waits.
type pipes struct {
	conns chan net.Conn
	once  sync.Once
	done  chan struct{}
}

func newPipes() *pipes { return &pipes{conns: make(chan net.Conn), done: make(chan struct{})} }

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error {
	p.once.Do(func() { close(p.done) })
	return nil
}

// again opens a listener after its closing.
func (p *pipes) again() *pipes {
	p.once, p.done = sync.Once{}, make(chan struct{})
	return p
}

func (p *pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipe", Net: "pipe"} }

func (p *pipes) dial() net.Conn {
	mine, theirs := net.Pipe()
	p.conns <- theirs
	return mine
}

// heard is one event as the emulator sent it.
type heard struct {
	at    float64 // seconds since the subscription's connection was opened
	event map[string]any
}

// subscriber is one subscription that is replayed.
type subscriber struct {
	stage    string // "json/02-launch"
	opened   time.Time
	id       string // its stream id here
	recorded string // and in the recording
	events   []heard
	closed   bool // by the master
	conn     net.Conn
	want     stageEvents
	offers   int // OFFERS and INVERSE_OFFERS seen
	ack      func(task, state string) bool
}

// world is one replay.
type world struct {
	t        *testing.T
	archive  *recordings.Archive
	emulator *emulator.Emulator
	pipes    *pipes
	start    time.Time
	subs     []*subscriber
	work     sync.WaitGroup
	mu       sync.Mutex        // guards what follows, and subscribers
	ids      map[string]string // offer and stream ids of the recording to those of here
	agents   map[string]string // ids by hostname
	uuids    map[string]string // of updates, in base64
	scene    *scene
	enc      string
}

var (
	streamHeader = regexp.MustCompile(`(?i)mesos-stream-id: ([^\r\n]+)`)
	dates        = regexp.MustCompile("Date: [^\r]+\r") // in further answers on the same connection
	anyOffer     = regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f-]{27}-O\d+`)
)

// translate replaces the recording's ids of offers and streams by those of here.
func (w *world) translate(text []byte) []byte {
	w.mu.Lock()
	defer w.mu.Unlock()
	text = anyOffer.ReplaceAllFunc(text, func(id []byte) []byte {
		if mine, ok := w.ids[string(id)]; ok {
			return []byte(mine)
		}
		return id
	})
	for theirs, mine := range w.uuids {
		text = bytes.ReplaceAll(text, []byte(theirs), []byte(mine))
	}
	return streamHeader.ReplaceAllFunc(text, func(header []byte) []byte {
		id := streamHeader.FindSubmatch(header)[1]
		if mine, ok := w.ids[string(id)]; ok {
			return append(header[:len(header)-len(id):len(header)-len(id)], mine...)
		}
		return header
	})
}

// prepare returns a recorded request as it is to be sent here.
func (w *world) prepare(raw []byte) []byte {
	head, body, _ := bytes.Cut(raw, []byte("\r\n\r\n"))
	head = w.translate(head)
	if bytes.Contains(head, []byte("Transfer-Encoding")) || bytes.Contains(body, []byte("POST /")) {
		return append(append(head, "\r\n\r\n"...), w.translate(body)...)
	}
	if call := new(scheduler.Call); bytes.Contains(head, []byte("x-protobuf\r\n")) && call.Unmarshal(body) == nil && carriesOffers(call) {
		parsed := wire.AppendJSON(nil, call)
		again, err := wire.ParseJSON(w.translate(parsed))
		if err != nil {
			w.t.Fatal(err)
		}
		call = new(scheduler.Call)
		if err := wire.Assign(call, again); err != nil {
			w.t.Fatal(err)
		}
		if body, err = call.Marshal(); err != nil {
			w.t.Fatal(err)
		}
	} else if !bytes.Contains(head, []byte("x-protobuf\r\n")) {
		body = w.translate(body)
	}
	head = regexp.MustCompile(`Content-Length: \d+`).ReplaceAll(head, []byte("Content-Length: "+strconv.Itoa(len(body))))
	return append(append(head, "\r\n\r\n"...), body...)
}

func carriesOffers(call *scheduler.Call) bool {
	return call.Accept != nil || call.Decline != nil || call.AcceptInverseOffers != nil || call.DeclineInverseOffers != nil || call.Acknowledge != nil ||
		call.AcknowledgeOperationStatus != nil
}

// send sends a recorded request, as "json/02-launch.kill", and compares the answer with the recorded one.
func (w *world) send(name string) {
	name = strings.TrimSuffix(name, ".")
	raw := w.archive.File(name + ".request.http")
	if raw == nil {
		w.t.Fatalf("the recordings have no %s.request.http", name)
	}
	got := w.exchange(w.prepare(raw))
	if want := w.archive.File(name + ".response.http"); want != nil {
		w.compareAnswer(name, want, got)
	}
}

// exchange sends a request and returns everything until the connection ends.
func (w *world) exchange(request []byte) []byte {
	conn := w.pipes.dial()
	defer conn.Close()
	answers := bytes.Count(request, []byte(" HTTP/1."))
	w.work.Go(func() { _, _ = conn.Write(request) })
	var got bytes.Buffer
	in := bufio.NewReader(io.TeeReader(conn, &got))
	for range answers {
		r, err := http.ReadResponse(in, nil)
		if err != nil {
			w.t.Fatalf("read an answer: %v (after %q)", err, got.Bytes())
		}
		if _, err := io.Copy(io.Discard, r.Body); err != nil {
			w.t.Fatal(err)
		}
		_ = r.Body.Close() // nothing more to read
	}
	return got.Bytes()
}

// subscribe opens a subscription of the recording and follows it.
func (w *world) subscribe(stage string, ack func(task, state string) bool) *subscriber {
	s := &subscriber{stage: stage, opened: time.Now(), ack: ack}
	s.want = recordedEvents(w.t, w.archive, stage)
	if m := streamHeader.FindSubmatch(w.archive.File(stage + ".response.http.bin")); m != nil {
		s.recorded = string(m[1])
	}
	s.conn = w.pipes.dial()
	w.mu.Lock()
	w.subs = append(w.subs, s)
	w.mu.Unlock()
	request := w.prepare(w.archive.File(stage + ".request.http"))
	w.work.Go(func() { _, _ = s.conn.Write(request) })
	w.work.Go(func() { w.follow(s) })
	synctest.Wait()
	return s
}

// stageEvents are the events of a recorded subscription, and whether the master ended it.
type stageEvents struct {
	events []heard
	closed bool
}

// library keeps what was read of the recordings; replays run one after another.
var library = map[string]stageEvents{}

// recordedEvents returns the events of a recorded subscription, those in protobuf decoded as everything here is.
func recordedEvents(t *testing.T, archive *recordings.Archive, stage string) stageEvents {
	t.Helper()
	if known, ok := library[stage]; ok {
		return known
	}
	lines, closed, err := archive.Events(stage)
	if err != nil {
		t.Fatal(err)
	}
	records := recordio.NewReader(bytes.NewReader(archive.File(stage + ".events.recordio.bin")))
	var events []heard
	for i, line := range lines {
		if strings.HasPrefix(stage, "protobuf/") {
			record, err := records.Next()
			event := new(scheduler.Event)
			if err != nil || event.Unmarshal(record) != nil {
				t.Fatalf("%s: record %d cannot be read (%v)", stage, i, err)
			}
			line.JSON = wire.AppendJSON(nil, event)
		}
		var event map[string]any
		if err := json.Unmarshal(line.JSON, &event); err != nil {
			t.Fatal(err)
		}
		events = append(events, heard{line.Seconds, event})
	}
	library[stage] = stageEvents{joined(events), closed}
	return library[stage]
}

// joined makes one event of offers for several agents that came within milliseconds: whether a busy master's allocator got them in one
// run or in two is chance.
func joined(events []heard) []heard {
	var list []heard
	for _, e := range events {
		last := len(list) - 1
		if last >= 0 && e.event["type"] == "OFFERS" && list[last].event["type"] == "OFFERS" && e.at-list[last].at < 0.01 {
			both := append(at(list[last].event, "offers", "offers").([]any), at(e.event, "offers", "offers").([]any)...)
			list[last].event = map[string]any{"type": "OFFERS", "offers": map[string]any{"offers": both}}
			continue
		}
		list = append(list, e)
	}
	return list
}

func (w *world) follow(s *subscriber) {
	r, err := http.ReadResponse(bufio.NewReader(s.conn), nil)
	if err != nil {
		w.t.Errorf("%s: read the answer to SUBSCRIBE: %v", s.stage, err)
		return
	}
	defer r.Body.Close()
	w.mu.Lock()
	s.id = r.Header.Get("Mesos-Stream-Id")
	w.ids[s.recorded] = s.id
	w.mu.Unlock()
	protobuf := r.Header.Get("Content-Type") == "application/x-protobuf"
	body := recordio.NewReader(r.Body)
	for {
		record, err := body.Next()
		if err != nil {
			w.mu.Lock()
			s.closed = errors.Is(err, io.EOF)
			w.mu.Unlock()
			return
		}
		w.take(s, record, protobuf)
	}
}

// take is one event.
func (w *world) take(s *subscriber, record []byte, protobuf bool) {
	if protobuf {
		event := new(scheduler.Event)
		if err := event.Unmarshal(record); err != nil {
			w.t.Errorf("%s: an event is no protobuf: %v", s.stage, err)
			return
		}
		record = wire.AppendJSON(nil, event)
	}
	var event map[string]any
	if err := json.Unmarshal(record, &event); err != nil {
		w.t.Errorf("%s: an event is no JSON: %v: %s", s.stage, err, record)
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	s.events = append(s.events, heard{at: time.Since(s.opened).Seconds(), event: event})
	switch event["type"] {
	case "OFFERS", "INVERSE_OFFERS":
		w.pair(s, event)
	case "UPDATE":
		status := at(event, "update", "status").(map[string]any)
		w.pairUUID(s, event, status["uuid"], "update", "status")
		w.acknowledge(s, status)
	case "UPDATE_OPERATION_STATUS":
		w.pairUUID(s, event, at(event, "update_operation_status", "status", "uuid", "value"), "update_operation_status", "status")
	}
}

// pairUUID matches the uuid of an update with that of the same update in the recording.
func (w *world) pairUUID(s *subscriber, event map[string]any, uuid any, path ...string) {
	if uuid == nil {
		return
	}
	identify := func(event map[string]any) string {
		status := at(event, path...)
		return fmt.Sprint(at(status, "task_id"), at(status, "operation_id"), at(status, "state"), at(status, "reason"))
	}
	for _, want := range s.want.events {
		recorded := want.event
		theirs := at(recorded, append(path, "uuid")...)
		if value := at(theirs, "value"); value != nil {
			theirs = value
		}
		if theirs != nil && at(recorded, path...) != nil && identify(recorded) == identify(event) && w.uuids[fmt.Sprint(theirs)] == "" {
			w.uuids[fmt.Sprint(theirs)] = fmt.Sprint(uuid)
			return
		}
	}
}

// pair matches the offers of an event with those of the same event in the recording, by host.
func (w *world) pair(s *subscriber, event map[string]any) {
	recorded := w.nextOffers(s)
	s.offers++
	if recorded == nil {
		return
	}
	theirs := offersByHost(recorded)
	for host, id := range offersByHost(event) {
		if theirs[host] != "" {
			w.ids[theirs[host]] = id
		}
	}
}

// nextOffers is the next event with offers that the recording has; nil: there are no more.
func (w *world) nextOffers(s *subscriber) map[string]any {
	seen := 0
	for _, want := range s.want.events {
		if kind := want.event["type"]; kind != "OFFERS" && kind != "INVERSE_OFFERS" {
			continue
		}
		if seen++; seen > s.offers {
			return want.event
		}
	}
	return nil
}

func offersByHost(event map[string]any) map[string]string {
	ids := map[string]string{}
	for _, kind := range []string{"offers", "inverse_offers"} {
		list, _ := at(event, kind, kind).([]any)
		for _, item := range list {
			ids[fmt.Sprint(at(item, "url", "address", "hostname"))] = fmt.Sprint(at(item, "id", "value"))
		}
	}
	return ids
}

// acknowledge does what the recorded frameworks did: acknowledge at once what has a uuid.
func (w *world) acknowledge(s *subscriber, status map[string]any) {
	if status["uuid"] == nil || !s.ack(fmt.Sprint(at(status, "task_id", "value")), fmt.Sprint(status["state"])) {
		return
	}
	framework := at(s.events[0].event, "subscribed", "framework_id")
	body, err := json.Marshal(map[string]any{
		"type": "ACKNOWLEDGE", "framework_id": framework,
		"acknowledge": map[string]any{"agent_id": status["agent_id"], "task_id": status["task_id"], "uuid": status["uuid"]},
	})
	if err != nil {
		w.t.Error(err)
	}
	request := fmt.Sprintf("POST /api/v1/scheduler HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nMesos-Stream-Id: %s\r\nConnection: close\r\n"+
		"Content-Length: %d\r\n\r\n%s", s.id, len(body), body)
	w.work.Go(func() { _ = w.exchange([]byte(request)) })
}

// at goes down into JSON by keys; nil: it is not there.
func at(value any, keys ...string) any {
	for _, key := range keys {
		object, ok := value.(map[string]any)
		if !ok {
			return nil
		}
		value = object[key]
	}
	return value
}

// compareAnswer holds an answer to the recorded one: status, headers in their order, and text.
func (w *world) compareAnswer(name string, want, got []byte) {
	wantHead, wantBody, _ := strings.Cut(string(w.translateAnswer(want)), "\r\n\r\n")
	gotHead, gotBody, _ := strings.Cut(string(got), "\r\n\r\n")
	wantLines, gotLines := headLines(wantHead), headLines(gotHead)
	reason, partly := partly(name)
	if partly || strings.HasPrefix(wantBody, "{") || strings.Contains(wantHead, "x-protobuf") {
		wantLines, gotLines = without(wantLines, "Content-Length"), without(gotLines, "Content-Length")
	}
	if !slices.Equal(wantLines, gotLines) {
		w.t.Errorf("%s: answered with\n  %q\nwant\n  %q", name, gotLines, wantLines)
	}
	if partly {
		_ = reason
		return
	}
	if strings.HasPrefix(wantBody, "{") {
		if a, b := normalJSON(wantBody), normalJSON(gotBody); a != b {
			w.t.Errorf("%s: answered with\n  %s\nwant\n  %s", name, b, a)
		}
		return
	}
	wantBody, gotBody = dates.ReplaceAllString(wantBody, "Date: \r"), dates.ReplaceAllString(gotBody, "Date: \r")
	if wantBody != gotBody && !strings.Contains(wantHead, "x-protobuf") {
		w.t.Errorf("%s: answered with %q, want %q", name, gotBody, wantBody)
	}
}

// translateAnswer replaces ids in a recorded answer.
func (w *world) translateAnswer(text []byte) []byte {
	text = w.translate(text)
	w.mu.Lock()
	defer w.mu.Unlock()
	for theirs, mine := range w.ids {
		if theirs != "" && !strings.Contains(theirs, "-O") {
			text = bytes.ReplaceAll(text, []byte(theirs), []byte(mine))
		}
	}
	return text
}

func headLines(head string) []string {
	return without(strings.Split(head, "\r\n"), "Date:")
}

func without(lines []string, prefix string) []string {
	return slices.DeleteFunc(slices.Clone(lines), func(line string) bool { return strings.HasPrefix(line, prefix) })
}

var nanoseconds = regexp.MustCompile(`"nanoseconds":\d{18,19}`)

func normalJSON(text string) string {
	var parsed any
	if err := json.Unmarshal([]byte(text), &parsed); err != nil {
		return "no JSON: " + text
	}
	again, err := json.Marshal(parsed)
	if err != nil {
		return err.Error()
	}
	return nanoseconds.ReplaceAllString(string(again), `"nanoseconds":0`)
}

// crash kills a task's process, as the recorder did.
func (w *world) crash(task string) {
	framework := fmt.Sprint(at(w.subs[0].events[0].event, "subscribed", "framework_id", "value"))
	w.emulator.Do(func(c *cluster.Cluster) { c.Crash(framework, task) })
}

// checkHead sends a SUBSCRIBE of which only the beginning of the answer was kept, and holds its headers to it.
func (w *world) checkHead(name string) {
	conn := w.pipes.dial()
	defer conn.Close()
	request := w.prepare(w.archive.File(name + ".request.http"))
	w.work.Go(func() { _, _ = conn.Write(request) })
	in := bufio.NewReader(conn)
	var head strings.Builder
	for {
		line, err := in.ReadString('\n')
		if err != nil {
			w.t.Fatalf("%s: %v", name, err)
		}
		if line == "\r\n" {
			break
		}
		head.WriteString(line)
	}
	want, _, _ := strings.Cut(string(w.archive.File(name+".response.http.bin")), "\r\n\r\n")
	wantLines, gotLines := headLines(want), headLines(strings.TrimSuffix(head.String(), "\r\n"))
	wantLines, gotLines = without(wantLines, "Mesos-Stream-Id"), without(gotLines, "Mesos-Stream-Id")
	if !slices.Equal(wantLines, gotLines) {
		w.t.Errorf("%s: answered with\n  %q\nwant\n  %q", name, gotLines, wantLines)
	}
}

// labels returns the labels of a stage's requests.
func (w *world) labels(stage string) []string {
	var labels []string
	prefix := w.enc + "/" + stage + "."
	for _, name := range w.archive.Names(prefix) {
		label, ok := strings.CutSuffix(strings.TrimPrefix(name, prefix), ".request.http")
		if ok && label != "" && w.archive.File(prefix+label+".response.http") != nil && !strings.HasSuffix(label, ".teardown") {
			labels = append(labels, label)
		}
	}
	return labels
}

// freshAgent registers another agent on a host.
func (w *world) freshAgent(host, id string) {
	for _, a := range w.scene.agents {
		if a.Hostname == host {
			a.ID = w.scene.cfg.MasterID + id
			w.emulator.Do(func(c *cluster.Cluster) { w.agents[host] = c.AddAgent(a) })
		}
	}
}

// failOver replaces the master by a new one, which knows nothing; subscriptions are cut.
func (w *world) failOver() {
	w.emulator.Close()
	cfg := w.scene.cfg
	for _, e := range recordedEvents(w.t, w.archive, w.enc+"/20b-zk-new-leader").events {
		if info := at(e.event, "subscribed", "master_info"); info != nil {
			cfg.MasterID, cfg.Port = fmt.Sprint(at(info, "id")), int(at(info, "port").(float64))
		}
	}
	var err error
	if w.emulator, err = emulator.New(emulator.Config{Cluster: cfg}); err != nil {
		w.t.Fatal(err)
	}
	w.work.Go(func() { _ = w.emulator.Serve(w.pipes.again()) })
}

// survive registers the agent of the old master with the new one, with the task that it runs.
func (w *world) survive() {
	a := w.scene.agents[0]
	framework := fmt.Sprint(at(w.subs[0].events[0].event, "subscribed", "framework_id", "value"))
	info := &mesos.TaskInfo{Name: "zk-run", TaskID: mesos.TaskID{Value: "zk-run"}, AgentID: mesos.AgentID{Value: a.ID}}
	for _, r := range plainAgent()[:2] {
		r.Scalar = &mesos.Value_Scalar{Value: map[string]float64{"cpus": 0.1, "mem": 32}[r.Name]}
		info.Resources = append(info.Resources, r)
	}
	a.Tasks = []cluster.Survivor{{FrameworkID: framework, Role: "rec", Info: info}}
	w.emulator.Do(func(c *cluster.Cluster) { c.AddAgent(a) })
}
