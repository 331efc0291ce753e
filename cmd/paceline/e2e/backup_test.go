package e2e_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"connectrpc.com/connect"

	pacelinev1 "github.com/paceline-sched/paceline/sdk/gen/paceline/v1"
)

// TestBackup takes a backup under load and restores it elsewhere. The copy is the cell as it was at one revision, has all that was
// acknowledged before, is a cell that works, and tells watches of the old history to begin anew.
func TestBackup(t *testing.T) {
	t.Parallel()
	c := startCell(t, simulates...)
	books := c.follow()
	c.must("pool", "apply", write(t, c.dir, "pools.yaml", "path: /team\nshare: 7\n"))
	c.must("job", "run", write(t, c.dir, "ended.yaml", "name: ended\npool: /team\nbatch: {}\ninstances: 20\ntask: {simulation: {duration: 0.01s}}\n"), "--wait")
	ended := c.state()["job /team/ended"]
	cursor := c.cursor() // before the work: however soon that ends, there are events after it
	c.must("job", "run", write(t, c.dir, "long.yaml", "name: long\nbatch: {max_running: 40}\ninstances: 2000\ntask: {simulation: {duration: 0.02s}}\n"))
	c.must("job", "run", write(t, c.dir, "lasting.yaml", "name: lasting\nservice: {}\npreemptible: true\ninstances: 3\ntask: {simulation: {duration: 1000s}}\n"))
	stop := c.submitInBackground("during")
	c.await("the long job is at work", func() error {
		list, err := c.jobs()
		if done := list["/default/long"].GetInstanceCounts().GetDone(); err == nil && done < 100 {
			err = fmt.Errorf("%d of its instances are done", done)
		}
		return err
	})
	before, err := c.jobs()
	if err != nil {
		t.Fatal(err)
	}
	started := books.reached()
	c.must("backup", "cell.backup")
	<-time.After(5 * pause) // some more work that the backup does not have
	if _, err := stop(); err != nil {
		t.Fatal(err)
	}
	want(t, c.paceline("backup", "cell.backup"), 2, `cell.backup is there already\nHint: choose another name, or replace it with --force`)
	// The cursor is good here, and stays so over a restart.
	c.must("events", "--cursor", cursor, "--limit", "1")
	c.kill()
	c.start()
	c.must("events", "--cursor", cursor, "--limit", "1")

	c.must("job", "stop", "lasting", "--wait")
	c.awaitJobs(pacelinev1.JobState_JOB_STATE_SUCCEEDED, "/default/long")
	books.check(t, c)

	restored := c.restore(t, "cell.backup")
	restored.checkCut(t, books, started)
	restored.flags = c.flags
	restored.start()
	after, err := restored.jobs()
	if err != nil {
		t.Fatal(err)
	}
	for path, j := range before {
		if after[path].GetId() != j.GetId() {
			t.Errorf("job %s was acknowledged before the backup and is %v after it", path, after[path])
		}
	}
	state := restored.state()
	if state["job /team/ended"] != ended || !strings.Contains(state["pool /team"], "share 7") {
		t.Errorf("the restored cell has\n%v", state)
	}
	paths := []string{"/team/ended", "/default/long"}
	for path := range after {
		if strings.HasPrefix(path, "/default/during") {
			paths = append(paths, path)
		}
	}
	restored.awaitJobs(pacelinev1.JobState_JOB_STATE_SUCCEEDED, paths...)
	restored.await("the service runs again", func() error {
		list, err := restored.jobs()
		if err == nil && list["/default/lasting"].GetHealthy() != 3 {
			err = fmt.Errorf("it is %v", list["/default/lasting"])
		}
		return err
	})
	want(t, restored.paceline("events", "--cursor", cursor), 4,
		`^Error: the cursor is of a time before this cell was restored from a backup\nHint: begin without --cursor, and list what you need; --since begins with what is still kept\n$`)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	err = restored.client().Watch(ctx, &pacelinev1.WatchEventsRequest{Cursor: cursor}, func(*pacelinev1.WatchEventsResponse) error { return nil })
	if connect.CodeOf(err) != connect.CodeOutOfRange {
		t.Errorf("a watch from the old history ends with %v", err)
	}
	restored.stop()
	c.stop()
}

