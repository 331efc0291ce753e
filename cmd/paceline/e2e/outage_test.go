package e2e_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"connectrpc.com/connect"

	"github.com/paceline-sched/paceline/conformance/freeport"
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
	var said [rounds]bytes.Buffer
	var files []string
	for n := range rounds {
		name := fmt.Sprintf("round-%d", n)
		files = append(files, write(t, c.dir, name+".yaml", fmt.Sprintf("name: %s\nbatch: {max_running: 10}\ninstances: %d\ntask: {simulation: {duration: 0.3s}}\n", name, perRound)))
		c.must("job", "run", files[n])
		w := c.background("job", "run", files[n], "--wait")
		w.Stderr = &said[n]
		if err := w.Start(); err != nil {
			t.Fatal(err)
		}
		waiting = append(waiting, w)
		c.kill()
		c.start()
	}
	for n, w := range waiting {
		if err := w.Wait(); err != nil {
			t.Errorf("the command that waited for job %d ended with %v:\n%s", n, err, &said[n])
		}
	}
	seen := map[string]int{}
	ended := 0
	for lines := bufio.NewScanner(events); ended < rounds && lines.Scan(); {
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
