package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
)

// mesos adds an emulated Mesos cluster to the cell, has it run a part of the work, and takes leave of it.
func (d *demo) mesos(ctx context.Context) error {
	title("A Mesos cluster beside the local one")
	master, stop, err := d.emulator(ctx)
	if err != nil {
		return err
	}
	defer stop()
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
	if _, err := d.shell(ctx, "cluster", "list"); err != nil {
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
	show("the daemon has instances there, too; they end with it:")
	if _, err := d.shell(ctx, "cluster", "remove", "east", "--force"); err != nil {
		return err
	}
	if err := eventually(ctx, func() error {
		for _, pid := range pids {
			if alive(pid) {
				return fmt.Errorf("process %d is still there", pid)
			}
		}
		return nil
	}); err != nil {
		return err
	}
	ok("their processes are gone, and the cell has taken leave of the master")
	return nil
}

// emulator starts an emulated Mesos master as a process of its own and returns its address.
func (d *demo) emulator(ctx context.Context) (master string, stop func(), err error) {
	path := filepath.Join(d.dir, "emulator.log")
	log, err := os.Create(path)
	if err != nil {
		return "", nil, err
	}
	cmd := exec.CommandContext(ctx, d.binary, "mesos-emulator", "--listen", "127.0.0.1:0", "--agents", "2", "--root", filepath.Join(d.dir, "agents"))
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		return "", nil, fmt.Errorf("start the emulated Mesos cluster: %w", err)
	}
	stop = func() {
		_ = cmd.Process.Signal(syscall.SIGINT) // it may have ended
		_ = cmd.Wait()                         // how it ends shows nothing
		_ = log.Close()
	}
	err = eventually(ctx, func() error {
		raw, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if master = regexp.MustCompile(`http://[0-9.:]+`).FindString(string(raw)); master == "" {
			return fmt.Errorf("the emulated Mesos cluster does not serve: %s", raw)
		}
		return nil
	})
	if err != nil {
		stop()
	}
	return master, stop, err
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