// checkCut starts a restored cell without its clusters, so that nothing goes on, and wants it to be the cell of the books as it was at
// one revision, from a certain one on.
func (c *cell) checkCut(t *testing.T, books *ledger, from uint64) {
	t.Helper()
	c.start()
	jobs, err := c.jobs()
	if err != nil {
		t.Fatal(err)
	}
	live := 0
	for path, j := range jobs {
		tasks, err := c.tasks(path)
		if err != nil {
			t.Fatal(err)
		}
		counts, runs := map[pacelinev1.InstanceState]uint32{}, map[pacelinev1.RunState]uint32{}
		for _, task := range tasks {
			counts[task.GetState()]++
			runs[task.GetRun().GetState()]++
		}
		live += int(counts[pacelinev1.InstanceState_INSTANCE_STATE_ACTIVE])
		said := j.GetInstanceCounts()
		if len(tasks) != int(j.GetInstances()) || said.GetDone() != counts[pacelinev1.InstanceState_INSTANCE_STATE_DONE] ||
			said.GetActive() != counts[pacelinev1.InstanceState_INSTANCE_STATE_ACTIVE] || j.GetRunCounts().GetSucceeded() != runs[pacelinev1.RunState_RUN_STATE_SUCCEEDED] {
			t.Errorf("job %s counts %v and %v, and its %d tasks are %v and %v", path, said, j.GetRunCounts(), len(tasks), counts, runs)
		}
	}
	first, beyond, err := books.cut(jobs, c.tasks)
	if err != nil || first >= beyond || beyond <= from {
		t.Errorf("the restored cell is that of revisions %d to %d, and the backup began at %d: %v", first, beyond-1, from, err)
	}
	t.Logf("the backup has %d jobs and %d live runs, as at revision %d; it began at %d", len(jobs), live, first, from)
	c.kill()
}

// restore fills the data directory of another cell, without clusters so far, from a backup of this one.
func (c *cell) restore(t *testing.T, backup string) *cell {
	t.Helper()
	other := newCell(t)
	file := filepath.Join(c.dir, backup)
	if out := other.must("server", "restore", "--data-dir", other.data, file); !strings.Contains(out, "restored "+file) {
		t.Errorf("restore says %q", out)
	}
	return other
}

// TestBadRestore wants a restore to fill an empty directory from a whole backup of the right cell, or to leave nothing.
func TestBadRestore(t *testing.T) { //nolint:tparallel // the parts share one cell, so they take turns
	t.Parallel()
	c := startCell(t, simulates...)
	c.must("job", "run", write(t, c.dir, "kept.yaml", "name: kept\nbatch: {}\ntask: {simulation: {duration: 0.01s}}\n"), "--wait")
	c.must("backup", "cell.backup")
	raw, err := os.ReadFile(filepath.Join(c.dir, "cell.backup"))
	if err != nil {
		t.Fatal(err)
	}
	flipped := []byte(string(raw))
	flipped[len(flipped)/2] ^= 0x10
	write(t, c.dir, "cut.backup", string(raw[:len(raw)-10]))
	write(t, c.dir, "flipped.backup", string(flipped))
	write(t, c.dir, "longer.backup", string(raw)+"x")
	write(t, c.dir, "no.backup", "this is a note\n")
	before := c.state()
	for _, b := range []struct {
		name, file string
		flags      []string
		stderr     string
	}{
		{"cut", "cut.backup", nil, `damaged`},
		{"flipped", "flipped.backup", nil, `damaged`},
		{"with more at its end", "longer.backup", nil, `damaged`},
		{"no backup", "no.backup", nil, `the file is not a backup`},
		{"not there", "none.backup", nil, `read the backup: open none.backup: no such file`},
		{"of another cell", "cell.backup", []string{"--cell", "other"}, `the backup is of cell "default", not "other"`},
	} {
		t.Run(b.name, func(t *testing.T) {
			target := filepath.Join(folder(t), "data")
			want(t, c.paceline(append([]string{"server", "restore", b.file, "--data-dir", target}, b.flags...)...), 1, b.stderr)
			if left, err := filepath.Glob(filepath.Join(target, "store", "*")); err != nil || len(left) > 0 {
				t.Errorf("left behind: %v, %v", left, err)
			}
		})
	}
	t.Run("onto a store", func(t *testing.T) {
		want(t, c.paceline("server", "restore", "cell.backup", "--data-dir", c.data), 1, `is not empty: it holds .*; name an empty directory, or move this one away`)
	})
	if diff := differences(before, c.state()); diff != "" {
		t.Errorf("the cell has changed:\n%s", diff)
	}
	c.stop()
}

