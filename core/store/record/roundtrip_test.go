package record_test

import (
	"bytes"
	"errors"
	"reflect"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/scheduler"
	"github.com/paceline-sched/paceline/core/store"
	"github.com/paceline-sched/paceline/core/store/record"
	"github.com/paceline-sched/paceline/core/workload"
)

func keyspace(t testing.TB) store.Keyspace {
	t.Helper()
	keys, err := store.NewKeyspace("berlin-1")
	if err != nil {
		t.Fatal(err)
	}
	return keys
}

// fataler is what *testing.T, *testing.B, *testing.F and *rapid.T have in common.
type fataler interface {
	Helper()
	Fatalf(format string, args ...any)
}

// encode returns the operations of one group, without that of the sequence.
func encode(t fataler, c *record.Codec, writes ...scheduler.Write) []store.Op {
	t.Helper()
	g, err := c.EncodeGroup(scheduler.Group{Sequence: 7, Writes: writes})
	if err != nil {
		t.Fatalf("encode: %v", err)
	}
	if len(g.Ops) != len(writes)+1 {
		t.Fatalf("%d writes became %d operations", len(writes), len(g.Ops))
	}
	return g.Ops[:len(writes)]
}

// unsized takes the size off a spec record: it is found at reading and never stored.
func unsized(r scheduler.Record) scheduler.Record {
	if spec, ok := r.(scheduler.SpecRecord); ok {
		spec.Size = 0
		return spec
	}
	return r
}

func TestRecordsRoundTrip(t *testing.T) {
	keys := keyspace(t)
	for kind := range len(source{}.draws()) {
		rapid.Check(t, func(r *rapid.T) {
			s := source{r}
			writer, reader := record.NewCodec(keys), record.NewCodec(keys)
			var want []scheduler.Write
			for range rapid.IntRange(1, 3).Draw(r, "records") { // several on one codec: nothing of one may show in the next
				want = append(want, scheduler.Write{Record: s.draws()[kind]()})
			}
			for n, op := range encode(r, writer, want...) {
				got, err := reader.Decode(op.Key, op.Value)
				if err != nil {
					r.Fatalf("decode: %v", err)
				}
				if spec, ok := got.Record.(scheduler.SpecRecord); ok && spec.Size != record.SpecSize(spec.Spec) {
					r.Fatalf("a spec of %d bytes came back with size %d", record.SpecSize(spec.Spec), spec.Size)
				}
				if got.Record = unsized(got.Record); !reflect.DeepEqual(got, want[n]) {
					r.Fatalf("wrote %+v, read %+v", want[n], got)
				}
			}
		})
	}
}

func TestEncodingIsDeterministic(t *testing.T) {
	keys := keyspace(t)
	rapid.Check(t, func(r *rapid.T) {
		w := scheduler.Write{Record: source{r}.record()}
		a, b := encode(r, record.NewCodec(keys), w), encode(r, record.NewCodec(keys), w)
		if !reflect.DeepEqual(a, b) {
			r.Fatalf("%+v was encoded in two ways", w)
		}
	})
}

func TestGroupsKeepTheirOrderAndBytes(t *testing.T) {
	keys := keyspace(t)
	rapid.Check(t, func(r *rapid.T) {
		s, c := source{r}, record.NewCodec(keys)
		writes := []scheduler.Write{{Record: s.record()}, {Record: s.record(), Delete: true}, {Record: s.record()}}
		ops := encode(r, c, writes...)
		before := [][]byte{bytes.Clone(ops[0].Value), bytes.Clone(ops[2].Value)}
		encode(r, c, scheduler.Write{Record: s.record()}) // the codec's buffers must not be in what it returned
		for n, op := range ops {
			if (op.Value == nil) != writes[n].Delete {
				r.Fatalf("write %d with delete %v has the value %v", n, writes[n].Delete, op.Value)
			}
			if alone := encode(r, c, writes[n])[0]; !reflect.DeepEqual(alone, op) {
				r.Fatalf("write %d differs from itself alone", n)
			}
		}
		if !bytes.Equal(before[0], ops[0].Value) || !bytes.Equal(before[1], ops[2].Value) {
			r.Fatalf("a later group changed an earlier one")
		}
	})
}

