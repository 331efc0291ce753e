package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/paceline-sched/paceline/sdk/client"
	pacelinev1 "github.com/paceline-sched/paceline/sdk/gen/paceline/v1"
)

const (
	// crashesVariable and seedVariable make the crash test longer, and repeat one.
	crashesVariable = "PACELINE_CRASHES"
	seedVariable    = "PACELINE_CRASH_SEED"
	defaultCrashes  = 5
	// localPerCrash and simulatedPerCrash are the tasks that each crash finds waiting, at least.
	localPerCrash, simulatedPerCrash = 40, 40
	// maxCrashDelay bounds the time from a server's start to its end.
	maxCrashDelay = 900 * time.Millisecond
)

func number(t *testing.T, variable string, otherwise uint64) uint64 {
	t.Helper()
	text := os.Getenv(variable)
	if text == "" {
		return otherwise
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatalf("%s: %v", variable, err)
	}
	return n
}

// The jobs of the crash test. Local tasks leave marks of their starts and ends in one file, each a single write at its end. Every
// tenth fails in the first run that it has, so that retries cross crashes, too. (A run that was placed when the server died and never
// launched is lost, so run numbers may begin above 1.)
const (
	markingJob = `name: marking-%d
batch: {max_retries: 2, max_running: 12}
instances: %d
placement: {clusters: [local]}
backoff: {initial_delay: 0.1s, max_delay: 0.2s}
task:
  resources: {cpu_milli: 100, memory_mib: 1}
  env: {MARKS: %q}
  command:
    - sh
    - -c
    - |
      name="$PACELINE_JOB/$PACELINE_INSTANCE"
      echo "start $name $PACELINE_RUN_ID" >>"$MARKS"
      sleep 0.$((1 + PACELINE_INSTANCE %% 3))
      fails=no
      case $PACELINE_INSTANCE in *0) mkdir "$MARKS-$PACELINE_JOB-$PACELINE_INSTANCE" 2>/dev/null && fails=yes;; esac
      echo "end $name $PACELINE_RUN_ID $fails" >>"$MARKS"
      test $fails = no
`
	lastingJob = `name: lasting
service: {}
preemptible: true
instances: 3
placement: {clusters: [local]}
task:
  resources: {cpu_milli: 100, memory_mib: 1}
  env: {MARKS: %q}
  command: [sh, -c, 'echo "start $PACELINE_JOB/$PACELINE_INSTANCE $PACELINE_RUN_ID" >>"$MARKS"; echo "pid $$"; exec sleep 1000']
  kill_grace: 1s
`
	pretendingJob = `name: pretending-%d
batch: {max_running: 30}
instances: %d
placement: {clusters: [simulated]}
backoff: {initial_delay: 0.1s, max_delay: 0.2s}
task:
  resources: {cpu_milli: 100, memory_mib: 1}
  simulation: {duration: 0.2s}
`
)

