// Command demo shows Paceline at work on this machine and checks every claim that it makes: it drives the command line as a user
// would and verifies what happened through the API and on the processes themselves. It ends with the first claim that does not hold.
//
// It owns the server that it starts, one goroutine that watches events, and a temporary folder; all are gone when it ends.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"connectrpc.com/connect"

	"github.com/paceline-sched/paceline/sdk/client"
	pacelinev1 "github.com/paceline-sched/paceline/sdk/gen/paceline/v1"
)

// patience bounds every wait of the demo.
const patience = 60 * time.Second

func main() {
	binary := flag.String("paceline", "bin/paceline", "the binary to show")
	examples := flag.String("examples", "examples", "the folder of the examples")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, 240*time.Second)
	defer cancel()
	if err := run(ctx, *binary, *examples); err != nil {
		fmt.Fprintln(os.Stderr, "\ndemo FAILED:", err)
		os.Exit(1)
	}
	fmt.Println("\nEvery claim above was checked. The demo is over.")
}

// demo is one show.
type demo struct {
	binary, examples, dir string
	server                *exec.Cmd
	log                   *os.File
	client                *client.Client
	watched               *watched
	emulators             []*exec.Cmd // of clusters
}

func run(ctx context.Context, binary, examples string) (err error) {
	dir, err := os.MkdirTemp("", "paceline-demo-")
	if err != nil {
		return err
	}
	d := &demo{binary: binary, examples: examples, dir: dir}
	defer func() {
		d.end()
		if err != nil {
			err = fmt.Errorf("%w (the server's log and data are in %s)", err, dir)
			return
		}
		err = os.RemoveAll(dir)
	}()
	for _, act := range []func(context.Context) error{
		d.start, d.pools, d.batch, d.service, d.daemon, d.gang, d.mesos, d.kubernetes, d.leave, d.policies, d.impossible, d.rules, d.restart, d.tree, d.finish,
	} {
		if err := act(ctx); err != nil {
			return err
		}
	}
	return nil
}

func title(text string) { fmt.Printf("\n== %s\n", text) }

func show(format string, args ...any) { fmt.Printf("     "+format+"\n", args...) }

func ok(format string, args ...any) { fmt.Printf("ok   "+format+"\n", args...) }

// shell runs the command line as a user would and shows both.
func (d *demo) shell(ctx context.Context, args ...string) (string, error) {
	fmt.Printf("$ paceline %s\n", strings.Join(args, " "))
	out, err := d.quiet(ctx, args...)
	fmt.Print(out)
	return out, err
}

func (d *demo) quiet(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, d.binary, args...)
	address, _ := os.ReadFile(filepath.Join(d.dir, "address"))
	cmd.Env = append(os.Environ(), "PACELINE_CONFIG="+filepath.Join(d.dir, "config.yaml"),
		"PACELINE_ADDRESS="+strings.TrimSpace(string(address)), "PACELINE_TOKEN_FILE="+filepath.Join(d.dir, "data", "token"))
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	if exit := (&exec.ExitError{}); errors.As(err, &exit) {
		return out.String(), fmt.Errorf("paceline %s ended with exit code %d: %s", strings.Join(args, " "), exit.ExitCode(), lastLine(out.String()))
	}
	return out.String(), err
}

func lastLine(s string) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return lines[len(lines)-1]
}

