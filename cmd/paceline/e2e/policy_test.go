package e2e_test

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// module copies a guest of the repository into the cell's folder.
func module(t *testing.T, c *cell, path string) string {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join("..", "..", "..", "policies", path))
	if err != nil {
		t.Fatal(err)
	}
	return write(t, c.dir, filepath.Base(path), string(raw))
}

// TestPolicies is the life of a policy: pushed, watched, tried, active, the default, and found again after a crash at every stage; a bad one is rolled back by itself, and
// all work is placed nevertheless.
func TestPolicies(t *testing.T) {
	t.Parallel()
	c := newCell(t, simulates...)
	c.flags = append(c.flags, "--token-file", write(t, c.dir, "tokens.yaml", tokens))
	c.start()
	for _, who := range []string{"root", "ops", "ann"} {
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
	jobs := 0
	run := func(more string) {
		t.Helper()
		jobs++
		job := write(t, c.dir, "job.yaml", fmt.Sprintf("name: j%d\npool: /ads\ninstances: 40\nbatch: {}\n%stask: {simulation: {duration: 1ms}, resources: {cpu_milli: 10}}\n", jobs, more))
		says(as("root", "job", "run", job, "--wait"), 0, "succeeded")
	}
	crash := func() {
		t.Helper()
		c.kill()
		c.start()
	}
	const chosen = "placement: {strategy: tight}\n"
	good := module(t, c, "wasm/testdata/guests/bestfit.wasm")

	says(as("ann", "policy", "push", "tight", good), 4, "admin")
	says(as("ops", "policy", "push", "tight", good), 4, "admin")
	says(as("root", "policy", "push", "tight", write(t, c.dir, "not.wasm", "hello")), 2, "module is refused")
	says(as("root", "policy", "push", "tight", good), 0, "is uploaded")
	says(as("root", "job", "run", write(t, c.dir, "job.yaml", "name: early\npool: /ads\nbatch: {}\n"+chosen+"task: {command: [x]}\n")), 2, "use best-fit, pack, spread")
	says(as("root", "policy", "shadow", "tight"), 0, "is shadow")
	crash()
	run(chosen)
	says(as("ann", "policy", "list"), 0, "shadow")
	says(as("root", "policy", "list", "-o", "json"), 0, `"compared":`)
	says(as("root", "policy", "canary", "tight", "--pool", "/nowhere"), 3, `there is no pool "/nowhere"`)
	says(as("root", "policy", "activate", "best-fit"), 4, "best-fit is built in")
	says(as("root", "policy", "canary", "tight", "--pool", "/ads"), 0, "is canary for pool /ads")
	crash()
	run(chosen)
	says(as("root", "policy", "activate", "tight"), 0, "is active")
	says(as("root", "policy", "default", "tight", "--kind", "batch"), 0, "places batch jobs")
	crash()
	run("")
	says(as("ops", "policy", "get", "tight"), 0, "Placed with, by shard:")
	says(as("root", "policy", "list"), 0, "batch")

	says(as("root", "policy", "push", "tight", module(t, c, "registry/testdata/guests/trap.wasm")), 0, "is uploaded")
	says(as("root", "policy", "activate", "tight"), 0, "is active")
	c.await("the bad version is rolled back", func() error {
		run(chosen)
		if r := as("ops", "policy", "get", "tight"); !strings.Contains(r.stdout, "rolled-back") {
			return errors.New(r.String())
		}
		return nil
	})
	says(as("ops", "policy", "get", "tight"), 0, "a gate")
	if r := as("ann", "policy", "list"); !regexp.MustCompile("was rolled back by a gate: ([3-9]|[1-9][0-9]+) faults within 10m0s").MatchString(r.stderr) {
		t.Errorf("%s\nwant three faults, or more that came before the gate was looked at", r)
	}
	crash()
	says(as("ann", "policy", "list"), 0, "was rolled back by a gate")
	run(chosen)
	says(as("root", "policy", "list", "-o", "json"), 0, `"POLICY_STAGE_ACTIVE"`) // the one before

	waits := write(t, c.dir, "waits.yaml", "name: waits\npool: /ads\nbatch: {}\n"+chosen+"task: {command: [x], resources: {cpu_milli: 900000000}}\n")
	says(as("root", "job", "run", waits), 0, "accepted")
	says(as("root", "policy", "retire", "tight"), 0, "no version is in force")
	says(as("root", "job", "explain", "/ads/waits"), 0, "no version of its placement policy tight is in force")
	run("")
	fetched := filepath.Join(c.dir, "fetched.wasm")
	pushed, err := os.ReadFile(good)
	if err != nil {
		t.Fatal(err)
	}
	says(as("root", "policy", "get", "tight", "--digest", fmt.Sprintf("%x", sha256.Sum256(pushed))[:6], "--module", fetched), 0, "is in "+fetched)
	if got, err := os.ReadFile(fetched); err != nil || !bytes.Equal(got, pushed) {
		t.Errorf("the module that was fetched is not the one that was pushed: %v", err)
	}
}

// TestSignedPolicies: a server with keys takes what one of them signed, and says where it has none.
func TestSignedPolicies(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("openssl"); err != nil {
		t.Skip("openssl makes the keys")
	}
	c := newCell(t, simulates...)
	keys := filepath.Join(c.dir, "keys")
	if err := os.MkdirAll(keys, 0o700); err != nil {
		t.Fatal(err)
	}
	private := filepath.Join(c.dir, "ops.key")
	for _, args := range [][]string{{"genpkey", "-algorithm", "ed25519", "-out", private}, {"pkey", "-in", private, "-pubout", "-out", filepath.Join(keys, "ops.pem")}} {
		if out, err := exec.Command("openssl", args...).CombinedOutput(); err != nil {
			t.Fatalf("openssl %v: %v: %s", args, err, out)
		}
	}
	c.flags = append(c.flags, "--policy-keys", keys)
	c.start()
	good := module(t, c, "registry/testdata/guests/firstfit.wasm")
	want(t, c.paceline("policy", "push", "tight", good), 4, "not signed")
	c.must("policy", "sign", good, "--key", private, "--id", "ops")
	c.must("policy", "push", "tight", good)
	c.must("policy", "activate", "tight")
	if list := c.must("policy", "list", "-o", "wide"); !strings.Contains(list, "ops") {
		t.Errorf("who signed it is not told:\n%s", list)
	}
}
