package crowd_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"github.com/paceline-sched/paceline/conformance/controlplane/crowd"
)

func TestTraffic(t *testing.T) {
	const (
		request = `apiserver_request_total{code="%s",component="apiserver",dry_run="",group="",resource="%s",scope="resource",subresource="%s",verb="%s",version="v1"} %s` + "\n"
		cut     = `apiserver_terminated_watchers_total{group="",resource="%s"} %s` + "\n"
	)
	said := fmt.Sprintf(request, "201", "pods", "", "POST", "3") + fmt.Sprintf(request, "201", "nodes", "", "POST", "99")
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/metrics" {
			http.NotFound(w, r)
			return
		}
		_, _ = w.Write([]byte("# HELP apiserver_request_total of all\n" + said))
	}))
	defer server.Close()
	path := filepath.Join(t.TempDir(), "kubeconfig")
	text := fmt.Sprintf("{clusters: [{name: e, cluster: {server: '%s'}}], contexts: [{name: e, context: {cluster: e}}], current-context: e}", server.URL)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := crowd.Dial(path)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	before, err := c.Traffic(t.Context())
	if err != nil || before.Requests["POST"] != 3 {
		t.Fatalf("%v, %v", before, err)
	}
	said = fmt.Sprintf(request, "201", "pods", "", "POST", "1e+06") + fmt.Sprintf(request, "409", "pods", "binding", "POST", "7") +
		fmt.Sprintf(request, "200", "pods", "status", "PATCH", "5") + fmt.Sprintf(cut, "pods", "4") + fmt.Sprintf(cut, "nodes", "8")
	after, err := c.Traffic(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if got, want := after.Since(before).String(), "5 PATCH, 1000004 POST, 4 watches cut"; got != want {
		t.Errorf("it is %q, not %q", got, want)
	}
}
