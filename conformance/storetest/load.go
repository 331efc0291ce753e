package storetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"testing"

	"github.com/paceline-sched/paceline/core/store"
)

// Every commit of the tests under load sets all of these to its own number, so a consistent view shows one number only.
const loadKeys = 8

// writer commits until stop is closed, or the store is. The first commit is done when it returns.
func (k *kit) writer(s store.Store, stop <-chan struct{}) *sync.WaitGroup {
	k.Helper()
	write := func(n int) error {
		var a, b store.Group // two groups: a view may come between them, but never inside one
		for i := range loadKeys {
			a.Ops = append(a.Ops, put(k.key(fmt.Sprintf("a/%d", i)), fmt.Sprint(n)))
			b.Ops = append(b.Ops, put(k.key(fmt.Sprintf("b/%d", i)), fmt.Sprint(n)))
		}
		return s.Commit(k.Context(), []store.Group{a, b})
	}
	if err := write(0); err != nil {
		k.Fatal(err)
	}
	var done sync.WaitGroup
	done.Go(func() {
		for n := 1; ; n++ {
			select {
			case <-stop:
				return
			default:
			}
			if err := write(n); err != nil {
				if !errors.Is(err, store.ErrClosed) {
					k.Error(err)
				}
				return
			}
		}
	})
	return &done
}

// consistent returns the number that a view shows, and fails when it shows two in one group, or more in the second group.
func consistent(snap store.Snapshot, k *kit) (int, error) {
	var got [2][]int
	for i, prefix := range []string{"a/", "b/"} {
		if err := snap.Scan(k.key(prefix), nil, func(_, value []byte) (bool, error) {
			var n int
			_, err := fmt.Sscan(string(value), &n)
			got[i] = append(got[i], n)
			return true, err
		}); err != nil {
			return 0, err
		}
		if len(got[i]) != loadKeys {
			return 0, fmt.Errorf("%d of %d keys are there", len(got[i]), loadKeys)
		}
		for _, n := range got[i] {
			if n != got[i][0] {
				return 0, fmt.Errorf("a group is seen in part: %v", got[i])
			}
		}
	}
	if a, b := got[0][0], got[1][0]; b != a && b != a-1 {
		return 0, fmt.Errorf("the view holds group %d but only %d before it", b, a)
	}
	return got[0][0], nil
}

func testSnapshotIsolation(_ *testing.T, k *kit) {
	s := k.open()
	stop := make(chan struct{})
	writing := k.writer(s, stop)
	var reading sync.WaitGroup
	for range 3 {
		reading.Go(func() {
			last := 0
			for range 20 {
				snap, err := s.Snapshot()
				if err != nil {
					k.Error(err)
					return
				}
				first, err := consistent(snap, k)
				again, err2 := consistent(snap, k)
				snap.Close()
				if err = errors.Join(err, err2); err != nil || again != first || first < last {
					k.Errorf("a snapshot showed %d, then %d, after one that showed %d: %v", first, again, last, err)
					return
				}
				last = first
			}
		})
	}
	reading.Wait()
	close(stop)
	writing.Wait()
}

func testCloseUnderLoad(_ *testing.T, k *kit) {
	s := k.open()
	writing := k.writer(s, nil)
	started := make(chan struct{}, 3)
	var reading sync.WaitGroup
	for range cap(started) {
		reading.Go(func() {
			for n := 0; ; n++ {
				snap, err := s.Snapshot()
				if err == nil {
					_, err = consistent(snap, k)
					snap.Close()
				}
				if n == 2 {
					started <- struct{}{}
				}
				if err != nil {
					if !errors.Is(err, store.ErrClosed) {
						k.Error(err)
					}
					return
				}
			}
		})
	}
	for range cap(started) {
		<-started
	}
	var closing sync.WaitGroup
	for range 2 {
		closing.Go(func() {
			if err := s.Close(); err != nil {
				k.Error(err)
			}
		})
	}
	closing.Wait()
	reading.Wait()
	writing.Wait()
	if _, err := consistent(k.snapshot(k.open()), k); err != nil {
		k.Fatal(err)
	}
}

