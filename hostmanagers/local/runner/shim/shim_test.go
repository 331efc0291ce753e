package shim

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"pgregory.net/rapid"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func goodSpec() *Spec {
	return &Spec{
		Version: Version, ID: "run-1", Boot: "b", Accepted: time.Unix(1, 2).UTC(), Command: []string{"a", ""}, Env: []string{"A=b"},
		Logs: LogLimits{FileBytes: 1, Files: 1}, Cgroup: "/c", Limits: Limits{MemoryBytes: 1 << 20, CPUMilli: 50}, Owner: json.RawMessage(`{"x":1}`),
	}
}

func goodStart() *Start {
	return &Start{Version: Version, ID: "run-1", Boot: "b", Shim: Process{2, 3}, Task: Process{4, 5}, At: time.Unix(6, 7).UTC()}
}

func goodExit() *Exit {
	return &Exit{Version: Version, ID: "run-1", Verdict: Exited, Code: 139, Signal: 11, Started: time.Unix(1, 0).UTC(), Ended: time.Unix(2, 0).UTC(), CPUMillis: 5}
}

func goodKill() *Kill {
	return &Kill{Version: Version, ID: "run-1", GraceMillis: 10_000, Reason: "because"}
}

func roundTrip[R Record](t *testing.T, dir, name string, good, empty R) {
	t.Helper()
	if err := Save(dir, name, good); err != nil {
		t.Fatal(err)
	}
	if err := Load(dir, name, empty); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(good, empty) {
		t.Errorf("saved\n%+v, loaded\n%+v", good, empty)
	}
}

func TestRecordsComeBackAsTheyWere(t *testing.T) {
	dir := t.TempDir()
	roundTrip(t, dir, SpecFile, goodSpec(), &Spec{})
	roundTrip(t, dir, StartFile, goodStart(), &Start{})
	roundTrip(t, dir, ExitFile, goodExit(), &Exit{})
	roundTrip(t, dir, KillFile, goodKill(), &Kill{})
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 4 {
		t.Errorf("%d files are left (%v)", len(entries), err)
	}
	if err := Load(dir, "none", &Kill{}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a record that is not there: %v", err)
	}
}

func TestBadRecordsAreRefused(t *testing.T) {
	for name, spoil := range map[string]func(*Spec){
		"newer":       func(s *Spec) { s.Version = Version + 1 },
		"no command":  func(s *Spec) { s.Command = nil },
		"empty":       func(s *Spec) { s.Command[0] = "" },
		"zero byte":   func(s *Spec) { s.Env[0] = "A=\x00" },
		"no logs":     func(s *Spec) { s.Logs.FileBytes = 0 },
		"many logs":   func(s *Spec) { s.Logs.Files = MaxLogFiles + 1 },
		"cgroup":      func(s *Spec) { s.Cgroup = "relative" },
		"limits":      func(s *Spec) { s.Limits.MemoryBytes = -1 },
		"no name":     func(s *Spec) { s.ID = "" },
		"parent":      func(s *Spec) { s.ID = ".." },
		"slash":       func(s *Spec) { s.ID = "a/b" },
		"long name":   func(s *Spec) { s.ID = strings.Repeat("a", MaxIDLength+1) },
		"much output": func(s *Spec) { s.Command[1] = strings.Repeat("x", MaxRecordBytes) },
	} {
		s := goodSpec()
		spoil(s)
		if _, err := Encode(s); err == nil {
			t.Errorf("%s: written", name)
		}
		if raw, err := json.Marshal(s); err != nil || Decode(raw, &Spec{}) == nil {
			t.Errorf("%s: read (%v)", name, err)
		}
	}
	if err := Decode([]byte(`{"id":"a","verdict":"guessed"}`), &Exit{}); err == nil {
		t.Error("an unknown verdict was read")
	}
	if err := Decode([]byte(`{"id":"a","grace_millis":-1}`), &Kill{}); err == nil {
		t.Error("a negative grace was read")
	}
	if err := Decode([]byte(`{"id":"a","shim":{"pid":1},"task":{"pid":0}}`), &Start{}); err == nil {
		t.Error("a start without processes was read")
	}
}

// TestTornRecordsAreRefused reads every proper beginning of each record.
func TestTornRecordsAreRefused(t *testing.T) {
	for i := range encoded(t, goodExit()) {
		if i > 0 && Decode(encoded(t, goodExit())[:i-1], &Exit{}) == nil {
			t.Errorf("the first %d bytes of an exit record were read", i-1)
		}
	}
	whole := encoded(t, goodSpec())
	for i := range whole[:len(whole)-2] {
		if Decode(whole[:i], &Spec{}) == nil {
			t.Errorf("the first %d bytes of a spec were read", i)
		}
	}
}

