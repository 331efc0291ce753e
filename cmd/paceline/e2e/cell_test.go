package e2e_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"connectrpc.com/connect"

	// The binary is built from these: named here, so that a cached result of these tests does not outlive a change of them.
	_ "github.com/paceline-sched/paceline/cmd/paceline/internal/cli"
	_ "github.com/paceline-sched/paceline/cmd/paceline/internal/server"
	_ "github.com/paceline-sched/paceline/cmd/paceline/internal/simpack"
	"github.com/paceline-sched/paceline/sdk/client"
	pacelinev1 "github.com/paceline-sched/paceline/sdk/gen/paceline/v1"
)

const (
	// patience bounds every wait for something that must happen.
	patience = 2 * time.Minute
	pause    = 20 * time.Millisecond
	mainFile = "../main.go"
)

var (
	scratch string // the folder of everything that the tests write
	binary  string // of paceline
)

func TestMain(m *testing.M) {
	if os.Getenv(onDiskVariable) != "" {
		fmt.Fprintln(os.Stderr, becomeServer(os.Args[1:])) // it returns when it has failed
		os.Exit(1)
	}
	code, err := testMain(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func testMain(m *testing.M) (code int, err error) {
	if scratch, err = os.MkdirTemp("", "paceline-e2e-"); err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(scratch)) }()
	// One test runs as another user, who has to get here.
	if err := os.Chmod(scratch, 0o711); err != nil {
		return 1, err
	}
	if err := build(); err != nil {
		return 1, err
	}
	code = m.Run()
	if left := processesOf(scratch); len(left) > 0 {
		for pid, what := range left {
			err = errors.Join(err, fmt.Errorf("process %d is left behind: %s", pid, what))
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
	return code, err
}

// build makes the binary, unless PACELINE_BINARY names one. The race detector is off in it: races are looked for where they are made, and
// here hundreds of processes start.
func build() error {
	binary = filepath.Join(scratch, "bin", "paceline")
	if given := os.Getenv("PACELINE_BINARY"); given != "" {
		return errors.Join(os.Mkdir(filepath.Dir(binary), 0o755), os.Symlink(given, binary))
	}
	if _, err := os.ReadFile(mainFile); err != nil { // the go command notes what a test reads: a change of it ends a cached result
		return err
	}
	out, err := exec.Command("go", "build", "-race=false", "-o", binary, "..").CombinedOutput()
	if err != nil {
		return fmt.Errorf("build the binary: %w\n%s", err, out)
	}
	return nil
}

// processesOf finds what runs below a folder: by command line, environment or working directory.
func processesOf(dir string) map[int]string {
	found := map[int]string{}
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		line, _ := os.ReadFile("/proc/" + e.Name() + "/cmdline")
		environ, _ := os.ReadFile("/proc/" + e.Name() + "/environ")
		work, _ := os.Readlink("/proc/" + e.Name() + "/cwd")
		if bytes.Contains(line, []byte(dir+"/")) || bytes.Contains(environ, []byte(dir+"/")) || strings.HasPrefix(work, dir+"/") {
			found[pid] = strings.TrimSpace(string(bytes.ReplaceAll(line, []byte{0}, []byte{' '})))
		}
	}
	return found
}

// folder makes a folder of a test's own in scratch; its name says whose it is.
func folder(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp(scratch, strings.NewReplacer("/", "-", " ", "-").Replace(t.Name())+"-") //nolint:usetesting // TestMain looks below scratch for what is left
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func write(t *testing.T, dir, name, content string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// cell is a server on a data directory, started and ended any number of times, and the commands that speak to it.
type cell struct {
	t     *testing.T
	dir   string // of everything here
	data  string
	flags []string
	files int // limit of open files; 0: this process's
	env   []string
	cmd   *exec.Cmd
	ended chan struct{} // closed once cmd has
	disk  *disk         // under the server; nil: the machine's
	conn  *client.Client
}

// newCell makes a cell that has not started: paceline server with flags.
func newCell(t *testing.T, flags ...string) *cell {
	t.Helper()
	dir := folder(t)
	c := &cell{t: t, dir: dir, data: filepath.Join(dir, "data"), flags: flags}
	c.env = append(os.Environ(), "HOME="+dir, "PACELINE_CONFIG="+filepath.Join(dir, "config.yaml"), "PACELINE_TOKEN_FILE="+filepath.Join(c.data, "token"),
		"PACELINE_TIMEOUT="+patience.String())
	t.Cleanup(c.end)
	return c
}

// simulates are the flags of a cell that only pretends, with hosts enough for what tests ask of it.
var simulates = []string{"--simulated-hosts", "20", "--simulated-duration", "1s"}

func startCell(t *testing.T, flags ...string) *cell {
	t.Helper()
	c := newCell(t, flags...)
	c.start()
	return c
}

// command is the server's command line.
func (c *cell) command(flags ...string) *exec.Cmd {
	args := append([]string{"server", "--data-dir", c.data, "--listen", "127.0.0.1:0", "--disk-reserve-mib", "16", "--log-level", "warn"}, c.flags...)
	cmd := exec.Command(binary, append(args, flags...)...)
	if c.files > 0 {
		cmd = exec.Command("sh", slices.Concat([]string{"-c", `ulimit -n "$0"; exec "$@"`, strconv.Itoa(c.files), binary}, args, flags)...)
	}
	cmd.Env, cmd.Dir = c.env, c.dir
	return cmd
}

// launch starts the server and does not wait until it serves.
func (c *cell) launch() {
	c.t.Helper()
	_ = os.Remove(c.readyFile())
	log, err := os.OpenFile(filepath.Join(c.dir, "server.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		c.t.Fatal(err)
	}
	defer log.Close()
	c.cmd = c.command("--ready-file", c.readyFile())
	c.cmd.Stdout, c.cmd.Stderr = log, log
	if c.disk != nil {
		if err := c.disk.run(c.cmd); err != nil {
			c.cmd = nil
			c.t.Skipf("syncs cannot be held here: %v\n%s", err, c.log())
		}
	} else if err := c.cmd.Start(); err != nil {
		c.t.Fatal(err)
	}
	c.ended = make(chan struct{})
	go func(cmd *exec.Cmd, ended chan struct{}) {
		_ = cmd.Wait() // its state is looked at
		close(ended)
	}(c.cmd, c.ended)
}

func (c *cell) readyFile() string { return filepath.Join(c.dir, "address") }

func (c *cell) start() {
	c.t.Helper()
	c.launch()
	c.await("the server serves", func() error {
		select {
		case <-c.ended:
			c.t.Fatalf("the server ended with %v:\n%s", c.cmd.ProcessState, c.log())
		default:
		}
		_, err := os.Stat(c.readyFile())
		return err
	})
}

func (c *cell) log() string {
	raw, err := os.ReadFile(filepath.Join(c.dir, "server.log"))
	if err != nil {
		return err.Error()
	}
	const most = 8 << 10
	return string(raw[max(0, len(raw)-most):])
}

// await waits until a claim holds.
func (c *cell) await(what string, claim func() error) {
	c.t.Helper()
	c.awaitFor(patience, what, claim)
}

func (c *cell) awaitFor(most time.Duration, what string, claim func() error) {
	c.t.Helper()
	deadline := time.NewTimer(most)
	defer deadline.Stop()
	look := time.NewTicker(pause)
	defer look.Stop()
	for {
		err := claim()
		if err == nil {
			return
		}
		select {
		case <-look.C:
		case <-deadline.C:
			c.t.Fatalf("within %v it did not come true that %s: %v\nThe server's log ends:\n%s", most, what, err, c.log())
		}
	}
}

// kill ends the server with SIGKILL.
func (c *cell) kill() {
	c.t.Helper()
	if err := c.cmd.Process.Kill(); err != nil {
		c.t.Fatal(err)
	}
	<-c.ended
	c.gone()
}

// gone forgets a server that has ended. Its address goes first: another cell's server may be given the same port, and would refuse whoever still comes for this one.
func (c *cell) gone() {
	_ = os.Remove(c.readyFile())
	c.cmd = nil
	c.disconnect()
}

// stop ends the server as an operator does, and wants it to end well.
func (c *cell) stop() {
	c.t.Helper()
	if err := c.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		c.t.Fatal(err)
	}
	c.wantEnd(0)
}

// wantEnd waits for the server's end and wants an exit code.
func (c *cell) wantEnd(code int) {
	c.t.Helper()
	select {
	case <-c.ended:
	case <-time.After(patience):
		c.t.Fatalf("the server did not end within %v:\n%s", patience, c.log())
	}
	if got := c.cmd.ProcessState.ExitCode(); got != code {
		c.t.Errorf("the server ended with %v, want exit code %d:\n%s", c.cmd.ProcessState, code, c.log())
	}
	c.gone()
}

// wantNoProcess waits until nothing runs below the cell's folder any more: a task's last process may end a moment after its server.
func (c *cell) wantNoProcess() {
	c.t.Helper()
	c.await("no process is left behind", func() error {
		if left := processesOf(c.dir); len(left) > 0 {
			return fmt.Errorf("there are %v", left)
		}
		return nil
	})
}

// end cleans up: the server goes, and what its tasks left is ended by pid.
func (c *cell) end() {
	c.disconnect()
	if c.cmd != nil {
		_ = c.cmd.Process.Kill()
		<-c.ended
	}
	for pid := range processesOf(c.dir) {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	deadline := time.Now().Add(patience)
	for len(processesOf(c.dir)) > 0 && time.Now().Before(deadline) {
		<-time.After(pause)
	}
}

func (c *cell) address() string {
	c.t.Helper()
	raw, err := os.ReadFile(c.readyFile())
	if err != nil {
		c.t.Fatal(err)
	}
	return strings.TrimSpace(string(raw))
}

// result is how a command ended.
type result struct {
	line           string
	code           int
	stdout, stderr string
}

func (r result) String() string {
	return fmt.Sprintf("%s\nexit code %d\n%s%s", r.line, r.code, r.stdout, r.stderr)
}

// paceline runs a command as a user of the cell.
func (c *cell) paceline(args ...string) result {
	c.t.Helper()
	cmd := exec.Command(binary, args...)
	address, _ := os.ReadFile(c.readyFile()) // none: the server did not start, and the command will say so
	cmd.Env, cmd.Dir = append(slices.Clone(c.env), "PACELINE_ADDRESS="+strings.TrimSpace(string(address))), c.dir
	return finish(c.t, cmd)
}

func finish(t *testing.T, cmd *exec.Cmd) result {
	t.Helper()
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	// A command that hangs is a failure of its own, told with what it had said.
	timer := time.AfterFunc(2*patience, func() { _ = cmd.Process.Kill() })
	err := cmd.Run()
	timer.Stop()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return result{line: strings.Join(cmd.Args, " "), code: cmd.ProcessState.ExitCode(), stdout: out.String(), stderr: errs.String()}
}

// must runs a command that has to succeed, and returns its output.
func (c *cell) must(args ...string) string {
	c.t.Helper()
	r := c.paceline(args...)
	if r.code != 0 {
		c.t.Fatalf("%v\nThe server's log ends:\n%s", r, c.log())
	}
	return r.stdout
}

// want checks a command's exit code and the pattern of what it says on standard error.
func want(t *testing.T, r result, code int, stderr string) {
	t.Helper()
	if r.code != code || !regexp.MustCompile(stderr).MatchString(r.stderr) {
		t.Errorf("%v\nwant exit code %d and %q", r, code, stderr)
	}
}

// client connects as the holder of the cell's token.
func (c *cell) client() *client.Client {
	c.t.Helper()
	if c.conn == nil {
		conn, err := client.New(c.address(), client.WithTokenFile(filepath.Join(c.data, "token")))
		if err != nil {
			c.t.Fatal(err)
		}
		c.conn = conn
	}
	return c.conn
}

func (c *cell) disconnect() {
	if c.conn != nil {
		c.conn.Close()
		c.conn = nil
	}
}

// jobs returns every job by path.
func (c *cell) jobs() (map[string]*pacelinev1.JobSummary, error) {
	list := map[string]*pacelinev1.JobSummary{}
	request := &pacelinev1.ListJobsRequest{PageSize: 1000}
	for {
		answer, err := c.client().Jobs.ListJobs(context.Background(), connect.NewRequest(request))
		if err != nil {
			return nil, err
		}
		for _, j := range answer.Msg.GetJobs() {
			list[j.GetPool()+"/"+j.GetName()] = j
		}
		if request.PageToken = answer.Msg.GetNextPageToken(); request.PageToken == "" {
			return list, nil
		}
	}
}

func (c *cell) tasks(job string) ([]*pacelinev1.Task, error) {
	var list []*pacelinev1.Task
	request := &pacelinev1.ListTasksRequest{Job: job, PageSize: 1000}
	for {
		answer, err := c.client().Tasks.ListTasks(context.Background(), connect.NewRequest(request))
		if err != nil {
			return nil, err
		}
		list = append(list, answer.Msg.GetTasks()...)
		if request.PageToken = answer.Msg.GetNextPageToken(); request.PageToken == "" {
			return list, nil
		}
	}
}

// awaitJobs waits until every one of the jobs is in a state.
func (c *cell) awaitJobs(state pacelinev1.JobState, paths ...string) {
	c.t.Helper()
	c.await(fmt.Sprintf("%d jobs are %v", len(paths), state), func() error {
		list, err := c.jobs()
		if err != nil {
			return err
		}
		for _, path := range paths {
			if j := list[path]; j == nil {
				return fmt.Errorf("job %s is not there", path)
			} else if j.GetState() != state {
				return fmt.Errorf("job %s is %v: %v", path, j.GetState(), j.GetInstanceCounts())
			}
		}
		return nil
	})
}
