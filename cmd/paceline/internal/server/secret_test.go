package server

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/paceline-sched/paceline/core/cluster"
)

// TestALongSecret: the bound is of the secret, not of the line's end after it.
func TestALongSecret(t *testing.T) {
	t.Parallel()
	c := &Config{SecretsDir: t.TempDir()}
	longest := strings.Repeat("s", maxSecretBytes)
	for content, fits := range map[string]bool{longest: true, longest + "\n": true, longest + "\r\n": true, longest + "s": false, longest + "s\n": false} {
		if err := os.WriteFile(filepath.Join(c.SecretsDir, "east"), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := c.readSecret(cluster.Secret{File: "east"})
		if (err == nil) != fits || fits && got != longest {
			t.Errorf("of %d bytes, %q at the end, %d were read: %v", len(content), content[len(content)-2:], len(got), err)
		}
	}
}
