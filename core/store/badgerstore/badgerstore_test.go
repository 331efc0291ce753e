package badgerstore_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/paceline-sched/paceline/conformance/storetest"
	"github.com/paceline-sched/paceline/core/store"
	"github.com/paceline-sched/paceline/core/store/badgerstore"
)

func TestMain(m *testing.M) {
	child, err := storetest.Child(func(ctx context.Context, dir string) (store.Store, error) {
		return open(ctx, badgerstore.Config{Dir: dir, Cell: storetest.Cell})
	})
	if child {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	goleak.VerifyTestMain(m)
}

// testReserve lets the tests run where little is free: their stores are small.
const testReserve = 64 << 20

func open(ctx context.Context, config badgerstore.Config) (store.Store, error) {
	if config.Reserve == 0 {
		config.Reserve = testReserve
	}
	s, err := badgerstore.Open(ctx, config)
	if err != nil {
		return nil, err // not a nil *Store in the interface
	}
	return s, nil
}

func TestConformance(t *testing.T) {
	storetest.Run(t, func(t testing.TB) storetest.Place {
		dir := filepath.Join(t.TempDir(), "store")
		return storetest.Place{
			Open: func(ctx context.Context, cell string) (store.Store, error) {
				return open(ctx, badgerstore.Config{Dir: dir, Cell: cell})
			},
			Restore: func(ctx context.Context, r io.Reader) error {
				return badgerstore.Restore(ctx, badgerstore.Config{Dir: dir, Reserve: testReserve}, r)
			},
			Dir: dir,
		}
	})
}

func mustOpen(t testing.TB, dir string) store.Store {
	t.Helper()
	s, err := open(t.Context(), badgerstore.Config{Dir: dir, Cell: "test"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func keys(t testing.TB) store.Keyspace {
	t.Helper()
	k, err := store.NewKeyspace("test")
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// events makes count groups of ops events each, numbered from first.
func events(t testing.TB, first uint64, count, ops, size int) []store.Group {
	t.Helper()
	k := keys(t)
	groups := make([]store.Group, count)
	for i := range groups {
		for range ops {
			value := bytes.Repeat(binary.BigEndian.AppendUint64(nil, first|1), size/8+1)
			groups[i].Ops = append(groups[i].Ops, store.Op{Key: k.Event(first), Value: value[:size]})
			first++
		}
	}
	return groups
}

func commit(t testing.TB, s store.Store, groups []store.Group) {
	t.Helper()
	if err := s.Commit(t.Context(), groups); err != nil {
		t.Fatal(err)
	}
}

func count(t testing.TB, s store.Store) (n int) {
	t.Helper()
	snap, err := s.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	defer snap.Close()
	if err := snap.Scan(keys(t).Prefix(store.KindEvent), nil, func(_, _ []byte) (bool, error) { n++; return true, nil }); err != nil {
		t.Fatal(err)
	}
	return n
}

func TestPrivateDirectory(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "b")
	mustOpen(t, dir)
	info, err := os.Stat(dir)
	if err != nil {
		t.Fatal(err)
	}
	if got := info.Mode().Perm(); got != 0o700 {
		t.Fatalf("the directory was made with mode %o", got)
	}
}

func TestReserveIsKept(t *testing.T) {
	dir := t.TempDir()
	_, err := open(t.Context(), badgerstore.Config{Dir: dir, Cell: "test", Reserve: 1 << 60})
	if !errors.Is(err, store.ErrFull) || !strings.Contains(err.Error(), dir) {
		t.Fatalf("a disk with less than the reserve free answered %v", err)
	}
	mustOpen(t, dir) // the refusal left neither lock nor files that hinder
}

func TestSnapshotsAreBounded(t *testing.T) {
	s := mustOpen(t, t.TempDir())
	var all []store.Snapshot
	for range badgerstore.MaxSnapshots {
		snap, err := s.Snapshot()
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, snap)
	}
	if _, err := s.Snapshot(); err == nil {
		t.Fatal("one snapshot over the bound was given")
	}
	all[0].Close()
	if _, err := s.Snapshot(); err != nil {
		t.Fatal(err)
	}
}

// Maintenance must neither disturb what is there nor outlive Close.
func TestMaintenanceFlattensAQuietStore(t *testing.T) {
	ticks := make(chan time.Time)
	dir := t.TempDir()
	s, err := open(t.Context(), badgerstore.Config{Dir: dir, Cell: "test", Ticks: ticks})
	if err != nil {
		t.Fatal(err)
	}
	const total = 60_000
	for first := uint64(0); first < total; first += 20_000 {
		n := min(200, int(total-first)/100)
		commit(t, s, events(t, first, n, 100, 8))
	}
	k := keys(t)
	for first := uint64(0); first < total-100; {
		var groups []store.Group
		for range 1000 {
			var g store.Group
			for ; len(g.Ops) < 100 && first < total-100; first++ {
				g.Ops = append(g.Ops, store.Op{Key: k.Event(first)})
			}
			groups = append(groups, g)
		}
		commit(t, s, groups)
	}
	for range 3 { // busy, quiet, and one that is only taken when the flattening is over
		ticks <- time.Time{}
	}
	if got := count(t, s); got != 100 {
		t.Fatalf("%d records are left, want 100", got)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if got := count(t, mustOpen(t, dir)); got != 100 {
		t.Fatalf("%d records are left after opening again, want 100", got)
	}
}

// BenchmarkCommit commits groups of 100 operations on values of 150 bytes; depth is how many groups the engine queued while the
// last commit ran.
func BenchmarkCommit(b *testing.B) {
	for _, depth := range []int{1, 64} {
		b.Run(fmt.Sprintf("depth=%d", depth), func(b *testing.B) {
			s := mustOpen(b, b.TempDir())
			var next uint64
			b.ReportAllocs()
			for b.Loop() {
				b.StopTimer()
				groups := events(b, next, depth, store.MaxGroupOps, 150)
				next += uint64(depth * store.MaxGroupOps)
				b.StartTimer()
				commit(b, s, groups)
			}
			b.ReportMetric(float64(next)/b.Elapsed().Seconds(), "writes/s")
		})
	}
}

func BenchmarkScan(b *testing.B) {
	s := mustOpen(b, b.TempDir())
	const records = 100_000
	commit(b, s, events(b, 0, records/100, 100, 150))
	b.ReportAllocs()
	for b.Loop() {
		if got := count(b, s); got != records {
			b.Fatalf("%d records, want %d", got, records)
		}
	}
	b.ReportMetric(float64(b.N)*records/b.Elapsed().Seconds(), "records/s")
}