func TestDeletesNeedTheKeyOnly(t *testing.T) {
	keys := keyspace(t)
	job := workload.JobID{1}
	run := workload.RunID{Job: job, Instance: 4, Generation: 2, Run: 3}
	bare := run
	bare.Generation = 0
	for _, pair := range [][2]scheduler.Record{
		{scheduler.RunRecord{ID: run, Message: "x", State: workload.RunFailed}, scheduler.RunRecord{ID: bare}},
		{scheduler.TaskRecord{Job: job, Instance: 4, Message: "x"}, scheduler.TaskRecord{Job: job, Instance: 4}},
		{scheduler.SpecRecord{Job: job, Config: 1, Spec: &workload.JobSpec{Kind: workload.Batch}}, scheduler.SpecRecord{Job: job, Config: 1}},
		{scheduler.ChangesRecord{Sequence: 9, Changes: []scheduler.Change{{Kind: scheduler.ChangeJob}}}, scheduler.ChangesRecord{Sequence: 9}},
	} {
		c := record.NewCodec(keys)
		put := encode(t, c, scheduler.Write{Record: pair[0]})[0]
		gone := encode(t, c, scheduler.Write{Record: pair[1], Delete: true})[0]
		if !bytes.Equal(put.Key, gone.Key) || gone.Value != nil {
			t.Errorf("%T is put at %q and deleted at %q", pair[0], put.Key, gone.Key)
		}
	}
}

func TestEmptyIsReadAsNil(t *testing.T) {
	none, pairs := []string{}, map[string]string{}
	full := scheduler.SpecRecord{Job: workload.JobID{1}, Spec: &workload.JobSpec{
		Kind: workload.Batch, Instances: 1, Labels: pairs,
		Template: workload.TaskTemplate{
			Command: none, Env: pairs, GPUModels: none, Ports: []workload.Port{}, Labels: pairs, Health: &workload.HealthCheck{Exec: none},
		},
		Overrides: []workload.Override{{Command: none, Env: pairs, Labels: pairs}},
		Placement: workload.Placement{
			Constraints: []workload.Constraint{{Op: workload.OpIn, Values: none}}, Preferences: []workload.Preference{},
			Affinities: []workload.Affinity{{Selector: pairs}}, Spreads: []workload.Spread{}, Clusters: none,
		},
	}}
	want := scheduler.SpecRecord{Job: workload.JobID{1}, Spec: &workload.JobSpec{
		Kind: workload.Batch, Instances: 1, Template: workload.TaskTemplate{Health: &workload.HealthCheck{}}, Overrides: make([]workload.Override, 1),
		Placement: workload.Placement{Constraints: []workload.Constraint{{Op: workload.OpIn}}, Affinities: make([]workload.Affinity, 1)},
	}}
	c := record.NewCodec(keyspace(t))
	op := encode(t, c, scheduler.Write{Record: full})[0]
	got, err := c.Decode(op.Key, op.Value)
	if err != nil || !reflect.DeepEqual(unsized(got.Record), scheduler.Record(want)) {
		t.Errorf("read %+v, %v", got.Record, err)
	}
}

func TestLargeValuesAreCompressed(t *testing.T) {
	c := record.NewCodec(keyspace(t))
	r := scheduler.HostRecord{ID: workload.HostID{1}, Summary: scheduler.HostFacts{Message: strings.Repeat("wait ", 1000)}}
	op := encode(t, c, scheduler.Write{Record: r})[0]
	if len(op.Value) > 200 {
		t.Errorf("5000 repeated bytes took %d", len(op.Value))
	}
	if got, err := c.Decode(op.Key, op.Value); err != nil || !reflect.DeepEqual(got.Record, scheduler.Record(r)) {
		t.Errorf("read %+v, %v", got.Record, err)
	}
}

