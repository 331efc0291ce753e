package record_test

import (
	"errors"
	"reflect"
	"testing"

	"github.com/paceline-sched/paceline/core/scheduler"
	"github.com/paceline-sched/paceline/core/store"
	"github.com/paceline-sched/paceline/core/store/record"
)

// FuzzDecode: whatever lies in a store, reading it ends in an error or in a record that is stored again as itself.
func FuzzDecode(f *testing.F) {
	keys := keyspace(f)
	c := record.NewCodec(keys)
	for _, s := range samples() {
		op := encode(f, c, scheduler.Write{Record: s.record})[0]
		f.Add(op.Key, open(f, op.Value), false)
		f.Add(op.Key, op.Value, true)
	}
	f.Fuzz(func(t *testing.T, key, value []byte, framed bool) {
		if !framed { // most inputs should get past the frame
			value = append([]byte{0}, value...)
		}
		w, err := c.Decode(key, value)
		if err != nil {
			if !errors.Is(err, store.ErrCorrupt) {
				t.Fatalf("not known as damage: %v", err)
			}
			return
		}
		op := encode(t, c, w)[0]
		if string(op.Key) != string(key) {
			t.Fatalf("read from key %q, written to %q", key, op.Key)
		}
		again, err := c.Decode(op.Key, op.Value)
		if err != nil || !reflect.DeepEqual(unsized(again.Record), unsized(w.Record)) {
			t.Fatalf("read %+v, written and read again %+v, %v", w.Record, again.Record, err)
		}
	})
}
