package e2e_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	_ "github.com/paceline-sched/paceline/cmd/paceline/internal/kubeemu" // as in cell_test.go
	pacelinev1 "github.com/paceline-sched/paceline/sdk/gen/paceline/v1"
)

// Each task leaves a mark of its start and waits for a file; so all of them go on while servers come and go.
const kubeJob = `name: held
batch: {}
instances: 20
placement: {clusters: [east]}
task:
  resources: {cpu_milli: 100, memory_mib: 1}
  env: {MARKS: %q, GATE: %q}
  command: [sh, -c, 'echo "$PACELINE_INSTANCE $PACELINE_RUN_ID" >>"$MARKS"; while ! test -e "$GATE"; do sleep 0.05; done']
  kill_grace: 1s
`

// TestKubernetesCluster takes a cluster through its life in a cell: a server that is killed finds the pods of the one before, an update has its settings
// in force with all runs going on, nodes say why they take nothing and what others have of them, and the cluster goes with its pods, and with no other.
func TestKubernetesCluster(t *testing.T) {
	t.Parallel()
	c := startCell(t, "--local-hosts", "0")
	k := c.emulateKubernetes(2)
	c.must("cluster", "add", "kubernetes", "east", "--kubeconfig", "east.yaml", "--default-image", "none", "--keep-ended", "1h", "--wait") // so that pods stay what they are
	owner := c.identity()
	marks, gate := write(t, c.dir, "marks", ""), filepath.Join(c.dir, "gate")
	c.must("job", "run", write(t, c.dir, "held.yaml", fmt.Sprintf(kubeJob, marks, gate)))
	started := func() error {
		raw, err := os.ReadFile(marks)
		if n := bytes.Count(raw, []byte("\n")); err == nil && n != 20 {
			err = fmt.Errorf("%d tasks have started", n)
		}
		return err
	}
	c.await("all tasks start", started)
	c.kill()
	c.start()
	c.must("cluster", "update", "east", "--shards", "2", "--tolerate", "example.com/night")
	c.must("cluster", "add", "kubernetes", "east", "--kubeconfig", "east.yaml", "--default-image", "none", "--shards", "2", "--tolerate", "example.com/night", "--keep-ended", "1h", "--wait")
	if now := c.identity(); now != owner || owner == "" {
		t.Errorf("the cluster knew the cell as %q, and now as %q", owner, now)
	}
	if pods := k.pods(owner); len(pods) != 20 {
		t.Errorf("the cell has %d pods, and 20 runs", len(pods))
	}

	k.call(http.MethodPost, "/api/v1/namespaces/kube-system/pods", `{"metadata": {"name": "others"}, "spec": {"nodeName": "node-1", "containers": [{"name": "a", "image": "a",
		"command": ["sleep", "1000"], "resources": {"requests": {"cpu": "1500m", "memory": "1Gi"}}}]}}`)
	k.call(http.MethodPatch, "/api/v1/nodes/node-1", `{"spec": {"unschedulable": true}}`)
	k.call(http.MethodPatch, "/api/v1/nodes/node-2", `{"spec": {"taints": [{"key": "example.com/day", "value": "1", "effect": "NoSchedule"}, {"key": "example.com/night", "effect": "NoSchedule"}]}}`)
	k.wantHost("node-1", "Note: +cordoned", `foreign load +1 pods, 1500 millicores, 1024 MiB`, `cpu +8 .* 1\.5 `)
	k.wantHost("node-2", "Note: +tainted example.com/day=1:NoSchedule\n", `taints +example.com/day=1:NoSchedule, example.com/night:NoSchedule`)
	c.await("no host takes work", func() error {
		if list := c.must("host", "list", "-o", "wide"); !regexp.MustCompile(`east/node-1 +not-ready .* cpu 1\.5, memory 1Gi .* cordoned`).MatchString(list) {
			return fmt.Errorf("the hosts are\n%s", list)
		}
		return nil
	})

	write(t, c.dir, "gate", "")
	c.awaitJobs(pacelinev1.JobState_JOB_STATE_SUCCEEDED, "/default/held")
	if err := started(); err != nil {
		t.Errorf("at the end %v", err)
	}
	k.call(http.MethodPatch, "/api/v1/nodes/node-1", `{"spec": {"unschedulable": false}}`)
	c.must("job", "run", write(t, c.dir, "stays.yaml", "{name: stays, service: {}, placement: {clusters: [east]}, task: {command: [sleep, '1000'], resources: {cpu_milli: 10}}}"), "--wait")
	c.takenElsewhere(k, owner)
	c.must("cluster", "remove", "east", "--force")
	if pods := k.pods(owner); len(pods) != 0 {
		t.Errorf("the cell has left %v behind", pods)
	}
	if pods := k.pods(""); len(pods) != 1 {
		t.Errorf("of the pods of others there are %v", pods)
	}
	c.stop()
}

