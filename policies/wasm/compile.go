package wasm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"time"

	"github.com/tetratelabs/wazero"
)

// cacheMode is the only mode that a directory of native code may have.
const cacheMode = 0o700

// openCache opens, or makes, the directory of compiled modules.
func openCache(dir string) (wazero.CompilationCache, error) {
	if err := os.MkdirAll(dir, cacheMode); err != nil {
		return nil, fmt.Errorf("make the cache of compiled policies: %w", err)
	}
	info, err := os.Stat(dir)
	if err != nil {
		return nil, err
	}
	if mode := info.Mode().Perm(); mode != cacheMode {
		return nil, fmt.Errorf("the cache of compiled policies %s has mode %04o: it holds native code that is run, so nobody else may write or read it; chmod 0700, or name another directory", dir, mode)
	}
	if stat, ok := info.Sys().(*syscall.Stat_t); ok && int(stat.Uid) != os.Getuid() {
		return nil, fmt.Errorf("the cache of compiled policies %s belongs to user %d: name a directory of your own", dir, stat.Uid)
	}
	return wazero.NewCompilationCacheWithDir(dir)
}

// Compiler compiles modules in processes of their own.
type Compiler struct {
	// Command makes the process, which must end in CompileChild with the directory that it is given. It is this program again, as a rule.
	Command func(ctx context.Context, cache string) *exec.Cmd
	Limits  Limits
	// Timeout is how long one module may take altogether. Default five minutes: a busy machine lets a process of the lowest priority starve, which says nothing of the
	// module; what says something is Limits.CompileTime.
	Timeout time.Duration
}

const (
	defaultCompileTimeout = 5 * time.Minute
	// childPriority is the niceness of the process that compiles.
	childPriority = 19
	// childMemory bounds its address space: code that is made to be hard to compile fails there instead of here.
	childMemory = 4 << 30
	maxMessage  = 4096
)

// Compile fills the cache with a module and waits until that is done.
func (c *Compiler) Compile(ctx context.Context, cache string, module *Module) error {
	timeout := c.Timeout
	if timeout <= 0 {
		timeout = defaultCompileTimeout
	}
	most := c.Limits.orDefault().CompileTime
	asked := ctx
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	cmd := c.Command(ctx, cache)
	cmd.Stdin = bytes.NewReader(module.metered)
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = nil, &limited{to: &said, left: maxMessage}
	err := cmd.Run()
	switch {
	case asked.Err() != nil:
		return fmt.Errorf("compiling was given up: %w", context.Cause(asked))
	case err != nil && ctx.Err() != nil:
		return fmt.Errorf("compiling was not done after %v, in which it computed for %v: the machine is too busy; try again when it is less so", timeout, computed(cmd.ProcessState))
	case err != nil && killed(cmd.ProcessState) && computed(cmd.ProcessState) >= most/2: // the kernel counts in ticks when it limits, and exactly when it tells
		return fmt.Errorf("compiling took more than %v of computing: the module is too large or made to be hard to compile", most)
	case err != nil:
		return fmt.Errorf("the process that compiles failed: %w: %s", err, bytes.TrimSpace(said.Bytes()))
	}
	return nil
}

// computed is how long a process computed that has ended; 0: it did not start.
func computed(s *os.ProcessState) time.Duration {
	if s == nil {
		return 0
	}
	return s.UserTime() + s.SystemTime()
}

// killed reports whether a process was ended by a signal, as the kernel ends one whose time is over.
func killed(s *os.ProcessState) bool {
	if s == nil {
		return false
	}
	status, ok := s.Sys().(syscall.WaitStatus)
	return ok && status.Signaled()
}

// limited takes the first bytes and drops the rest.
type limited struct {
	to   *bytes.Buffer
	left int
}

func (l *limited) Write(b []byte) (int, error) {
	n := min(len(b), l.left)
	l.to.Write(b[:n])
	l.left -= n
	return len(b), nil
}

// CompileChild is the whole work of a process that Compiler.Command makes: it lowers its own priority, reads a metered module from in and compiles it into the cache. What
// it reads comes from the process that started it, which has checked it.
func CompileChild(in io.Reader, cache string, limits Limits) error {
	limits = limits.orDefault()
	if err := syscall.Setpriority(syscall.PRIO_PROCESS, 0, childPriority); err != nil {
		return fmt.Errorf("lower the priority: %w", err)
	}
	if err := syscall.Setrlimit(syscall.RLIMIT_AS, &syscall.Rlimit{Cur: childMemory, Max: childMemory}); err != nil {
		return fmt.Errorf("bound the memory: %w", err)
	}
	seconds := uint64((limits.CompileTime + time.Second - 1) / time.Second)
	if err := syscall.Setrlimit(syscall.RLIMIT_CPU, &syscall.Rlimit{Cur: seconds, Max: seconds}); err != nil { // at the hard limit the kernel kills
		return fmt.Errorf("bound the time: %w", err)
	}
	module, err := io.ReadAll(io.LimitReader(in, maxMetered+1))
	if err != nil {
		return fmt.Errorf("read the module: %w", err)
	}
	if len(module) > maxMetered {
		return errors.New("the module is too large")
	}
	files, err := openCache(cache)
	if err != nil {
		return err
	}
	ctx := context.Background()
	defer func() { _ = files.Close(ctx) }()
	runtime := wazero.NewRuntimeWithConfig(ctx, runtimeConfig(limits, files))
	defer func() { _ = runtime.Close(ctx) }()
	if _, err := runtime.CompileModule(ctx, module); err != nil {
		return err
	}
	return nil
}

// maxMetered bounds a module after metering.
const maxMetered = 64 << 20