// TestFullDisk fills the disk under a cell at work. It stops before the disk is full to the last byte, says why, and once there is room
// again everything that was acknowledged is there, and goes on.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	const size, reserve = 160 << 20, 48 << 20
	c := newCell(t, append([]string{"--disk-reserve-mib", fmt.Sprint(reserve >> 20)}, simulates...)...)
	if err := os.Mkdir(c.data, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("tmpfs", c.data, "tmpfs", 0, fmt.Sprintf("size=%d,mode=700", size)); err != nil {
		t.Skipf("a file system of its own cannot be mounted here: %v", err)
	}
	t.Cleanup(func() { // runs before the cell's own end, which a lazy detachment does not mind
		if err := syscall.Unmount(c.data, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	c.start()
	books := c.follow()
	c.must("job", "run", write(t, c.dir, "kept.yaml", "name: kept\nbatch: {}\ninstances: 5\ntask: {simulation: {duration: 0.01s}}\n"), "--wait")
	kept := c.state()["job /default/kept"]
	c.must("job", "run", write(t, c.dir, "long.yaml", "name: long\nbatch: {max_running: 10}\ninstances: 300\ntask: {simulation: {duration: 0.05s}}\n"))
	stop := c.submitInBackground("during")
	var stat syscall.Statfs_t
	if err := syscall.Statfs(c.data, &stat); err != nil {
		t.Fatal(err)
	}
	filler := filepath.Join(c.data, "filler")
	if err := os.WriteFile(filler, make([]byte, int64(stat.Bavail)*stat.Bsize-reserve/2), 0o600); err != nil {
		t.Fatal(err)
	}
	refused := c.paceline("job", "run", write(t, c.dir, "late.yaml", "name: late\nbatch: {}\ntask: {simulation: {duration: 0.01s}}\n"))
	if refused.code != 5 && refused.code != 1 {
		t.Errorf("%v\nwant a refusal", refused)
	}
	c.wantEnd(1)
	full := `the disk is full: .*/store: \d+ MiB are free and 48 MiB must stay so; make room and start again, all that was acknowledged is there`
	want(t, result{line: "the log of the full server", code: 1, stderr: c.log()}, 1, `Error: .*`+full)
	want(t, finish(t, c.command()), 1, `Error: open the store in .*: `+full)
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	c.start()
	names, err := stop()
	if err != nil {
		t.Error(err)
	}
	if now := c.state()["job /default/kept"]; kept == "" || now != kept {
		t.Errorf("with room again the job %s is %s", kept, now)
	}
	c.must("job", "run", "late.yaml", "--wait")
	c.awaitJobs(pacelinev1.JobState_JOB_STATE_SUCCEEDED, append(names, "/default/long")...)
	books.check(t, c)
	c.stop()
}
