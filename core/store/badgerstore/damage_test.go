package badgerstore_test

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"

	badger "github.com/dgraph-io/badger/v4"
	"golang.org/x/sys/unix"

	"github.com/paceline-sched/paceline/core/store"
	"github.com/paceline-sched/paceline/core/store/badgerstore"
)

// image is the files of a store at one moment, as a crash leaves them.
type image map[string][]byte

// A log is a file with a hole behind the records; those of the tests take less than logRoom.
const (
	logSize = 16 << 20
	logRoom = 1 << 20
)

func readImage(t testing.TB, dir string) image {
	t.Helper()
	files := image{}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		data, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		if filepath.Ext(e.Name()) == ".mem" { // what follows is a hole
			data = bytes.Clone(bytes.TrimRight(data[:logRoom], "\x00"))
		}
		files[e.Name()] = data
	}
	return files
}

func (i image) write(t testing.TB, dir string) {
	t.Helper()
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, data := range i {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		if filepath.Ext(name) == ".mem" && len(data) > 20 {
			if err := os.Truncate(path, logSize); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func (i image) only(t testing.TB, extension string) string {
	t.Helper()
	found := ""
	for name := range i {
		if filepath.Ext(name) == extension {
			if found != "" {
				t.Fatalf("there are two %s files", extension)
			}
			found = name
		}
	}
	if found == "" {
		t.Fatalf("there is no %s file", extension)
	}
	return found
}

const imageRecords = 2 * 1000

// makeImage has half of its records in a table and half in the log.
func makeImage(t testing.TB) image {
	t.Helper()
	dir := t.TempDir()
	s := mustOpen(t, dir)
	commit(t, s, events(t, 0, 10, 100, 100))
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = mustOpen(t, dir)
	for first := range uint64(10) {
		commit(t, s, events(t, 1000+first*100, 1, 100, 100))
	}
	files := readImage(t, dir)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	return files
}

// mustRefuse fails unless the directory is refused as damaged, with the file and the way out named.
func mustRefuse(t *testing.T, dir, file string) {
	t.Helper()
	s, err := open(t.Context(), badgerstore.Config{Dir: dir, Cell: "test"})
	if err == nil {
		n := count(t, s)
		_ = s.Close()
		t.Fatalf("the damage was not seen; %d of %d records are there", n, imageRecords)
	}
	if !errors.Is(err, store.ErrCorrupt) || !strings.Contains(err.Error(), file) || !strings.Contains(err.Error(), "paceline server restore") {
		t.Fatalf("the error does not say what and how to mend: %v", err)
	}
}

func TestCrashImageOpens(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "store")
	files := makeImage(t)
	files.write(t, dir)
	if got := count(t, mustOpen(t, dir)); got != imageRecords {
		t.Fatalf("%d of %d records are there", got, imageRecords)
	}
}

func TestEmptyLogOfACrashIsRemoved(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "store")
	files := makeImage(t)
	files["00099.mem"] = nil
	files.write(t, dir)
	if got := count(t, mustOpen(t, dir)); got != imageRecords {
		t.Fatalf("%d of %d records are there", got, imageRecords)
	}
}

func TestEmptyValueLogOfACrashIsRemoved(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "store")
	files := makeImage(t)
	files["009999.vlog"] = nil
	files.write(t, dir)
	if got := count(t, mustOpen(t, dir)); got != imageRecords {
		t.Fatalf("%d of %d records are there", got, imageRecords)
	}
}

// A record that a crash tore was never acknowledged: it goes, and all before it stays.
func TestTornLastCommitIsDropped(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "store")
	files := makeImage(t)
	log := files[files.only(t, ".mem")]
	log[bytes.LastIndex(log, []byte("/event/"))+4] ^= 1
	files.write(t, dir)
	if got := count(t, mustOpen(t, dir)); got != imageRecords-100 {
		t.Fatalf("%d records are there, want %d", got, imageRecords-100)
	}
}

