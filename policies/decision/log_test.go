package decision_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/paceline-sched/paceline/core/driver"
	"github.com/paceline-sched/paceline/core/host"
	"github.com/paceline-sched/paceline/core/placement"
	"github.com/paceline-sched/paceline/core/shard"
	"github.com/paceline-sched/paceline/core/telemetry"
	"github.com/paceline-sched/paceline/policies/decision"
)

// again replays a log with the recorded policy, which has to agree with itself.
func again(t *testing.T, dir string) *decision.Report {
	t.Helper()
	report, err := decision.Replay(t.Context(), dir, decision.Options{Contenders: []decision.Contender{decision.Builtin("native", "")}, Differences: 3})
	if err != nil {
		t.Fatal(err)
	}
	if p := report.Policies[0]; p.Identical != report.Batches || report.Mismatches != 0 || len(p.Differences) != 0 {
		t.Errorf("the recorded policy differs from itself: %+v", report)
	}
	return report
}

// TestCrash cuts a segment at every byte: what is before the cut is read, and replays as it was decided.
func TestCrash(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	c := newClock()
	x := newCell(t, 3, c, openLog(t, c, decision.Config{Dir: dir}), native{placement.NewNative()}, 3)
	for range 12 {
		x.step()
	}
	x.recorder.Close()
	segments, err := decision.Segments(dir)
	if err != nil || len(segments) != 1 {
		t.Fatalf("%d segments, %v", len(segments), err)
	}
	whole, err := os.ReadFile(segments[0].Path)
	if err != nil {
		t.Fatal(err)
	}
	events := 0
	for n := range len(whole) + 1 {
		seen := 0
		tail, err := decision.Read(bytes.NewReader(whole[:n]), func(decision.Event) error {
			seen++
			return nil
		})
		switch {
		case n < 8:
			if !errors.Is(err, decision.ErrNoSegment) {
				t.Fatalf("%d bytes were taken for a segment: %v", n, err)
			}
			continue
		case err != nil || seen < events || tail.Good > int64(n) || (tail.Err == nil) != (tail.Good == int64(n)) || tail.Closed != (n == len(whole)):
			t.Fatalf("cut at %d: %d entries after %d, %+v, %v", n, seen, events, tail, err)
		}
		events = seen
		if n%199 == 0 && events > 9 {
			cut := t.TempDir()
			if err := os.MkdirAll(filepath.Join(cut, "c.0"), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(cut, "c.0", filepath.Base(segments[0].Path)), whole[:n], 0o600); err != nil {
				t.Fatal(err)
			}
			if report := again(t, cut); report.Torn > 1 {
				t.Fatalf("%+v", report)
			}
		}
	}
	if events < 20 {
		t.Fatalf("only %d entries", events)
	}
	spoiled := bytes.Clone(whole)
	spoiled[len(whole)/2] ^= 4
	tail, err := decision.Read(bytes.NewReader(spoiled), func(decision.Event) error { return nil })
	if err != nil || tail.Err == nil {
		t.Errorf("a flipped bit goes unseen: %+v, %v", tail, err)
	}
}

// teller counts what a writer tells.
type teller struct {
	records, dropped atomic.Uint64
	wrote            chan struct{} // holds one when it told something since
}

func (t *teller) add(d telemetry.Decisions) {
	t.records.Add(d.Records)
	t.dropped.Add(d.Dropped)
	select {
	case t.wrote <- struct{}{}:
	default:
	}
}

