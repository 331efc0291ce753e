package controlplane

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"
)

// keeper owns processes that must not outlive this one. The kernel kills a child when the thread that started it ends, so one thread starts
// them all and stays.
type keeper struct {
	start chan *exec.Cmd
	begun chan error
	done  sync.WaitGroup

	mu      sync.Mutex
	running map[string]*child
	closed  bool
}

type child struct {
	cmd  *exec.Cmd
	log  *os.File
	gone chan struct{}
}

func newKeeper() *keeper {
	k := &keeper{start: make(chan *exec.Cmd), begun: make(chan error), running: map[string]*child{}}
	k.done.Add(1)
	go func() { // ends with close
		defer k.done.Done()
		runtime.LockOSThread()
		for cmd := range k.start {
			k.begun <- cmd.Start()
		}
	}()
	return k
}

// run starts a program, whose output goes to NAME.log in a directory.
func (k *keeper) run(name, path, dir string, env, args []string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.closed {
		return errors.New("the control plane is closed")
	}
	if k.running[name] != nil {
		return fmt.Errorf("%s runs already", name)
	}
	log, err := os.OpenFile(filepath.Join(dir, name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("start %s: %w", name, err)
	}
	cmd := exec.CommandContext(context.Background(), path, args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	k.start <- cmd
	if err := <-k.begun; err != nil {
		_ = log.Close() // nothing was written
		return fmt.Errorf("start %s: %w", name, err)
	}
	c := &child{cmd: cmd, log: log, gone: make(chan struct{})}
	k.running[name] = c
	k.done.Add(1)
	go func() { // ends with its process
		defer k.done.Done()
		_ = cmd.Wait()  // its log says why
		_ = log.Close() // the process wrote it
		k.mu.Lock()
		if k.running[name] == c {
			delete(k.running, name)
		}
		k.mu.Unlock()
		close(c.gone)
	}()
	return nil
}

// end kills a program and waits for its end.
func (k *keeper) end(name string) error {
	k.mu.Lock()
	c := k.running[name]
	k.mu.Unlock()
	if c == nil {
		return fmt.Errorf("%s does not run", name)
	}
	if err := c.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("kill %s: %w", name, err)
	}
	<-c.gone
	return nil
}

func (k *keeper) pid(name string) int {
	k.mu.Lock()
	defer k.mu.Unlock()
	if c := k.running[name]; c != nil {
		return c.cmd.Process.Pid
	}
	return 0
}

// close kills what runs and waits.
func (k *keeper) close() error {
	k.mu.Lock()
	if k.closed {
		k.mu.Unlock()
		return nil
	}
	k.closed = true
	var errs []error
	for name, c := range k.running {
		if err := c.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
			errs = append(errs, fmt.Errorf("kill %s: %w", name, err))
		}
	}
	close(k.start)
	k.mu.Unlock()
	k.done.Wait()
	return errors.Join(errs...)
}
