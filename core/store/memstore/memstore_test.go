package memstore_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"testing"

	"go.uber.org/goleak"

	"github.com/paceline-sched/paceline/conformance/storetest"
	"github.com/paceline-sched/paceline/core/store"
	"github.com/paceline-sched/paceline/core/store/memstore"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestConformance(t *testing.T) {
	storetest.Run(t, func(testing.TB) storetest.Place {
		disk := new(memstore.Disk)
		return storetest.Place{
			Open: func(ctx context.Context, cell string) (store.Store, error) {
				return opened(memstore.Open(ctx, disk, memstore.Config{Cell: cell}))
			},
			Restore: func(ctx context.Context, r io.Reader) error { return memstore.Restore(ctx, disk, nil, r) },
		}
	})
}

// opened keeps a nil *Store from turning into a store.Store that is not nil.
func opened(s *memstore.Store, err error) (store.Store, error) {
	if err != nil {
		return nil, err
	}
	return s, nil
}

func open(t *testing.T, disk *memstore.Disk) *memstore.Store {
	t.Helper()
	s, err := memstore.Open(t.Context(), disk, memstore.Config{Cell: "sim", Entropy: rand.NewChaCha8([32]byte{1})})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func groups(t *testing.T, from, count int) []store.Group {
	t.Helper()
	keys, err := store.NewKeyspace("sim")
	if err != nil {
		t.Fatal(err)
	}
	var all []store.Group
	for n := from; n < from+count; n++ {
		all = append(all, store.Group{Ops: []store.Op{
			{Key: keys.Event(uint64(n)), Value: []byte("a")}, {Key: keys.CellRecord("head"), Value: fmt.Append(nil, n)},
		}})
	}
	return all
}

func head(t *testing.T, s *memstore.Store) string {
	t.Helper()
	keys, err := store.NewKeyspace("sim")
	if err != nil {
		t.Fatal(err)
	}
	snap, err := s.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	defer snap.Close()
	value, err := snap.Get(keys.CellRecord("head"))
	if err != nil {
		t.Fatal(err)
	}
	return string(value)
}

func TestCrashKeepsThePrefix(t *testing.T) {
	for after := 1; after <= 10; after++ {
		disk := new(memstore.Disk)
		s := open(t, disk)
		disk.CrashAfter(uint64(after))
		err := s.Commit(t.Context(), groups(t, 1, 5))
		if after > 5 {
			if err != nil {
				t.Fatal(err)
			}
			err = s.Commit(t.Context(), groups(t, 6, 5))
		}
		if !errors.Is(err, memstore.ErrCrashed) {
			t.Fatalf("crash after %d: got %v", after, err)
		}
		if again := s.Commit(t.Context(), groups(t, 11, 1)); !errors.Is(again, memstore.ErrCrashed) {
			t.Fatalf("the dead process went on: %v", again)
		}
		if _, err := s.Snapshot(); !errors.Is(err, store.ErrClosed) {
			t.Fatalf("the dead process read: %v", err)
		}
		if got := head(t, open(t, disk)); got != fmt.Sprint(after) {
			t.Fatalf("crash after %d: the head is %s", after, got)
		}
	}
}

func TestACrashInAGroupLosesAllOfIt(t *testing.T) {
	for at, want := range map[uint64]string{1: "", 2: "", 3: "0", 4: "0", 5: "1"} { // two writes a group
		disk := new(memstore.Disk)
		s := open(t, disk)
		disk.CrashAtWrite(at)
		if err := s.Commit(t.Context(), groups(t, 0, 3)); !errors.Is(err, memstore.ErrCrashed) {
			t.Fatalf("write %d: %v", at, err)
		}
		if got := head(t, open(t, disk)); got != want {
			t.Errorf("after a crash at write %d the last group is %q, want %q", at, got, want)
		}
	}
}

func TestFailCommit(t *testing.T) {
	disk := new(memstore.Disk)
	s := open(t, disk)
	disk.FailCommit(2, store.ErrFull)
	if err := s.Commit(t.Context(), groups(t, 1, 2)); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := s.Commit(t.Context(), groups(t, 3, 2)); !errors.Is(err, store.ErrFull) {
			t.Fatalf("got %v, want ErrFull", err)
		}
	}
	if got := head(t, s); got != "2" {
		t.Fatalf("the head is %s", got)
	}
}

func TestKillFreesTheDisk(t *testing.T) {
	disk := new(memstore.Disk)
	s := open(t, disk)
	if err := s.Commit(t.Context(), groups(t, 1, 1)); err != nil {
		t.Fatal(err)
	}
	disk.Kill()
	if err := s.Commit(t.Context(), groups(t, 2, 1)); !errors.Is(err, store.ErrClosed) {
		t.Fatalf("the dead process wrote: %v", err)
	}
	next := open(t, disk)
	if err := s.Close(); err != nil { // must not free the lock of the next
		t.Fatal(err)
	}
	if _, err := memstore.Open(t.Context(), disk, memstore.Config{Cell: "sim"}); !errors.Is(err, store.ErrLocked) {
		t.Fatalf("got %v, want ErrLocked", err)
	}
	if got := head(t, next); got != "1" {
		t.Fatalf("the head is %s", got)
	}
}
