package e2e_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"connectrpc.com/connect"

	"github.com/paceline-sched/paceline/conformance/freeport"
	"github.com/paceline-sched/paceline/sdk/client"
	pacelinev1 "github.com/paceline-sched/paceline/sdk/gen/paceline/v1"
)

// TestOutage lets commands of users wait while the server that they wait for is killed and started again: they notice nothing, and
// whoever follows events misses none and sees none twice.
func TestOutage(t *testing.T) {
	t.Parallel()
	const rounds, perRound = 3, 20
	c := newCell(t, simulates...)
	port, err := freeport.Find() // the server must come back where its users know it
	if err != nil {
		t.Fatal(err)
	}
	c.flags = append(c.flags, "--listen", fmt.Sprintf("127.0.0.1:%d", port))
	c.start()
	follower := c.background("events", "-o", "json", "--kind", "job", "--cursor", c.cursor())
	events, err := follower.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := follower.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = follower.Process.Kill() })
	var waiting []*exec.Cmd
	for n := range rounds {
		job := write(t, c.dir, fmt.Sprintf("round-%d.yaml", n), fmt.Sprintf("name: round-%d\nbatch: {max_running: 10}\ninstances: %d\ntask: {simulation: {duration: 0.3s}}\n", n, perRound))
		c.must("job", "run", job)
		said := write(t, c.dir, fmt.Sprintf("said-%d", n), "")
		waiting = append(waiting, c.waitFor(job, said))
		told := func() error {
			raw, err := os.ReadFile(said)
			if err == nil && !bytes.Contains(raw, []byte(" done")) {
				err = fmt.Errorf("it has said %q", raw)
			}
			return err
		}
		c.await("the command waits", told) // one that has not reached the server yet gives up sooner than a slow server is back
		c.kill()
		c.start()
	}
	for n, w := range waiting {
		if err := w.Wait(); err != nil {
			said, _ := os.ReadFile(filepath.Join(c.dir, fmt.Sprintf("said-%d", n)))
			t.Errorf("the command that waited for job %d ended with %v:\n%s", n, err, said)
		}
	}
	seen := map[string]int{}
	ended := 0
	lines := bufio.NewScanner(events)
	lines.Buffer(nil, client.MaxMessageBytes) // what happened while nobody listened comes in one
	for ended < rounds && lines.Scan() {
		var batch struct {
			Events []struct {
				Revision string
				Job      struct {
					Name    string `json:"job_name"`
					State   string
					Version string
				}
			}
		}
		if err := json.Unmarshal(lines.Bytes(), &batch); err != nil {
			t.Fatalf("%s: %v", lines.Text(), err)
		}
		for _, e := range batch.Events {
			seen[fmt.Sprint(e)]++
			if strings.HasSuffix(e.Job.State, "SUCCEEDED") {
				ended++
			}
		}
	}
	if ended != rounds {
		t.Errorf("the follower saw %d jobs end, not %d:\n%v", ended, rounds, seen)
	}
	for e, times := range seen {
		if times > 1 {
			t.Errorf("event %s was seen %d times", e, times)
		}
	}
	c.stop()
}

// waitFor starts a command that submits a job and waits for it, and writes what it says to a file.
func (c *cell) waitFor(job, said string) *exec.Cmd {
	c.t.Helper()
	file, err := os.OpenFile(said, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		c.t.Fatal(err)
	}
	defer file.Close()
	cmd := c.background("job", "run", job, "--wait")
	cmd.Stdout, cmd.Stderr = file, file
	if err := cmd.Start(); err != nil {
		c.t.Fatal(err)
	}
	return cmd
}

// background is a command of a user that goes on by itself.
func (c *cell) background(args ...string) *exec.Cmd {
	cmd := exec.Command(binary, args...)
	cmd.Env, cmd.Dir = append(c.env[:len(c.env):len(c.env)], "PACELINE_ADDRESS="+c.address()), c.dir
	return cmd
}

// cursor is the cell's present place in its history.
func (c *cell) cursor() string {
	c.t.Helper()
	answer, err := c.client().Jobs.ListJobs(c.t.Context(), connect.NewRequest(&pacelinev1.ListJobsRequest{}))
	if err != nil {
		c.t.Fatal(err)
	}
	return answer.Msg.GetWatchCursor()
}
