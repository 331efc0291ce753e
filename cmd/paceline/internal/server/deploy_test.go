package server_test

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/spf13/cobra"

	"github.com/paceline-sched/paceline/cmd/paceline/internal/server"
)

// serverFlag finds flags as the files of the folder deploy spell them: alone in a list of a manifest, or in a command.
var serverFlag = regexp.MustCompile(`(?:^|[\s=\[,"'])--([a-z][a-z-]*)`)

// comment is what they say to people, who may be told of other commands.
var comment = regexp.MustCompile(`(?m)^\s*#.*$`)

// TestDeployedFlags: `paceline server` has every flag that the chart, its values, and the systemd unit give it.
func TestDeployedFlags(t *testing.T) {
	t.Parallel()
	var flags *cobra.Command
	for _, c := range server.NewCommands(server.Defaults{}) {
		if c.Name() == "server" {
			flags = c
		}
	}
	const root = "../../../.."
	found := map[string]bool{}
	for _, pattern := range []string{
		"deploy/helm/paceline/templates/statefulset.yaml", "deploy/helm/paceline/values.yaml", "conformance/deploy/testdata/values/*.yaml", "deploy/systemd/*",
	} {
		files, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil || len(files) == 0 {
			t.Fatalf("no %s: %v", pattern, err)
		}
		for _, file := range files {
			raw, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			for _, match := range serverFlag.FindAllSubmatch(comment.ReplaceAll(raw, nil), -1) {
				name := string(match[1])
				found[name] = true
				if flags.Flag(name) == nil {
					t.Errorf("%s gives the server --%s, which it does not have", file, name)
				}
			}
		}
	}
	for _, name := range []string{"data-dir", "listen", "tls-cert", "secrets-dir", "gc-percent"} {
		if !found[name] {
			t.Errorf("--%s was not found: what looks for flags is blind", name)
		}
	}
}
