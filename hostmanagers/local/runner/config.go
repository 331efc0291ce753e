package runner

import (
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"time"

	"github.com/paceline-sched/paceline/hostmanagers/local/runner/shim"
)

// The defaults and bounds of a runner.
const (
	DefaultLogFileBytes = 8 << 20
	DefaultLogFiles     = 2
	DefaultKeepRuns     = 2000
	DefaultKeepBytes    = 2 << 30
	// MaxGrace is the longest grace that a run is left; a longer one is cut to it.
	MaxGrace = shim.MaxGrace
	// MaxRuns bounds the runs that a runner knows, living, unacknowledged and kept ones together.
	MaxRuns = 200_000
	// MinFreeBytes is the room on the disk below which Launch refuses.
	MinFreeBytes = 16 << 20
)

// Config says how a runner works. Zero fields but Root take their defaults.
type Config struct {
	// Root is the directory of everything; made if it is not there. Keep it on a local disk: it carries locks.
	Root string
	// Executable is the program that becomes the shim; it must link this package. Default: the running program, even if its file
	// was replaced.
	Executable string
	// Starts bounds the starts under way at once, 1 to 64. Default: twice the processors. More does not start faster.
	Starts int
	// Logs bounds the output kept per run and stream. Default: 2 files of 8 MiB.
	Logs shim.LogLimits
	// KeepRuns and KeepBytes bound the acknowledged runs whose directories are kept for their output; the first to be exceeded counts, and
	// the oldest go first. Defaults: 2,000 runs, 2 GiB. Negative: keep none.
	KeepRuns  int
	KeepBytes int64
	// Cgroup is the cgroup (v2) under which each run gets its own. Default: the one that this process is in, or the one above where systemd
	// has handed that over. It must hold no processes itself, or be the root, or the kernel refuses; see Runner.Limits.
	Cgroup string
	// Admit is asked before each start, from a starting goroutine. An error is the run's end, with verdict refused.
	Admit func(*shim.Spec) error
	// Observe hears of every phase of every run, in order per run, from one goroutine at a time. It must return quickly.
	Observe func(Run)
	// Problem hears of what the runner could not do and went on without, from any goroutine. It must return quickly.
	Problem func(Problem)
	// Now is the wall clock, for time stamps only.
	Now func() time.Time
}

// Problem is something that the runner could not do, and went on without.
type Problem struct {
	Run string // concerned
	Err error  // says what was attempted
}

// Validate fills in the defaults and reports what is out of range.
func (c *Config) Validate() error {
	if c.Root == "" {
		return errors.New("runner: Root must name a directory")
	}
	root, err := filepath.Abs(c.Root)
	if err != nil {
		return fmt.Errorf("runner: Root %q: %w", c.Root, err)
	}
	c.Root = root
	setDefault(&c.Executable, "/proc/self/exe")
	setDefault(&c.Starts, min(2*runtime.GOMAXPROCS(0), 64))
	setDefault(&c.Logs.FileBytes, DefaultLogFileBytes)
	setDefault(&c.Logs.Files, DefaultLogFiles)
	setDefault(&c.KeepRuns, DefaultKeepRuns)
	setDefault(&c.KeepBytes, DefaultKeepBytes)
	if c.Admit == nil {
		c.Admit = func(*shim.Spec) error { return nil }
	}
	if c.Observe == nil {
		c.Observe = func(Run) {}
	}
	if c.Problem == nil {
		c.Problem = func(Problem) {}
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	switch {
	case c.Starts < 1 || c.Starts > 64:
		return fmt.Errorf("runner: Starts is %d; it must be from 1 to 64", c.Starts)
	case c.Logs.FileBytes < 4096 || c.Logs.FileBytes > 1<<40:
		return fmt.Errorf("runner: Logs.FileBytes is %d; it must be from 4096 to 2^40", c.Logs.FileBytes)
	case c.Logs.Files < 1 || c.Logs.Files > shim.MaxLogFiles:
		return fmt.Errorf("runner: Logs.Files is %d; it must be from 1 to %d", c.Logs.Files, shim.MaxLogFiles)
	}
	return nil
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}