// eventually waits until a claim holds; the last reason why it does not is the error.
func eventually(ctx context.Context, claim func() error) error {
	deadline := time.Now().Add(patience)
	for {
		err := claim()
		if err == nil || time.Now().After(deadline) {
			return err
		}
		select {
		case <-ctx.Done():
			return errors.Join(err, ctx.Err())
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// start runs the server on a free port and waits until it serves. The ports of tasks stay out of the way of other servers' here.
func (d *demo) start(ctx context.Context) error {
	title("A cell on this machine")
	return d.boot(ctx)
}

func (d *demo) boot(ctx context.Context) error {
	address := filepath.Join(d.dir, "address")
	_ = os.Remove(address)
	log, err := os.OpenFile(filepath.Join(d.dir, "server.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	d.log = log
	d.server = exec.CommandContext(context.WithoutCancel(ctx), d.binary, "dev", // it is ended by the show, or by end
		"--data-dir", filepath.Join(d.dir, "data"), "--listen", "127.0.0.1:0",
		"--local-hosts", "3", "--local-cpu", "8000", "--local-memory-mib", "4096", "--disk-reserve-mib", "64", "--ready-file", address)
	d.server.Stdout, d.server.Stderr = log, log
	if err := d.server.Start(); err != nil {
		return fmt.Errorf("start the server: %w", err)
	}
	if err := eventually(ctx, func() error { return d.connect(ctx, address) }); err != nil {
		return fmt.Errorf("the server does not serve: %w", err)
	}
	ok("a server with 3 virtual hosts serves (process %d)", d.server.Process.Pid)
	return nil
}

func (d *demo) connect(ctx context.Context, address string) error {
	raw, err := os.ReadFile(address)
	if err != nil {
		return err
	}
	c, err := client.New(strings.TrimSpace(string(raw)), client.WithTokenFile(filepath.Join(d.dir, "data", "token")))
	if err != nil {
		return err
	}
	hosts, err := c.Hosts.ListHosts(ctx, connect.NewRequest(&pacelinev1.ListHostsRequest{Cluster: "local"}))
	if err != nil {
		return err
	}
	for _, h := range hosts.Msg.GetHosts() {
		if h.GetState() != pacelinev1.HostState_HOST_STATE_READY {
			return fmt.Errorf("host %s is not ready", h.GetName())
		}
	}
	if n := len(hosts.Msg.GetHosts()); n != 3 {
		return fmt.Errorf("%d hosts are there, not 3", n)
	}
	d.client = c
	return nil
}

func (d *demo) pools(ctx context.Context) error {
	title("A tree of pools")
	if _, err := d.shell(ctx, "pool", "apply", d.example("pools/pools.yaml")); err != nil {
		return err
	}
	if _, err := d.shell(ctx, "pool", "tree"); err != nil {
		return err
	}
	web, err := d.pool(ctx, "/web")
	if err != nil {
		return err
	}
	if got := web.GetReservation().GetCpuMilli(); got != 3000 {
		return fmt.Errorf("pool /web reserves %d, not 3000", got)
	}
	ok("/web is guaranteed 3 cores and entitled to %.1f", float64(web.GetEntitlement().GetCpuMilli())/1000)
	return nil
}

func (d *demo) example(name string) string {
	return filepath.Join(d.examples, filepath.FromSlash(name))
}

func (d *demo) pool(ctx context.Context, path string) (*pacelinev1.Pool, error) {
	r, err := d.client.Pools.GetPool(ctx, connect.NewRequest(&pacelinev1.GetPoolRequest{Pool: path}))
	if err != nil {
		return nil, err
	}
	return r.Msg.GetPool(), nil
}

func (d *demo) job(ctx context.Context, name string) (*pacelinev1.JobSummary, error) {
	r, err := d.client.Jobs.GetJob(ctx, connect.NewRequest(&pacelinev1.GetJobRequest{Job: name}))
	if err != nil {
		return nil, err
	}
	return r.Msg.GetJob().GetSummary(), nil
}

func (d *demo) tasks(ctx context.Context, job string) ([]*pacelinev1.Task, error) {
	r, err := d.client.Tasks.ListTasks(ctx, connect.NewRequest(&pacelinev1.ListTasksRequest{Job: job}))
	if err != nil {
		return nil, err
	}
	return r.Msg.GetTasks(), nil
}

func (d *demo) batch(ctx context.Context) error {
	title("A batch job of 500 instances, never more than 25 at once")
	d.watched = watch(ctx, d.client)
	if _, err := d.shell(ctx, "job", "run", d.example("batch/job.yaml"), "--wait"); err != nil {
		return err
	}
	job, err := d.job(ctx, "/research/nightly/squares")
	if err != nil {
		return err
	}
	if done := job.GetInstanceCounts().GetDone(); job.GetState() != pacelinev1.JobState_JOB_STATE_SUCCEEDED || done != 500 {
		return fmt.Errorf("the batch job is %v with %d instances done", job.GetState(), done)
	}
	ok("500 of 500 instances succeeded")
	for _, instance := range []int{0, 7, 499} {
		out, err := d.quiet(ctx, "task", "logs", "/research/nightly/squares", strconv.Itoa(instance))
		if err != nil {
			return err
		}
		if want := fmt.Sprintf("%d squared is %d", instance, instance*instance); strings.TrimSpace(out) != want {
			return fmt.Errorf("instance %d wrote %q, not %q", instance, strings.TrimSpace(out), want)
		}
	}
	ok("their output is there: instance 499 wrote %d", 499*499)
	return d.checkWindow()
}

// checkWindow recounts from the events how many instances lived at once.
func (d *demo) checkWindow() error {
	ended, most, err := d.watched.close()
	switch {
	case err != nil:
		return fmt.Errorf("watch events: %w", err)
	case ended != 500:
		return fmt.Errorf("the events tell of %d ended runs, not 500", ended)
	case most > 25 || most < 2:
		return fmt.Errorf("%d instances lived at once", most)
	}
	ok("the events tell of 500 runs, at most %d live at once", most)
	return nil
}

func (d *demo) service(ctx context.Context) error {
	title("A service whose process is killed")
	if _, err := d.shell(ctx, "job", "run", d.example("service/job.yaml"), "--wait"); err != nil {
		return err
	}
	pid, err := d.pidOf(ctx, 2)
	if err != nil {
		return err
	}
	fmt.Printf("$ kill -9 %d   # the process of instance 2\n", pid)
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		return fmt.Errorf("kill instance 2: %w", err)
	}
	err = eventually(ctx, func() error {
		tasks, err := d.tasks(ctx, "/web/heartbeat")
		if err != nil {
			return err
		}
		if r := tasks[2].GetRun(); r.GetRun() != 2 || !r.GetHealthy() {
			return fmt.Errorf("instance 2 is at run %d, %v", r.GetRun(), r.GetState())
		}
		return nil
	})
	if err != nil {
		return err
	}
	again, err := d.pidOf(ctx, 2)
	if err != nil {
		return err
	}
	if again == pid || !alive(again) || alive(pid) {
		return fmt.Errorf("process %d was killed and %d is said to have taken its place", pid, again)
	}
	if _, err := d.shell(ctx, "task", "get", "/web/heartbeat", "2"); err != nil {
		return err
	}
	ok("instance 2 came back: process %d took the place of %d", again, pid)
	return nil
}

// pidOf reads the process id that an instance of the service wrote.
func (d *demo) pidOf(ctx context.Context, instance int) (pid int, err error) {
	err = eventually(ctx, func() error {
		out, err := d.quiet(ctx, "task", "logs", "/web/heartbeat", strconv.Itoa(instance))
		if err != nil {
			return err
		}
		_, text, _ := strings.Cut(lastLine(out), "pid ")
		pid, err = strconv.Atoi(strings.TrimSpace(text))
		return err
	})
	return pid, err
}

// alive reports whether a process is there and no zombie.
func alive(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	_, after, _ := strings.Cut(string(stat), ") ")
	return !strings.HasPrefix(after, "Z")
}

func (d *demo) daemon(ctx context.Context) error {
	title("A daemon")
	if _, err := d.shell(ctx, "job", "run", d.example("daemon/job.yaml"), "--wait"); err != nil {
		return err
	}
	if _, err := d.shell(ctx, "task", "list", "/web/node-agent"); err != nil {
		return err
	}
	tasks, err := d.tasks(ctx, "/web/node-agent")
	if err != nil {
		return err
	}
	hosts := map[string]bool{}
	for _, t := range tasks {
		hosts[t.GetRun().GetHost()] = true
	}
	if len(hosts) != 3 || len(tasks) != 3 {
		return fmt.Errorf("%d instances on %d hosts, not 3 on 3", len(tasks), len(hosts))
	}
	ok("one instance runs on each of 3 hosts")
	return nil
}

func (d *demo) gang(ctx context.Context) error {
	title("A gang")
	if _, err := d.shell(ctx, "job", "run", d.example("gang/job.yaml"), "--wait"); err != nil {
		return err
	}
	tasks, err := d.tasks(ctx, "/research/adhoc/all-reduce")
	if err != nil {
		return err
	}
	for _, t := range tasks {
		if !t.GetRun().GetPlaceTime().AsTime().Equal(tasks[0].GetRun().GetPlaceTime().AsTime()) {
			return errors.New("the members were not placed at the same moment")
		}
		out, err := d.quiet(ctx, "task", "logs", "/research/adhoc/all-reduce", strconv.Itoa(int(t.GetInstance())))
		if want := fmt.Sprintf("rank %d of 4", t.GetInstance()); err != nil || strings.TrimSpace(out) != want {
			return fmt.Errorf("member %d wrote %q, not %q (%w)", t.GetInstance(), out, want, err)
		}
	}
	ok("4 members were placed at the same moment, and each knew its rank")
	return nil
}

func (d *demo) impossible(ctx context.Context) error {
	title("A job that cannot fit")
	if out, err := d.shell(ctx, "job", "plan", d.example("impossible/job.yaml")); err == nil || !strings.Contains(err.Error(), "exit code 1") {
		return fmt.Errorf("the plan should end with exit code 1, for changes: %w: %s", err, out)
	}
	ok("the plan says so beforehand and changed nothing")
	if _, err := d.job(ctx, "/default/needs-gpus"); connect.CodeOf(err) != connect.CodeNotFound {
		return fmt.Errorf("the plan made the job: %w", err)
	}
	if _, err := d.shell(ctx, "job", "run", d.example("impossible/job.yaml")); err != nil {
		return err
	}
	if _, err := d.shell(ctx, "job", "explain", "needs-gpus"); err != nil {
		return err
	}
	r, err := d.client.Jobs.ExplainJob(ctx, connect.NewRequest(&pacelinev1.ExplainJobRequest{Job: "/default/needs-gpus"}))
	if err != nil {
		return err
	}
	e := r.Msg.GetExplanation()
	if e.GetDominant() != pacelinev1.PendingReason_PENDING_REASON_NEVER_FITS || e.GetReasons()[0].GetInstances() != 2 {
		return fmt.Errorf("the explanation is %v", e)
	}
	ok("it waits and says why, with counts")
	return nil
}

func (d *demo) restart(ctx context.Context) error {
	title("The server is killed under running work")
	before, err := d.processes(ctx)
	if err != nil {
		return err
	}
	fmt.Printf("$ kill -9 %d   # the server\n", d.server.Process.Pid)
	if err := d.server.Process.Kill(); err != nil {
		return err
	}
	_ = d.server.Wait()
	for instance, pid := range before {
		if !alive(pid) {
			return fmt.Errorf("process %d of instance %d died with the server", pid, instance)
		}
	}
	ok("all %d processes of the service live on without it", len(before))
	if err := d.boot(ctx); err != nil {
		return err
	}
	if err := eventually(ctx, func() error { return d.sameRuns(ctx, before) }); err != nil {
		return err
	}
	ok("the new server took up every run: same processes, none started twice, nothing lost")
	job, err := d.job(ctx, "/research/nightly/squares")
	if err != nil || job.GetInstanceCounts().GetDone() != 500 {
		return fmt.Errorf("the batch job has %d instances done after the restart (%w)", job.GetInstanceCounts().GetDone(), err)
	}
	ok("the ended batch job is still there with its 500 instances")
	return d.kept(ctx)
}

func (d *demo) processes(ctx context.Context) (map[int]int, error) {
	pids := map[int]int{}
	for instance := range 5 {
		pid, err := d.pidOf(ctx, instance)
		if err != nil {
			return nil, err
		}
		pids[instance] = pid
	}
	return pids, nil
}

// sameRuns checks that the service runs as before: healthy, and in the same processes.
func (d *demo) sameRuns(ctx context.Context, before map[int]int) error {
	job, err := d.job(ctx, "/web/heartbeat")
	if err != nil {
		return err
	}
	if job.GetHealthy() != 5 {
		return fmt.Errorf("%d of 5 instances are healthy", job.GetHealthy())
	}
	after, err := d.processes(ctx)
	if err != nil {
		return err
	}
	for instance, pid := range before {
		if after[instance] != pid || !alive(pid) {
			return fmt.Errorf("instance %d ran as process %d and now as %d", instance, pid, after[instance])
		}
	}
	return nil
}

func (d *demo) tree(ctx context.Context) error {
	title("Who uses what")
	if _, err := d.shell(ctx, "pool", "tree"); err != nil {
		return err
	}
	web, err := d.pool(ctx, "/web")
	if err != nil {
		return err
	}
	if used := web.GetUsage().GetCpuMilli(); used != 5*300+3*50 {
		return fmt.Errorf("/web is charged %d for five services and three daemons", used)
	}
	ok("/web is charged for exactly five services and three daemons")
	return nil
}

func (d *demo) finish(ctx context.Context) error {
	title("The end")
	pids, err := d.processes(ctx)
	if err != nil {
		return err
	}
	for _, job := range []string{"/web/heartbeat", "/web/node-agent", "/default/needs-gpus"} {
		if _, err := d.shell(ctx, "job", "stop", job, "--wait"); err != nil {
			return err
		}
	}
	for _, pid := range pids {
		if alive(pid) {
			return fmt.Errorf("process %d lives after its job was stopped", pid)
		}
	}
	ok("every process is gone")
	if err := d.server.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	if err := d.server.Wait(); err != nil {
		return fmt.Errorf("the server did not end well: %w", err)
	}
	d.server = nil
	ok("the server ended with 0")
	return nil
}

// end cleans up after a show that broke off: the tasks are stopped through the server if it still answers.
func (d *demo) end() {
	if d.server != nil {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		for _, job := range []string{"/web/heartbeat", "/web/node-agent", "/research/nightly/squares", "/research/adhoc/all-reduce", everywhere, naps, otherNaps} {
			_, _ = d.quiet(ctx, "job", "stop", job, "--wait")
		}
		_ = d.server.Process.Signal(syscall.SIGTERM)
		_ = d.server.Wait()
	}
	d.stopEmulators()
	if d.log != nil {
		_ = d.log.Close()
	}
}
