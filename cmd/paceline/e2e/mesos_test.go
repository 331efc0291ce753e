package e2e_test

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"connectrpc.com/connect"

	_ "github.com/paceline-sched/paceline/cmd/paceline/internal/mesosemu" // as in cell_test.go
	pacelinev1 "github.com/paceline-sched/paceline/sdk/gen/paceline/v1"
)

const (
	// mesosTasksVariable gives the test on Mesos so many tasks, and its faults the pace of real ones.
	mesosTasksVariable = "PACELINE_MESOS_TASKS"
	defaultMesosTasks  = 100
	// maxMesosTime bounds a long one.
	maxMesosTime = 40 * time.Minute
)

// raid is a cluster in trouble, and how often the server is killed.
type raid struct {
	begin  func(c *cell, faults ...string) raided
	tasks  int
	life   time.Duration // of the first servers; later ones live longer, or a slow machine would never get anywhere
	faults []string      // of the emulated cluster
	keeps  bool          // the cluster loses nothing, so that nothing may be started twice
	outage bool          // its server goes away now and then, which must have been seen
}

// raided is a cluster, called east, in a process of its own.
type raided interface {
	add()                 // it to its cell
	wantIdle(name string) // nothing of the cell that it knows by a name is left there
	awaitOutage()         // it is away
	stop()
}

// The tasks of the test leave marks of their starts and ends in one file, each a single write at its end. Between the two they wait for a gate to open.
const raidedJob = `name: raided
batch: {max_retries: 1000}
instances: %d
placement: {clusters: [east]}
backoff: {initial_delay: 0.1s, max_delay: 0.2s}
task:
  resources: {cpu_milli: 1000, memory_mib: 16}
  env: {MARKS: %q, GATE: %q}
  command:
    - sh
    - -c
    - |
      echo "start $PACELINE_INSTANCE $PACELINE_RUN_ID" >>"$MARKS"
      : <"$GATE"
      sleep 0.$((PACELINE_INSTANCE %% 7))
      echo "end $PACELINE_INSTANCE $PACELINE_RUN_ID" >>"$MARKS"
  kill_grace: 1s
`

// TestMesosCrashes kills a server again and again while it works on a Mesos cluster, whose master and agents are a process of their own and whose tasks are real
// processes. Connections break in the middle of records, statuses come twice and late, acknowledgements are refused; in the long form there is a second cluster, whose
// masters die and whose agents are lost, too. Every task reaches its goal, none is lost or doubled, and the master knows one framework, which holds nothing at the end.
func TestMesosCrashes(t *testing.T) {
	t.Parallel()
	tasks := int(number(t, mesosTasksVariable, defaultMesosTasks))
	doubt := []string{"--fault-duplicate", "0.02", "--fault-repeat", "0.02", "--fault-refuse", "0.02"}
	if tasks <= defaultMesosTasks {
		storm(t, raid{begin: emulateMesos, tasks: tasks, life: time.Second, faults: append(doubt, "--fault-cut", "500ms"), keeps: true})
		return
	}
	t.Run("connections", func(t *testing.T) {
		t.Parallel()
		storm(t, raid{begin: emulateMesos, tasks: tasks, life: 5 * time.Second, faults: append(doubt, "--fault-cut", "3s"), keeps: true})
	})
	t.Run("clusters", func(t *testing.T) {
		t.Parallel()
		storm(t, raid{begin: emulateMesos, tasks: tasks, life: 7 * time.Second, faults: append(doubt, "--fault-cut", "7s", "--fault-new-master", "5s", "--fault-lose-agent", "4s", "--fault-lose-for", "30s")})
	})
}

