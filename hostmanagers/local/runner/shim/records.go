package shim

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// The files of a run's directory.
const (
	SpecFile  = "spec.json"  // what to run; there from the start, never changed
	StartFile = "start.json" // written once, after the task was started
	ExitFile  = "exit.json"  // written once, when nothing of the run lives any more
	KillFile  = "kill.json"  // the present kill request
	LockFile  = "shim.log"   // locked by the living shim; empty until it took charge; then also its last words
	WorkDir   = "work"       // the task's working directory

	// reserveFile keeps room for the exit record, so that a full disk cannot swallow it.
	reserveFile = "exit.reserved"
)

const (
	// Version is the version of the record formats. Records of a higher one are refused.
	Version = 1
	// MaxRecordBytes bounds one record. The kernel takes no longer command line anyway.
	MaxRecordBytes = 4 << 20
	// MaxIDLength bounds a run's name, which is also a file name.
	MaxIDLength = 200
	// MaxLogFiles bounds the files kept of each output stream.
	MaxLogFiles = 64
)

// Spec says what to run.
type Spec struct {
	Version  int             `json:"version"`
	ID       string          `json:"id"`
	Boot     string          `json:"boot"` // the machine's boot id when the run was accepted
	Accepted time.Time       `json:"accepted"`
	Command  []string        `json:"command"`
	Env      []string        `json:"env"` // complete; "NAME=value"
	Logs     LogLimits       `json:"logs"`
	Cgroup   string          `json:"cgroup,omitempty"` // absolute path of the run's own cgroup; "": none
	Limits   Limits          `json:"limits,omitzero"`  // of that cgroup
	Owner    json.RawMessage `json:"owner,omitempty"`  // whatever the runner's owner wants to find again
}

// Limits are those of a run's cgroup. Zero: none.
type Limits struct {
	MemoryBytes int64 `json:"memory_bytes,omitempty"`
	CPUMilli    int64 `json:"cpu_milli,omitempty"`
}

// LogLimits bounds what is kept of each output stream: the last Files-1 to Files times FileBytes.
type LogLimits struct {
	FileBytes int64 `json:"file_bytes"`
	Files     int   `json:"files"`
}

// Process names one process for as long as the machine runs.
type Process struct {
	PID   int    `json:"pid"`
	Ticks uint64 `json:"ticks"` // start time in clock ticks after boot
}

// Start records that the task was started.
type Start struct {
	Version int       `json:"version"`
	ID      string    `json:"id"`
	Boot    string    `json:"boot"`
	Shim    Process   `json:"shim"`
	Task    Process   `json:"task"` // also the leader of the task's process group
	At      time.Time `json:"at"`
}

// Verdict says why a run is over.
type Verdict string

// The verdicts.
const (
	Exited       Verdict = "exited"        // the task ended by itself, with Code or by Signal
	Killed       Verdict = "killed"        // the task ended after a kill request
	LaunchFailed Verdict = "launch_failed" // the task could not be started; Message says why
	Refused      Verdict = "refused"       // the runner's owner would not have it started
	ShimDied     Verdict = "shim_died"     // the shim was ended by force; how the task fared is unknown
	Rebooted     Verdict = "rebooted"      // the machine restarted under the run
)

// Exit records the end of a run: nothing of it lives, and nothing of it will be started.
type Exit struct {
	Version    int       `json:"version"`
	ID         string    `json:"id"`
	Verdict    Verdict   `json:"verdict"`
	Code       int       `json:"code"`
	Signal     int       `json:"signal,omitempty"` // that ended the task; Code is then 128 more
	KillReason string    `json:"kill_reason,omitempty"`
	OutOfMem   bool      `json:"out_of_memory,omitempty"`
	Message    string    `json:"message,omitempty"`
	Started    time.Time `json:"started,omitzero"`
	Ended      time.Time `json:"ended"`
	CPUMillis  int64     `json:"cpu_millis,omitempty"`
	MaxRSSKiB  int64     `json:"max_rss_kib,omitempty"`
	LostOutput int64     `json:"lost_output_bytes,omitempty"` // that no disk took
}

// Kill asks the shim to end its run: SIGTERM to the task's group, and SIGKILL to all that is left after Grace. A later request can
// shorten the wait and never lengthens it.
type Kill struct {
	Version     int    `json:"version"`
	ID          string `json:"id"`
	GraceMillis int64  `json:"grace_millis"`
	Reason      string `json:"reason,omitempty"` // handed through to Exit.KillReason
}

// CheckID reports whether a run's name is safe as the name of a directory.
func CheckID(id string) error {
	if id == "" || len(id) > MaxIDLength {
		return fmt.Errorf("a run's name must have 1 to %d characters, not %d", MaxIDLength, len(id))
	}
	for i, c := range []byte(id) {
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9':
		case i > 0 && (c == '-' || c == '_' || c == '.'):
		default:
			return fmt.Errorf("the run's name %.80q may only have letters, digits and, after the first character, '-', '_' and '.'", id)
		}
	}
	return nil
}

