package e2e_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	pacelinev1 "github.com/paceline-sched/paceline/sdk/gen/paceline/v1"
)

// failing refuses the sync of files of a name, the first time only or from then on the sync of every file. The first alone is the
// harder test: what is tried again succeeds.
func failing(pattern string, forGood bool) func(string) fate {
	failed := false
	return func(file string) fate {
		if match, _ := filepath.Match(pattern, filepath.Base(file)); match && !failed || failed && forGood {
			failed = true
			return fate{errno: syscall.EIO}
		}
		return fate{}
	}
}

const sickDisk = `Error: .*the disk fails.*input/output error.*; look for its errors in the kernel's log`

// TestFailedSync refuses one sync, or all from one on, of each kind of file that the store has, at work, at the start and at the end of
// a server. The server ends with an error that says so; once the disk is well everything that was acknowledged is there, nothing that
// was told is otherwise, and all work comes to its end.
func TestFailedSync(t *testing.T) {
	t.Parallel()
	for _, f := range []struct {
		moment, file string
		forGood      bool
	}{
		{"work", "*.mem", false},
		{"work", "*.mem", true},
		{"work", "*.vlog", false},
		{"start", "*.mem", false},
		{"start", "*.sst", false},
		{"start", "*.sst", true},
		{"start", "MANIFEST", false},
		{"start", "*.vlog", false},
		{"start", "store", false}, // the folder
		{"stop", "*.sst", false},
		{"stop", "MANIFEST", false},
		{"stop", "MANIFEST", true},
		{"stop", "*.vlog", false},
	} {
		name := f.moment + " " + strings.TrimPrefix(f.file, "*.")
		if f.forGood {
			name += " for good"
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			failSync(t, f.moment, failing(f.file, f.forGood))
		})
	}
}

func failSync(t *testing.T, moment string, fault func(string) fate) {
	t.Helper()
	c := newCell(t, simulates...)
	d := c.onDisk()
	c.start()
	books := c.follow()
	c.must("job", "run", write(t, c.dir, "long.yaml", "name: long\nbatch: {max_running: 40}\ninstances: 400\ntask: {simulation: {duration: 0.02s}}\n"))
	stop := c.submitInBackground("during")
	switch moment {
	case "work":
		d.set(fault)
		_ = c.paceline("job", "run", write(t, c.dir, "more.yaml", "name: more\nbatch: {}\ntask: {simulation: {duration: 0.01s}}\n")) // else all work might be done by now
	case "start":
		c.kill()
		d.set(fault)
		c.launch()
	case "stop":
		d.set(fault)
		if err := c.cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
	}
	c.wantEnd(1)
	if refused, _ := d.tally(); len(refused) == 0 {
		t.Error("no sync failed")
	}
	want(t, result{line: "the server's log", stderr: c.log()}, 0, sickDisk)
	d.set(healthy)
	c.start()
	names, err := stop()
	if err != nil {
		t.Error(err)
	}
	c.awaitJobs(pacelinev1.JobState_JOB_STATE_SUCCEEDED, append(names, "/default/long")...)
	books.check(t, c)
	c.stop()
}

