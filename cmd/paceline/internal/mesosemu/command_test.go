package mesosemu_test

import (
	"bufio"
	"context"
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/paceline-sched/paceline/cmd/paceline/internal/mesosemu"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestItServesUntilItIsStopped asks an emulator what agents it has, and stops it.
func TestItServesUntilItIsStopped(t *testing.T) {
	for _, args := range [][]string{{"--tasks-last", "1s", "--fault-new-master", "1ms", "--fault-lose-agent", "1ms", "--fault-lose-for", "1h", "--fault-cut", "1ms", "--fault-duplicate", "1"}, {"--root", t.TempDir()}, {}} {
		ctx, stop := context.WithCancel(t.Context())
		out, in := io.Pipe()
		cmd := mesosemu.NewCommand()
		cmd.SetArgs(append(args, "--listen", "127.0.0.1:0", "--agents", "3"))
		cmd.SetOut(in)
		ended := make(chan error, 1)
		go func() { ended <- cmd.ExecuteContext(ctx) }()
		line, err := bufio.NewReader(out).ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		url := regexp.MustCompile(`http://[^/]+`).FindString(line)
		if got := strings.Count(get(t, url+"/slaves"), `"hostname"`); got != 3 && len(args) < 4 {
			t.Errorf("%q shows %d agents, want 3", args, got)
		}
		stop()
		if err := <-ended; err != nil {
			t.Errorf("%q ended with %v", args, err)
		}
	}
}

func get(t *testing.T, url string) string {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{DisableKeepAlives: true}
	response, err := (&http.Client{Transport: transport}).Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

func TestWhatCannotBeIsRefused(t *testing.T) {
	for _, args := range [][]string{{"--agents", "0"}, {"--cpus", "0"}, {"--listen", "nowhere"}, {"--fault-refuse", "2"}, {"--fault-cut", "-1s"}} {
		cmd := mesosemu.NewCommand()
		cmd.SetArgs(args)
		cmd.SilenceUsage, cmd.SilenceErrors = true, true
		if err := cmd.ExecuteContext(t.Context()); err == nil {
			t.Errorf("%q is accepted", args)
		}
	}
}
