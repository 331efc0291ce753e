package rego_test

import (
	"crypto/sha256"
	"io/fs"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/paceline-sched/paceline/core/api/admit"
	"github.com/paceline-sched/paceline/policies/rego"
)

const exampleRules = "../../examples/rego"

// The examples pass their own tests, can be pushed, live together, and each refuses or changes what it is for.
func TestExamples(t *testing.T) {
	entries, err := os.ReadDir(exampleRules)
	if err != nil {
		t.Fatal(err)
	}
	var bundles []admit.Bundle
	var names []string
	for _, e := range entries {
		if !e.IsDir() {
			continue
		}
		dir := os.DirFS(exampleRules + "/" + e.Name())
		results, err := rego.Test(t.Context(), dir)
		if err != nil {
			t.Fatalf("%s: %v", e.Name(), err)
		}
		for _, r := range results {
			if !r.Passed {
				t.Errorf("%s: %s at %s: %s", e.Name(), r.Name, r.At, r.Output)
			}
		}
		if _, err := fs.Stat(dir, "README.md"); err != nil {
			t.Errorf("%s: %v", e.Name(), err)
		}
		archive, err := rego.Pack(dir)
		if err != nil {
			t.Fatal(err)
		}
		bundles = append(bundles, admit.Bundle{Name: e.Name(), Digest: sha256.Sum256(archive), Archive: archive})
		names = append(names, e.Name())
	}
	if want := []string{"gpu-quota", "image-allowlist", "no-privileged", "priority-caps", "required-labels"}; !slices.Equal(names, want) {
		t.Fatalf("got %v, want %v", names, want)
	}
	j := newJudge(t, bundles...)
	for _, c := range []struct{ job, want string }{
		{
			`{"name": "a", "batch": {}, "priority": 200, "labels": {"cost-center": "4711"}, "task": {"command": ["/opt/apps/run"], "resources": {"gpu_milli": 1000}}}`,
			`change required-labels: labels.team  -> "ads" | change priority-caps: priority 200 -> 100 | change gpu-quota: batch.deadline  -> "172800s"`,
		},
		{
			`{"name": "a", "batch": {}, "labels": {"cost-center": "x"}, "task": {"command": ["/usr/bin/sudo"]}}`,
			`deny image-allowlist: the program "/usr/bin/sudo" is not approved: `,
		},
		{
			`{"name": "a", "batch": {}, "labels": {"cost-center": "4711", "team": "ads"}, "task": {"container": {"image": "registry.example.com/apps/web:1"},
				"sidecars": [{"name": "s", "image": "elsewhere.example.com/s:1"}]}}`,
			`deny image-allowlist: the image "elsewhere.example.com/s:1" is not approved: use one that begins with registry.example.com/base/ or registry.example.com/apps/`,
		},
	} {
		if got := said(judge(t, j, request(t, c.job))); !strings.HasPrefix(got, c.want) {
			t.Errorf("got %s\nwant %s", got, c.want)
		}
	}
}
