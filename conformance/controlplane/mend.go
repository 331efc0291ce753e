package controlplane

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// kwok 0.8.0 begins every watch at version 0, also one that goes on after the API server cut it, and so is told of all pods again each time. A kwok that falls behind falls
// behind further, and what is measured is that. The mended line keeps a version that the watch goes on from.
const (
	kwokModule = "sigs.k8s.io/kwok"
	kwokSource = "pkg/utils/informer/event.go"
	kwokLine   = `opts.ResourceVersion = "0"`
	kwokMended = `if opts.ResourceVersion == "" {
			opts.ResourceVersion = "0"
		}`
)

// file is the name of a program in the cache; one that is mended is named after what was mended, too.
func file(name string) string {
	if name != Kwok {
		return name
	}
	sum := sha256.Sum256([]byte(kwokMended))
	return fmt.Sprintf("%s-%x", Kwok, sum[:4])
}

// mendKwok copies kwok's module, mends it, and returns a go.mod that takes the copy.
func mendKwok(ctx context.Context, dir, cache string) (string, error) {
	download := exec.CommandContext(ctx, "go", "mod", "download", "-json", kwokModule)
	download.Dir = dir
	found, err := download.Output()
	var m struct{ Dir, Error string }
	if e := json.Unmarshal(found, &m); err != nil || e != nil {
		return "", fmt.Errorf("get the module: %w: %s", errors.Join(err, e), m.Error)
	}
	mended := filepath.Join(cache, "kwok.mended")
	if err := os.RemoveAll(mended); err != nil {
		return "", fmt.Errorf("copy the module: %w", err)
	}
	if err := os.CopyFS(mended, os.DirFS(m.Dir)); err != nil {
		return "", fmt.Errorf("copy the module: %w", err)
	}
	source := filepath.Join(mended, kwokSource)
	text, err := os.ReadFile(source) //nolint:gosec // the copy
	if err != nil {
		return "", fmt.Errorf("read the source: %w", err)
	}
	if n := bytes.Count(text, []byte(kwokLine)); n != 1 {
		return "", fmt.Errorf("%s has %q %d times, not once: see whether this version of kwok still needs the mend", kwokSource, kwokLine, n)
	}
	if err := os.WriteFile(source, bytes.Replace(text, []byte(kwokLine), []byte(kwokMended), 1), 0o600); err != nil {
		return "", fmt.Errorf("write the source: %w", err)
	}
	for _, ending := range []string{"mod", "sum"} {
		raw, err := os.ReadFile(filepath.Join(dir, "go."+ending)) //nolint:gosec // the nested module's
		if err != nil {
			return "", fmt.Errorf("take the copy: %w", err)
		}
		if ending == "mod" {
			raw = fmt.Appendf(raw, "\nreplace %s => %s\n", kwokModule, mended)
		}
		if err := os.WriteFile(filepath.Join(cache, "kwok."+ending), raw, 0o600); err != nil {
			return "", fmt.Errorf("take the copy: %w", err)
		}
	}
	return filepath.Join(cache, "kwok.mod"), nil
}
