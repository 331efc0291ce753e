package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/paceline-sched/paceline/conformance/controlplane"
	"github.com/paceline-sched/paceline/conformance/freeport"
)

// patience bounds every wait of a script for a server.
const patience = 2 * time.Minute

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"paceline": main})
}

// TestScripts drives the whole binary as a user does: servers in the background, commands in front, real processes below.
func TestScripts(t *testing.T) {
	t.Parallel()
	scripts(t, "testdata/script", "")
}

// TestHeavyScripts is the same for scripts that compute: the race detector is off in their binary. Races are looked for where they are made.
func TestHeavyScripts(t *testing.T) {
	t.Parallel()
	bin := t.TempDir()
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-race=false", "-o", filepath.Join(bin, "paceline"), ".").CombinedOutput(); err != nil {
		t.Fatalf("build the binary: %v\n%s", err, out)
	}
	scripts(t, "testdata/heavy", bin)
}

// scripts runs the scripts of a folder with the binary that is in bin, "" for this program.
func scripts(t *testing.T, dir, bin string) {
	t.Helper()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	kubectl := cachedKubectl()
	testscript.Run(t, testscript.Params{
		Dir: dir,
		Setup: func(env *testscript.Env) error {
			if bin != "" {
				env.Setenv("PATH", bin+string(os.PathListSeparator)+env.Getenv("PATH"))
			}
			env.Setenv("GORACE", "atexit_sleep_ms=0") // a command that is done need not wait a second for races
			env.Setenv("HOME", env.WorkDir)
			env.Setenv("PACELINE_TIMEOUT", patience.String()) // of one call
			env.Setenv("ROOT", root)
			env.Setenv("GUESTS", filepath.Join(root, "policies", "wasm", "testdata", "guests"))
			for _, name := range []string{"GOCACHE", "GOMODCACHE", "GOFLAGS"} { // what is built here is built once
				if value, err := exec.Command("go", "env", name).Output(); err == nil {
					env.Setenv(name, strings.TrimSpace(string(value)))
				}
			}
			env.Setenv("PACELINE_DATA", filepath.Join(env.WorkDir, "data"))
			port, err := freeport.Find() // for servers that have to come back where their users know them
			if err != nil {
				return err
			}
			env.Setenv("LISTEN", fmt.Sprintf("127.0.0.1:%d", port))
			if kubectl != "" {
				env.Setenv("KUBECTL", kubectl)
			}
			return nil
		},
		Condition: func(condition string) (bool, error) {
			if condition != "kubectl" {
				return false, fmt.Errorf("the condition %q is unknown", condition)
			}
			return kubectl != "", nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"await": await, "eventually": eventually, "exits": exits, "present": present, "repeat": repeat,
		},
	})
}

// cachedKubectl is the kubectl that the conformance suite of Kubernetes has built; "": it has not.
func cachedKubectl() string {
	cache, err := controlplane.Cache()
	if err != nil || !controlplane.Cached(controlplane.Kubectl) {
		return ""
	}
	return filepath.Join(cache, controlplane.Kubectl)
}

// await waits for a server's ready file and makes its address the one that commands use: await ready.
func await(ts *testscript.TestScript, _ bool, args []string) {
	ts.Setenv("PACELINE_ADDRESS", strings.TrimSpace(written(ts, args[0])))
	ts.Check(os.Remove(ts.MkAbs(args[0]))) // the next server makes its own
}

// present waits until a file holds something: present progress.
func present(ts *testscript.TestScript, _ bool, args []string) { written(ts, args[0]) }

// written returns the content of a file once there is some.
func written(ts *testscript.TestScript, name string) string {
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	look := time.NewTicker(20 * time.Millisecond)
	defer look.Stop()
	for {
		if content, err := os.ReadFile(ts.MkAbs(name)); err == nil && len(content) > 0 {
			return string(content)
		}
		select {
		case <-look.C:
		case <-deadline.C:
			ts.Fatalf("%s is not there after %v", name, patience)
		}
	}
}

// eventually runs a command again and again until it succeeds and its standard output matches. It is for what a server learns by itself, in its own time:
// eventually '^local/local-0$' paceline host list -o name.
func eventually(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: eventually pattern command...")
	}
	want, err := regexp.Compile("(?m)" + args[0])
	ts.Check(err)
	look := time.NewTicker(100 * time.Millisecond)
	defer look.Stop()
	for deadline := time.Now().Add(patience); ; <-look.C {
		err := ts.Exec(args[1], args[2:]...)
		if err == nil && want.MatchString(ts.ReadFile("stdout")) {
			return
		}
		if time.Now().After(deadline) {
			ts.Fatalf("after %v %q does not show %q: %v", patience, args[1:], args[0], err)
		}
	}
}

// exits runs a command and wants an exact exit code: exits 3 paceline job get none.
func exits(ts *testscript.TestScript, _ bool, args []string) {
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	got := 0
	if err := ts.Exec(args[1], args[2:]...); err != nil {
		code, ok := err.(interface{ ExitCode() int })
		if !ok {
			ts.Fatalf("%v", err)
		}
		got = code.ExitCode()
	}
	if got != want {
		ts.Fatalf("exit code %d, want %d", got, want)
	}
}

// repeat replaces each @N@ in a file by N letters: repeat long.yaml.
func repeat(ts *testscript.TestScript, _ bool, args []string) {
	content := ts.ReadFile(args[0])
	parts := strings.Split(content, "@")
	for i := 1; i < len(parts); i += 2 {
		n, err := strconv.Atoi(parts[i])
		ts.Check(err)
		parts[i] = strings.Repeat("x", n)
	}
	if err := os.WriteFile(ts.MkAbs(args[0]), []byte(strings.Join(parts, "")), 0o600); err != nil {
		ts.Fatalf("%v", fmt.Errorf("repeat: %w", err))
	}
}