// TestLostWrites takes away what a disk did not sync, as a loss of power does: that had not been acknowledged, and all else is there.
func TestLostWrites(t *testing.T) {
	t.Parallel()
	c := newCell(t, simulates...)
	d := c.onDisk()
	c.start()
	c.must("job", "run", write(t, c.dir, "kept.yaml", "name: kept\nbatch: {}\ninstances: 5\ntask: {simulation: {duration: 0.01s}}\n"), "--wait")
	before := c.state()
	dir, synced := filepath.Join(c.data, "store"), filepath.Join(c.dir, "synced")
	if err := os.CopyFS(synced, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	d.set(failing("*", true))
	late := c.paceline("job", "run", write(t, c.dir, "late.yaml", "name: late\nbatch: {}\ntask: {simulation: {duration: 0.01s}}\n"))
	if late.code == 0 {
		t.Errorf("%v\nwas acknowledged without being durable", late)
	}
	c.wantEnd(1)
	want(t, result{line: "the server's log", stderr: c.log()}, 0, sickDisk)
	d.set(healthy)
	if err := os.Rename(dir, dir+".sick"); err != nil {
		t.Fatal(err)
	}
	if err := os.CopyFS(dir, os.DirFS(synced)); err != nil {
		t.Fatal(err)
	}
	c.start()
	if diff := differences(before, c.state()); diff != "" {
		t.Errorf("without what was never synced the cell has changed:\n%s", diff)
	}
	c.must("job", "run", "late.yaml", "--wait")
	c.stop()
	// With what was written and not synced, the cell has at most that job more.
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(dir+".sick", dir); err != nil {
		t.Fatal(err)
	}
	c.start()
	after := c.state()
	maps.DeleteFunc(after, func(name, _ string) bool { return strings.Contains(name, "late") })
	if diff := differences(before, after); diff != "" {
		t.Errorf("with what was never synced the cell has changed:\n%s", diff)
	}
	c.stop()
}

// TestSlowDisk lets every sync of a server and of its tasks' shims take its time, kills the server amid that, and wants all as ever.
func TestSlowDisk(t *testing.T) {
	t.Parallel()
	const tasks, least, most = 10, 200 * time.Millisecond, time.Second
	c := newCell(t, "--local-hosts", "2", "--local-cpu", "4000", "--local-memory-mib", "2048", "--local-port-first", "25100", "--local-port-last", "25199",
		"--simulated-hosts", "5")
	d := c.onDisk()
	c.start()
	books := c.follow()
	d.set(func(string) fate { return fate{delay: least + rand.N(most-least)} })
	b := &besieged{cell: c, siege: siege{marking: tasks, window: tasks}, marks: write(t, c.dir, "marks", ""), ledger: books}
	b.submit("marking-0", 0, b.window, b.marking, b.marks)
	b.submit("band-0", 0, bandSize, b.marks)
	b.submit("churn-0", 0, b.window, tasks)
	c.await("the first tasks run", func() error {
		if raw, err := os.ReadFile(b.marks); err != nil || len(raw) == 0 {
			return fmt.Errorf("%d marks, %w", len(raw), err)
		}
		return nil
	})
	c.kill()
	c.start()
	for _, path := range []string{"/default/marking-0", "/default/band-0", "/default/churn-0"} {
		c.awaitJobs(pacelinev1.JobState_JOB_STATE_SUCCEEDED, path)
	}
	_, delayed := d.tally()
	d.set(healthy)
	b.checkMarks(1)
	runs, lost, failed := books.check(t, c)
	t.Logf("%d syncs were delayed; %d runs, of which %d were lost and %d failed", delayed, runs, lost, failed)
	c.stop()
}

// TestBadValueLog damages the log in which Badger would keep large values, and in which the store has none. Servers start and have
// everything, or say what to do and leave it as it is.
func TestBadValueLog(t *testing.T) { //nolint:tparallel // the parts share one cell, so they take turns
	t.Parallel()
	c, check := keeper(t)
	for _, b := range []struct {
		name    string
		change  func([]byte) []byte // nil: the file goes
		refused string
	}{
		{"gone", nil, ""},
		{"empty", func([]byte) []byte { return nil }, ""},
		{"cut in its head", func(raw []byte) []byte { return raw[:5] }, ""},
		{"cut behind its head", func(raw []byte) []byte { return raw[:20] }, ""},
		{"salt flipped", func(raw []byte) []byte { raw[12] ^= 0xff; return raw }, ""},
		{"content overwritten", func(raw []byte) []byte {
			return append(raw[:20], []byte(strings.Repeat("this is a note, not a log\n", 100))...)
		}, ""},
		{"twice its size", func(raw []byte) []byte { return slices.Concat(raw, raw) }, ""},
		{"key flipped", func(raw []byte) []byte { raw[0] ^= 0xff; return raw }, `Error: open the store in .*/store: the store is damaged: .*/\d+.vlog" .*; move the data directory away and restore`},
	} {
		t.Run(b.name, func(t *testing.T) {
			names, err := filepath.Glob(filepath.Join(c.data, "store", "*.vlog"))
			if err != nil || len(names) == 0 {
				t.Fatalf("there is no value log: %v", err)
			}
			name := names[len(names)-1]
			raw, err := os.ReadFile(name)
			if err == nil && b.change == nil {
				err = os.Remove(name)
			} else if err == nil {
				err = os.WriteFile(name, b.change(slices.Clone(raw)), 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
			if b.refused != "" {
				want(t, finish(t, c.command()), 1, b.refused)
				if err := os.WriteFile(name, raw, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			check(t)
		})
	}
}