func TestDamagedFilesAreRefused(t *testing.T) {
	whole := makeImage(t)
	table, log := whole.only(t, ".sst"), whole.only(t, ".mem")
	logEnd := bytes.Index(whole[log], []byte("!badger!txn")) // of the first transaction
	for name, test := range map[string]struct {
		file   string
		damage func(data []byte) []byte
	}{
		"table empty":              {table, func([]byte) []byte { return nil }},
		"table of one byte":        {table, func(d []byte) []byte { return d[:1] }},
		"table cut by a byte":      {table, func(d []byte) []byte { return d[:len(d)-1] }},
		"table cut in half":        {table, func(d []byte) []byte { return d[:len(d)/2] }},
		"table of zeros":           {table, func(d []byte) []byte { return make([]byte, len(d)) }},
		"table of ones":            {table, func(d []byte) []byte { return bytes.Repeat([]byte{0xff}, len(d)) }},
		"table with bytes after":   {table, func(d []byte) []byte { return append(d, 1, 2, 3, 4, 5) }},
		"log without a header":     {log, func(d []byte) []byte { return d[:7] }},
		"log with a bad record":    {log, func(d []byte) []byte { d[100] ^= 1; return d }},
		"log with a bad end":       {log, func(d []byte) []byte { d[logEnd+2] ^= 1; return d }},
		"log with a page of zeros": {log, func(d []byte) []byte { clear(d[4096:8192]); return d }},
		"manifest empty":           {"MANIFEST", func([]byte) []byte { return nil }},
		"manifest with a bad head": {"MANIFEST", func(d []byte) []byte { d[0] ^= 1; return d }},
		"manifest with a bad sum":  {"MANIFEST", func(d []byte) []byte { d[18] ^= 1; return d }},
		"key registry":             {"KEYREGISTRY", func(d []byte) []byte { return d[:3] }},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "store")
			files := image{}
			for name, data := range whole {
				files[name] = bytes.Clone(data)
			}
			files[test.file] = test.damage(files[test.file])
			files.write(t, dir)
			mustRefuse(t, dir, test.file)
		})
	}
	for _, missing := range []string{"MANIFEST", table} {
		t.Run("missing "+filepath.Ext(missing), func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "store")
			files := image{}
			for name, data := range whole {
				if name != missing {
					files[name] = data
				}
			}
			files.write(t, dir)
			mustRefuse(t, dir, missing)
			if _, err := os.Stat(filepath.Join(dir, log)); err != nil {
				t.Fatalf("the refusal touched what is left: %v", err)
			}
		})
	}
}

