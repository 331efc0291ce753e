package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/paceline-sched/paceline/conformance/controlplane/crowd"
)

const (
	program     = "paceline"
	clusterName = "measured"
	glance      = 20 * time.Millisecond
	stopFor     = 30 * time.Second
	maxAnswer   = 1 << 20
)

// cell is a Paceline server, as anybody would start it, in a folder of its own.
type cell struct {
	binary, dir string
	secrets     string // the folder that kubeconfigs are below
	url, token  string
	cmd         *exec.Cmd
	ended       chan struct{} // closed once the process has ended
	client      http.Client
}

// startCell makes a cell that may read kubeconfigs in a folder.
func startCell(ctx context.Context, binary, secrets string) (*cell, error) {
	binary, err := filepath.Abs(binary)
	if err != nil {
		return nil, fmt.Errorf("find the program: %w", err)
	}
	dir, err := os.MkdirTemp("", "bench-kubernetes")
	if err != nil {
		return nil, fmt.Errorf("make a folder for the cell: %w", err)
	}
	c := &cell{binary: binary, dir: dir, secrets: secrets}
	if err := c.start(ctx); err != nil {
		return nil, errors.Join(err, c.close())
	}
	return c, nil
}

func (c *cell) path(name string) string { return filepath.Join(c.dir, name) }

// start starts the server, also again.
func (c *cell) start(ctx context.Context) error {
	ready := c.path("address")
	if err := os.Remove(ready); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("start the server: %w", err)
	}
	log, err := os.OpenFile(c.path("server.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("start the server: %w", err)
	}
	defer log.Close() //nolint:errcheck // the server has it
	c.cmd = exec.CommandContext(ctx, c.binary, "server", "--data-dir", c.path("data"), "--listen", "127.0.0.1:0", "--local-hosts", "0",
		"--secrets-dir", c.secrets, "--log-level", "warn", "--ready-file", ready)
	c.cmd.Stdout, c.cmd.Stderr = log, log
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := c.cmd.Start(); err != nil {
		return fmt.Errorf("start the server: %w", err)
	}
	c.ended = make(chan struct{})
	go func(cmd *exec.Cmd, ended chan<- struct{}) {
		_ = cmd.Wait() // its state is looked at
		close(ended)
	}(c.cmd, c.ended)
	for {
		if address, err := os.ReadFile(ready); err == nil {
			c.url = strings.TrimSpace(string(address))
			break
		}
		select {
		case <-c.ended:
			return fmt.Errorf("the server ended with %s: %s", c.cmd.ProcessState, c.log())
		case <-ctx.Done():
			return fmt.Errorf("wait until the server serves: %w: %s", ctx.Err(), c.log())
		case <-time.After(glance):
		}
	}
	if !strings.Contains(c.url, "://") {
		c.url = "http://" + c.url
	}
	token, err := os.ReadFile(c.path("data/token"))
	if err != nil {
		return fmt.Errorf("read the server's token: %w", err)
	}
	c.token = strings.TrimSpace(string(token))
	return nil
}

func (c *cell) log() string {
	raw, err := os.ReadFile(c.path("server.log"))
	if err != nil {
		return err.Error()
	}
	const most = 4096
	return string(raw[max(0, len(raw)-most):])
}

// stop ends the server as an operator does, or at once.
func (c *cell) stop(signal os.Signal) error {
	if c.cmd == nil || c.cmd.Process == nil {
		return nil
	}
	if err := c.cmd.Process.Signal(signal); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("end the server: %w", err)
	}
	select {
	case <-c.ended:
	case <-time.After(stopFor):
		_ = c.cmd.Process.Kill() // it may have ended just now
		<-c.ended
		return fmt.Errorf("the server did not end within %s: %s", stopFor, c.log())
	}
	c.cmd = nil
	return nil
}

func (c *cell) close() error {
	return errors.Join(c.stop(syscall.SIGTERM), os.RemoveAll(c.dir))
}

// call makes one call of the API, in JSON.
func (c *cell) call(ctx context.Context, method string, request, answer any) error {
	body, err := json.Marshal(request)
	if err != nil {
		return fmt.Errorf("call %s: %w", method, err)
	}
	post, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url+"/paceline.v1."+method, bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("call %s: %w", method, err)
	}
	post.Header.Set("Content-Type", "application/json")
	post.Header.Set("Authorization", "Bearer "+c.token)
	got, err := c.client.Do(post)
	if err != nil {
		return fmt.Errorf("call %s: %w", method, err)
	}
	defer got.Body.Close() //nolint:errcheck // it is only read
	raw, err := io.ReadAll(io.LimitReader(got.Body, maxAnswer))
	switch {
	case err != nil:
		return fmt.Errorf("call %s: %w", method, err)
	case got.StatusCode != http.StatusOK:
		return fmt.Errorf("call %s: %s: %s", method, got.Status, raw)
	case answer == nil:
		return nil
	}
	if err := json.Unmarshal(raw, answer); err != nil {
		return fmt.Errorf("call %s: %w", method, err)
	}
	return nil
}

