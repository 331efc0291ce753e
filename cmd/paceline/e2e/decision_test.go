package e2e_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	pacelinev1 "github.com/paceline-sched/paceline/sdk/gen/paceline/v1"
)

// replayed is what the test reads of a replay's report.
type replayed struct {
	Segments, Batches, Placed, Gaps, Torn, Mismatches int
	Policies                                          []struct {
		Identical int `json:"identical_batches"`
		Elsewhere int
		OnlyFirst int `json:"only_first"`
	}
}

func (c *cell) replay(policy string) (r replayed) {
	c.t.Helper()
	if err := json.Unmarshal([]byte(c.must("policy", "replay", "--policy", policy, "--data-dir", c.data, "-o", "json")), &r); err != nil {
		c.t.Fatal(err)
	}
	return r
}

// TestDecisionLog: what a cell decided replays to the last bit, while it runs, after it was killed, and over the next start; another strategy decides otherwise.
func TestDecisionLog(t *testing.T) {
	t.Parallel()
	c := startCell(t, simulates...)
	work := func(round int) {
		var paths []string
		for i := range 4 {
			name := fmt.Sprintf("work-%d-%d", round, i)
			spread := ""
			if i == 3 {
				spread = "placement: {strategy: spread}\n"
			}
			c.must("job", "run", write(t, c.dir, name+".yaml", fmt.Sprintf(
				"name: %s\nbatch: {}\ninstances: %d\n%stask: {resources: {cpu_milli: %d, memory_mib: 512}, simulation: {duration: 0.%ds}}\n", name, 60*(i+1), spread, 900*(i+1), i+2)))
			paths = append(paths, "/default/"+name)
		}
		c.awaitJobs(pacelinev1.JobState_JOB_STATE_SUCCEEDED, paths...)
	}
	check := func(when string, r replayed) {
		t.Helper()
		if p := r.Policies[0]; r.Batches == 0 || p.Identical != r.Batches || p.Elsewhere != 0 || p.OnlyFirst != 0 || r.Mismatches != 0 || r.Gaps != 0 {
			t.Errorf("%s: the cell differs from itself: %+v", when, r)
		}
	}
	work(1)
	c.await("the log is written", func() error {
		r := c.replay("native")
		check("while it runs", r)
		if r.Placed < 600 {
			return fmt.Errorf("%d of 600 tasks are in it", r.Placed)
		}
		return nil
	})
	c.kill()
	c.start()
	work(2)
	c.stop()
	r := c.replay("native")
	check("after the end", r)
	if r.Placed < 1200 || r.Segments < 2 {
		t.Errorf("%+v", r)
	}
	if other := c.replay("spread"); other.Policies[0].Elsewhere == 0 || other.Policies[0].Identical == other.Batches {
		t.Errorf("spread decides as best-fit does: %+v", other)
	}
	var list []struct {
		Shard    string
		Requests []struct{ Hosts []string }
	}
	if err := json.Unmarshal([]byte(c.must("policy", "decisions", "--data-dir", c.data, "--limit", "100000", "-o", "json")), &list); err != nil {
		t.Fatal(err)
	}
	hosts := 0
	for _, d := range list {
		for _, r := range d.Requests {
			hosts += len(r.Hosts)
		}
	}
	if len(list) != r.Batches || hosts != r.Placed || list[0].Shard != "simulated/0" {
		t.Errorf("%d decisions with %d tasks are shown, the replay had %+v", len(list), hosts, r)
	}
}

// TestNoDecisionLog: a server that is told not to records nothing.
func TestNoDecisionLog(t *testing.T) {
	t.Parallel()
	c := startCell(t, append([]string{"--decision-log-mib", "0"}, simulates...)...)
	c.must("job", "run", write(t, c.dir, "one.yaml", "name: one\nbatch: {}\ntask: {simulation: {duration: 0.01s}}\n"), "--wait")
	if _, err := os.Stat(filepath.Join(c.data, "decisions")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("there is a log: %v", err)
	}
	want(t, c.paceline("policy", "replay", "--policy", "native", "--data-dir", c.data), 2, "there is no log of decisions")
}