func encoded[R Record](t testing.TB, record R) []byte {
	t.Helper()
	raw, err := Encode(record)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

func fuzzRecord[R Record](f *testing.F, seed R, blank func() R) {
	raw := encoded(f, seed)
	f.Add(raw)
	f.Add(append(raw, strings.Repeat(" ", reserveBytes)...))
	f.Add([]byte(`{"version":9}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		first := blank()
		if Decode(raw, first) != nil {
			return
		}
		again, err := Encode(first)
		if err != nil {
			t.Fatalf("a record that was read cannot be written: %v", err)
		}
		if err := Decode(again, blank()); err != nil {
			t.Fatalf("a record that was written cannot be read: %v", err)
		}
	})
}

func FuzzDecodeSpec(f *testing.F)  { fuzzRecord(f, goodSpec(), func() *Spec { return &Spec{} }) }
func FuzzDecodeStart(f *testing.F) { fuzzRecord(f, goodStart(), func() *Start { return &Start{} }) }
func FuzzDecodeExit(f *testing.F)  { fuzzRecord(f, goodExit(), func() *Exit { return &Exit{} }) }
func FuzzDecodeKill(f *testing.F)  { fuzzRecord(f, goodKill(), func() *Kill { return &Kill{} }) }

func TestParseStat(t *testing.T) {
	fields := " S 12 5 5 0 -1 4194560 1 0 0 0 1 2 3 4 20 0 1 0 987654 11 22"
	for _, name := range []string{"sh", "a b", ") R 1 2 (", ""} {
		parent, ticks, err := parseStat([]byte("34 (" + name + ")" + fields))
		if err != nil || parent != 12 || ticks != 987654 {
			t.Errorf("of %q: parent %d, start %d, %v", name, parent, ticks, err)
		}
	}
	self, _, err := Identify(os.Getpid())
	again, parent, err2 := Identify(os.Getpid())
	if err := errors.Join(err, err2); err != nil || self != again || parent != os.Getppid() || self.Ticks == 0 {
		t.Errorf("this process is %v and %v, child of %d (%v)", self, again, parent, err)
	}
}

func FuzzParseStat(f *testing.F) {
	f.Add([]byte("34 (sh) S 12 5 5 0 -1 4194560 1 0 0 0 1 2 3 4 20 0 1 0 987654 11 22"))
	f.Fuzz(func(_ *testing.T, raw []byte) { _, _, _ = parseStat(raw) })
}

// TestOutputKeepsTheEnd writes random pieces and compares what is kept with a plain model.
func TestOutputKeepsTheEnd(t *testing.T) {
	root := t.TempDir()
	tries := 0
	rapid.Check(t, func(rt *rapid.T) {
		tries++
		dir := filepath.Join(root, strconv.Itoa(tries))
		if err := os.Mkdir(dir, 0o700); err != nil {
			rt.Fatal(err)
		}
		limits := LogLimits{FileBytes: rapid.Int64Range(1, 20).Draw(rt, "file bytes"), Files: rapid.IntRange(1, 4).Draw(rt, "files")}
		o := newOutput(dir, "stdout", limits)
		var whole []byte
		for _, piece := range rapid.SliceOf(rapid.SliceOfN(rapid.Byte(), 0, 50)).Draw(rt, "pieces") {
			if n, err := o.Write(piece); n != len(piece) || err != nil {
				rt.Fatalf("Write: %d of %d, %v", n, len(piece), err)
			}
			whole = append(whole, piece...)
		}
		o.close()
		entries, err := os.ReadDir(dir)
		if err != nil || len(entries) > limits.Files || o.lost != 0 {
			rt.Fatalf("%d files, %d bytes lost, %v", len(entries), o.lost, err)
		}
		size, total := int(limits.FileBytes), len(whole)
		newest := max(0, (total-1)/size)
		for n := max(0, newest-limits.Files+1); n <= newest; n++ {
			got, err := os.ReadFile(filepath.Join(dir, LogFile("stdout", int64(n))))
			if want := whole[min(n*size, total):min((n+1)*size, total)]; err != nil || string(got) != string(want) {
				rt.Fatalf("file %d holds %q, want %q (%v)", n, got, want, err)
			}
		}
	})
}

func TestOutputThatNoDiskTakesIsCounted(t *testing.T) {
	o := newOutput(filepath.Join(t.TempDir(), "missing"), "stdout", LogLimits{FileBytes: 10, Files: 1})
	if n, err := o.Write(make([]byte, 25)); n != 25 || err != nil || o.lost != 25 {
		t.Errorf("wrote %d, %v, lost %d", n, err, o.lost)
	}
}

// What a task wrote is kept, even if nobody came to read it before the deadline: a process that escaped holds the pipe, and the machine stood still.
func TestOutputIsReadAfterItsDeadline(t *testing.T) {
	dir := t.TempDir()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close() // not before the end
	text := strings.Repeat("0123456789", 5000)
	if _, err := w.WriteString(text); err != nil {
		t.Fatal(err)
	}
	if err := r.SetReadDeadline(time.Unix(1, 0)); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	newOutput(dir, "stdout", LogLimits{FileBytes: 1 << 20, Files: 1}).pump(r, done)
	<-done
	if got, err := os.ReadFile(filepath.Join(dir, LogFile("stdout", 0))); err != nil || string(got) != text {
		t.Errorf("%d of %d bytes are kept (%v)", len(got), len(text), err)
	}
}

func TestLookUp(t *testing.T) {
	dir := t.TempDir()
	for name, mode := range map[string]fs.FileMode{"tool": 0o755, "text": 0o644} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, mode); err != nil {
			t.Fatal(err)
		}
	}
	env := []string{"PATH=/nowhere:" + dir}
	if path, err := LookUp("tool", env); err != nil || path != filepath.Join(dir, "tool") {
		t.Errorf("tool is at %q, %v", path, err)
	}
	if path, err := LookUp("./own", env); err != nil || path != "./own" {
		t.Errorf("./own is at %q, %v", path, err)
	}
	for _, missing := range []string{"text", "none"} {
		if path, err := LookUp(missing, env); err == nil {
			t.Errorf("%s is at %q", missing, path)
		}
	}
}

func TestOOMKills(t *testing.T) {
	if n := oomKills("low 0\nhigh 0\nmax 4\noom 2\noom_kill 3\noom_group_kill 0\n"); n != 3 {
		t.Errorf("counted %d", n)
	}
}

func TestIsShim(t *testing.T) {
	for _, args := range [][]string{nil, {"paceline"}, {"paceline", Name}, {Name}, {Name, "a", "b"}} {
		if IsShim(args) {
			t.Errorf("%q is a shim", args)
		}
	}
	if !IsShim([]string{Name, "run"}) {
		t.Error("a shim is none")
	}
}