func testBackupUnderLoad(_ *testing.T, k *kit) {
	s := k.open()
	for i := range 300 { // enough that commits fall into the middle of the backup
		k.commit(s, group(store.Op{Key: k.key(fmt.Sprintf("a/%d/fill/%03d", loadKeys, i)), Value: make([]byte, 2000)}))
		if i%100 == 0 {
			k.commit(s, group(store.Op{Key: k.key(fmt.Sprintf("gone/%d", i)), Value: []byte{}}, store.Op{Key: k.key(fmt.Sprintf("gone/%d", i))}))
		}
	}
	for i := range 300 { // the fill shares the scanned prefix only while it is filled in
		k.commit(s, group(store.Op{Key: k.key(fmt.Sprintf("a/%d/fill/%03d", loadKeys, i))}, store.Op{Key: k.key(fmt.Sprintf("aa/%03d", i)), Value: make([]byte, 2000)}))
	}
	born := k.incarnation(s)
	stop := make(chan struct{})
	writing := k.writer(s, stop)
	var backup bytes.Buffer
	if err := s.Backup(k.Context(), &backup); err != nil {
		k.Fatal(err)
	}
	close(stop)
	writing.Wait()

	restored := &kit{T: k.T, Place: k.newPlace(k), keys: k.keys}
	if err := restored.Restore(k.Context(), &backup); err != nil {
		k.Fatal(err)
	}
	copied := restored.open()
	if _, err := consistent(restored.snapshot(copied), k); err != nil {
		k.Fatal(err)
	}
	if got := len(restored.dump(restored.snapshot(copied), k.key(""), nil)); got != 300+2*loadKeys {
		k.Fatalf("the restored store has %d records, want %d", got, 300+2*loadKeys)
	}
	if restored.incarnation(copied) == born {
		k.Fatal("the restored store has the incarnation of the old one")
	}
	restored.commit(copied, group(put(k.key("after"), "1")))
}

// cancelAfter cancels its context once n bytes went through it.
type cancelAfter struct {
	n      int
	cancel context.CancelFunc
}

func (c *cancelAfter) Write(p []byte) (int, error) {
	if c.n -= len(p); c.n <= 0 {
		c.cancel()
	}
	return len(p), nil
}

func testBackupCancelled(_ *testing.T, k *kit) {
	s := k.open()
	for i := range 20 {
		var g store.Group
		for j := range store.MaxGroupOps {
			g.Ops = append(g.Ops, store.Op{Key: k.key(fmt.Sprintf("%03d/%03d", i, j)), Value: make([]byte, 2000)})
		}
		k.commit(s, g)
	}
	ctx, cancel := context.WithCancel(k.Context())
	defer cancel()
	k.wantErr(s.Backup(ctx, &cancelAfter{n: 1, cancel: cancel}), context.Canceled)
	k.commit(s, group(put(k.key("after"), "1")))
	mine := errors.New("the disk of the backup is full")
	k.wantErr(s.Backup(k.Context(), failing{mine}), mine)
}

type failing struct{ err error }

func (f failing) Write([]byte) (int, error) { return 0, f.err }

func testBackupDamaged(_ *testing.T, k *kit) {
	s := k.open()
	for i := range 10 {
		k.commit(s, group(put(k.key(fmt.Sprint(i)), "value")))
	}
	var backup bytes.Buffer
	if err := s.Backup(k.Context(), &backup); err != nil {
		k.Fatal(err)
	}
	whole := backup.Bytes()
	target := &kit{T: k.T, Place: k.newPlace(k), keys: k.keys}
	refuse := func(name string, file []byte) {
		k.Helper()
		if err := target.Restore(k.Context(), bytes.NewReader(file)); err == nil {
			k.Fatalf("a backup with %s was restored", name)
		}
	}
	refuse("no bytes", nil)
	refuse("its end cut off", whole[:len(whole)-1])
	refuse("its second half cut off", whole[:len(whole)/2])
	refuse("bytes after its end", append(bytes.Clone(whole), 0))
	flipped := bytes.Clone(whole)
	flipped[bytes.LastIndex(flipped, []byte("value"))] ^= 1
	refuse("a flipped bit", flipped)
	if err := target.Restore(k.Context(), bytes.NewReader(whole)); err != nil { // the refusals left the place empty
		k.Fatal(err)
	}
	if got := len(target.dump(target.snapshot(target.open()), k.key(""), nil)); got != 10 {
		k.Fatalf("%d records were restored, want 10", got)
	}
}

func testRestoreIntoNonEmpty(_ *testing.T, k *kit) {
	s := k.open()
	k.commit(s, group(put(k.key("mine"), "1")))
	var backup bytes.Buffer
	if err := s.Backup(k.Context(), &backup); err != nil {
		k.Fatal(err)
	}
	if err := k.Restore(k.Context(), bytes.NewReader(backup.Bytes())); err == nil {
		k.Fatal("a store that is open was restored over")
	}
	k.close(s)
	k.wantErr(k.Restore(k.Context(), bytes.NewReader(backup.Bytes())), store.ErrNotEmpty)
	k.want(k.dump(k.snapshot(k.open()), k.key(""), nil), "mine=1")
	ctx, cancel := context.WithCancel(k.Context())
	cancel()
	if err := k.newPlace(k).Restore(ctx, io.MultiReader(&backup)); !errors.Is(err, context.Canceled) {
		k.Fatalf("a cancelled restore answered %v", err)
	}
}
