// Package storetest is the kit that every store.Store must pass: order, atomic groups, prefix durability over reopening and over a
// kill, isolation of snapshots, bounds, sticky failure, backup and restore.
//
// It owns no backend: a backend's tests hand Run a place that can be opened again and again. The goroutines that it starts end
// before the test that started them does.
package storetest

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/paceline-sched/paceline/core/store"
	"github.com/paceline-sched/paceline/core/workload"
)

// Cell is the cell of all stores that the kit opens.
const Cell = "kit"

// Place is where one store lies. It begins empty.
type Place struct {
	// Open opens the place for cell as a new process would.
	Open func(ctx context.Context, cell string) (store.Store, error)
	// Restore fills the empty place.
	Restore func(ctx context.Context, r io.Reader) error
	// Dir is what Child's opener takes; empty for a store without files, whose backend tests crashes by itself.
	Dir string
}

// Run runs the kit. newPlace returns a fresh place that lasts as long as the test.
func Run(t *testing.T, newPlace func(t testing.TB) Place) {
	for name, test := range map[string]func(*testing.T, *kit){
		"Order":                testOrder,
		"Groups":               testGroups,
		"Bounds":               testBounds,
		"Scan":                 testScan,
		"Reopen":               testReopen,
		"Locked":               testLocked,
		"StickyFailure":        testStickyFailure,
		"SnapshotIsolation":    testSnapshotIsolation,
		"Close":                testClose,
		"CloseUnderLoad":       testCloseUnderLoad,
		"BackupUnderLoad":      testBackupUnderLoad,
		"BackupDamaged":        testBackupDamaged,
		"BackupCancelled":      testBackupCancelled,
		"RestoreIntoNonEmpty":  testRestoreIntoNonEmpty,
		"OtherCell":            testOtherCell,
		"NewerSchema":          testNewerSchema,
		"Kill":                 testKill,
		"HistoryEqualsOracle":  testHistory,
		"ManyGroupsOneCommit":  testManyGroups,
		"EmptyCommit":          testEmptyCommit,
		"ValuesAreNotRetained": testValuesNotRetained,
	} {
		t.Run(name, func(t *testing.T) {
			test(t, &kit{T: t, Place: newPlace(t), newPlace: newPlace, keys: keyspace(t)})
		})
	}
}

type kit struct {
	*testing.T
	Place
	newPlace func(testing.TB) Place
	keys     store.Keyspace
}

func keyspace(t testing.TB) store.Keyspace {
	keys, err := store.NewKeyspace(Cell)
	if err != nil {
		t.Fatal(err)
	}
	return keys
}

// key is a key of the test's own; id sorts as text.
func (k *kit) key(id string) []byte { return k.keys.CellRecord("kit/" + id) }

func (k *kit) open() store.Store {
	k.Helper()
	s, err := k.Place.Open(k.Context(), Cell)
	if err != nil {
		k.Fatal(err)
	}
	k.Cleanup(func() { _ = s.Close() })
	return s
}

func (k *kit) commit(s store.Store, groups ...store.Group) {
	k.Helper()
	if err := s.Commit(k.Context(), groups); err != nil {
		k.Fatal(err)
	}
}

func (k *kit) close(s store.Store) {
	k.Helper()
	if err := s.Close(); err != nil {
		k.Fatal(err)
	}
}

func (k *kit) snapshot(s store.Store) store.Snapshot {
	k.Helper()
	snap, err := s.Snapshot()
	if err != nil {
		k.Fatal(err)
	}
	k.Cleanup(snap.Close)
	return snap
}

func (k *kit) get(snap store.Snapshot, id string) []byte {
	k.Helper()
	value, err := snap.Get(k.key(id))
	if err != nil {
		k.Fatal(err)
	}
	return value
}

// wantErr fails unless err wraps want.
func (k *kit) wantErr(err, want error) {
	k.Helper()
	if !errors.Is(err, want) {
		k.Fatalf("got error %v, want one that wraps %q", err, want)
	}
}

// dump reads what lies under a prefix, as "id=value" in the order of the scan.
func (k *kit) dump(snap store.Snapshot, prefix, from []byte) []string {
	k.Helper()
	var all []string
	if err := snap.Scan(prefix, from, func(key, value []byte) (bool, error) {
		all = append(all, string(bytes.TrimPrefix(key, k.key("")))+"="+string(value))
		return true, nil
	}); err != nil {
		k.Fatal(err)
	}
	return all
}

func put(key []byte, value string) store.Op { return store.Op{Key: key, Value: []byte(value)} }

func group(ops ...store.Op) store.Group { return store.Group{Ops: ops} }