// join adds a Kubernetes cluster to the cell by the command line.
func (c *cell) join(ctx context.Context, kubeconfig string) error {
	add := exec.CommandContext(ctx, c.binary, "cluster", "add", "kubernetes", clusterName, "--kubeconfig", kubeconfig, "--wait")
	add.Env = append(os.Environ(), "PACELINE_ADDRESS="+c.url, "PACELINE_TOKEN="+c.token, "PACELINE_CONFIG="+c.path("config.yaml"))
	if out, err := add.CombinedOutput(); err != nil {
		return fmt.Errorf("add the cluster: %w: %s", err, out)
	}
	return nil
}

// readyHosts counts the hosts that take work. Those that are full do not.
func (c *cell) readyHosts(ctx context.Context) (int, error) {
	var info struct {
		ReadyHosts int `json:"ready_hosts"`
	}
	err := c.call(ctx, "AdminService/GetInfo", struct{}{}, &info)
	return info.ReadyHosts, err
}

// awaitHosts waits until so many hosts take work.
func (c *cell) awaitHosts(ctx context.Context, n int) error {
	return c.await(ctx, fmt.Sprintf("%d hosts are ready", n), func() (bool, error) {
		ready, err := c.readyHosts(ctx)
		return ready == n, err
	})
}

// runCounts are a job's runs by state.
type runCounts struct{ Starting, Running, Succeeded, Failed, Lost int }

// runs counts the runs of a job.
func (c *cell) runs(ctx context.Context, job string) (runCounts, error) {
	var answer struct {
		Job struct {
			Summary struct {
				RunCounts runCounts `json:"run_counts"`
			} `json:"summary"`
		} `json:"job"`
	}
	err := c.call(ctx, "JobService/GetJob", map[string]string{"job": job}, &answer)
	return answer.Job.Summary.RunCounts, err
}

func (c *cell) await(ctx context.Context, what string, reached func() (bool, error)) error {
	for {
		there, err := reached()
		if there || err != nil {
			return err
		}
		select {
		case <-c.ended:
			return fmt.Errorf("wait until %s: the server ended with %s: %s", what, c.cmd.ProcessState, c.log())
		case <-ctx.Done():
			return fmt.Errorf("wait until %s: %w: %s", what, ctx.Err(), c.log())
		case <-time.After(glance):
		}
	}
}

// submit hands in a job of so many pods, as the others are.
func (c *cell) submit(ctx context.Context, name string, pods int) error {
	return c.call(ctx, "JobService/CreateJob", map[string]any{"spec": map[string]any{
		"name": name, "pool": "/default", "batch": struct{}{}, "instances": pods,
		"task": map[string]any{
			"container": map[string]string{"image": crowd.Image},
			"resources": map[string]int{"cpu_milli": crowd.CPUMilli, "memory_mib": crowd.MemoryMiB},
		},
	}}, nil)
}

// paceline is one job, from its submission until its pods are where they should be, and the cell's records say so.
func paceline(ctx context.Context, st *stage) (err error) {
	c, err := startCell(ctx, st.binary, st.plane.Dir())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.close()) }()
	if err := c.join(ctx, st.plane.Kubeconfig()); err != nil {
		return err
	}
	if err := c.awaitHosts(ctx, st.nodes); err != nil {
		return err
	}
	st.others[program] = c.cmd.Process.Pid
	if err := st.settle(ctx); err != nil {
		return err
	}
	if err := st.begin(); err != nil {
		return err
	}
	const job = "many"
	if err := c.submit(ctx, job, st.pods); err != nil {
		return err
	}
	if err := st.count.Await(st.there(st.pods)); err != nil {
		return fmt.Errorf("wait for the pods: %w: %s", err, c.log())
	}
	err = c.await(ctx, "the cell knows of its pods", func() (bool, error) {
		runs, err := c.runs(ctx, job)
		if runs.Failed+runs.Lost > 0 {
			err = errors.Join(err, fmt.Errorf("%d runs failed and %d were lost: %s", runs.Failed, runs.Lost, c.log()))
		}
		return runs.Running == st.pods || !st.played && runs.Starting+runs.Running == st.pods, err
	})
	if err != nil {
		return err
	}
	return st.end()
}
