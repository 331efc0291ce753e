package badgerstore

import (
	"bytes"
	"errors"
	"fmt"

	badger "github.com/dgraph-io/badger/v4"

	"github.com/paceline-sched/paceline/core/store"
)

// snapshot is a read-only transaction of Badger.
type snapshot struct {
	store *Store
	txn   *badger.Txn // nil once ended; under store.mu
}

// Snapshot implements store.Store.
func (s *Store) Snapshot() (store.Snapshot, error) {
	if !s.calls.enter() {
		return nil, store.ErrClosed
	}
	defer s.calls.leave()
	snap := &snapshot{store: s}
	s.mu.Lock()
	full := len(s.snapshots) >= MaxSnapshots
	if !full {
		s.snapshots[snap] = struct{}{}
	}
	s.mu.Unlock()
	if full {
		return nil, fmt.Errorf("%d snapshots of %s are open; close some", MaxSnapshots, s.dir)
	}
	txn := s.db.NewTransaction(false) // waits for a commit under way, so without the mutex
	s.mu.Lock()
	snap.txn = txn
	s.mu.Unlock()
	return snap, nil
}

// end gives the transaction back; store.mu is held.
func (s *snapshot) end() {
	if s.txn != nil {
		s.txn.Discard()
		s.txn = nil
		delete(s.store.snapshots, s)
	}
}

// Close implements store.Snapshot.
func (s *snapshot) Close() {
	s.store.mu.Lock()
	defer s.store.mu.Unlock()
	s.end()
}

// begin lets a read in; the caller leaves store.calls after it.
func (s *snapshot) begin() (*badger.Txn, error) {
	if !s.store.calls.enter() {
		return nil, store.ErrClosed
	}
	s.store.mu.Lock()
	txn := s.txn
	s.store.mu.Unlock()
	if txn == nil {
		s.store.calls.leave()
		return nil, store.ErrClosed
	}
	return txn, nil
}

// Get implements store.Snapshot.
func (s *snapshot) Get(key []byte) ([]byte, error) {
	txn, err := s.begin()
	if err != nil {
		return nil, err
	}
	defer s.store.calls.leave()
	item, err := txn.Get(key)
	if errors.Is(err, badger.ErrKeyNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read key %.120q from %s: %w", key, s.store.dir, err)
	}
	value, err := item.ValueCopy([]byte{})
	if err != nil {
		return nil, fmt.Errorf("read the value of key %.120q from %s: %w", key, s.store.dir, err)
	}
	return value, nil
}

// Scan implements store.Snapshot. A long scan gives way to Close.
func (s *snapshot) Scan(prefix, from []byte, visit func(key, value []byte) (bool, error)) error {
	txn, err := s.begin()
	if err != nil {
		return err
	}
	defer s.store.calls.leave()
	// Values lie beside their keys: fetching ahead would only start a goroutine for each.
	it := txn.NewIterator(badger.IteratorOptions{Prefix: prefix})
	defer it.Close()
	start := prefix
	if bytes.Compare(from, start) > 0 {
		start = from
	}
	for it.Seek(start); it.Valid(); it.Next() {
		if s.store.calls.isShut() {
			return store.ErrClosed
		}
		item := it.Item()
		var more bool
		var stop error
		if err := item.Value(func(value []byte) error {
			more, stop = visit(item.Key(), value)
			return nil
		}); err != nil {
			return fmt.Errorf("read the value of key %.120q from %s: %w", item.Key(), s.store.dir, err)
		}
		if stop != nil || !more {
			return stop
		}
	}
	return nil
}
