package store_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/paceline-sched/paceline/core/store"
	"github.com/paceline-sched/paceline/core/store/memstore"
	"github.com/paceline-sched/paceline/core/workload"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func keyspace(t testing.TB) store.Keyspace {
	t.Helper()
	keys, err := store.NewKeyspace("berlin-1")
	if err != nil {
		t.Fatal(err)
	}
	return keys
}

func TestCellNames(t *testing.T) {
	for name, ok := range map[string]bool{
		"a": true, "0-a": true, strings.Repeat("x", 63): true,
		"": false, "-a": false, "a/b": false, "A": false, "a b": false, "ä": false, strings.Repeat("x", 64): false,
	} {
		if _, err := store.NewKeyspace(name); (err == nil) != ok {
			t.Errorf("cell %q: %v", name, err)
		}
	}
}

func TestKeysAreStable(t *testing.T) { // what is on disk must be found by later versions
	keys := keyspace(t)
	job := workload.JobID{0: 1, 15: 0xff}
	const id = "\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\xff"
	for want, got := range map[string][]byte{
		"/v1/berlin-1/":                                keys.Root(),
		"/v1/berlin-1/meta/schema":                     keys.Meta("schema"),
		"/v1/berlin-1/cell/x":                          keys.CellRecord("x"),
		"/v1/berlin-1/pool/" + id:                      keys.Pool(workload.PoolID(job)),
		"/v1/berlin-1/job/" + id:                       keys.Job(job),
		"/v1/berlin-1/host/" + id:                      keys.Host(workload.HostID(job)),
		"/v1/berlin-1/task/" + id + "\x00\x00\x01\x02": keys.Task(job, 258),
		"/v1/berlin-1/spec/" + id + "\x00\x00\x00\x07": keys.Spec(job, 7),
		"/v1/berlin-1/run/" + id + "\x00\x00\x00\x03\x00\x00\x00\x01": keys.Run(workload.RunID{
			Job: job, Instance: 3, Generation: 2, Run: 1,
		}),
		"/v1/berlin-1/event/\x00\x00\x00\x00\x00\x00\x01\x00": keys.Event(256),
	} {
		if string(got) != want {
			t.Errorf("got key %q, want %q", got, want)
		}
	}
}

func drawJob(r *rapid.T) (id workload.JobID) {
	copy(id[:], rapid.SliceOfN(rapid.SampledFrom([]byte{0, 1, '/', 0xff}), 16, 16).Draw(r, "job"))
	return id
}

func TestKeysRoundTripAndSortAsTheirIDs(t *testing.T) {
	keys := keyspace(t)
	rapid.Check(t, func(r *rapid.T) {
		number := rapid.Uint32()
		draw := func() workload.RunID {
			return workload.RunID{Job: drawJob(r), Instance: number.Draw(r, "instance"), Run: number.Draw(r, "run")}
		}
		a, b := draw(), draw()
		if got, err := keys.ParseRun(keys.Run(a)); err != nil || got != a {
			r.Fatalf("run %v came back as %v, %v", a, got, err)
		}
		if job, instance, err := keys.ParseTask(keys.Task(a.Job, a.Instance)); err != nil || job != a.Job || instance != a.Instance {
			r.Fatalf("task came back as %v %d, %v", job, instance, err)
		}
		if job, config, err := keys.ParseSpec(keys.Spec(a.Job, a.Run)); err != nil || job != a.Job || config != a.Run {
			r.Fatalf("spec came back as %v %d, %v", job, config, err)
		}
		if got, err := keys.ParseJob(keys.Job(a.Job)); err != nil || got != a.Job {
			r.Fatalf("job came back as %v, %v", got, err)
		}
		if got, err := keys.ParsePool(keys.Pool(workload.PoolID(a.Job))); err != nil || got != workload.PoolID(a.Job) {
			r.Fatalf("pool came back as %v, %v", got, err)
		}
		if got, err := keys.ParseHost(keys.Host(workload.HostID(a.Job))); err != nil || got != workload.HostID(a.Job) {
			r.Fatalf("host came back as %v, %v", got, err)
		}
		sequence := rapid.Uint64().Draw(r, "sequence")
		if got, err := keys.ParseEvent(keys.Event(sequence)); err != nil || got != sequence {
			r.Fatalf("event came back as %d, %v", got, err)
		}
		want := bytes.Compare(a.AppendKey(nil), b.AppendKey(nil))
		if got := bytes.Compare(keys.Run(a), keys.Run(b)); got != want {
			r.Fatalf("runs %v and %v compare %d, their keys %d", a, b, want, got)
		}
		if !bytes.HasPrefix(keys.Run(a), keys.JobRuns(a.Job)) || !bytes.HasPrefix(keys.Run(a), keys.TaskRuns(a.Job, a.Instance)) ||
			!bytes.HasPrefix(keys.Task(a.Job, 7), keys.Tasks(a.Job)) {
			r.Fatal("a run or task lies outside its prefix")
		}
		if a.Job != b.Job && bytes.HasPrefix(keys.Task(b.Job, 7), keys.Tasks(a.Job)) {
			r.Fatal("a task lies under another job")
		}
	})
}