// TestGap: a writer that hangs delays nobody. What is dropped is counted, and what follows the gap replays.
func TestGap(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	hang := make(chan struct{})
	told := teller{wrote: make(chan struct{}, 1)}
	c := newClock()
	log := openLog(t, c, decision.Config{Dir: dir, OnWrite: func(d telemetry.Decisions) {
		<-hang
		told.add(d)
	}})
	x := newCell(t, 5, c, log, native{placement.NewNative()}, 24)
	one := shard.Place{Epoch: x.epoch, Requests: []shard.PlaceRequest{{Class: x.classes[0], Count: 1}}}
	batches := 0
	for range 20_000 { // more than may wait
		x.handle(one)
		batches++
	}
	close(hang)
	for range 100 {
		<-told.wrote // the writer catches up
		x.handle(one)
		batches++
	}
	x.recorder.Close()
	report := again(t, dir)
	if report.Gaps != 1 || report.Dropped == 0 || report.Batches+int(report.Dropped) != batches {
		t.Errorf("of %d batches there are %d, %d were dropped in %d gaps", batches, report.Batches, report.Dropped, report.Gaps)
	}
	if int(told.records.Load()) != report.Batches || told.dropped.Load() != report.Dropped {
		t.Errorf("%d written and %d dropped were counted: %+v", told.records.Load(), told.dropped.Load(), report)
	}
}

// TestDiskFails: a log that cannot be written is tried again after a while.
func TestDiskFails(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	told := teller{wrote: make(chan struct{}, 1)}
	c := newClock()
	log := openLog(t, c, decision.Config{Dir: dir, OnWrite: told.add})
	x := newCell(t, 5, c, log, native{placement.NewNative()}, 24)
	away := filepath.Join(dir, "c.0")
	if err := os.Remove(away); err != nil {
		t.Fatal(err)
	}
	one := shard.Place{Epoch: x.epoch, Requests: []shard.PlaceRequest{{Class: x.classes[0], Count: 1}}}
	batches := 0
	until := func(done func() bool) {
		for n := 0; !done() && n < 10_000; n++ {
			x.handle(one)
			batches++
			<-told.wrote
		}
	}
	until(func() bool { return told.dropped.Load() > 3 })
	if err := os.Mkdir(away, 0o700); err != nil {
		t.Fatal(err)
	}
	until(func() bool { return told.dropped.Load() > 6 })
	if told.records.Load() != 0 {
		t.Fatal("it was tried again at once")
	}
	c.add(11 * time.Second)
	until(func() bool { return told.records.Load() > 3 })
	x.recorder.Close()
	report := again(t, dir)
	if report.Batches+int(report.Dropped) != batches || report.Dropped != told.dropped.Load() || report.Batches == 0 {
		t.Errorf("of %d batches there are %d, %d were dropped; %d were counted", batches, report.Batches, report.Dropped, told.dropped.Load())
	}
}

// TestRetention: the oldest segments go, and a replay begins with what is left.
func TestRetention(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	x := record(t, dir, 9, 5000, func(c *decision.Config) {
		c.Retain, c.SegmentBytes, c.FlushEvery = decision.LeastRetain, 8<<10, 100*time.Microsecond
	})
	segments, err := decision.Segments(dir)
	if err != nil {
		t.Fatal(err)
	}
	bytes := int64(0)
	for _, s := range segments {
		bytes += s.Bytes
	}
	if segments[0].Number == 0 || bytes > decision.LeastRetain+(16<<10) || bytes < decision.LeastRetain/2 {
		t.Errorf("%d segments from number %d, %d bytes", len(segments), segments[0].Number, bytes)
	}
	report := again(t, dir)
	if report.Placed >= x.placed || report.Segments != len(segments) || report.Gaps != 0 {
		t.Errorf("of %d placed %+v", x.placed, report)
	}
	middle := segments[len(segments)/2]
	later, err := decision.Replay(t.Context(), dir, decision.Options{
		Range: decision.Range{Since: middle.Began + 1, Until: segments[len(segments)-1].Began}, Contenders: []decision.Contender{decision.Builtin("native", "")},
	})
	if err != nil || later.From.UnixNano() != middle.Began || later.Until.After(time.Unix(0, segments[len(segments)-1].Began)) || later.Batches >= report.Batches {
		t.Errorf("%+v, %v", later, err)
	}
}

