package e2e_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"connectrpc.com/connect"

	// What a policy is built from: named here, so that a cached result of this test does not outlive a change of it.
	_ "github.com/paceline-sched/paceline/sdk/policy/policytest"
)

// compileTime bounds the calls of who pushes a policy in Go: it is compiled at low priority, and on a busy machine that takes its time.
const compileTime = "5m"

// fenced returns the blocks of a document in a language.
func fenced(t *testing.T, path, language string) []string {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var list []string
	for i, block := range strings.Split(string(raw), "\n```") {
		if body, ok := strings.CutPrefix(block, language+"\n"); ok && i%2 == 1 {
			list = append(list, body+"\n")
		}
	}
	return list
}

// TestFirstPolicy follows docs/first-policy.md: its files, its commands in their order, and what it says comes of them.
func TestFirstPolicy(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("go"); err != nil {
		t.Skip("no Go: policies in Go are built with its toolchain")
	}
	document := filepath.Join(root, "docs", "first-policy.md")
	c := startCell(t, "--local-hosts", "0", "--simulated-hosts", "20")
	here, err := filepath.Abs(root)
	if err != nil {
		t.Fatal(err)
	}
	sources, job := fenced(t, document, "go"), fenced(t, document, "yaml")
	if len(sources) != 2 || len(job) != 1 {
		t.Fatalf("%d sources and %d jobs are in %s", len(sources), len(job), document)
	}
	folder := t.TempDir()
	write(t, folder, "job.yaml", job[0])
	said := map[string]string{}
	for _, command := range commands(t, document) {
		if !strings.HasPrefix(command, "paceline ") || strings.HasPrefix(command, "paceline dev ") {
			continue
		}
		text := run(t, c, folder, strings.ReplaceAll(command, "~/src/paceline", here))
		said[strings.Join(strings.Fields(command)[1:3], " ")] = text
		switch strings.Join(strings.Fields(command)[1:3], " ") {
		case "policy new":
			write(t, filepath.Join(folder, "fewest"), "main.go", sources[0])
			write(t, filepath.Join(folder, "fewest"), "main_test.go", sources[1])
		case "job delete":
			c.await("the job is gone", func() error { return c.wantTasks(0) })
		case "job run":
			c.await("all tasks are placed", func() error { return c.wantTasks(40) })
		}
	}
	for verb, want := range map[string]string{
		"policy test": "passes", "policy push": "is uploaded", "policy list": "shadow", "task list": "simulated/sim-19", "policy get": "rolled-back",
	} {
		if !strings.Contains(said[verb], want) {
			t.Errorf("paceline %s said nothing of %q:\n%s", verb, want, said[verb])
		}
	}
}

// run runs a command line in a folder, as a user of the cell.
func run(t *testing.T, c *cell, folder, line string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "sh", "-c", line)
	cmd.Dir = folder
	cmd.Env = append(
		os.Environ(), "PATH="+filepath.Dir(binary)+string(os.PathListSeparator)+os.Getenv("PATH"), "PACELINE_ADDRESS="+c.address(),
		"PACELINE_TIMEOUT="+compileTime,
		"PACELINE_TOKEN_FILE="+filepath.Join(c.data, "token"), "PACELINE_CONFIG="+filepath.Join(c.dir, "config.yaml"))
	text, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", line, err, text)
	}
	return string(text)
}

// wantTasks claims that so many tasks of the page's job are on hosts; 0 wants no job.
func (c *cell) wantTasks(n int) error {
	list, err := c.tasks("/default/hello")
	if n == 0 && connect.CodeOf(err) == connect.CodeNotFound {
		return nil
	}
	if err != nil {
		return err
	}
	placed := 0
	for _, task := range list {
		if task.GetRun().GetHost() != "" {
			placed++
		}
	}
	if n == 0 || placed != n {
		return fmt.Errorf("%d tasks of %d are on hosts", placed, len(list))
	}
	return nil
}