func FuzzSplitKey(f *testing.F) {
	keys := keyspace(f)
	f.Add(keys.Event(1))
	f.Add(keys.Job(workload.JobID{1}))
	f.Add([]byte("/v1/berlin-1/nothing"))
	f.Fuzz(func(t *testing.T, key []byte) {
		kind, id, err := keys.Split(key)
		if err == nil && !bytes.Equal(append(keys.Prefix(kind), id...), key) {
			t.Fatalf("key %q was split into %q and %q", key, kind, id)
		}
		if sequence, err := keys.ParseEvent(key); err == nil && !bytes.Equal(keys.Event(sequence), key) {
			t.Fatalf("key %q was read as event %d", key, sequence)
		}
		if run, err := keys.ParseRun(key); err == nil && !bytes.Equal(keys.Run(run), key) {
			t.Fatalf("key %q was read as run %v", key, run)
		}
		if job, instance, err := keys.ParseTask(key); err == nil && !bytes.Equal(keys.Task(job, instance), key) {
			t.Fatalf("key %q was read as task %v %d", key, job, instance)
		}
	})
}

func TestFrame(t *testing.T) {
	random := make([]byte, 5000)
	if _, err := rand.Read(random); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		value []byte
		most  int // bytes that the frame may take
	}{
		"empty":           {nil, 1},
		"at the bound":    {bytes.Repeat([]byte("a"), store.CompressFrom), 1 + store.CompressFrom},
		"over the bound":  {bytes.Repeat([]byte("a"), store.CompressFrom+1), 100},
		"incompressible":  {random, 5001},
		"as large as may": {make([]byte, store.MaxExpandedBytes), 64 << 10},
	} {
		t.Run(name, func(t *testing.T) {
			frame, err := store.AppendFrame([]byte("kept"), test.value)
			if err != nil {
				t.Fatal(err)
			}
			frame, ok := bytes.CutPrefix(frame, []byte("kept"))
			if !ok || len(frame) > test.most {
				t.Fatalf("the frame has %d bytes, at most %d are wanted", len(frame), test.most)
			}
			got, err := store.OpenFrame(frame)
			if err != nil || !bytes.Equal(got, test.value) {
				t.Fatalf("%d bytes came back as %d: %v", len(test.value), len(got), err)
			}
		})
	}
	if _, err := store.AppendFrame(nil, make([]byte, store.MaxExpandedBytes+1)); !errors.Is(err, store.ErrTooLarge) {
		t.Fatalf("a value over the bound: %v", err)
	}
}

func TestFrameRefusesBombs(t *testing.T) {
	encoder, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer encoder.Close()
	one := encoder.EncodeAll(make([]byte, store.MaxExpandedBytes+1), nil)
	half := encoder.EncodeAll(make([]byte, store.MaxExpandedBytes/2+1), nil)
	for name, body := range map[string][]byte{
		"one large stream":  one,
		"two small streams": append(bytes.Clone(half), half...),
		"garbage":           []byte("garbage"),
	} {
		if _, err := store.OpenFrame(append([]byte{1}, body...)); !errors.Is(err, store.ErrCorrupt) {
			t.Errorf("%s: got %v", name, err)
		}
	}
	for _, frame := range [][]byte{nil, {}, {2}, {0xff, 1}} {
		if _, err := store.OpenFrame(frame); !errors.Is(err, store.ErrCorrupt) {
			t.Errorf("frame %v: got %v", frame, err)
		}
	}
}

