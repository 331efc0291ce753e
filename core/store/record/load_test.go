package record_test

import (
	"context"
	"encoding/binary"
	"errors"
	"reflect"
	"slices"
	"testing"

	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/paceline-sched/paceline/core/scheduler"
	"github.com/paceline-sched/paceline/core/store"
	"github.com/paceline-sched/paceline/core/store/memstore"
	"github.com/paceline-sched/paceline/core/store/record"
	"github.com/paceline-sched/paceline/core/workload"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// disk is a store with its codec.
type disk struct {
	*memstore.Store
	keys  store.Keyspace
	codec *record.Codec
}

func newDisk(t fataler, keys store.Keyspace) *disk {
	t.Helper()
	s, err := memstore.Open(context.Background(), &memstore.Disk{}, memstore.Config{Cell: keys.Cell()})
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	return &disk{Store: s, keys: keys, codec: record.NewCodec(keys)}
}

func (d *disk) commit(t fataler, groups ...scheduler.Group) {
	t.Helper()
	var raw []store.Group
	for _, g := range groups {
		encoded, err := d.codec.EncodeGroup(g)
		if err != nil {
			t.Fatalf("encode group %d: %v", g.Sequence, err)
		}
		raw = append(raw, encoded)
	}
	if err := d.Commit(context.Background(), raw); err != nil {
		t.Fatalf("commit: %v", err)
	}
}

func (d *disk) look(t fataler, visit func(store.Snapshot)) {
	t.Helper()
	snap, err := d.Snapshot()
	if err != nil {
		t.Fatalf("snapshot: %v", err)
	}
	defer snap.Close()
	visit(snap)
}

func (d *disk) load(t fataler) (im *scheduler.Image, err error) {
	t.Helper()
	d.look(t, func(snap store.Snapshot) { im, err = d.codec.LoadImage(context.Background(), snap) })
	return im, err
}

// TestLoadingIsApplyingEveryGroup: recovery and whoever follows the groups must know the same.
func TestLoadingIsApplyingEveryGroup(t *testing.T) {
	keys := keyspace(t)
	rapid.Check(t, func(r *rapid.T) {
		s, d, want := source{r}, newDisk(r, keys), scheduler.NewImage()
		for sequence := range rapid.Uint64Range(1, 8).Draw(r, "groups") {
			g := scheduler.Group{Sequence: sequence + 1}
			for range rapid.IntRange(1, 6).Draw(r, "writes") {
				g.Writes = append(g.Writes, s.writes()...)
			}
			d.commit(r, g)
			want.ApplyGroup(g)
		}
		got, err := d.load(r)
		if err != nil {
			r.Fatalf("load: %v", err)
		}
		settle(got)
		settle(want)
		for id, j := range want.Jobs {
			if !reflect.DeepEqual(got.Jobs[id], j) {
				r.Fatalf("loaded job %+v, applied %+v", got.Jobs[id], j)
			}
		}
		if !reflect.DeepEqual(got, want) {
			r.Fatalf("loaded %+v, applied %+v", got, want)
		}
	})
}

const loadInstances = 5

// writes draws what a scheduler puts in a group: one config version a job, specs with their size, and no job erased before what
// hangs on it.
func (s source) writes() []scheduler.Write {
	gone := rapid.IntRange(0, 4).Draw(s.t, "delete") == 0
	switch r := s.record().(type) {
	case scheduler.CellRecord:
		return []scheduler.Write{{Record: r}}
	case scheduler.SpecRecord:
		r.Config, r.Size = 1, record.SpecSize(r.Spec)
		return []scheduler.Write{{Record: r}}
	case scheduler.TaskRecord:
		r.Instance %= loadInstances
		return []scheduler.Write{{Record: r, Delete: gone}}
	case scheduler.JobRecord:
		if !gone {
			return []scheduler.Write{{Record: r}}
		}
		all := []scheduler.Write{{Record: scheduler.SpecRecord{Job: r.ID, Config: 1}, Delete: true}}
		for i := range uint32(loadInstances) {
			all = append(all, scheduler.Write{Record: scheduler.TaskRecord{Job: r.ID, Instance: i}, Delete: true})
		}
		return append(all, scheduler.Write{Record: r, Delete: true})
	default:
		return []scheduler.Write{{Record: r, Delete: gone}}
	}
}

// settle takes away what deletes leave behind in an image and a store does not have: rests of jobs without a job record, which
// recovery skips, and the holes at the end of instances.
func settle(im *scheduler.Image) {
	for id, j := range im.Jobs {
		if j.Job.ID == (workload.JobID{}) {
			delete(im.Jobs, id)
			continue
		}
		for len(j.Tasks) > 0 && j.Tasks[len(j.Tasks)-1].Job == (workload.JobID{}) {
			j.Tasks = j.Tasks[:len(j.Tasks)-1]
		}
		if len(j.Tasks) == 0 {
			j.Tasks = nil
		}
	}
}

func TestLoadOfAFreshStore(t *testing.T) {
	im, err := newDisk(t, keyspace(t)).load(t)
	if err != nil || !reflect.DeepEqual(im, scheduler.NewImage()) {
		t.Errorf("loaded %+v, %v", im, err)
	}
}

func TestLoadRefusesDamage(t *testing.T) {
	keys := keyspace(t)
	cell := scheduler.Group{Sequence: 5, Writes: []scheduler.Write{{Record: scheduler.CellRecord{Epoch: 1}}}}
	for name, op := range map[string]store.Op{
		"no revision":    {Key: keys.Meta("sequence")},
		"short revision": {Key: keys.Meta("sequence"), Value: []byte{1}},
		"wrong record":   {Key: keys.Job(workload.JobID{1}), Value: []byte{0, 0xff}},
		"strange key":    {Key: append(keys.Prefix(store.KindTask), 1), Value: []byte{0}},
	} {
		d := newDisk(t, keys)
		d.commit(t, cell)
		if err := d.Commit(t.Context(), []store.Group{{Ops: []store.Op{op}}}); err != nil {
			t.Fatal(err)
		}
		if _, err := d.load(t); !errors.Is(err, store.ErrCorrupt) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestLoadEndsWithItsContext(t *testing.T) {
	d := newDisk(t, keyspace(t))
	d.commit(t, scheduler.Group{Sequence: 1, Writes: []scheduler.Write{{Record: scheduler.CellRecord{Epoch: 1}}}})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	d.look(t, func(snap store.Snapshot) {
		if _, err := d.codec.LoadImage(ctx, snap); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
	})
}

func TestRunsComeNewestFirst(t *testing.T) {
	d := newDisk(t, keyspace(t))
	g := scheduler.Group{Sequence: 1}
	put := func(instance, generation, run uint32) {
		g.Writes = append(g.Writes, scheduler.Write{Record: scheduler.RunRecord{
			ID: workload.RunID{Job: sampleJob, Instance: instance, Generation: generation, Run: run}, State: workload.RunFailed,
		}})
	}
	for run := range uint32(3) { // a new life of the gang does not start the numbers anew
		put(1, 1+run, 255+run)
	}
	put(0, 9, 9)
	put(2, 9, 9)
	g.Writes = append(g.Writes, scheduler.Write{Record: scheduler.RunRecord{ID: workload.RunID{Job: sampleJob, Instance: 1, Run: 255}}, Delete: true})
	d.commit(t, g)
	d.look(t, func(snap store.Snapshot) {
		runs, err := d.codec.Runs(snap, sampleJob, 1)
		var got []workload.RunID
		for _, r := range runs {
			got = append(got, r.ID)
		}
		want := []workload.RunID{{Job: sampleJob, Instance: 1, Generation: 3, Run: 257}, {Job: sampleJob, Instance: 1, Generation: 2, Run: 256}}
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("got %v, %v", got, err)
		}
		if none, err := d.codec.Runs(snap, sampleJob, 7); err != nil || none != nil {
			t.Errorf("an instance without runs has %v, %v", none, err)
		}
	})
}

func TestChangesArePaged(t *testing.T) {
	d := newDisk(t, keyspace(t))
	for _, sequence := range []uint64{1, 2, 255, 256, 1 << 40} {
		d.commit(t, scheduler.Group{Sequence: sequence, Writes: []scheduler.Write{{Record: scheduler.ChangesRecord{
			Sequence: sequence, Changes: []scheduler.Change{sampleChange()},
		}}}})
	}
	d.commit(t, scheduler.Group{Sequence: 1<<40 + 1, Writes: []scheduler.Write{{Record: scheduler.ChangesRecord{Sequence: 1}, Delete: true}}})
	for _, page := range []struct {
		from  uint64
		limit int
		want  []uint64
	}{
		{0, 100, []uint64{2, 255, 256, 1 << 40}},
		{2, 2, []uint64{2, 255}},
		{256, 1, []uint64{256}},
		{257, 9, []uint64{1 << 40}},
		{1<<40 + 1, 9, nil},
	} {
		d.look(t, func(snap store.Snapshot) {
			parts, err := d.codec.Changes(snap, page.from, page.limit, 1<<20)
			var got []uint64
			for _, p := range parts {
				got = append(got, p.Sequence)
			}
			if err != nil || !slices.Equal(got, page.want) {
				t.Errorf("%d from %d: got %v, %v; want %v", page.limit, page.from, got, err, page.want)
			}
		})
	}
}

func TestDamageIsMetInHistoryToo(t *testing.T) {
	d := newDisk(t, keyspace(t))
	bad := []byte{0, 0xff}
	run := d.keys.Run(sampleRun)
	if err := d.Commit(t.Context(), []store.Group{{Ops: []store.Op{{Key: run, Value: bad}, {Key: d.keys.Event(1), Value: bad}}}}); err != nil {
		t.Fatal(err)
	}
	d.look(t, func(snap store.Snapshot) {
		if _, err := d.codec.Runs(snap, sampleRun.Job, sampleRun.Instance); !errors.Is(err, store.ErrCorrupt) {
			t.Errorf("runs: %v", err)
		}
		if _, err := d.codec.Changes(snap, 0, 10, 1); !errors.Is(err, store.ErrCorrupt) {
			t.Errorf("changes: %v", err)
		}
	})
}

func TestSequenceIsInEveryGroup(t *testing.T) {
	keys := keyspace(t)
	g, err := record.NewCodec(keys).EncodeGroup(scheduler.Group{Sequence: 258})
	want := store.Op{Key: keys.Meta("sequence"), Value: binary.BigEndian.AppendUint64(nil, 258)}
	if err != nil || len(g.Ops) != 1 || !reflect.DeepEqual(g.Ops[0], want) {
		t.Errorf("got %q, %v", g.Ops, err)
	}
}
