package kubeemu_test

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/paceline-sched/paceline/cmd/paceline/internal/kubeemu"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestItServesUntilItIsStopped asks an emulator what nodes it has, and stops it.
func TestItServesUntilItIsStopped(t *testing.T) {
	for _, args := range [][]string{{"--pods-last", "1s", "--gpus", "2"}, {"--root", t.TempDir(), "--scheduler"}, {}} {
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
		if n := nodes(t, url); n != 3 {
			t.Errorf("%q has %d nodes, want 3", args, n)
		}
		stop()
		if err := <-ended; err != nil {
			t.Errorf("%q ended with %v", args, err)
		}
	}
}

func nodes(t *testing.T, url string) int {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url+"/api/v1/nodes", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	response, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	var list struct{ Items []json.RawMessage }
	if err := json.NewDecoder(response.Body).Decode(&list); err != nil {
		t.Fatal(err)
	}
	return len(list.Items)
}

func TestWhatCannotBeIsRefused(t *testing.T) {
	for _, args := range [][]string{{"--nodes", "0"}, {"--cpu", "many"}, {"--listen", "nowhere"}, {"--gpus", "-1"}, {"--kubeconfig", "/no/such/folder/file"}} {
		cmd := kubeemu.NewCommand()
		cmd.SetArgs(append([]string{"--listen", "127.0.0.1:0"}, args...))
		cmd.SilenceUsage, cmd.SilenceErrors = true, true
		if err := cmd.ExecuteContext(t.Context()); err == nil {
			t.Errorf("%q is accepted", args)
		}
	}
}