func (k *kit) want(got []string, want ...string) {
	k.Helper()
	if !slices.Equal(got, want) {
		k.Fatalf("got %q, want %q", got, want)
	}
}

func testOrder(_ *testing.T, k *kit) {
	s := k.open()
	var job, next workload.JobID
	job[0], next[0] = 1, 2
	keys := [][]byte{ // in the order that the schema promises
		k.keys.Event(1), k.keys.Event(255), k.keys.Event(256), k.keys.Event(1 << 40),
		k.keys.Job(job), k.keys.Job(next),
		k.keys.Run(workload.RunID{Job: job, Instance: 9, Generation: 1, Run: 1}),
		k.keys.Run(workload.RunID{Job: job, Instance: 256, Generation: 2, Run: 1}),
		k.keys.Run(workload.RunID{Job: job, Instance: 256, Generation: 1, Run: 2}),
		k.keys.Task(job, 0), k.keys.Task(job, 10), k.keys.Task(job, 300), k.keys.Task(next, 0),
	}
	for i := len(keys) - 1; i >= 0; i-- {
		k.commit(s, group(put(keys[i], "x")))
	}
	var got [][]byte
	if err := k.snapshot(s).Scan(k.keys.Root(), nil, func(key, _ []byte) (bool, error) {
		if kind, _, err := k.keys.Split(key); err != nil || kind == store.KindMeta {
			return true, err
		}
		got = append(got, bytes.Clone(key))
		return true, nil
	}); err != nil {
		k.Fatal(err)
	}
	if !slices.EqualFunc(got, keys, bytes.Equal) {
		k.Fatalf("got keys %q, want %q", got, keys)
	}
}

func testGroups(_ *testing.T, k *kit) {
	s := k.open()
	k.commit(s, group(put(k.key("a"), "1"), put(k.key("b"), "1"), put(k.key("a"), "2")))
	k.commit(s,
		group(put(k.key("c"), "1"), store.Op{Key: k.key("b")}),
		group(put(k.key("c"), "2"), store.Op{Key: k.key("never")}),
		group(store.Op{Key: k.key("d")}, put(k.key("d"), "1"), put(k.key("e"), "1"), store.Op{Key: k.key("e")}))
	snap := k.snapshot(s)
	k.want(k.dump(snap, k.key(""), nil), "a=2", "c=2", "d=1")
	if value := k.get(snap, "b"); value != nil {
		k.Fatalf("a deleted key has the value %q", value)
	}
	k.commit(s, group(store.Op{Key: k.key("empty"), Value: []byte{}}))
	if value := k.get(k.snapshot(s), "empty"); value == nil || len(value) != 0 {
		k.Fatalf("an empty value is read as %v, want empty and not nil", value)
	}
}

func testEmptyCommit(_ *testing.T, k *kit) {
	s := k.open()
	k.commit(s)
	k.commit(s, group(), group())
	k.want(k.dump(k.snapshot(s), k.key(""), nil))
}

func testValuesNotRetained(_ *testing.T, k *kit) {
	s := k.open()
	key, value := k.key("a"), []byte("first")
	k.commit(s, group(store.Op{Key: key, Value: value}))
	copy(value, "XXXXX")
	key[len(key)-1] = 'b'
	snap := k.snapshot(s)
	k.want(k.dump(snap, k.key(""), nil), "a=first")
	copy(k.get(snap, "a"), "YYYYY")
	k.want(k.dump(snap, k.key(""), nil), "a=first")
}

func testBounds(t *testing.T, k *kit) {
	ops := func(n, size int) store.Group {
		var g store.Group
		for i := range n {
			g.Ops = append(g.Ops, store.Op{Key: k.key(fmt.Sprintf("%03d", i)), Value: make([]byte, size)})
		}
		return g
	}
	head := len(k.key("000"))
	s := k.open()
	k.commit(s, ops(store.MaxGroupOps, 10), ops(1, store.MaxGroupBytes-head))
	for name, test := range map[string]struct {
		group store.Group
		want  error
	}{
		"operations": {ops(store.MaxGroupOps+1, 1), store.ErrTooLarge},
		"bytes":      {ops(1, store.MaxGroupBytes-head+1), store.ErrTooLarge},
		"key":        {group(put(append(k.key(""), make([]byte, store.MaxKeyBytes)...), "")), store.ErrTooLarge},
		"empty key":  {group(store.Op{Value: []byte("x")}), nil},
		"other cell": {group(put([]byte("/v1/other/meta/x"), "x")), nil},
	} {
		t.Run(name, func(t *testing.T) {
			k := &kit{T: t, Place: k.newPlace(t), keys: k.keys}
			s := k.open()
			err := s.Commit(k.Context(), []store.Group{group(put(k.key("good"), "x")), test.group})
			if err == nil {
				t.Fatal("the group was accepted")
			}
			if test.want != nil {
				k.wantErr(err, test.want)
			}
			k.want(k.dump(k.snapshot(s), k.key(""), nil)) // refused before anything was written
		})
	}
}