func TestWrongRecordsAreRefused(t *testing.T) {
	keys := keyspace(t)
	c := record.NewCodec(keys)
	job, host := workload.JobID{1}, workload.HostID{2}
	put := func(r scheduler.Record) store.Op { return encode(t, c, scheduler.Write{Record: r})[0] }
	task := put(scheduler.TaskRecord{Job: job, Host: host})
	spec := func(s workload.JobSpec) store.Op {
		s.Kind = max(s.Kind, workload.Batch)
		return put(scheduler.SpecRecord{Job: job, Spec: &s})
	}
	vector := func(q int64) (v [16]int64) { v[0] = q; return v }
	needs := vector(-1)
	absurd := vector(1<<40 + 1)
	answer := put(scheduler.IdempotencyRecord{Key: scheduler.IdempotencyKey{Key: "a"}, Job: job})
	for name, op := range map[string]store.Op{
		"no frame":                  {Key: task.Key},
		"unknown frame":             {Key: task.Key, Value: []byte{9, 1}},
		"no message":                {Key: task.Key, Value: []byte{0, 0xff}},
		"cut":                       {Key: task.Key, Value: task.Value[:len(task.Value)-1]},
		"another cell":              {Key: []byte("/v1/paris/task/x"), Value: task.Value},
		"no kind":                   {Key: []byte("/v1/berlin-1/other/x"), Value: task.Value},
		"key too short":             {Key: task.Key[:len(task.Key)-1], Value: task.Value},
		"the store's own":           {Key: keys.Meta("schema"), Value: task.Value},
		"unknown record of cell":    {Key: keys.CellRecord("other"), Value: put(scheduler.CellRecord{Epoch: 1}).Value},
		"instance out of range":     put(scheduler.TaskRecord{Job: job, Instance: workload.MaxInstances}),
		"run's instance":            put(scheduler.RunRecord{ID: workload.RunID{Job: job, Instance: workload.MaxInstances}}),
		"change's instance":         put(scheduler.ChangesRecord{Changes: []scheduler.Change{{Kind: scheduler.ChangeTask, Run: workload.RunID{Instance: workload.MaxInstances}}}}),
		"unknown run state":         put(scheduler.TaskRecord{Job: job, RunState: workload.RunState(workload.NumRunStates)}),
		"unknown instance state":    put(scheduler.TaskRecord{Job: job, State: workload.InstanceState(workload.NumInstanceStates)}),
		"admitted, a passing state": put(scheduler.TaskRecord{Job: job, State: workload.InstanceAdmitted}),
		"unknown reason":            put(scheduler.TaskRecord{Job: job, Reason: workload.Reason(workload.NumReasons)}),
		"live without a host":       put(scheduler.TaskRecord{Job: job, RunState: workload.RunRunning}),
		"job without a goal":        put(scheduler.JobRecord{ID: job}),
		"unknown goal":              put(scheduler.JobRecord{ID: job, Goal: scheduler.GoalDelete + 1}),
		"unknown job state":         put(scheduler.JobRecord{ID: job, Goal: scheduler.GoalRun, State: workload.JobStopped + 1}),
		"pool without a kind":       put(scheduler.PoolRecord{}),
		"change without a kind":     put(scheduler.ChangesRecord{Changes: make([]scheduler.Change, 1)}),
		"unknown kind of work":      spec(workload.JobSpec{Kind: workload.Daemon + 1}),
		"too many instances":        spec(workload.JobSpec{Instances: workload.MaxInstances + 1}),
		"negative needs":            spec(workload.JobSpec{Template: workload.TaskTemplate{Needs: needs}}),
		"absurd needs":              spec(workload.JobSpec{Template: workload.TaskTemplate{Needs: absurd}}),
		"override's needs":          spec(workload.JobSpec{Instances: 1, Overrides: []workload.Override{{Needs: (*resource.Vector)(&needs)}}}),
		"override of nobody":        spec(workload.JobSpec{Instances: 1, Overrides: []workload.Override{{Instance: 1}}}),
		"overrides out of order":    spec(workload.JobSpec{Instances: 3, Overrides: []workload.Override{{Instance: 2}, {Instance: 1}}}),
		"constraint's operator":     spec(workload.JobSpec{Placement: workload.Placement{Constraints: make([]workload.Constraint, 1)}}),
		"another caller's answer":   {Key: put(scheduler.IdempotencyRecord{}).Key, Value: answer.Value},
	} {
		_, err := c.Decode(op.Key, op.Value)
		switch {
		case err == nil:
			t.Errorf("%s: accepted", name)
		case !strings.Contains(err.Error(), "/v1/") || !strings.Contains(err.Error(), "restore the store from a backup"):
			t.Errorf("%s: the error names neither key nor cure: %v", name, err)
		case !errors.Is(err, store.ErrCorrupt):
			t.Errorf("%s: not known as damage: %v", name, err)
		}
	}
}