func FuzzOpenFrame(f *testing.F) {
	for _, value := range [][]byte{nil, []byte("small"), bytes.Repeat([]byte("large "), 1000)} {
		frame, err := store.AppendFrame(nil, value)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(frame)
	}
	f.Fuzz(func(t *testing.T, frame []byte) {
		value, err := store.OpenFrame(frame)
		if err != nil {
			if !errors.Is(err, store.ErrCorrupt) {
				t.Fatal(err)
			}
			return
		}
		if len(value) > store.MaxExpandedBytes {
			t.Fatalf("%d bytes expanded to %d", len(frame), len(value))
		}
		again, err := store.AppendFrame(nil, value)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := store.OpenFrame(again); err != nil || !bytes.Equal(got, value) {
			t.Fatalf("the value did not come back: %v", err)
		}
	})
}

func FuzzBackupReader(f *testing.F) {
	var whole bytes.Buffer
	b, err := store.NewBackupWriter(&whole, keyspace(f))
	if err != nil {
		f.Fatal(err)
	}
	for n := range uint64(3) {
		if err := b.Add(keyspace(f).Event(n), bytes.Repeat([]byte("v"), int(n)*200)); err != nil {
			f.Fatal(err)
		}
	}
	if err := b.Finish(); err != nil {
		f.Fatal(err)
	}
	f.Add(whole.Bytes())
	f.Add(whole.Bytes()[:whole.Len()/2])
	f.Add([]byte("PLBACKUP\x00\x00\x00\x01\x01\x01a"))
	f.Fuzz(func(t *testing.T, file []byte) {
		in, err := store.NewBackupReader(bytes.NewReader(file))
		if err == nil {
			var out bytes.Buffer
			if err = copyBackup(&out, in); err == nil && !bytes.Equal(out.Bytes(), file) {
				// A longer varint or an older schema may say the same, but it must then read the same.
				again, err := store.NewBackupReader(bytes.NewReader(out.Bytes()))
				if err == nil {
					err = copyBackup(io.Discard, again)
				}
				if err != nil {
					t.Fatalf("a backup that was read and written is refused: %v", err)
				}
			}
		}
		if err != nil && !errors.Is(err, store.ErrCorrupt) && !errors.Is(err, store.ErrUnsupported) {
			t.Fatalf("an error of no kind: %v", err)
		}
	})
}

// copyBackup reads in to its end, which alone proves it whole.
func copyBackup(w io.Writer, in *store.BackupReader) error {
	out, err := store.NewBackupWriter(w, in.Keys())
	if err != nil {
		return err
	}
	for {
		key, value, err := in.Next()
		if errors.Is(err, io.EOF) {
			return out.Finish()
		}
		if err != nil {
			return err
		}
		if err := out.Add(key, value); err != nil {
			return err
		}
	}
}

func TestBackupWriterRefusesDisorder(t *testing.T) {
	b, err := store.NewBackupWriter(io.Discard, keyspace(t))
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Add(keyspace(t).Event(2), nil); err != nil {
		t.Fatal(err)
	}
	for _, n := range []uint64{2, 1} {
		if err := b.Add(keyspace(t).Event(n), nil); err == nil {
			t.Fatalf("event %d was accepted after event 2", n)
		}
	}
}

func TestBackupOfNewerFormat(t *testing.T) {
	for name, head := range map[string]string{
		"format": "PLBACKUP\x00\x00\x00\x02",
		"schema": "PLBACKUP\x00\x00\x00\x01\x7f\x01a",
	} {
		if _, err := store.NewBackupReader(strings.NewReader(head)); !errors.Is(err, store.ErrUnsupported) {
			t.Errorf("a newer %s: got %v", name, err)
		}
	}
}

// The migrations of the tests: the first doubles the value of every event under another kind, the second removes the events.
func testMigrations(events *int) []store.Migration {
	each := func(keys store.Keyspace, from store.Snapshot, visit func(sequence uint64, value []byte) error) error {
		return from.Scan(keys.Prefix(store.KindEvent), nil, func(key, value []byte) (bool, error) {
			*events++
			sequence, err := keys.ParseEvent(key)
			if err == nil {
				err = visit(sequence, value)
			}
			return true, err
		})
	}
	return []store.Migration{
		{Name: "copy events", Run: func(_ context.Context, keys store.Keyspace, from store.Snapshot, emit func(store.Group) error) error {
			return each(keys, from, func(sequence uint64, value []byte) error {
				return emit(store.Group{Ops: []store.Op{{Key: keys.CellRecord(fmt.Sprint(sequence)), Value: append(bytes.Clone(value), value...)}}})
			})
		}},
		{Name: "drop events", Run: func(_ context.Context, keys store.Keyspace, from store.Snapshot, emit func(store.Group) error) error {
			return each(keys, from, func(sequence uint64, _ []byte) error {
				return emit(store.Group{Ops: []store.Op{{Key: keys.Event(sequence)}}})
			})
		}},
	}
}

