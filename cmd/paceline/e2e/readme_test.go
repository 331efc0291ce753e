package e2e_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

// root is the repository.
const root = "../../.."

// notRun are the commands of documents that this test cannot run as they stand. Of our own the flags are checked.
var notRun = regexp.MustCompile(`^(make \w+|go install \S+|kill -9 \d+|paceline dev|paceline sim pack .*)$`)

// commands are the lines of a document's fenced blocks that a reader types: those after a $ where there are any, else all.
func commands(t *testing.T, path string) []string {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var list []string
	for i, block := range strings.Split(string(raw), "\n```") {
		if i%2 == 0 || strings.HasPrefix(block, "go\n") {
			continue
		}
		shown := strings.Contains(block, "\n$ ")
		for line := range strings.Lines(block[strings.Index(block, "\n"):]) {
			line = strings.TrimSpace(line)
			typed, isTyped := strings.CutPrefix(line, "$ ")
			if typed, _, _ = strings.Cut(typed, " #"); line != "" && (isTyped || !shown) {
				list = append(list, strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(typed), "&")))
			}
		}
	}
	return list
}

// TestDocuments runs what README.md and the examples tell a reader to type, so that it goes on to work.
func TestDocuments(t *testing.T) {
	t.Parallel()
	c := startCell(t, "--local-hosts", "3", "--local-cpu", "8000", "--local-memory-mib", "4096", "--local-port-first", "25100", "--local-port-last", "25399")
	here, err := filepath.Abs(root)
	if err != nil {
		t.Fatal(err)
	}
	script := strings.Builder{}
	fmt.Fprintf(&script, "cd %s\n", here)
	seen := map[string]bool{}
	for _, document := range []string{
		"examples/pools/README.md", "examples/batch/README.md", "examples/service/README.md", "examples/daemon/README.md",
		"examples/gang/README.md", "examples/impossible/README.md", "examples/demo/README.md", "examples/README.md", "README.md",
	} {
		fmt.Fprintf(&script, "# %s\n", document)
		for _, command := range commands(t, filepath.Join(root, document)) {
			ours := strings.HasPrefix(command, "paceline ")
			switch {
			case seen[command]:
			case notRun.MatchString(command) && ours:
				fmt.Fprintf(&script, "exec %s --help\n", command)
			case notRun.MatchString(command):
			case !ours:
				t.Errorf("%s has the command %q: let it be run here, or say in notRun that it cannot be", document, command)
			case strings.HasPrefix(command, "paceline job plan "): // it exits with 1 for changes
				fmt.Fprintf(&script, "! exec %s\nstdout 'would be created'\n", command)
			default:
				fmt.Fprintf(&script, "exec %s\n", strings.ReplaceAll(command, " fewest.wasm", " $WORK/fewest.wasm")) // not into the repository
			}
			seen[command] = true
		}
	}
	if len(seen) < 10 {
		t.Errorf("only %d commands were found in the documents", len(seen))
	}
	// What the documents say came of it.
	script.WriteString("exec paceline job get /research/nightly/squares\nstdout '500/500 done'\nexec paceline job get /web/heartbeat\nstdout '5/5 healthy'\n")
	script.WriteString("exec paceline pool describe /lab/sweeps\nstdout '^Queue: +smallest-first, back-fill easy tried shortest-first, patience 30m'\n" +
		"exec paceline pool get /lab/students --spec\nstdout 'order: fair-user'\nstdout 'usage_half_life: 21600s'\nstdout 'user_limit:'\n" +
		"exec paceline pool get /lab/interactive --spec\nstdout 'order: express'\nexec paceline pool get /lab/spark --spec\nstdout 'controller_percent: 25'\n" +
		"exec paceline pool get /lab/spare --spec\nstdout 'revocable_percent: 50'\nexec paceline pool plan examples/pools/queues.yaml\nstdout 'no pool would change'\n")
	script.WriteString("exec paceline task logs /research/nightly/squares 12\nstdout '^12 squared is 144$'\n")
	testscript.Run(t, testscript.Params{
		Files: []string{write(t, c.dir, "documents.txtar", script.String())},
		Setup: func(env *testscript.Env) error {
			env.Setenv("PATH", filepath.Dir(binary)+string(os.PathListSeparator)+os.Getenv("PATH"))
			env.Setenv("HOME", os.Getenv("HOME")) // where Go keeps what it has compiled
			env.Setenv("PACELINE_ADDRESS", c.address())
			env.Setenv("PACELINE_TIMEOUT", compileTime)
			env.Setenv("PACELINE_TOKEN_FILE", filepath.Join(c.data, "token"))
			env.Setenv("PACELINE_CONFIG", filepath.Join(c.dir, "config.yaml"))
			return nil
		},
	})
	t.Cleanup(func() { // the script runs in parallel, so it ends after this function
		if t.Failed() {
			return
		}
		list, err := c.jobs()
		if err != nil {
			t.Error(err)
			return
		}
		for path, j := range list {
			if j.GetEndTime() == nil {
				c.must("job", "stop", path, "--wait")
			}
		}
		c.stop()
		c.wantNoProcess()
	})
}
