package cli_test

import (
	"context"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"github.com/spf13/cobra"
	"go.uber.org/goleak"

	"github.com/paceline-sched/paceline/cmd/paceline/internal/cli"
)

func TestMain(m *testing.M) {
	testscript.Main(leakChecked{m}, map[string]func(){"paceline": paceline})
}

// leakChecked checks for goroutines that outlive the tests, in the process that serves the fake cells.
type leakChecked struct{ m *testing.M }

func (l leakChecked) Run() int {
	code := l.m.Run()
	if err := goleak.Find(); code == 0 && err != nil {
		os.Stderr.WriteString(err.Error())
		return 1
	}
	return code
}

// now is the time by which scripts see ages.
var now = time.Date(2026, 1, 2, 4, 4, 5, 0, time.UTC)

func paceline() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(cli.Run(ctx, cli.Config{
		Version: "v1.2.3", In: os.Stdin, Out: os.Stdout, Err: os.Stderr, Env: os.Getenv, Now: func() time.Time { return now },
	}, os.Args[1:]))
}

// TestScripts runs every script of testdata/script against a cell of its own.
func TestScripts(t *testing.T) {
	t.Parallel()
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script",
		Setup: func(env *testscript.Env) error {
			token := filepath.Join(env.WorkDir, "token")
			if err := os.WriteFile(token, []byte(fakeToken+"\n"), 0o600); err != nil {
				return err
			}
			env.Setenv("GORACE", "atexit_sleep_ms=0") // a command that is done need not wait a second for races
			env.Setenv("PACELINE_ADDRESS", startFakeCell(env.Defer))
			env.Setenv("PACELINE_TOKEN_FILE", token)
			env.Setenv("PACELINE_CONFIG", filepath.Join(env.WorkDir, "config.yaml"))
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"exits": exits, "shows": shows},
	})
}

// patience bounds every wait of a script for a command in the background.
const patience = 2 * time.Minute

// shows waits until a file that a command writes in the background matches: shows rows 'web +service +pending'.
func shows(ts *testscript.TestScript, _ bool, args []string) {
	want, err := regexp.Compile(args[1])
	ts.Check(err)
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	look := time.NewTicker(20 * time.Millisecond)
	defer look.Stop()
	for {
		content, err := os.ReadFile(ts.MkAbs(args[0]))
		if err == nil && want.Match(content) {
			return
		}
		select {
		case <-look.C:
		case <-deadline.C:
			ts.Fatalf("after %v %s does not show %q: %v\n%s", patience, args[0], args[1], err, content)
		}
	}
}

// exits runs the command line and wants an exact exit code: exits 3 paceline job get none.
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

// TestHelp holds every command to what a user needs to start: a one-line summary, and an example for verbs that take something.
func TestHelp(t *testing.T) {
	t.Parallel()
	var visit func(*cobra.Command)
	visit = func(c *cobra.Command) {
		if c.Short == "" {
			t.Errorf("%s has no summary", c.CommandPath())
		}
		if c.Example == "" && c.HasAvailableFlags() && !c.HasSubCommands() && c.HasParent() && c.LocalNonPersistentFlags().HasFlags() {
			t.Errorf("%s has flags but no example", c.CommandPath())
		}
		for _, sub := range c.Commands() {
			visit(sub)
		}
	}
	visit(cli.NewRoot(cli.Config{Env: os.Getenv, Now: time.Now}))
}