func storm(t *testing.T, r raid) {
	t.Helper()
	began := time.Now()
	c := startCell(t, "--local-hosts", "0")
	east := r.begin(c, r.faults...)
	east.add()
	framework := c.identity()
	books := c.follow()
	marks := write(t, c.dir, "marks", "")
	gate := filepath.Join(c.dir, "gate") // a pipe: who reads waits until somebody writes
	if err := syscall.Mkfifo(gate, 0o600); err != nil {
		t.Fatal(err)
	}
	c.must("job", "run", write(t, c.dir, "raided.yaml", fmt.Sprintf(raidedJob, r.tasks, marks, gate)))
	c.await("the first task starts", func() error {
		if raw, err := os.ReadFile(marks); err != nil || len(raw) == 0 {
			return fmt.Errorf("there are %d bytes of marks: %w", len(raw), err)
		}
		return nil
	})
	// The job cannot end before a server was killed over it, however fast this machine is.
	c.kill()
	c.start()
	if r.outage {
		east.awaitOutage()
	}
	open, err := os.OpenFile(gate, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	kills := 1
	for ; !c.endedWithin(t, "/default/raided", r.life*time.Duration(1+kills/10)); kills++ {
		c.kill()
		c.start()
		if time.Since(began) > maxMesosTime {
			t.Fatalf("the job does not end: %v", c.must("job", "get", "raided"))
		}
	}
	c.awaitJobs(pacelinev1.JobState_JOB_STATE_SUCCEEDED, "/default/raided")
	took := time.Since(began)
	if now := c.identity(); now != framework || now == "" {
		t.Errorf("the cluster knew the cell as %q, and now as %q", framework, now)
	}
	runs, lost, failed := books.check(t, c)
	if failed > 0 {
		t.Errorf("%d runs failed", failed)
	}
	again := checkRaidMarks(t, marks, &r)
	east.wantIdle(framework)
	t.Logf("%d tasks in %v, %d servers killed; %d runs in the event log, %d of them lost; %d instances were started more than once", r.tasks, took.Round(time.Second), kills, runs, lost, again)
	c.must("cluster", "remove", "east")
	c.stop()
	east.stop()
}

// identity is what cluster east knows the cell by.
func (c *cell) identity() string {
	c.t.Helper()
	answer, err := c.client().Clusters.GetCluster(c.t.Context(), connect.NewRequest(&pacelinev1.GetClusterRequest{Name: "east"}))
	if err != nil {
		c.t.Fatal(err)
	}
	return answer.Msg.GetCluster().GetIdentity()
}

// endedWithin says whether a job ends in so much time.
func (c *cell) endedWithin(t *testing.T, path string, limit time.Duration) bool {
	t.Helper()
	look := time.NewTicker(pause)
	defer look.Stop()
	for over := time.After(limit); ; {
		answer, err := c.client().Jobs.GetJob(t.Context(), connect.NewRequest(&pacelinev1.GetJobRequest{Job: path}))
		if err == nil && ended(answer.Msg.GetJob().GetSummary().GetState()) {
			return true
		}
		select {
		case <-look.C:
		case <-over:
			return false
		}
	}
}

// checkRaidMarks wants every instance to have started and come to its end, on a cluster that keeps everything exactly once, and returns how many started more
// often.
func checkRaidMarks(t *testing.T, path string, r *raid) (again int) {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	starts, ends, told := map[string]int{}, map[string]int{}, map[string]int{}
	for line := range strings.Lines(string(raw)) {
		words := strings.Fields(line)
		if len(words) != 3 {
			t.Fatalf("a mark is %q", line)
		}
		if told[line]++; told[line] > 1 {
			t.Errorf("%s is marked %d times", strings.TrimSpace(line), told[line])
		}
		if words[0] == "start" {
			starts[words[1]]++
		} else {
			ends[words[1]]++
		}
	}
	for instance, n := range starts {
		if n > 1 {
			again++
		}
		if r.keeps && (n > 1 || ends[instance] != 1) {
			t.Errorf("instance %s started %d times and ended %d times", instance, n, ends[instance])
		}
	}
	if len(starts) != r.tasks || len(ends) != r.tasks {
		t.Errorf("of %d instances %d started and %d came to their end", r.tasks, len(starts), len(ends))
	}
	return again
}

// mesos is an emulated Mesos cluster.
type mesos struct{ *emulator }

// emulateMesos starts one of 10 agents, which ends with the test.
func emulateMesos(c *cell, flags ...string) raided {
	c.t.Helper()
	return &mesos{c.emulate(append([]string{"mesos-emulator", "--listen", "127.0.0.1:0", "--agents", "10", "--root", filepath.Join(c.dir, "agents")}, flags...))}
}

func (m *mesos) add() {
	m.t.Helper()
	m.must("cluster", "add", "mesos", "east", "--master", m.url, "--wait")
}

// emulator is an emulated cluster in a process of its own.
type emulator struct {
	*cell
	url     string
	process *exec.Cmd
}

func (c *cell) emulate(command []string) *emulator {
	c.t.Helper()
	cmd := exec.Command(binary, command...)
	cmd.Env, cmd.Dir, cmd.Stderr = c.env, c.dir, os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		c.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() {
		_ = cmd.Process.Kill() // it has ended, if all is well
		_ = cmd.Wait()
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		c.t.Fatal(err)
	}
	return &emulator{cell: c, url: regexp.MustCompile(`http://[0-9.:]+`).FindString(line), process: cmd}
}

// stop ends it as an operator does.
func (m *emulator) stop() {
	m.t.Helper()
	if err := errors.Join(m.process.Process.Signal(syscall.SIGTERM), m.process.Wait()); err != nil {
		m.t.Errorf("the emulator ended badly: %v", err)
	}
}

// awaitOutage waits until nobody answers: whoever connects is cut off, and not waited for.
func (m *emulator) awaitOutage() {
	m.t.Helper()
	m.await("the cluster's server is away", func() error {
		conn, err := net.Dial("tcp", strings.TrimPrefix(m.url, "http://"))
		if err != nil {
			return nil
		}
		defer conn.Close()
		_ = conn.SetReadDeadline(time.Now().Add(pause)) // a deadline that is not kept is found out by the read
		if _, err = conn.Read(make([]byte, 1)); errors.Is(err, os.ErrDeadlineExceeded) {
			return errors.New("it waits for a request")
		}
		return nil
	})
}

// wantIdle waits until the master knows of one framework, of no task, and of nothing that is used or offered: offers that nobody needs are given back.
func (m *mesos) wantIdle(framework string) {
	m.t.Helper()
	type resources struct {
		CPUs float64 `json:"cpus"`
	}
	var state struct {
		Frameworks []struct {
			ID string `json:"id"`
		} `json:"frameworks"`
		Agents []struct {
			ID      string    `json:"id"`
			Used    resources `json:"used_resources"`
			Offered resources `json:"offered_resources"`
		} `json:"slaves"`
		Tasks []struct {
			ID string `json:"id"`
		} `json:"tasks"`
	}
	m.await("the master is idle", func() error {
		state.Frameworks, state.Agents, state.Tasks = nil, nil, nil
		if err := errors.Join(get(m.url+"/state", &state), get(m.url+"/tasks", &state)); err != nil {
			return err
		}
		if len(state.Frameworks) != 1 || state.Frameworks[0].ID != framework || len(state.Tasks) > 0 {
			return fmt.Errorf("the frameworks are %v and the tasks %v, and %s should be all there is", state.Frameworks, state.Tasks, framework)
		}
		for _, a := range state.Agents {
			if a.Used.CPUs+a.Offered.CPUs > 0 {
				return fmt.Errorf("agent %s has %v processors in use and %v offered", a.ID, a.Used.CPUs, a.Offered.CPUs)
			}
		}
		return nil
	})
}

// get reads a page in JSON.
func get(url string, into any) error {
	response, err := http.Get(url)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	return json.NewDecoder(response.Body).Decode(into)
}