// No byte of a table may be wrong without a refusal or all records being there.
func TestFlippedBitsInATable(t *testing.T) {
	whole := makeImage(t)
	table := whole.only(t, ".sst")
	size := len(whole[table])
	step := size/24 + 1
	positions := []int{0, 1, size - 1, size - 2, size - 3, size - 4, size - 8, size - 12, size - 16}
	for at := step; at < size; at += step {
		positions = append(positions, at)
	}
	dir := filepath.Join(t.TempDir(), "store")
	for _, at := range positions {
		for _, mask := range []byte{0x01, 0x80} {
			whole[table][at] ^= mask
			whole.write(t, dir)
			whole[table][at] ^= mask
			s, err := open(t.Context(), badgerstore.Config{Dir: dir, Cell: "test"})
			if err != nil {
				if !errors.Is(err, store.ErrCorrupt) {
					t.Fatalf("byte %d: %v", at, err)
				}
				continue
			}
			if got := count(t, s); got != imageRecords {
				t.Fatalf("byte %d ^ %#x: %d of %d records are there and nothing was said", at, mask, got, imageRecords)
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func TestInterruptedRestoreIsRefused(t *testing.T) {
	dir := t.TempDir()
	s := mustOpen(t, dir)
	commit(t, s, []store.Group{store.BeginRestore(keys(t))})
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	_, err := open(t.Context(), badgerstore.Config{Dir: dir, Cell: "test"})
	if !errors.Is(err, store.ErrCorrupt) || !strings.Contains(err.Error(), "restore again") {
		t.Fatalf("got %v", err)
	}
}

func TestLockedByAnotherProcessNamesIt(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "paceline.lock")
	flock, err := exec.LookPath("flock")
	if err != nil {
		t.Skip("there is no flock command")
	}
	cmd := exec.Command(flock, "--no-fork", path, "sh", "-c", "echo $$ >"+path+"; echo ready; read line")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := out.Read(make([]byte, 8)); err != nil {
		t.Fatal(err)
	}
	_, err = open(t.Context(), badgerstore.Config{Dir: dir, Cell: "test"})
	if !errors.Is(err, store.ErrLocked) || !strings.Contains(err.Error(), dir) || !strings.Contains(err.Error(), "process "+strconv.Itoa(cmd.Process.Pid)) {
		t.Errorf("the error does not name the directory and the process %d: %v", cmd.Process.Pid, err)
	}
	_ = in.Close() // the holder's read ends, and so does it
	if err := cmd.Wait(); err != nil {
		var exit *exec.ExitError
		if !errors.As(err, &exit) {
			t.Fatal(err)
		}
	}
	mustOpen(t, dir)
}

func TestNotADirectory(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := open(t.Context(), badgerstore.Config{Dir: path, Cell: "test"})
	if err == nil || errors.Is(err, store.ErrCorrupt) || !strings.Contains(err.Error(), path) {
		t.Fatalf("got %v", err)
	}
}

// TestPermission drops the file capabilities of one thread where the tests run as root.
func TestPermission(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "store")
	if err := os.Mkdir(dir, 0o500); err != nil {
		t.Fatal(err)
	}
	if os.Geteuid() == 0 {
		runtime.LockOSThread()
		const nobody = 65534
		if err := unix.Setfsuid(nobody); err != nil {
			runtime.UnlockOSThread()
			t.Skipf("the file user of a thread may not be changed here: %v", err)
		}
		defer func() {
			if err := unix.Setfsuid(0); err == nil { // else the thread ends with the goroutine
				runtime.UnlockOSThread()
			}
		}()
	}
	_, err := open(t.Context(), badgerstore.Config{Dir: dir, Cell: "test"})
	if !errors.Is(err, fs.ErrPermission) || errors.Is(err, store.ErrCorrupt) || !strings.Contains(err.Error(), dir) {
		t.Fatalf("got %v", err)
	}
}

// TestFullDisk fills a small file system of its own.
func TestFullDisk(t *testing.T) {
	disk := t.TempDir()
	const reserve = 56 << 20 // more than what is written: compactions copy it before they remove it
	if err := syscall.Mount("tmpfs", disk, "tmpfs", 0, "size=96m"); err != nil {
		t.Skipf("a small disk may not be mounted here: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(disk, 0); err != nil {
			t.Errorf("unmount: %v", err)
		}
	})
	config := badgerstore.Config{Dir: filepath.Join(disk, "store"), Cell: "test", Reserve: reserve}
	s, err := badgerstore.Open(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	acknowledged := 0
	for err == nil {
		if err = s.Commit(t.Context(), events(t, uint64(acknowledged), 10, 100, 1000)); err == nil {
			acknowledged += 1000
		}
	}
	if !errors.Is(err, store.ErrFull) || !strings.Contains(err.Error(), disk) {
		t.Fatalf("a full disk answered %v", err)
	}
	if again := s.Commit(t.Context(), nil); !errors.Is(again, store.ErrFull) {
		t.Fatalf("the failure did not stick: %v", again)
	}
	if got := count(t, s); got != acknowledged {
		t.Fatalf("%d of %d acknowledged records can be read", got, acknowledged)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	filler := filepath.Join(disk, "filler")
	var st unix.Statfs_t
	if err := unix.Statfs(disk, &st); err != nil {
		t.Fatal(err)
	}
	room := int64(st.Bavail)*st.Bsize - reserve // closing has freed some
	if err := os.WriteFile(filler, make([]byte, max(room, 0)+1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := badgerstore.Open(t.Context(), config); !errors.Is(err, store.ErrFull) {
		t.Fatalf("opening on a full disk answered %v", err)
	}
	if err := syscall.Mount("tmpfs", disk, "tmpfs", syscall.MS_REMOUNT, "size=160m"); err != nil {
		t.Fatal(err)
	}
	if s, err = badgerstore.Open(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	if got := count(t, s); got != acknowledged {
		t.Fatalf("%d of %d acknowledged records are there once there is room", got, acknowledged)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

// unsynced is what a failed sync of the manifest leaves: after has the change and not its tables, before has what they were made of.
func unsynced(before, after image) image {
	files := image{}
	for name, data := range before {
		files[name] = data
	}
	files["MANIFEST"] = after["MANIFEST"]
	return files
}

func TestUnsyncedFlushIsTakenBack(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "store")
	before := makeImage(t)
	before.write(t, dir)
	s := mustOpen(t, dir) // which puts the log into a table
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	after := readImage(t, dir)
	if bytes.Equal(before["MANIFEST"], after["MANIFEST"]) {
		t.Fatal("the manifest did not change")
	}
	unsynced(before, after).write(t, dir)
	for range 2 { // and it stays so
		s := mustOpen(t, dir)
		if got := count(t, s); got != imageRecords {
			t.Fatalf("%d of %d records are there", got, imageRecords)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	// Without the log, or with a later one only, something is missing.
	for name, change := range map[string]func(image){
		"no log":    func(i image) { delete(i, before.only(t, ".mem")) },
		"empty log": func(i image) { i[before.only(t, ".mem")] = i[before.only(t, ".mem")][:20] },
		"no table":  func(i image) { delete(i, before.only(t, ".sst")) },
	} {
		t.Run(name, func(t *testing.T) {
			files := unsynced(before, after)
			change(files)
			files.write(t, dir)
			mustRefuse(t, dir, ".sst")
		})
	}
}

func TestUnsyncedMergeIsTakenBack(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "store")
	makeImage(t).write(t, dir)
	for range 2 {
		if err := mustOpen(t, dir).Close(); err != nil {
			t.Fatal(err)
		}
	}
	before := readImage(t, dir)
	db, err := badger.Open(badger.DefaultOptions(dir).WithValueThreshold(1 << 20).WithValueLogFileSize(1 << 20).WithCompression(0).WithLogger(nil).WithCompactL0OnClose(true))
	if err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	after := readImage(t, dir)
	for name := range after {
		if filepath.Ext(name) == ".sst" && before[name] != nil {
			t.Fatalf("%s was not merged", name)
		}
	}
	unsynced(before, after).write(t, dir)
	s := mustOpen(t, dir)
	if got := count(t, s); got != imageRecords {
		t.Fatalf("%d of %d records are there", got, imageRecords)
	}
	// One of the old tables is gone, too: that is damage.
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	files := unsynced(before, after)
	for name := range files {
		if filepath.Ext(name) == ".sst" {
			delete(files, name)
			break
		}
	}
	files.write(t, dir)
	mustRefuse(t, dir, ".sst")
}
