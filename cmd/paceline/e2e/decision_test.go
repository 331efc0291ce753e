package e2e_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

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
		if r.Batches > 0 {
			check("while it runs", r)
		}
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

// askedFor is what the test reads of a question to a policy of preemption.
type askedFor struct {
	By, Error  string
	Candidates []struct {
		Job        string
		Runs, Rank int
	}
}

// TestPreemptionIsRecorded: work goes in the order of a policy of preemption that is in force, what it was asked and what would have been asked without it are in the log, and both can be
// given to other policies. The policy has those go first whose runs together have done the least; the cell itself takes of equals what was started last.
func TestPreemptionIsRecorded(t *testing.T) {
	t.Parallel()
	c := startCell(t, "--simulated-hosts", "1", "--simulated-duration", "10m")
	module := module(t, c, "wasm/testdata/guests/trio.wasm")
	run := func(name string, instances, priority int) (id string) {
		c.must("job", "run", write(t, c.dir, name+".yaml", fmt.Sprintf(
			"name: %s\nbatch: {}\ninstances: %d\npriority: %d\ntask: {command: [x], resources: {cpu_milli: 8000, memory_mib: 64}}\n", name, instances, priority)))
		c.await(name+" runs", func() error {
			list, err := c.jobs()
			if err != nil {
				return err
			}
			if j := list["/default/"+name]; j.GetState() != pacelinev1.JobState_JOB_STATE_RUNNING {
				return fmt.Errorf("it is %v", j.GetState())
			}
			id = list["/default/"+name].GetId()
			return nil
		})
		return id
	}
	questions := func(by ...string) (list []askedFor) {
		args := append([]string{"policy", "decisions", "--kind", "preempt", "--data-dir", c.data, "-o", "json"}, by...)
		if err := json.Unmarshal([]byte(c.must(args...)), &list); err != nil {
			t.Fatal(err)
		}
		return slices.DeleteFunc(list, func(a askedFor) bool { return a.Error != "" }) // one that stood still for too long
	}
	asked := func(by string, alike bool, want ...string) {
		c.await("a question to "+by+" is in the log", func() error {
			list := questions("--policy", by)
			if len(list) == 0 {
				return errors.New("there is none")
			}
			who := list[0].Candidates
			if len(who) != 2 || who[0].Job != want[0] || who[1].Job != want[1] || (who[0].Rank == who[1].Rank) != alike {
				t.Fatalf("%+v, want %q in this order, or alike: %v", list[0], want, alike)
			}
			return nil
		})
	}
	since := time.Now()
	old := run("old", 1, 0) // of four parts of the host
	young := run("young", 3, 0)
	asked("by-overage", true, old, young)

	c.must("policy", "push", "gentle", module, "--kind", "preempt")
	c.must("policy", "activate", "gentle")
	for n := 1; !c.makesRoom(fmt.Sprintf("urgent-%d", n), since); n++ {
		c.must("job", "stop", fmt.Sprintf("urgent-%d", n), "--wait")
		since = time.Now().Add(-time.Second) // else the next question may be too soon to be recorded
		c.awaitRuns(map[string]uint32{"/default/old": 1, "/default/young": 3})
	}
	asked("gentle", false, old, young)
	c.stop()

	n, gentle := len(questions()), len(questions("--policy", "gentle")) // one each, or more when there was time for it
	all := fmt.Sprintf("trio.wasm: %d questions, %d answered as recorded, 0 faults", n, n)
	for args, parts := range map[string][]string{
		"policy decisions --kind preempt":                                              {"by-overage", "gentle@", "2 candidates"},
		"policy replay --kind preempt --policy " + module:                              {all},
		"policy diff --kind preempt least-work-lost " + module:                         {fmt.Sprintf("least-work-lost: %d questions, %d answered as recorded", n, n-gentle), fmt.Sprintf("another goes first in %d question", gentle), all, old, young},
		"policy replay --kind preempt --policy pack --since 1h":                        {"policy pack is none of preempt"},
		"policy replay --kind preempt --policy gang-cost --until 2001-01-01T00:00:00Z": {"no question to a policy of preempt is recorded in that time"},
	} {
		r := c.paceline(append(strings.Fields(args), "--data-dir", c.data)...)
		for _, part := range parts {
			if !strings.Contains(r.stdout+r.stderr, part) {
				t.Errorf("%s\nwant %q", r, part)
			}
		}
	}
}

// makesRoom submits work that is more urgent than what fills the host, and reports whether it was the policy that chose who goes: then that has to be old. The cell does not wait long
// for a policy's answer, and on a machine that stands still it decides by itself and says so.
func (c *cell) makesRoom(urgent string, since time.Time) bool {
	c.t.Helper()
	<-time.After(time.Since(since)) // then young's three runs have done more than old's one, however slow it all was
	c.must("job", "run", write(c.t, c.dir, urgent+".yaml", "name: "+urgent+"\nbatch: {}\npriority: 10\ntask: {command: [x], resources: {cpu_milli: 8000}}\n"))
	c.awaitRuns(map[string]uint32{"/default/" + urgent: 1})
	why := "preempted for job " + urgent + " of pool /default: its priority 0 is below 10; the order is "
	for _, instance := range []string{"0", "1", "2"} {
		if r := c.must("task", "get", "young", instance); strings.Contains(r, why) {
			if !regexp.MustCompile(regexp.QuoteMeta(why) + "the built-in one: policy gentle@[0-9a-f]+ (has given no answer for|failed:) ").MatchString(r) {
				c.t.Fatalf("young made room, not old:\n%s", r)
			}
			return false
		}
	}
	if r := c.must("task", "get", "old", "0"); !strings.Contains(r, why+"that of policy gentle@") {
		c.t.Fatalf("old made room otherwise than by the policy:\n%s", r)
	}
	return true
}

// awaitRuns waits until so many runs of jobs are running.
func (c *cell) awaitRuns(want map[string]uint32) {
	c.t.Helper()
	c.await(fmt.Sprintf("the running runs are %v", want), func() error {
		list, err := c.jobs()
		if err != nil {
			return err
		}
		for path, n := range want {
			if j := list[path]; j.GetRunCounts().GetRunning() != n {
				return fmt.Errorf("of %s it is %v", path, j.GetRunCounts())
			}
		}
		return nil
	})
}