func testScan(t *testing.T, k *kit) {
	s := k.open()
	k.commit(s, group(put(k.key("a"), "1"), put(k.key("b/1"), "2"), put(k.key("b/2"), "3"), put(k.key("b/2\xff"), "4"), put(k.key("c"), "5")))
	snap := k.snapshot(s)
	for name, test := range map[string]struct {
		prefix, from string
		want         []string
	}{
		"all":              {"", "", []string{"a=1", "b/1=2", "b/2=3", "b/2\xff=4", "c=5"}},
		"prefix":           {"b/", "", []string{"b/1=2", "b/2=3", "b/2\xff=4"}},
		"from a key":       {"b/", "b/2", []string{"b/2=3", "b/2\xff=4"}},
		"from between":     {"b/", "b/15", []string{"b/2=3", "b/2\xff=4"}},
		"from before":      {"b/", "a", []string{"b/1=2", "b/2=3", "b/2\xff=4"}},
		"from after":       {"b/", "c", nil},
		"prefix of a key":  {"b", "", []string{"b/1=2", "b/2=3", "b/2\xff=4"}},
		"nothing under it": {"bb", "", nil},
	} {
		t.Run(name, func(t *testing.T) {
			k := &kit{T: t, keys: k.keys}
			var from []byte
			if test.from != "" {
				from = k.key(test.from)
			}
			k.want(k.dump(snap, k.key(test.prefix), from), test.want...)
		})
	}
	seen := 0
	err := snap.Scan(k.key(""), nil, func(_, _ []byte) (bool, error) { seen++; return seen < 2, nil })
	if err != nil || seen != 2 {
		t.Fatalf("a scan that was stopped after 2 saw %d and returned %v", seen, err)
	}
	mine := errors.New("mine")
	if err := snap.Scan(k.key(""), nil, func(_, _ []byte) (bool, error) { return true, mine }); err != mine { //nolint:errorlint // unchanged
		t.Fatalf("the error of visit came back as %v", err)
	}
	if err := snap.Scan(k.key(""), nil, func(key, want []byte) (bool, error) {
		got, err := snap.Get(key) // a read inside a scan
		if err == nil && !bytes.Equal(got, want) {
			err = fmt.Errorf("key %q: Get says %q, Scan %q", key, got, want)
		}
		return true, err
	}); err != nil {
		t.Fatal(err)
	}
}

func (k *kit) incarnation(s store.Store) store.Incarnation {
	k.Helper()
	snap := k.snapshot(s)
	defer snap.Close()
	i, err := store.ReadIncarnation(snap, k.keys)
	if err != nil {
		k.Fatal(err)
	}
	return i
}

func testReopen(_ *testing.T, k *kit) {
	s := k.open()
	born := k.incarnation(s)
	for i := range 3 {
		k.commit(s, group(put(k.key(fmt.Sprint(i)), "x")))
		k.close(s)
		s = k.open()
	}
	k.want(k.dump(k.snapshot(s), k.key(""), nil), "0=x", "1=x", "2=x")
	if now := k.incarnation(s); now != born || now == (store.Incarnation{}) {
		k.Fatalf("the incarnation went from %v to %v", born, now)
	}
}

func testLocked(_ *testing.T, k *kit) {
	s := k.open()
	_, err := k.Place.Open(k.Context(), Cell)
	k.wantErr(err, store.ErrLocked)
	k.commit(s, group(put(k.key("a"), "1"))) // the first is unharmed
	k.close(s)
	k.open()
}

func testStickyFailure(_ *testing.T, k *kit) {
	s := k.open()
	k.commit(s, group(put(k.key("a"), "1")))
	ctx, cancel := context.WithCancelCause(k.Context())
	cause := errors.New("the caller gave up")
	cancel(cause)
	first := s.Commit(ctx, []store.Group{group(put(k.key("b"), "1"))})
	k.wantErr(first, cause)
	if second := s.Commit(k.Context(), []store.Group{group(put(k.key("c"), "1"))}); second == nil || second.Error() != first.Error() {
		k.Fatalf("after %v the next commit answered %v", first, second)
	}
	snap := k.snapshot(s) // reads go on
	if k.get(snap, "c") != nil {
		k.Fatal("a commit after a failed one was written")
	}
	snap.Close()
	k.close(s)
	s = k.open()
	if snap := k.snapshot(s); string(k.get(snap, "a")) != "1" || k.get(snap, "c") != nil {
		k.Fatal("what was acknowledged is lost, or what was refused is there")
	}
	k.commit(s, group(put(k.key("d"), "1")))
}