// TestRestart: another start of the shard goes on with other numbers, and its table is taken as it is.
func TestRestart(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	placed := 0
	for seed := range uint64(3) {
		placed += record(t, dir, seed, 200, nil).placed
	}
	report := again(t, dir)
	if report.Segments != 3 || report.Placed != placed || report.Gaps != 0 {
		t.Errorf("%+v, want %d placed", report, placed)
	}
	last := uint64(0)
	torn, err := decision.Visit(dir, decision.Range{}, func(e decision.Event) error {
		if d := e.Decision; d != nil {
			if d.Sequence != last {
				t.Errorf("decision %d follows %d", d.Sequence, last-1)
			}
			last++
		}
		return nil
	})
	if err != nil || torn != 0 || last != uint64(report.Batches) {
		t.Errorf("%d torn, %d decisions, %v", torn, last, err)
	}
}

// vandal is a placer whose answers make no sense; it takes nothing.
type vandal struct{}

func (vandal) Place(*host.Table, []placement.Request) []placement.Result {
	return []placement.Result{{Assignments: []placement.Assignment{{Row: -1}, {Row: 1 << 30}, {Row: 0, Devices: 1 << 15}, {Row: 0, Ports: []uint16{80}}}}, {}, {}}
}

// TestSenselessAnswers: what a shard refuses of an answer does not spoil the log.
func TestSenselessAnswers(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	c := newClock()
	x := newCell(t, 1, c, openLog(t, c, decision.Config{Dir: dir}), native{vandal{}}, 4)
	for range 10 {
		x.place()
		x.handle(shard.HostsUpdated{Changed: []driver.Host{x.host(1)}})
	}
	x.recorder.Close()
	decisions := 0
	torn, err := decision.Visit(dir, decision.Range{}, func(e decision.Event) error {
		if e.Decision != nil {
			decisions++
		}
		return nil
	})
	if err != nil || torn != 0 || decisions == 0 {
		t.Errorf("%d decisions, %d torn, %v", decisions, torn, err)
	}
	report, err := decision.Replay(t.Context(), dir, decision.Options{Contenders: []decision.Contender{decision.Builtin("native", "")}})
	if err != nil || report.Batches != decisions {
		t.Errorf("%+v, %v", report, err)
	}
}

// FuzzRead: whatever a file says, reading and replaying end with an answer or an error.
func FuzzRead(f *testing.F) {
	dir := f.TempDir()
	c := newClock()
	x := newCell(f, 3, c, openLog(f, c, decision.Config{Dir: dir}), native{placement.NewNative()}, 4)
	for range 15 {
		x.step()
	}
	x.recorder.Close()
	segments, err := decision.Segments(dir)
	if err != nil {
		f.Fatal(err)
	}
	whole, err := os.ReadFile(segments[0].Path)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(whole)
	f.Add(whole[:len(whole)/2])
	for _, path := range goldenSegments(f) {
		golden, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(golden)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		b = bytes.Clone(b) // the fuzzer keeps its own
		seal(b)
		dir := t.TempDir()
		if err := os.MkdirAll(filepath.Join(dir, "c.0"), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "c.0", "0.decisions"), b, 0o600); err != nil {
			t.Fatal(err)
		}
		_, _ = decision.Replay(t.Context(), dir, decision.Options{Contenders: []decision.Contender{decision.Builtin("native", ""), decision.Builtin("pack", "pack")}})
	})
}

// seal makes the sums of all records right, so that what is behind them is read.
func seal(b []byte) {
	for at := 8; at+8 < len(b); {
		n := int(binary.LittleEndian.Uint32(b[at:]))
		if n < 1 || n > len(b)-at-8 {
			return
		}
		binary.LittleEndian.PutUint32(b[at+4:], crc32.Checksum(b[at+8:at+8+n], crc32.MakeTable(crc32.Castagnoli)))
		at += 8 + n
	}
}
