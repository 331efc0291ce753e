package e2e_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// rule writes a bundle of one rule, as whoever keeps rules in a directory does: the new version is complete before it is there.
func rule(t *testing.T, dir, body string) string {
	t.Helper()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	temp := write(t, dir, ".next", "package paceline.admission\n\n"+body+"\n")
	if err := os.Rename(temp, filepath.Join(dir, "rules.rego")); err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestAdmission is the life of rules: kept in a directory and pushed, swapped live, watched, broken, and found again after a crash.
func TestAdmission(t *testing.T) {
	t.Parallel()
	c := newCell(t, simulates...)
	rules := filepath.Join(c.dir, "rules")
	rule(t, filepath.Join(rules, "labels"), `deny contains "say which team it is" if not input.job.labels.team`)
	c.flags = append(c.flags, "--admission-dir", rules, "--token-file", write(t, c.dir, "tokens.yaml", tokens))
	c.start()
	for _, who := range []string{"root", "ops", "eve", "ann"} {
		write(t, c.dir, who+".token", "the-secret-token-of-"+who+"\n")
	}
	as := func(who string, args ...string) result {
		return c.paceline(append(slices.Clone(args), "--token-file", filepath.Join(c.dir, who+".token"))...)
	}
	says := func(r result, code int, text string) {
		t.Helper()
		if r.code != code || !strings.Contains(r.stdout+r.stderr, text) {
			t.Fatalf("%s\nwant exit code %d and %q", r, code, text)
		}
	}
	says(as("root", "pool", "apply", write(t, c.dir, "pools.yaml", "path: /ads\n")), 0, "created")
	job := func(name, more string) string {
		return write(t, c.dir, name+".yaml", "name: "+name+"\npool: /ads\nbatch: {}\npriority: 500\n"+more+"task: {simulation: {duration: 1000s}}\n")
	}
	bare, labelled := job("bare", ""), job("labelled", "labels: {team: ads}\n")
	says(as("ann", "job", "run", bare), 4, "refused by rules of admission: labels: say which team it is")
	says(as("ann", "job", "plan", bare), 255, "say which team it is")

	caps := rule(t, filepath.Join(c.dir, "caps"), `mutate contains {"priority_cap": 10}`)
	says(as("ann", "admission", "push", "caps", caps), 4, "")
	says(as("ops", "admission", "push", "caps", caps), 4, "")
	says(as("eve", "admission", "decisions"), 4, "")
	says(as("root", "admission", "push", "caps", caps, "--activate"), 0, "is active")
	says(as("ann", "job", "plan", labelled), 1, "rules of caps would change priority: 500 -> 10")
	says(as("ann", "job", "run", labelled), 0, "rules of caps changed priority: 500 -> 10")
	says(as("ann", "job", "get", "/ads/labelled", "-o", "yaml"), 0, "priority: 10\n")
	says(as("ann", "job", "run", labelled), 0, "unchanged")

	rule(t, caps, `deny contains "closed" if input.job.name != "x"`)
	says(as("root", "admission", "push", "caps", caps, "--shadow"), 0, "in shadow")
	says(as("ann", "job", "run", job("second", "labels: {team: ads}\n")), 0, "accepted")
	c.await("the bundle in shadow says something", func() error {
		if r := as("ops", "admission", "decisions"); !strings.Contains(r.stdout, "would-deny") {
			return errors.New(r.String())
		}
		return nil
	})
	says(as("root", "admission", "activate", "caps"), 0, "is active")
	says(as("ann", "job", "run", job("third", "labels: {team: ads}\n")), 4, "caps: closed")
	says(as("ann", "job", "run", labelled), 0, "unchanged") // what is there is no matter of rules

	rule(t, filepath.Join(rules, "labels"), `deny contains`)
	c.await("the broken version is told of", func() error {
		if r := as("eve", "admission", "list"); !strings.Contains(r.stdout, "rego_parse_error") {
			return errors.New(r.String())
		}
		return nil
	})
	says(as("ann", "job", "run", bare), 4, "say which team it is")
	rule(t, filepath.Join(rules, "labels"), `deny contains "say whose it is" if not input.job.labels.team`)
	c.await("the mended version is in force", func() error {
		if r := as("ann", "job", "run", bare); !strings.Contains(r.stderr, "say whose it is") {
			return errors.New(r.String())
		}
		return nil
	})

	c.kill()
	c.start()
	says(as("ann", "job", "run", bare), 4, "caps: closed; labels: say whose it is")
	says(as("root", "admission", "remove", "caps"), 0, "removed")
	says(as("ann", "job", "run", job("third", "labels: {team: ads}\n")), 0, "accepted")
	says(c.paceline("admission", "eval", "--bundle", caps, labelled), 1, "denied by")
}
