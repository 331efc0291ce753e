package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

// patience bounds every wait of a script for a server.
const patience = 30 * time.Second

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"paceline": main})
}

// TestScripts drives the whole binary as a user does: servers in the background, commands in front, real processes below.
func TestScripts(t *testing.T) {
	t.Parallel()
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script",
		Setup: func(env *testscript.Env) error {
			env.Setenv("HOME", env.WorkDir)
			env.Setenv("PACELINE_DATA", filepath.Join(env.WorkDir, "data"))
			env.Setenv("DEV", "--listen 127.0.0.1:0 --log-level warn")
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"await": await, "exits": exits, "repeat": repeat,
		},
	})
}

// await waits for a server's ready file and makes its address the one that commands use: await ready.
func await(ts *testscript.TestScript, _ bool, args []string) {
	file := ts.MkAbs(args[0])
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	look := time.NewTicker(20 * time.Millisecond)
	defer look.Stop()
	for {
		if address, err := os.ReadFile(file); err == nil && len(address) > 0 {
			ts.Setenv("PACELINE_ADDRESS", strings.TrimSpace(string(address)))
			ts.Check(os.Remove(file)) // the next server makes its own
			return
		}
		select {
		case <-look.C:
		case <-deadline.C:
			ts.Fatalf("no server within %v", patience)
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