// TestCrashes kills the server again and again at random moments while it works, recovers or takes jobs. Whatever it acknowledged is
// there afterwards and reaches its goal; no local task runs twice at once or once too often; processes are taken up and not started
// anew.
func TestCrashes(t *testing.T) {
	t.Parallel()
	crashes := int(number(t, crashesVariable, defaultCrashes))
	seed := number(t, seedVariable, rand.Uint64())
	t.Logf("repeat with %s=%d %s=%d", seedVariable, seed, crashesVariable, crashes)
	random := rand.New(rand.NewPCG(seed, 0))
	c := startCell(t, "--local-hosts", "2", "--local-cpu", "4000", "--local-memory-mib", "2048", "--local-port-first", "25000", "--local-port-last", "25099",
		"--simulated-hosts", "5")
	marks := write(t, c.dir, "marks", "")
	c.must("job", "run", write(t, c.dir, "lasting.yaml", fmt.Sprintf(lastingJob, marks)), "--wait")
	pids := c.pids("/default/lasting", 3)
	expected := []string{}
	submit := func(name, content string) {
		c.must("job", "run", write(t, c.dir, name+".yaml", content))
		expected = append(expected, "/default/"+name)
	}
	var acknowledged []string
	for n := range crashes {
		submit(fmt.Sprintf("marking-%d", n), fmt.Sprintf(markingJob, n, localPerCrash, marks))
		submit(fmt.Sprintf("pretending-%d", n), fmt.Sprintf(pretendingJob, n, simulatedPerCrash))
		// From here on nothing is waited for but the moment: it may fall into work, into an answer, or, with early, into recovery.
		stop := c.submitInBackground(fmt.Sprintf("small-%d", n))
		<-time.After(time.Duration(random.Int64N(int64(maxCrashDelay))))
		c.kill()
		if early := random.IntN(2) == 0; early {
			c.launch()
			<-time.After(time.Duration(random.Int64N(int64(maxCrashDelay / 4))))
			c.kill()
		}
		c.start()
		names, err := stop()
		if err != nil {
			t.Error(err)
		}
		acknowledged = append(acknowledged, names...)
	}
	if len(acknowledged) == 0 {
		t.Error("no job was submitted while servers were killed")
	}
	t.Logf("%d crashes, %d jobs acknowledged around them", crashes, len(acknowledged))
	for _, path := range expected {
		c.awaitJobs(pacelinev1.JobState_JOB_STATE_SUCCEEDED, path) // one by one: patience grows with the crashes
		list, err := c.tasks(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, task := range list {
			if task.GetState() != pacelinev1.InstanceState_INSTANCE_STATE_DONE {
				t.Errorf("%s %d is %v", path, task.GetInstance(), task.GetState())
			}
		}
	}
	c.awaitJobs(pacelinev1.JobState_JOB_STATE_SUCCEEDED, acknowledged...)
	if after := c.pids("/default/lasting", 3); fmt.Sprint(after) != fmt.Sprint(pids) {
		t.Errorf("the service ran as processes %v and now as %v", pids, after)
	}
	if tasks, err := c.tasks("/default/lasting"); err != nil || len(tasks) != 3 {
		t.Errorf("tasks %v, %v", tasks, err)
	} else {
		for _, task := range tasks {
			if r := task.GetRun(); r.GetRun() != 1 || r.GetState() != pacelinev1.RunState_RUN_STATE_RUNNING || !r.GetHealthy() {
				t.Errorf("the service's run is %v", r)
			}
		}
	}
	checkMarks(t, marks, crashes)
	c.must("job", "stop", "lasting", "--wait")
	for _, pid := range pids {
		if _, err := os.Stat("/proc/" + strconv.Itoa(pid)); err == nil {
			t.Errorf("process %d lives after its job was stopped", pid)
		}
	}
	c.stop()
	if left := processesOf(c.dir); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// pids waits until each instance has written its process id, and returns them.
func (c *cell) pids(job string, instances int) []int {
	c.t.Helper()
	pids := make([]int, instances)
	for i := range pids {
		c.await(fmt.Sprintf("%s %d tells its process id", job, i), func() error {
			r := c.paceline("task", "logs", job, strconv.Itoa(i))
			_, text, _ := strings.Cut(r.stdout, "pid ")
			var err error
			if pids[i], err = strconv.Atoi(strings.TrimSpace(text)); err != nil {
				return fmt.Errorf("%v: %w", r, err)
			}
			_, err = os.Stat("/proc/" + strconv.Itoa(pids[i]))
			return err
		})
	}
	return pids
}

// submitInBackground submits small jobs one after the other, while servers come and go. A job whose
// answer was lost is submitted again under its idempotency key. stop ends it and returns the paths of the acknowledged ones.
func (c *cell) submitInBackground(prefix string) (stop func() ([]string, error)) {
	const most = 50
	ctx, cancel := context.WithCancel(c.t.Context())
	var acknowledged []string
	var failed error
	var done sync.WaitGroup
	done.Go(func() {
		for n := 0; n < most && ctx.Err() == nil && failed == nil; n++ {
			name := fmt.Sprintf("%s-%d", prefix, n)
			for again := true; again && ctx.Err() == nil; {
				err := c.submitOnce(ctx, name)
				switch {
				case err == nil:
					acknowledged = append(acknowledged, "/default/"+name)
					again = false
				case !isOutage(err) && ctx.Err() == nil:
					failed = fmt.Errorf("submit %s: %w", name, err)
					again = false
				}
				select {
				case <-ctx.Done():
				case <-time.After(pause):
				}
			}
		}
	})
	return func() ([]string, error) {
		cancel()
		done.Wait()
		return acknowledged, failed
	}
}

// isOutage reports whether an error is one of a server that goes or comes.
func isOutage(err error) bool {
	code := connect.CodeOf(err)
	return code == connect.CodeUnavailable || code == connect.CodeUnknown || code == connect.CodeCanceled
}

// submitOnce finds the server anew: the one before may be gone.
func (c *cell) submitOnce(ctx context.Context, name string) error {
	raw, err := os.ReadFile(c.readyFile())
	if err != nil {
		return connect.NewError(connect.CodeUnavailable, err)
	}
	conn, err := client.New(strings.TrimSpace(string(raw)), client.WithTokenFile(filepath.Join(c.data, "token")), client.WithAttempts(1))
	if err != nil {
		return err
	}
	defer conn.Close()
	_, err = conn.Jobs.CreateJob(ctx, connect.NewRequest(&pacelinev1.CreateJobRequest{IdempotencyKey: name, Spec: &pacelinev1.JobSpec{
		Name: name, Kind: &pacelinev1.JobSpec_Batch{Batch: &pacelinev1.BatchSpec{}}, Task: &pacelinev1.TaskSpec{Simulation: &pacelinev1.Simulation{Duration: durationpb.New(10 * time.Millisecond)}},
		Placement: &pacelinev1.PlacementSpec{Clusters: []string{"simulated"}},
	}}))
	return err
}

// checkMarks reads what the local tasks wrote: per instance, runs follow one another and never overlap; one run per instance, and two for
// those that fail first.
func checkMarks(t *testing.T, path string, jobs int) {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	live := map[string]string{}   // instance -> its run
	starts := map[string]int{}    // instance -> runs
	succeeded := map[string]int{} // instance -> runs that ended well
	for line := range strings.Lines(string(raw)) {
		words := strings.Fields(line)
		if len(words) < 3 {
			t.Fatalf("the mark %q is broken", line)
		}
		instance, run := words[1], words[2]
		switch words[0] {
		case "start":
			if other := live[instance]; other != "" {
				t.Errorf("%s: run %s started while run %s lived", instance, run, other)
			}
			live[instance] = run
			starts[instance]++
		case "end":
			if live[instance] != run {
				t.Errorf("%s: run %s ended while run %q lived", instance, run, live[instance])
			}
			delete(live, instance)
			if words[3] == "no" {
				succeeded[instance]++
			}
		}
	}
	for job := range jobs {
		for i := range localPerCrash {
			instance := fmt.Sprintf("marking-%d/%d", job, i)
			runs := 1
			if i%10 == 0 {
				runs = 2
			}
			if starts[instance] != runs || succeeded[instance] != 1 {
				t.Errorf("%s: %d runs of which %d succeeded, want %d and 1", instance, starts[instance], succeeded[instance], runs)
			}
		}
	}
	for i := range 3 {
		if n := starts["lasting/"+strconv.Itoa(i)]; n != 1 {
			t.Errorf("instance %d of the service was started %d times", i, n)
		}
	}
	if len(live) != 3 {
		t.Error(errors.New("runs without an end"), live)
	}
}