// takenElsewhere has the cluster's settings lead to another one, and back: nothing is started there, and what runs goes on.
func (c *cell) takenElsewhere(k *kubernetes, owner string) {
	c.t.Helper()
	before := k.pods(owner)
	other := c.emulateKubernetes(1, "--root", filepath.Join(c.dir, "others"), "--kubeconfig", filepath.Join(c.data, "secrets", "other.yaml"))
	c.must("cluster", "update", "east", "--kubeconfig", "other.yaml")
	c.await("the other cluster is noticed", func() error {
		if shown := c.must("cluster", "get", "east"); !strings.Contains(shown, "is that of another cluster") || !strings.Contains(shown, "remove it with --force") {
			return fmt.Errorf("it says\n%s", shown)
		}
		return nil
	})
	c.must("cluster", "update", "east", "--kubeconfig", "east.yaml")
	c.must("cluster", "add", "kubernetes", "east", "--kubeconfig", "east.yaml", "--default-image", "none", "--shards", "2", "--tolerate", "example.com/night", "--keep-ended", "1h", "--wait")
	if now := k.pods(owner); len(before) == 0 || !slices.Equal(now, before) || len(other.pods("")) != 0 {
		c.t.Errorf("there were the pods %v, and now are %v; at the other cluster %v", before, now, other.pods(""))
	}
}

// kubernetes is an emulated Kubernetes cluster.
type kubernetes struct{ *emulator }

// emulateKubernetes starts one, which ends with the test. Its kubeconfig is east.yaml in the cell's secrets.
func (c *cell) emulateKubernetes(nodes int, flags ...string) *kubernetes {
	c.t.Helper()
	secrets := filepath.Join(c.data, "secrets")
	if err := os.MkdirAll(secrets, 0o700); err != nil {
		c.t.Fatal(err)
	}
	return &kubernetes{c.emulate(append([]string{
		"kubernetes-emulator", "--listen", "127.0.0.1:0", "--nodes", strconv.Itoa(nodes), "--root", filepath.Join(c.dir, "nodes"), "--kubeconfig", filepath.Join(secrets, "east.yaml"),
	}, flags...))}
}

// call makes a request of the API and returns the answer.
func (k *kubernetes) call(method, path, body string) []byte {
	k.t.Helper()
	request, err := http.NewRequestWithContext(k.t.Context(), method, k.url+path, strings.NewReader(body))
	if err != nil {
		k.t.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/json")
	if method == http.MethodPatch {
		request.Header.Set("Content-Type", "application/merge-patch+json")
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		k.t.Fatal(err)
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode >= http.StatusMultipleChoices {
		k.t.Fatalf("%s %s: %s, %v\n%s", method, path, response.Status, err, answer)
	}
	return answer
}

// pods names the pods of an owner; "": of all.
func (k *kubernetes) pods(owner string) (names []string) {
	k.t.Helper()
	path := "/api/v1/pods"
	if owner != "" {
		path += "?labelSelector=paceline.io/owner=" + owner
	}
	var list struct {
		Items []struct {
			Metadata struct {
				Name string `json:"name"`
			} `json:"metadata"`
		} `json:"items"`
	}
	if err := json.Unmarshal(k.call(http.MethodGet, path, ""), &list); err != nil {
		k.t.Fatal(err)
	}
	for _, p := range list.Items {
		names = append(names, p.Metadata.Name)
	}
	return names
}

// wantHost waits until the cell says this of a node.
func (k *kubernetes) wantHost(name string, says ...string) {
	k.t.Helper()
	k.await("node "+name+" says why it takes nothing", func() error {
		shown := k.must("host", "get", "east/"+name)
		for _, one := range says {
			if !regexp.MustCompile(one).MatchString(shown) {
				return fmt.Errorf("it does not say %q:\n%s", one, shown)
			}
		}
		return nil
	})
}
