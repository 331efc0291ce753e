package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"

	pacelinev1 "github.com/paceline-sched/paceline/sdk/gen/paceline/v1"
)

// mesos adds an emulated Mesos cluster to the cell and has it run a part of the work.
func (d *demo) mesos(ctx context.Context) error {
	title("A Mesos cluster beside the local one")
	master, err := d.emulate(ctx, "mesos-emulator", "--agents", "2", "--root", filepath.Join(d.dir, "agents"))
	if err != nil {
		return err
	}
	if _, err := d.shell(ctx, "cluster", "add", "mesos", "east", "--master", master, "--wait"); err != nil {
		return err
	}
	if _, err := d.shell(ctx, "job", "run", d.example("clusters/afar.yaml")); err != nil {
		return err
	}
	var pids []int
	if err := eventually(ctx, func() error {
		tasks, err := d.tasks(ctx, "/research/adhoc/afar")
		if err != nil {
			return err
		}
		for _, t := range tasks {
			if !t.GetRun().GetHealthy() || t.GetRun().GetCluster() != "east" {
				return fmt.Errorf("instance %d is %v on cluster %q", t.GetInstance(), t.GetRun().GetState(), t.GetRun().GetCluster())
			}
		}
		if pids = processes("MESOS_TASK_ID=", "sleep\x00611"); len(pids) != 4 {
			return fmt.Errorf("%d processes of the Mesos tasks are there, not 4", len(pids))
		}
		return nil
	}); err != nil {
		return err
	}
	ok("4 tasks run as processes %v, under a master that the cell speaks HTTP to", pids)
	if out, err := d.quiet(ctx, "cluster", "remove", "east"); err == nil || !strings.Contains(out, "live runs") {
		return fmt.Errorf("the cluster is removed under its live runs: %s", lastLine(out))
	}
	ok("the cluster is not removed while they run")
	if _, err := d.shell(ctx, "job", "stop", "/research/adhoc/afar", "--wait"); err != nil {
		return err
	}
	return d.gone(ctx, pids)
}

// kubernetes adds an emulated Kubernetes cluster as the third, and has one job of one pool run on all of them.
func (d *demo) kubernetes(ctx context.Context) error {
	title("A Kubernetes cluster as the third, and one job on all of them")
	secrets := filepath.Join(d.dir, "data", "secrets") // kubeconfigs are secrets: the server reads them here
	if err := os.MkdirAll(secrets, 0o700); err != nil {
		return err
	}
	server, err := d.emulate(ctx, "kubernetes-emulator", "--nodes", "2", "--root", filepath.Join(d.dir, "nodes"), "--kubeconfig", filepath.Join(secrets, "west.yaml"))
	if err != nil {
		return err
	}
	if _, err := d.shell(ctx, "cluster", "add", "kubernetes", "west", "--kubeconfig", "west.yaml", "--default-image", "none", "--wait"); err != nil {
		return err
	}
	if _, err := d.shell(ctx, "cluster", "list"); err != nil {
		return err
	}
	if _, err := d.shell(ctx, "job", "run", d.example("clusters/everywhere.yaml")); err != nil {
		return err
	}
	var ran map[string]int
	if err := eventually(ctx, func() error {
		ran, err = d.everywhere(ctx)
		return err
	}); err != nil {
		return err
	}
	if _, err := d.shell(ctx, "task", "list", everywhere); err != nil {
		return err
	}
	if err := d.oneCharge(ctx); err != nil {
		return err
	}
	if err := d.deletedPod(ctx, server); err != nil {
		return err
	}
	if ran, err = d.everywhere(ctx); err != nil {
		return err
	}
	if _, err := d.shell(ctx, "job", "stop", everywhere, "--wait"); err != nil {
		return err
	}
	var pids []int
	for _, pid := range ran {
		pids = append(pids, pid)
	}
	return d.gone(ctx, pids)
}

const everywhere = "/research/adhoc/everywhere"

// everywhere checks that the instances of a job run on all three clusters, each in a process of its own that says on which host it is. It returns the processes by run.
func (d *demo) everywhere(ctx context.Context) (map[string]int, error) {
	tasks, err := d.tasks(ctx, everywhere)
	if err != nil {
		return nil, err
	}
	clusters, ran := map[string]int{}, map[string]int{}
	for _, t := range tasks {
		r := t.GetRun()
		if !r.GetHealthy() {
			return nil, fmt.Errorf("instance %d is %v on %q", t.GetInstance(), r.GetState(), r.GetHost())
		}
		pids := processes("PACELINE_HOST="+r.GetHost()+"\x00", "sleep\x00613")
		if len(pids) != 1 {
			return nil, fmt.Errorf("instance %d has %d processes on host %s, not 1", t.GetInstance(), len(pids), r.GetHost())
		}
		clusters[r.GetCluster()]++
		ran[r.GetHost()] = pids[0]
	}
	if len(ran) != 7 || clusters["local"] != 3 || clusters["east"] != 2 || clusters["west"] != 2 {
		return nil, fmt.Errorf("%d instances have processes of their own, on clusters %v", len(ran), clusters)
	}
	return ran, nil
}

// oneCharge checks that a pool is charged for what runs in all clusters.
func (d *demo) oneCharge(ctx context.Context) error {
	pool, err := d.pool(ctx, "/research/adhoc")
	if err != nil {
		return err
	}
	if used := pool.GetUsage().GetCpuMilli(); used != 7*100 {
		return fmt.Errorf("/research/adhoc is charged %d for seven instances", used)
	}
	ok("one job runs on three clusters, as 7 processes that each know their host, and its one pool is charged for exactly them")
	return nil
}