func testClose(_ *testing.T, k *kit) {
	s := k.open()
	k.commit(s, group(put(k.key("a"), "1")))
	snap := k.snapshot(s)
	k.close(s)
	k.close(s)
	_, err := snap.Get(k.key("a"))
	k.wantErr(err, store.ErrClosed)
	k.wantErr(snap.Scan(k.key(""), nil, func(_, _ []byte) (bool, error) { return true, nil }), store.ErrClosed)
	snap.Close()
	snap.Close()
	_, err = s.Snapshot()
	k.wantErr(err, store.ErrClosed)
	k.wantErr(s.Backup(k.Context(), io.Discard), store.ErrClosed)
	k.wantErr(s.Commit(k.Context(), []store.Group{group(put(k.key("b"), "1"))}), store.ErrClosed)
}

func testOtherCell(_ *testing.T, k *kit) {
	k.close(k.open())
	if s, err := k.Place.Open(k.Context(), Cell+"-other"); err == nil {
		_ = s.Close()
		k.Fatal("another cell's store was opened")
	}
	k.open() // the refusal left no lock behind
}

func testNewerSchema(_ *testing.T, k *kit) {
	s := k.open()
	k.commit(s, group(store.Op{Key: k.keys.Meta("schema"), Value: binary.BigEndian.AppendUint64(nil, store.SchemaVersion()+1)}))
	k.close(s)
	_, err := k.Place.Open(k.Context(), Cell)
	k.wantErr(err, store.ErrUnsupported)
}

// testManyGroups commits more at once than one transaction of a backend takes.
func testManyGroups(_ *testing.T, k *kit) {
	s := k.open()
	const count = 12
	var groups []store.Group
	for i := range count {
		g := group(put(k.key("last"), fmt.Sprint(i)))
		for j := range 4 {
			g.Ops = append(g.Ops, store.Op{Key: k.key(fmt.Sprintf("%02d/%d", i, j)), Value: bytes.Repeat([]byte{byte(i)}, 200<<10)})
		}
		groups = append(groups, g)
	}
	k.commit(s, groups...)
	k.close(s)
	snap := k.snapshot(k.open())
	if got := len(k.dump(snap, k.key(""), nil)); got != 4*count+1 {
		k.Fatalf("%d records are there, want %d", got, 4*count+1)
	}
	if got := string(k.get(snap, "last")); got != fmt.Sprint(count-1) {
		k.Fatalf("the last group to write a key was %s", got)
	}
}

// testHistory compares random histories with a map. All share one store, each under a prefix of its own.
func testHistory(t *testing.T, k *kit) {
	s := k.open()
	run := 0
	rapid.Check(t, func(r *rapid.T) {
		run++
		own := fmt.Sprintf("%06d/", run)
		oracle := map[string]string{}
		for range rapid.IntRange(1, 6).Draw(r, "commits") {
			var groups []store.Group
			for range rapid.IntRange(0, 4).Draw(r, "groups") {
				groups = append(groups, k.drawGroup(r, own, oracle))
			}
			k.commit(s, groups...)
			if rapid.IntRange(0, 40).Draw(r, "reopen") == 40 {
				k.close(s)
				s = k.open()
			}
			prefix := rapid.SampledFrom([]string{"", "a", "b", "ab"}).Draw(r, "prefix")
			from := historyID.Draw(r, "from")
			var want []string
			for _, id := range slices.Sorted(maps.Keys(oracle)) {
				if strings.HasPrefix(id, prefix) && id >= from {
					want = append(want, own+id+"="+oracle[id])
				}
			}
			snap := k.snapshot(s)
			if got := k.dump(snap, k.key(own+prefix), k.key(own+from)); !slices.Equal(got, want) {
				r.Fatalf("scan of %q from %q: got %q, want %q", prefix, from, got, want)
			}
			snap.Close()
		}
	})
}

var historyID = rapid.StringMatching(`[ab]{0,2}[c-e]`)

// drawGroup draws a group and applies it to the oracle.
func (k *kit) drawGroup(r *rapid.T, own string, oracle map[string]string) store.Group {
	var g store.Group
	for range rapid.IntRange(0, 5).Draw(r, "ops") {
		id := historyID.Draw(r, "id")
		if rapid.Bool().Draw(r, "delete") {
			g.Ops = append(g.Ops, store.Op{Key: k.key(own + id)})
			delete(oracle, id)
			continue
		}
		value := rapid.StringN(0, 8, 8).Draw(r, "value")
		g.Ops = append(g.Ops, put(k.key(own+id), value))
		oracle[id] = value
	}
	return g
}
