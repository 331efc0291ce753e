package emulator

import (
	"testing"
	"time"

	"github.com/paceline-sched/paceline/hostmanagers/kubernetes/emulator/cluster"
	"github.com/paceline-sched/paceline/hostmanagers/local/runner/shim"
)

// What became of a process is told as a kubelet would: only what could not be started has not started, and what is not known has not ended well.
func TestExits(t *testing.T) {
	t.Parallel()
	now := time.Unix(1, 0)
	for name, c := range map[string]struct {
		exit *shim.Exit
		want cluster.Exit
	}{
		"ended":                {&shim.Exit{Verdict: shim.Exited, Code: 3, Started: now}, cluster.Exit{Code: 3}},
		"killed":               {&shim.Exit{Verdict: shim.Killed, Code: 143, Started: now}, cluster.Exit{Code: 143}},
		"killed at its start":  {&shim.Exit{Verdict: shim.Killed, Message: "killed before it was started"}, cluster.Exit{Signal: 9}},
		"could not be started": {&shim.Exit{Verdict: shim.LaunchFailed, Message: "no such file"}, cluster.Exit{NotStarted: true, Message: "no such file"}},
		"lost":                 {&shim.Exit{Verdict: shim.ShimDied, Started: now}, cluster.Exit{Code: 1, Message: "the emulator lost its process"}},
	} {
		if got := exitOf(c.exit); got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}
