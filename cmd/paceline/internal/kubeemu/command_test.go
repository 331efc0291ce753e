package kubeemu_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/paceline-sched/paceline/cmd/paceline/internal/kubeemu"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// trouble is every fault that leaves the nodes to be seen in time.
var trouble = []string{
	"--pods-last", "1s", "--fault-outage", "1ms", "--fault-outage-for", "1ms", "--fault-cut", "1ms", "--fault-forget", "1ms", "--fault-refuse", "0.2", "--fault-fail", "0.2",
	"--fault-lose-answer", "0.2", "--fault-delay", "2ms", "--fault-silence", "1ms", "--fault-lose-node", "1h", "--fault-node-for", "1ms", "--fault-reject", "1", "--fault-meddle", "1ms",
}

// TestItServesUntilItIsStopped asks an emulator what nodes it has, and stops it.
func TestItServesUntilItIsStopped(t *testing.T) {
	for _, args := range [][]string{{"--pods-last", "1s", "--gpus", "2"}, {"--root", t.TempDir(), "--scheduler"}, {}, trouble} {
		kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
		ctx, stop := context.WithCancel(t.Context())
		out, in := io.Pipe()
		cmd := kubeemu.NewCommand()
		cmd.SetArgs(append(args, "--listen", "127.0.0.1:0", "--nodes", "3", "--kubeconfig", kubeconfig))
		cmd.SetOut(in)
		ended := make(chan error, 1)
		go func() { ended <- cmd.ExecuteContext(ctx) }()
		line, err := bufio.NewReader(out).ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		url := regexp.MustCompile(`http://[^;]+`).FindString(line)
		if raw, err := os.ReadFile(kubeconfig); err != nil || !strings.Contains(string(raw), url) {
			t.Errorf("the kubeconfig has %q: %v", raw, err)
		}
		for deadline := time.Now().Add(2 * time.Minute); ; {
			n, err := nodes(t, url)
			if err == nil && n == 3 {
				break
			}
			if len(args) < len(trouble) || time.Now().After(deadline) {
				t.Errorf("%q has %d nodes, want 3: %v", args, n, err)
				break
			}
		}
		stop()
		if err := <-ended; err != nil {
			t.Errorf("%q ended with %v", args, err)
		}
	}
}

func nodes(t *testing.T, url string) (int, error) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url+"/api/v1/nodes", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	response, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(request)
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	var list struct{ Items []json.RawMessage }
	if response.StatusCode != http.StatusOK {
		return 0, errors.New(response.Status)
	}
	err = json.NewDecoder(response.Body).Decode(&list)
	return len(list.Items), err
}

func TestWhatCannotBeIsRefused(t *testing.T) {
	for _, args := range [][]string{{"--nodes", "0"}, {"--cpu", "many"}, {"--listen", "nowhere"}, {"--gpus", "-1"}, {"--node-gone", "0s"}, {"--fault-refuse", "2"}, {"--fault-cut", "-1s"}, {"--kubeconfig", "/no/such/folder/file"}} {
		cmd := kubeemu.NewCommand()
		cmd.SetArgs(append([]string{"--listen", "127.0.0.1:0"}, args...))
		cmd.SilenceUsage, cmd.SilenceErrors = true, true
		if err := cmd.ExecuteContext(t.Context()); err == nil {
			t.Errorf("%q is accepted", args)
		}
	}
}