// deletedPod deletes a pod as somebody else may, and waits for its instance to run again.
func (d *demo) deletedPod(ctx context.Context, server string) error {
	pods := server + "/api/v1/namespaces/default/pods"
	var list struct {
		Items []struct {
			Metadata struct{ Name string }
			Spec     struct{ NodeName string }
			Status   struct{ Phase string }
		}
	}
	if err := call(ctx, http.MethodGet, pods, &list); err != nil {
		return err
	}
	tasks, err := d.tasks(ctx, everywhere)
	if err != nil {
		return err
	}
	at := slices.IndexFunc(tasks, func(t *pacelinev1.Task) bool { return t.GetRun().GetCluster() == "west" })
	task := tasks[at]
	name, node := task.GetRun().GetId(), task.GetRun().GetHost()
	found := false
	for _, p := range list.Items {
		found = found || p.Metadata.Name == name && p.Spec.NodeName == node && p.Status.Phase == "Running"
	}
	if !found {
		return fmt.Errorf("the API server knows of %v, and of no pod %s that runs on %s", list.Items, name, node)
	}
	fmt.Printf("$ curl -X DELETE %s/%s   # or kubectl delete pod\n", pods, name)
	if err := call(ctx, http.MethodDelete, pods+"/"+name, nil); err != nil {
		return err
	}
	if err := eventually(ctx, func() error {
		tasks, err := d.tasks(ctx, everywhere)
		if err != nil {
			return err
		}
		if r := tasks[at].GetRun(); r.GetRun() != 2 || !r.GetHealthy() {
			return fmt.Errorf("instance %d is at run %d, %v", at, r.GetRun(), r.GetState())
		}
		_, err = d.everywhere(ctx)
		return err
	}); err != nil {
		return err
	}
	ok("a pod that somebody else deleted is run again, as another pod")
	return nil
}

// call makes a request of an API server.
func call(ctx context.Context, method, url string, into any) error {
	request, err := http.NewRequestWithContext(ctx, method, url, http.NoBody)
	if err != nil {
		return err
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer func() { _ = answer.Body.Close() }() // it was read
	raw, err := io.ReadAll(answer.Body)
	if err != nil {
		return fmt.Errorf("%s %s: read the answer: %w", method, url, err)
	}
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("%s %s: %s, %s", method, url, answer.Status, raw)
	}
	if into == nil {
		return nil
	}
	return json.Unmarshal(raw, into)
}

// leave removes both clusters under what still runs there.
func (d *demo) leave(ctx context.Context) error {
	title("Two clusters leave")
	show("the daemon has instances there, too; they end with them:")
	const daemon = "sh\x00-c\x00echo \"agent of"
	var agents []int
	if err := eventually(ctx, func() error {
		if agents = slices.Concat(processes("PACELINE_HOST=agent-", daemon), processes("PACELINE_HOST=node-", daemon)); len(agents) != 4 {
			return fmt.Errorf("the daemon has %d processes there, not 4", len(agents))
		}
		return nil
	}); err != nil {
		return err
	}
	for _, name := range []string{"east", "west"} {
		if _, err := d.shell(ctx, "cluster", "remove", name, "--force"); err != nil {
			return err
		}
	}
	if err := d.gone(ctx, agents); err != nil {
		return err
	}
	ok("their processes are gone, and the cell has taken leave of the master and of the API server")
	d.stopEmulators()
	return nil
}

func (d *demo) gone(ctx context.Context, pids []int) error {
	return eventually(ctx, func() error {
		for _, pid := range pids {
			if alive(pid) {
				return fmt.Errorf("process %d is still there", pid)
			}
		}
		return nil
	})
}

// emulate starts an emulated cluster as a process of its own and returns its address.
func (d *demo) emulate(ctx context.Context, verb string, args ...string) (url string, err error) {
	path := filepath.Join(d.dir, verb+".log")
	log, err := os.Create(path)
	if err != nil {
		return "", err
	}
	defer func() { _ = log.Close() }() // the emulator has its own
	cmd := exec.CommandContext(ctx, d.binary, append([]string{verb, "--listen", "127.0.0.1:0"}, args...)...)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		return "", fmt.Errorf("start paceline %s: %w", verb, err)
	}
	d.emulators = append(d.emulators, cmd)
	return url, eventually(ctx, func() error {
		raw, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if url = regexp.MustCompile(`http://[0-9.:]+`).FindString(string(raw)); url == "" {
			return fmt.Errorf("paceline %s does not serve: %s", verb, raw)
		}
		return nil
	})
}

func (d *demo) stopEmulators() {
	for _, cmd := range d.emulators {
		_ = cmd.Process.Signal(syscall.SIGINT) // it may have ended
		_ = cmd.Wait()                         // how it ends shows nothing
	}
	d.emulators = nil
}

// processes finds those of this user with a text in their environment and one in their command.
func processes(environment, command string) (pids []int) {
	entries, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range entries {
		env, _ := os.ReadFile(filepath.Join(dir, "environ"))
		line, _ := os.ReadFile(filepath.Join(dir, "cmdline"))
		var pid int
		if _, err := fmt.Sscan(filepath.Base(dir), &pid); err == nil && strings.Contains(string(env), environment) && strings.HasPrefix(string(line), command) {
			pids = append(pids, pid)
		}
	}
	return pids
}