func (s *Spec) check() error {
	switch {
	case s.Version > Version:
		return fmt.Errorf("it has version %d, and this program knows versions up to %d: use the newer program", s.Version, Version)
	case len(s.Command) == 0 || s.Command[0] == "":
		return errors.New("it names no command")
	case s.Logs.FileBytes <= 0 || s.Logs.Files < 1 || s.Logs.Files > MaxLogFiles:
		return fmt.Errorf("its log limits (%d files of %d bytes) are out of range", s.Logs.Files, s.Logs.FileBytes)
	case s.Cgroup != "" && !filepath.IsAbs(s.Cgroup):
		return fmt.Errorf("its cgroup %.80q is no absolute path", s.Cgroup)
	case s.Limits.MemoryBytes < 0 || s.Limits.CPUMilli < 0:
		return fmt.Errorf("its limits (%d bytes, %d thousandths of a core) are out of range", s.Limits.MemoryBytes, s.Limits.CPUMilli)
	}
	for _, text := range append(append([]string(nil), s.Command...), s.Env...) {
		if strings.IndexByte(text, 0) >= 0 {
			return errors.New("its command or environment contains a zero byte")
		}
	}
	return CheckID(s.ID)
}

func (s *Start) check() error {
	if s.Shim.PID <= 1 || s.Task.PID <= 1 {
		return fmt.Errorf("it names no processes (pid %d and %d)", s.Shim.PID, s.Task.PID)
	}
	return CheckID(s.ID)
}

func (e *Exit) check() error {
	switch e.Verdict {
	case Exited, Killed, LaunchFailed, Refused, ShimDied, Rebooted:
		return CheckID(e.ID)
	}
	return fmt.Errorf("its verdict %.40q is unknown", string(e.Verdict))
}

func (k *Kill) check() error {
	if k.GraceMillis < 0 || k.GraceMillis > MaxGrace.Milliseconds() {
		return fmt.Errorf("its grace of %d ms is out of range", k.GraceMillis)
	}
	return CheckID(k.ID)
}

// MaxGrace bounds the wait between the two kills.
const MaxGrace = 30 * 24 * time.Hour

// Record is one of the four records.
type Record interface {
	*Spec | *Start | *Exit | *Kill
	check() error
}

// Decode reads a record as Encode wrote it and checks it.
func Decode[R Record](raw []byte, record R) error {
	if len(raw) > MaxRecordBytes {
		return fmt.Errorf("the record has %d bytes, more than the %d allowed", len(raw), MaxRecordBytes)
	}
	if err := json.Unmarshal(raw, record); err != nil {
		return fmt.Errorf("the record is damaged: %w", err)
	}
	if err := record.check(); err != nil {
		return fmt.Errorf("the record is no good: %w", err)
	}
	return nil
}

// Encode writes a record.
func Encode[R Record](record R) ([]byte, error) {
	if err := record.check(); err != nil {
		return nil, fmt.Errorf("the record is no good: %w", err)
	}
	raw, err := json.Marshal(record)
	if err != nil {
		return nil, err
	}
	if len(raw) >= MaxRecordBytes {
		return nil, fmt.Errorf("the record has %d bytes, more than the %d allowed; shorten the command or the environment", len(raw), MaxRecordBytes)
	}
	return append(raw, '\n'), nil
}

// Load reads a record from a file of a run's directory. A file that is not there is fs.ErrNotExist.
func Load[R Record](dir, name string, record R) error {
	path := filepath.Join(dir, name)
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	if info.Size() > MaxRecordBytes {
		return fmt.Errorf("%s has %d bytes, more than the %d allowed", path, info.Size(), MaxRecordBytes)
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := Decode(raw, record); err != nil {
		return fmt.Errorf("read %s: %w", path, err)
	}
	return nil
}

// Save writes a record so that after any crash either the old file or the whole new one is there.
func Save[R Record](dir, name string, record R) error {
	raw, err := Encode(record)
	if err != nil {
		return fmt.Errorf("write %s: %w", filepath.Join(dir, name), err)
	}
	// The name is fixed per file: each has one writer at a time, and a leftover of a crash is simply overwritten.
	temporary := filepath.Join(dir, "."+name+".new")
	f, err := os.OpenFile(temporary, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(raw)
	if err == nil {
		err = f.Sync()
	}
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	if err == nil {
		err = os.Rename(temporary, filepath.Join(dir, name))
	}
	if err == nil {
		err = SyncDir(dir)
	}
	if err != nil {
		_ = os.Remove(temporary) // best effort: the error that counts is reported
	}
	return err
}

// SyncDir makes the entries of a directory durable.
func SyncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	err = d.Sync()
	if closeErr := d.Close(); err == nil {
		err = closeErr
	}
	return err
}

// Exists reports whether a file is there; an unreadable directory counts as an error.
func Exists(dir, name string) (bool, error) {
	_, err := os.Lstat(filepath.Join(dir, name))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}
