package e2e_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
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
	// maxCrashDelay bounds the time from the moment at which a server has all its work running to its end.
	maxCrashDelay = 900 * time.Millisecond
	// agentHosts are the local hosts, each with one instance of the daemon.
	agentHosts = 4
	// bandSize is how many members the gang of real processes has.
	bandSize = 4
)

// siege is how much works while servers are killed.
type siege struct {
	live    int // tasks that run at each kill, at least
	servers int // simulated service, which has to come back after every crash
	choir   int // simulated gang that never ends by itself
	churn   int // simulated tasks that come new with each crash, short and often failing
	lasting int // real processes that must live through everything
	marking int // real processes that come new with each crash
	window  int // how many of those run at once, and of the churn's
}

// The besieged cell of `make test` leaves room for the tests beside it; that of `make soak` is the whole thing.
var (
	smallSiege = siege{live: 300, servers: 80, choir: 10, churn: 60, lasting: 3, marking: 40, window: 12}
	fullSiege  = siege{live: 2000, servers: 400, choir: 50, churn: 400, lasting: 20, marking: 120, window: 50}
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
// launched is lost, so run numbers may begin above 1.) A band plays as one or starts anew as one, so its members tell when they are ended.
const (
	markingJob = `name: marking-%d
batch: {max_retries: 2, max_running: %d}
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
      sleep $((PACELINE_INSTANCE %% 2)).$((1 + PACELINE_INSTANCE %% 3))
      fails=no
      case $PACELINE_INSTANCE in *0) mkdir "$MARKS-$PACELINE_JOB-$PACELINE_INSTANCE" 2>/dev/null && fails=yes;; esac
      echo "end $name $PACELINE_RUN_ID $fails" >>"$MARKS"
      test $fails = no
`
	bandJob = `name: band-%d
batch: {max_retries: 2}
gang: {}
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
      trap 'echo "end $name $PACELINE_RUN_ID yes" >>"$MARKS"; exit 1' TERM
      echo "start $name $PACELINE_RUN_ID" >>"$MARKS"
      sleep 0.7
      trap '' TERM
      echo "end $name $PACELINE_RUN_ID no" >>"$MARKS"
  kill_grace: 100s # it needs less than one, but is not to be ended without a word
`
	lastingJob = `name: lasting
service: {}
preemptible: true
instances: %d
` + lastingTask
	agentJob = `name: agent
daemon: {}
preemptible: true
` + lastingTask
	lastingTask = `placement: {clusters: [local]}
task:
  resources: {cpu_milli: 100, memory_mib: 1}
  env: {MARKS: %q}
  command: [sh, -c, 'echo "start $PACELINE_JOB/$PACELINE_INSTANCE $PACELINE_RUN_ID" >>"$MARKS"; echo "pid $$"; exec sleep 1000']
  kill_grace: 1s
`
	simulatedTask = `
preemptible: true
placement: {clusters: [simulated]}
backoff: {initial_delay: 0.1s, max_delay: 0.2s}
task:
  resources: {cpu_milli: 100, memory_mib: 1}
  simulation: `
	serversJob   = "name: servers\nservice: {}\ninstances: %d" + simulatedTask + "{duration: 3600s}\n"
	watchmenJob  = "name: watchmen\ndaemon: {}" + simulatedTask + "{duration: 3600s}\n"
	choirJob     = "name: choir\nbatch: {}\ngang: {}\ninstances: %d" + simulatedTask + "{duration: 3600s}\n"
	steadyJob    = "name: steady-%d\nbatch: {}\ninstances: %d" + simulatedTask + "{duration: %ds}\n"
	churnJob     = "name: churn-%d\nbatch: {max_running: %d, max_retries: 1000}\ninstances: %d" + simulatedTask + "{duration: 0.2s, failure_per_mille: 200}\n"
	withdrawnJob = "name: withdrawn-%d\nservice: {}\ninstances: 5" + simulatedTask + "{duration: 3600s}\n"
)

// besieged is a cell whose server is killed again and again, with what it has to remember.
type besieged struct {
	*cell
	siege
	random       *rand.Rand
	marks        string
	ledger       *ledger
	pids         []int    // of the processes that must live through everything
	expected     []string // jobs that have to succeed
	withdrawn    []string // jobs that have to be stopped
	acknowledged []string // jobs that were submitted while the server was killed
	steady       int      // steady jobs so far
	lived        []int    // how many tasks ran at each kill
	early        int      // kills of a server that was recovering
}

// TestCrashes kills the server again and again at random moments while it works, recovers or takes jobs. Whatever it acknowledged is
// there afterwards and reaches its goal; no task runs twice at once or once too often; processes are taken up and not started anew.
func TestCrashes(t *testing.T) {
	t.Parallel()
	crashes := int(number(t, crashesVariable, defaultCrashes))
	seed := number(t, seedVariable, rand.Uint64())
	t.Logf("repeat with %s=%d %s=%d", seedVariable, seed, crashesVariable, crashes)
	began := time.Now()
	b := besiege(t, rand.New(rand.NewPCG(seed, 0)), crashes > defaultCrashes)
	for n := range crashes {
		b.crash(n)
	}
	if len(b.acknowledged) == 0 {
		t.Error("no job was submitted while servers were killed")
	}
	slices.Sort(b.lived)
	t.Logf("%d servers were killed with %d to %d tasks running, median %d, and %d while they recovered; %d jobs were acknowledged around that",
		len(b.lived), b.lived[0], b.lived[len(b.lived)-1], b.lived[len(b.lived)/2], b.early, len(b.acknowledged))
	b.settle()
	b.checkLasting()
	starts := b.checkMarks(crashes)
	b.stopAll()
	runs, lost, failed := b.ledger.check(t, b.cell)
	t.Logf("%d real processes were started; %d runs in the event log, of which %d were lost and %d failed; %v in all", starts, runs, lost, failed, time.Since(began).Round(time.Second))
	b.stop()
	b.wantNoProcess()
}

func besiege(t *testing.T, random *rand.Rand, full bool) *besieged {
	t.Helper()
	b := &besieged{siege: smallSiege, random: random}
	if full {
		b.siege = fullSiege
	}
	b.cell = startCell(t, "--local-hosts", strconv.Itoa(agentHosts), "--local-cpu", "64000", "--local-memory-mib", "4096",
		"--local-port-first", "25000", "--local-port-last", "25099", "--simulated-hosts", "20")
	b.marks = write(t, b.dir, "marks", "")
	b.ledger = b.follow()
	b.submit("lasting", b.siege.lasting, b.marks)
	b.submit("agent", b.marks)
	b.submit("servers", b.servers)
	b.submit("watchmen")
	b.submit("choir", b.choir)
	b.pids = append(b.cell.pids("/default/lasting", b.siege.lasting), b.cell.pids("/default/agent", agentHosts)...)
	return b
}

// submit has a job acknowledged; its file is a template of the job of that name, up to its number.
func (b *besieged) submit(name string, arguments ...any) {
	b.t.Helper()
	kind, _, _ := strings.Cut(name, "-")
	template := map[string]string{
		"lasting": lastingJob, "agent": agentJob, "servers": serversJob, "watchmen": watchmenJob, "choir": choirJob,
		"marking": markingJob, "band": bandJob, "steady": steadyJob, "churn": churnJob, "withdrawn": withdrawnJob,
	}[kind]
	b.must("job", "run", write(b.t, b.dir, name+".yaml", fmt.Sprintf(template, arguments...)))
}

// crash gives the server work, waits until all of it runs, and kills it at some moment after that; every other time again while it
// recovers.
func (b *besieged) crash(n int) {
	b.t.Helper()
	for kind, arguments := range map[string][]any{
		"marking": {n, b.window, b.marking, b.marks}, "band": {n, bandSize, b.marks}, "churn": {n, b.window, b.churn},
	} {
		name := fmt.Sprintf("%s-%d", kind, n)
		b.submit(name, arguments...)
		b.expected = append(b.expected, "/default/"+name)
	}
	withdrawn := fmt.Sprintf("withdrawn-%d", n)
	b.submit(withdrawn, n)
	b.reinforce()
	b.must("job", "stop", withdrawn)
	b.withdrawn = append(b.withdrawn, "/default/"+withdrawn)
	// From here on nothing is waited for but the moment: it may fall into work, into an answer, or, with early, into recovery.
	stop := b.submitInBackground(fmt.Sprintf("small-%d", n))
	running := b.countInBackground()
	<-time.After(time.Duration(b.random.Int64N(int64(maxCrashDelay))))
	b.kill()
	b.lived = append(b.lived, running())
	if early := b.random.IntN(2) == 0; early {
		b.launch()
		<-time.After(time.Duration(b.random.Int64N(int64(maxCrashDelay / 4))))
		b.kill()
		b.early++
	}
	b.start()
	names, err := stop()
	if err != nil {
		b.t.Error(err)
	}
	b.acknowledged = append(b.acknowledged, names...)
	for _, pid := range b.pids {
		if _, err := os.Stat("/proc/" + strconv.Itoa(pid)); err != nil {
			b.t.Fatalf("process %d did not live through crash %d: %v", pid, n, err)
		}
	}
}

// leastSteady and mostSteady bound how many seconds steady tasks run.
const leastSteady, mostSteady = 6, 60

// reinforce waits until as many tasks run as there must be. Of those that a crash ended all come back; those that ended by themselves
// are made up for, by such that run longer where they have ended before all have begun.
func (b *besieged) reinforce() {
	b.t.Helper()
	seconds := 0
	b.await(fmt.Sprintf("%d tasks run", b.live), func() error {
		running, waiting, err := count(b.t.Context(), b.client())
		switch {
		case err != nil:
			return err
		case running >= b.live:
			return nil
		case running+waiting < b.live+b.live/8: // some of them end before the last have begun
			name := fmt.Sprintf("steady-%d", b.steady)
			seconds = min(seconds+leastSteady, mostSteady)
			b.submit(name, b.steady, max(b.live/4, b.live+b.live/8-running-waiting), seconds)
			b.expected = append(b.expected, "/default/"+name)
			b.steady++
		}
		return fmt.Errorf("%d do, and %d wait", running, waiting)
	})
}

// count returns how many runs are running, and how many instances will be without anybody's doing: those that wait for something other
// than the end of others of their job.
func count(ctx context.Context, conn *client.Client) (running, waiting int, err error) {
	request := &pacelinev1.ListJobsRequest{PageSize: 1000, States: []pacelinev1.JobState{pacelinev1.JobState_JOB_STATE_PENDING, pacelinev1.JobState_JOB_STATE_RUNNING}}
	for {
		answer, err := conn.Jobs.ListJobs(ctx, connect.NewRequest(request))
		if err != nil {
			return 0, 0, err
		}
		for _, j := range answer.Msg.GetJobs() {
			now := int(j.GetRunCounts().GetRunning())
			running += now
			if !strings.HasPrefix(j.GetName(), "marking") && !strings.HasPrefix(j.GetName(), "churn") {
				c := j.GetInstanceCounts()
				waiting += int(c.GetPending()+c.GetAdmitted()+c.GetActive()+c.GetBackingOff()) - now
			}
		}
		if request.PageToken = answer.Msg.GetNextPageToken(); request.PageToken == "" {
			return running, waiting, nil
		}
	}
}

// countInBackground counts running tasks until the server is gone; latest ends it and returns the last count.
func (b *besieged) countInBackground() (latest func() int) {
	b.t.Helper()
	conn, err := b.dial()
	if err != nil {
		b.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(b.t.Context())
	last := b.live // as reinforce has seen
	var done sync.WaitGroup
	done.Go(func() {
		defer conn.Close()
		for {
			running, _, err := count(ctx, conn)
			if err != nil {
				return
			}
			last = running
			select {
			case <-ctx.Done():
				return
			case <-time.After(pause):
			}
		}
	})
	return func() int {
		cancel()
		done.Wait()
		return last
	}
}

// settle waits, with nobody disturbing it any more, until every job is where it has to get.
func (b *besieged) settle() {
	b.t.Helper()
	for _, path := range b.expected {
		b.awaitJobs(pacelinev1.JobState_JOB_STATE_SUCCEEDED, path) // one by one: patience grows with the crashes
		list, err := b.tasks(path)
		if err != nil {
			b.t.Fatal(err)
		}
		for _, task := range list {
			if task.GetState() != pacelinev1.InstanceState_INSTANCE_STATE_DONE {
				b.t.Errorf("%s %d is %v", path, task.GetInstance(), task.GetState())
			}
		}
	}
	b.awaitJobs(pacelinev1.JobState_JOB_STATE_SUCCEEDED, b.acknowledged...)
	b.awaitJobs(pacelinev1.JobState_JOB_STATE_STOPPED, b.withdrawn...)
	b.await("all that lasts is running and healthy", func() error {
		list, err := b.jobs()
		if err != nil {
			return err
		}
		for name, instances := range map[string]int{"lasting": b.siege.lasting, "agent": agentHosts, "servers": b.servers, "watchmen": 20, "choir": b.choir} {
			if j := list["/default/"+name]; int(j.GetHealthy()) != instances || int(j.GetRunCounts().GetRunning()) != instances {
				return fmt.Errorf("%d of %s should be: %v", instances, name, j)
			}
		}
		return nil
	})
}

// checkLasting wants the processes that were there before the first crash: in their first run, and known by their number.
func (b *besieged) checkLasting() {
	b.t.Helper()
	if after := append(b.cell.pids("/default/lasting", b.siege.lasting), b.cell.pids("/default/agent", agentHosts)...); !slices.Equal(after, b.pids) {
		b.t.Errorf("what lasts ran as processes %v and now as %v", b.pids, after)
	}
	for _, job := range []string{"/default/lasting", "/default/agent"} {
		tasks, err := b.tasks(job)
		if err != nil {
			b.t.Error(err)
		}
		for _, task := range tasks {
			if r := task.GetRun(); r.GetRun() != 1 || r.GetState() != pacelinev1.RunState_RUN_STATE_RUNNING || !r.GetHealthy() {
				b.t.Errorf("the run of %s is %v", job, r)
			}
		}
	}
}

// stopAll stops what lasts, and wants it gone.
func (b *besieged) stopAll() {
	b.t.Helper()
	for _, name := range []string{"lasting", "agent", "servers", "watchmen", "choir"} {
		b.must("job", "stop", name, "--wait")
	}
	for _, pid := range b.pids {
		if _, err := os.Stat("/proc/" + strconv.Itoa(pid)); err == nil {
			b.t.Errorf("process %d lives after its job was stopped", pid)
		}
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
	return code == connect.CodeUnavailable || code == connect.CodeUnknown || code == connect.CodeCanceled || code == connect.CodeDeadlineExceeded
}

// dial connects to the server that is there now and does not repeat what it refuses.
func (c *cell) dial() (*client.Client, error) {
	raw, err := os.ReadFile(c.readyFile())
	if err != nil {
		return nil, connect.NewError(connect.CodeUnavailable, err)
	}
	return client.New(strings.TrimSpace(string(raw)), client.WithTokenFile(filepath.Join(c.data, "token")), client.WithAttempts(1))
}

// submitOnce finds the server anew: the one before may be gone.
func (c *cell) submitOnce(ctx context.Context, name string) error {
	conn, err := c.dial()
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
// those that fail first. A band may have begun several times, but in its last generation all members played to the end, once. It returns how
// many processes were started.
func (b *besieged) checkMarks(jobs int) (all int) {
	t := b.t
	t.Helper()
	raw, err := os.ReadFile(b.marks)
	if err != nil {
		t.Fatal(err)
	}
	live := map[string]string{}        // instance -> its run
	starts := map[string]int{}         // instance -> runs
	succeeded := map[string][]string{} // instance -> runs that ended well
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
			all++
		case "end":
			if live[instance] != run {
				t.Errorf("%s: run %s ended while run %q lived", instance, run, live[instance])
			}
			delete(live, instance)
			if words[3] == "no" {
				succeeded[instance] = append(succeeded[instance], run)
			}
		}
	}
	for job := range jobs {
		for i := range b.marking {
			instance := fmt.Sprintf("marking-%d/%d", job, i)
			runs := 1
			if i%10 == 0 {
				runs = 2
			}
			if starts[instance] != runs || len(succeeded[instance]) != 1 {
				t.Errorf("%s: %d runs of which %v succeeded, want %d and 1", instance, starts[instance], succeeded[instance], runs)
			}
		}
		// A member may play to its end just before another one fails and the band begins anew: then it plays again.
		played := map[string]int{} // by generation
		last := ""
		for i := range bandSize {
			for _, run := range succeeded[fmt.Sprintf("band-%d/%d", job, i)] {
				played[generation(run)]++
				last = max(last, generation(run))
			}
		}
		if played[last] != bandSize {
			t.Errorf("members of band-%d that played to the end, by generation: %v, want %d in the last", job, played, bandSize)
		}
	}
	lasting := 0
	for instance, run := range live {
		if job, _, _ := strings.Cut(instance, "/"); (job == "lasting" || job == "agent") && starts[instance] == 1 {
			lasting++
		} else {
			t.Errorf("%s: run %s has no end, after %d starts", instance, run, starts[instance])
		}
	}
	if lasting != len(b.pids) {
		t.Errorf("%d processes last, want %d", lasting, len(b.pids))
	}
	return all
}

// generation is the part of a run's id, job-instance-generation-run, that a gang's members have in common.
func generation(run string) string {
	parts := strings.Split(run, "-")
	return parts[max(0, len(parts)-2)]
}
