package kubeapi_test

import (
	"bytes"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/paceline-sched/paceline/conformance/kubeapi"
	"github.com/paceline-sched/paceline/hostmanagers/kubernetes/emulator"
	"github.com/paceline-sched/paceline/hostmanagers/kubernetes/emulator/cluster"
)

var (
	update = flag.Bool("update", false, "record what the real API server answers")
	keep   = flag.String("keep", "", "keep the answers that differ in this folder, to be compared by eye")
)

// The emulator answers as the recordings of a real API server say.
func TestEmulator(t *testing.T) {
	t.Parallel()
	e, err := emulator.New(emulator.Config{Cluster: cluster.Config{
		Behave: cluster.Lasting(-1),
	}})
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- e.Serve(l) }()
	t.Cleanup(func() {
		e.Close()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	all(t, kubeapi.Target{Base: "http://" + l.Addr().String(), Client: &http.Client{Transport: transport}, Patience: 2 * time.Minute}, false)
}

// A real API server answers as the recordings say. With -update it is recorded anew.
func TestRealServer(t *testing.T) {
	t.Parallel()
	path := os.Getenv("PACELINE_KUBECONFIG")
	if path == "" || os.Getenv("PACELINE_CONTROLPLANE") == "" {
		t.Skip("needs a control plane of its own: make conformance-kubernetes")
	}
	config, err := clientcmd.BuildConfigFromFlags("", path)
	if err != nil {
		t.Fatal(err)
	}
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.CloseIdleConnections)
	all(t, kubeapi.Target{Base: config.Host, Client: client, Patience: 2 * time.Minute}, *update)
}

// A client finds what it wants by what a server lists: what the emulator lists, the real server lists alike.
func TestDiscovery(t *testing.T) {
	t.Parallel()
	path := os.Getenv("PACELINE_KUBECONFIG")
	if path == "" || os.Getenv("PACELINE_CONTROLPLANE") == "" {
		t.Skip("needs a control plane of its own: make conformance-kubernetes")
	}
	config, err := clientcmd.BuildConfigFromFlags("", path)
	if err != nil {
		t.Fatal(err)
	}
	e, err := emulator.New(emulator.Config{Cluster: cluster.Config{Behave: cluster.Lasting(-1)}})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	ours := httptest.NewServer(e)
	defer ours.Close()
	have, want := listed(t, &rest.Config{Host: ours.URL}), listed(t, config)
	for name, r := range have {
		theirs, ok := want[name]
		r.Verbs, theirs.Verbs, theirs.StorageVersionHash = nil, nil, ""
		if !ok || !reflect.DeepEqual(r, theirs) {
			t.Errorf("%s is listed as %+v, and by the real server as %+v", name, r, theirs)
		}
	}
	if len(have) < 20 {
		t.Errorf("only %d resources are listed", len(have))
	}
}

func listed(t *testing.T, config *rest.Config) map[string]metav1.APIResource {
	t.Helper()
	client, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	_, lists, err := client.ServerGroupsAndResources()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]metav1.APIResource{}
	for _, l := range lists {
		for _, r := range l.APIResources {
			r.Group, r.Version = "", ""
			out[l.GroupVersion+"/"+r.Name] = r
		}
	}
	return out
}

func all(t *testing.T, target kubeapi.Target, record bool) {
	files, err := filepath.Glob(filepath.Join("testdata", "*.txt"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no scenarios: %v", err)
	}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".txt")
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			raw, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			namespace := fmt.Sprintf("scenario-%s-%d", name, time.Now().UnixNano()%1e6)
			createNamespace(t, target, namespace)
			got, err := kubeapi.Run(t.Context(), target, string(raw), namespace)
			if err != nil {
				t.Fatal(err)
			}
			switch {
			case record:
				if err := os.WriteFile(file, []byte(got), 0o600); err != nil {
					t.Fatal(err)
				}
			case got != string(raw):
				t.Error(difference(string(raw), got))
				if *keep != "" {
					if err := os.WriteFile(filepath.Join(*keep, name+".txt"), []byte(got), 0o600); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
}

func createNamespace(t *testing.T, target kubeapi.Target, name string) {
	t.Helper()
	body := fmt.Sprintf(`{"kind":"Namespace","apiVersion":"v1","metadata":{"name":%q}}`, name)
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, target.Base+"/api/v1/namespaces", bytes.NewReader([]byte(body)))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := target.Client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	answer, _ := io.ReadAll(response.Body)
	_ = response.Body.Close()
	if response.StatusCode != http.StatusCreated {
		t.Fatalf("create a namespace: %s", answer)
	}
}

// difference shows the first lines that differ, with the request before them.
func difference(want, got string) string {
	w, g := strings.Split(want, "\n"), strings.Split(got, "\n")
	request := ""
	var out strings.Builder
	shown := 0
	for i := 0; i < max(len(w), len(g)) && shown < 12; i++ {
		a, b := line(w, i), line(g, i)
		if strings.HasPrefix(b, "> ") {
			request = b
		}
		if a != b {
			if shown == 0 {
				fmt.Fprintf(&out, "after %s\n", request)
			}
			fmt.Fprintf(&out, "line %d: recorded %q, got %q\n", i+1, a, b)
			shown++
		}
	}
	return out.String()
}

func line(lines []string, i int) string {
	if i < len(lines) {
		return lines[i]
	}
	return "(nothing)"
}
