package runner

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/paceline-sched/paceline/hostmanagers/local/runner/shim"
)

const (
	// execOutput bounds what is quoted of a command's output.
	execOutput = 256
	// execDrain bounds the wait for a command's output after it was killed.
	execDrain = 100 * time.Millisecond
)

// Exec runs a command beside a run, in its sandbox and with its environment, and kills it with its process group when ctx ends. The error
// quotes the beginning of what the command wrote.
func (r *Runner) Exec(ctx context.Context, id string, command []string) error {
	run, ok := r.Get(id)
	if !ok {
		return fmt.Errorf("run %.80q: %w", id, ErrUnknown)
	}
	if len(command) == 0 {
		return errors.New("no command to execute")
	}
	path, err := shim.LookUp(command[0], run.Spec.Env)
	if err != nil {
		return err
	}
	output := &head{limit: execOutput}
	c := exec.CommandContext(ctx, path, command[1:]...)
	c.Args[0] = command[0]
	c.Dir = filepath.Join(r.cfg.Root, runsDir, id, shim.WorkDir)
	c.Env = run.Spec.Env
	c.Stdout, c.Stderr = output, output
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	c.Cancel = func() error { return syscall.Kill(-c.Process.Pid, syscall.SIGKILL) }
	c.WaitDelay = execDrain
	err = c.Run()
	if ctx.Err() != nil {
		return fmt.Errorf("%s did not end in time", command[0])
	}
	if err != nil {
		return fmt.Errorf("%s: %w: %s", command[0], err, strings.TrimSpace(output.String()))
	}
	return nil
}

// head keeps the beginning of what is written to it.
type head struct {
	bytes.Buffer
	limit int
}

func (h *head) Write(p []byte) (int, error) {
	h.Buffer.Write(p[:min(len(p), h.limit-h.Len())])
	return len(p), nil
}