const migratedEvents = 200 // more than one batch

// oldDisk holds events under schema 1.
func oldDisk(t *testing.T) *memstore.Disk {
	t.Helper()
	disk, keys := new(memstore.Disk), keyspace(t)
	s := openDisk(t, disk)
	for n := range uint64(migratedEvents) {
		if err := s.Commit(t.Context(), []store.Group{{Ops: []store.Op{{Key: keys.Event(n), Value: []byte("ab")}}}}); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	return disk
}

func openDisk(t *testing.T, disk *memstore.Disk) *memstore.Store {
	t.Helper()
	s, err := memstore.Open(t.Context(), disk, memstore.Config{Cell: "berlin-1"})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func checkMigrated(t *testing.T, s store.Store) {
	t.Helper()
	keys := keyspace(t)
	snap, err := s.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	defer snap.Close()
	for n := range uint64(migratedEvents) {
		moved, err := snap.Get(keys.CellRecord(fmt.Sprint(n)))
		old, err2 := snap.Get(keys.Event(n))
		if err != nil || err2 != nil || string(moved) != "abab" || old != nil {
			t.Fatalf("event %d became %q, is still %q: %v %v", n, moved, old, err, err2)
		}
	}
	version, err := snap.Get(keys.Meta("schema"))
	if err != nil || len(version) != 8 || binary.BigEndian.Uint64(version) != 3 {
		t.Fatalf("the schema is %v: %v", version, err)
	}
}

func TestMigrationsRunOnceInOrder(t *testing.T) {
	s := openDisk(t, oldDisk(t))
	var events int
	for range 2 {
		if err := store.PrepareWith(t.Context(), s, keyspace(t), rand.Reader, testMigrations(&events)); err != nil {
			t.Fatal(err)
		}
		checkMigrated(t, s)
	}
	if events != 2*migratedEvents {
		t.Fatalf("the migrations read %d events, want %d", events, 2*migratedEvents)
	}
	err := store.PrepareWith(t.Context(), s, keyspace(t), rand.Reader, testMigrations(&events)[:1])
	if !errors.Is(err, store.ErrUnsupported) {
		t.Fatalf("an older build opened the store: %v", err)
	}
}

func TestMigrationSurvivesACrashAnywhere(t *testing.T) {
	for after := uint64(1); after <= 2*migratedEvents+2; after += 23 {
		disk := oldDisk(t)
		s := openDisk(t, disk)
		disk.CrashAfter(after)
		var events int
		if err := store.PrepareWith(t.Context(), s, keyspace(t), rand.Reader, testMigrations(&events)); !errors.Is(err, memstore.ErrCrashed) {
			t.Fatalf("crash after %d groups: got %v", after, err)
		}
		// The next process begins with what was durable, half migrated as it is.
		s, err := memstore.Attach(disk, memstore.Config{Cell: "berlin-1"})
		if err != nil {
			t.Fatal(err)
		}
		if err := store.PrepareWith(t.Context(), s, keyspace(t), rand.Reader, testMigrations(&events)); err != nil {
			t.Fatalf("crash after %d groups: %v", after, err)
		}
		checkMigrated(t, s)
	}
}

func TestMigrationThatFailsSaysWhich(t *testing.T) {
	s := openDisk(t, oldDisk(t))
	mine := errors.New("mine")
	err := store.PrepareWith(t.Context(), s, keyspace(t), rand.Reader, []store.Migration{
		{Name: "fails", Run: func(context.Context, store.Keyspace, store.Snapshot, func(store.Group) error) error { return mine }},
	})
	if !errors.Is(err, mine) || !strings.Contains(err.Error(), "schema 2 (fails)") {
		t.Fatalf("got %v", err)
	}
}
