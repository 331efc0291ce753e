package mesos_test

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	mesosapi "github.com/mesos/mesos-go/api/v1/lib"
	"github.com/mesos/mesos-go/api/v1/lib/scheduler"

	"github.com/paceline-sched/paceline/hostmanagers/mesos/emulator"
	"github.com/paceline-sched/paceline/hostmanagers/mesos/emulator/cluster"
	"github.com/paceline-sched/paceline/hostmanagers/mesos/master"
)

var live = flag.String("mesos", "", "`address` of a Mesos master to test, as http://host:5050; default: an emulated one")

// world is the cluster under test.
type world struct {
	url string
	// inside: it is emulated, in this process.
	inside bool
	// real: it is no emulated one, so agents run health checks and fetch artefacts.
	real bool
}

// theCluster returns the cluster under test, at the address of the master that leads.
func theCluster(t testing.TB) world {
	t.Helper()
	if *live == "" {
		return world{url: emulated(t), inside: true}
	}
	w := world{url: strings.TrimSuffix(*live, "/")}
	response := ask(t, http.MethodGet, w.url+"/redirect", nil, "")
	if at := response.header.Get("Location"); at != "" {
		w.url = "http:" + at
	}
	var version map[string]any
	if err := json.Unmarshal([]byte(ask(t, http.MethodGet, w.url+"/version", nil, "").body), &version); err != nil {
		t.Fatalf("%s is no Mesos master: %v", w.url, err)
	}
	_, w.real = version["build_date"]
	return w
}

// emulated serves an emulated cluster whose tasks are processes of this machine.
func emulated(t testing.TB) string {
	t.Helper()
	processes, err := emulator.NewLocal(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	cfg := emulator.Config{Processes: processes}
	cfg.Cluster.Hostname, cfg.Cluster.Port = "127.0.0.1", l.Addr().(*net.TCPAddr).Port
	e, err := emulator.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	processes.Serve(e)
	e.Do(func(c *cluster.Cluster) {
		for _, name := range []string{"agent-1.local", "agent-2.local"} {
			c.AddAgent(cluster.Agent{Hostname: name, Resources: cluster.Plain(8, 16384, 100000, 31000, 32000)})
		}
	})
	served := make(chan error, 1)
	go func() { served <- e.Serve(l) }()
	t.Cleanup(func() {
		e.Close()
		_ = l.Close() // closed already, if it was served
		<-served
		if err := processes.Close(); err != nil {
			t.Error(err)
		}
	})
	return "http://" + l.Addr().String()
}

// answer is what a request got.
type answer struct {
	code   int
	header http.Header
	body   string
}

// ask sends one request on a connection of its own. Redirects are not followed.
func ask(t testing.TB, method, url string, header map[string]string, body string) answer {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	response := send(ctx, t, method, url, header, body)
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatalf("%s %s: %v", method, url, err)
	}
	return answer{response.StatusCode, response.Header, string(text)}
}

func send(ctx context.Context, t testing.TB, method, url string, header map[string]string, body string) *http.Response {
	t.Helper()
	r, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range header {
		r.Header.Set(name, value)
	}
	client := &http.Client{
		Transport:     &http.Transport{DisableKeepAlives: true, DisableCompression: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	response, err := client.Do(r)
	if err != nil {
		t.Fatalf("%s %s: %v", method, url, err)
	}
	return response
}

// identity keeps a framework's id in memory.
type identity struct {
	mu sync.Mutex
	id string
}

func (i *identity) Load() (string, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.id, nil
}

func (i *identity) Save(id string) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.id = id
	return nil
}

// teardown removes a framework, and its tasks with it.
func teardown(t testing.TB, url string, id *identity) {
	t.Helper()
	if known, _ := id.Load(); known == "" {
		return
	}
	end := &ender{subscribed: make(chan struct{}, 1)}
	user := "root"
	connection, err := master.New(master.Config{Masters: []string{url}, Identity: id, Framework: &mesosapi.FrameworkInfo{
		User: user, Name: "conformance", Roles: []string{role}, Capabilities: []mesosapi.FrameworkInfo_Capability{{Type: mesosapi.FrameworkInfo_Capability_MULTI_ROLE}},
	}})
	if err != nil {
		t.Error(err)
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 2*time.Minute) // cleanups come after the test's end
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- connection.Run(ctx, end) }()
	select {
	case <-end.subscribed:
		err = connection.Call(ctx, &scheduler.Call{Type: scheduler.Call_TEARDOWN})
		cancel()
		<-ended
	case err = <-ended:
	}
	if err != nil && !errors.Is(err, master.ErrRemoved) {
		t.Errorf("remove framework %s: %v", id.id, err)
	}
}

// ender waits for a subscription.
type ender struct{ subscribed chan struct{} }

func (e *ender) Subscribed(mesosapi.FrameworkID, mesosapi.MasterInfo) { e.subscribed <- struct{}{} }
func (*ender) Event(*scheduler.Event)                                 {}
func (*ender) Lost(error)                                             {}
