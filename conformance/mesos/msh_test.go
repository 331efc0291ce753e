package mesos_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestMsh runs commands with msh, a framework that comes with mesos-go, as a program of its own: by themselves and in a task group.
func TestMsh(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("gcc"); err != nil {
		t.Skip("msh needs a C compiler to be built")
	}
	msh := filepath.Join(t.TempDir(), "msh")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", msh, "github.com/mesos/mesos-go/api/v1/cmd/msh").CombinedOutput(); err != nil {
		t.Fatalf("build msh: %v\n%s", err, out)
	}
	w := theCluster(t)
	address := strings.TrimPrefix(w.url, "http://")
	for _, test := range []struct {
		flags []string
		exit  string
		code  int
	}{{nil, "exit 0", 0}, {[]string{"-pod"}, "exit 0", 0}, {nil, "exit 1", 3}} { // msh's own code for a task that failed
		wrote := filepath.Join(t.TempDir(), "wrote")
		args := append([]string{"-master", address}, test.flags...)
		run := exec.CommandContext(t.Context(), msh, append(args, "--", "sh", "-c", "echo hello >"+wrote+"; "+test.exit)...)
		out, _ := run.CombinedOutput() // its code is looked at
		if code := run.ProcessState.ExitCode(); code != test.code {
			t.Errorf("msh %q ended with code %d, want %d:\n%s", run.Args[1:], code, test.code, out)
		}
		if !w.inside {
			continue // the agent may be on another machine
		}
		if text, err := os.ReadFile(wrote); string(text) != "hello\n" {
			t.Errorf("the command of msh %q wrote %q (%v)", run.Args[1:], text, err)
		}
	}
}
