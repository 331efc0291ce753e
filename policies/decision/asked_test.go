package decision_test

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"github.com/paceline-sched/paceline/core/preemption"
	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/respool"
	"github.com/paceline-sched/paceline/core/telemetry"
	"github.com/paceline-sched/paceline/core/workload"
	"github.com/paceline-sched/paceline/policies/decision"
)

// aQuestion is about two pools, or two candidates.
func aQuestion(at time.Time, pools bool) *decision.Question {
	q := &decision.Question{At: at.UnixNano(), Took: time.Millisecond, By: "drf@12"}
	if pools {
		cpu := func(n int64) resource.Vector { return resource.Vector{resource.CPU: n} }
		q.Snapshot = &respool.Snapshot{Kinds: []string{"cpu", "memory", "disk", "gpu"}, Rows: []respool.Row{
			{ID: workload.PoolID{1}, Parent: -1, Path: "/", Reservation: cpu(9000)},
			{ID: workload.PoolID{2}, Path: "/a", Reservation: cpu(1000), Ceiling: cpu(8000), Share: 3, Demand: cpu(7000), Usage: cpu(500)},
		}}
		q.Entitlements = []resource.Vector{cpu(9000), cpu(7000)}
		return q
	}
	for i := range byte(2) {
		q.Contenders = append(q.Contenders, preemption.Contender{
			Candidate: preemption.Candidate{Job: workload.JobID{i + 1}, Pool: workload.PoolID{2}, Priority: int32(i) - 1, Over: 5}, Revocable: i == 0, Gang: 3, Runs: 2,
			Use: resource.Vector{resource.GPU: 500}, Work: 77,
		})
	}
	q.Ranks = []int32{preemption.Unranked, 4}
	return q
}

func readQuestions(t *testing.T, dir string) (list []*decision.Question, headers []decision.Header) {
	t.Helper()
	if _, err := decision.Visit(decision.QuestionsDir(dir), decision.Range{}, func(e decision.Event) error {
		if e.Question != nil {
			list = append(list, e.Question)
		}
		if e.Header != nil {
			headers = append(headers, *e.Header)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return list, headers
}

// TestAsked: questions are read as they were written, one of a kind and policy a second, also by the next process; placement's part of the log knows nothing of them.
func TestAsked(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	began := time.Unix(1e9, 0)
	var want []*decision.Question
	for process := range 2 {
		log, err := decision.OpenLog(decision.Config{Dir: dir})
		if err != nil {
			t.Fatal(err)
		}
		asked, err := log.RecordAsked()
		if err != nil {
			t.Fatal(err)
		}
		for i := range 4 {
			at := began.Add(time.Duration(100*process+i) * time.Second)
			q, soon, other := aQuestion(at, i%2 == 0), aQuestion(at.Add(time.Second/2), i%2 == 0), aQuestion(at.Add(time.Second/2), i%2 == 0)
			other.By = "a policy that was just activated"
			asked.Record(q)
			asked.Record(soon) // too soon after it
			asked.Record(other)
			want = append(want, q, other)
		}
		asked.Close()
	}
	got, _ := readQuestions(t, dir)
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	if segments, err := decision.Segments(dir); err != nil || len(segments) != 0 {
		t.Errorf("%v, %v", segments, err)
	}
}

// TestAskedDrops: a writer that hangs delays nobody, and what it misses is counted in the log.
func TestAskedDrops(t *testing.T) {
	t.Parallel()
	dir, at := t.TempDir(), time.Unix(1e9, 0)
	hang, hangs := make(chan struct{}), make(chan struct{}, 1)
	told := teller{wrote: make(chan struct{}, 1)}
	c := newClock()
	log := openLog(t, c, decision.Config{Dir: dir, OnWrite: func(d telemetry.Decisions) {
		select {
		case hangs <- struct{}{}:
		default:
		}
		<-hang
		told.add(d)
	}})
	asked, err := log.RecordAsked()
	if err != nil {
		t.Fatal(err)
	}
	const all = 100
	asked.Record(aQuestion(at, true))
	<-hangs
	for i := range all - 1 {
		asked.Record(aQuestion(at.Add(time.Duration(i+1)*time.Second), true))
	}
	close(hang)
	asked.Close()
	got, headers := readQuestions(t, dir)
	dropped := uint64(0)
	for _, h := range headers {
		dropped += h.Dropped
	}
	if len(got) == 0 || len(got) == all || told.records.Load() != uint64(len(got)) || told.records.Load()+told.dropped.Load() != all || dropped != told.dropped.Load() {
		t.Errorf("%d read, %d written, %d dropped, %d of them in the log", len(got), told.records.Load(), told.dropped.Load(), dropped)
	}
}

type entitle func() ([]resource.Vector, error)

func (f entitle) Entitle(*respool.Snapshot) ([]resource.Vector, error) { return f() }

type rank func() ([]int32, error)

func (f rank) Rank([]preemption.Contender) ([]int32, error) { return f() }

// TestAskedPasses: who is recorded answers as before, failures too.
func TestAskedPasses(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	log, err := decision.OpenLog(decision.Config{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	asked, err := log.RecordAsked()
	if err != nil {
		t.Fatal(err)
	}
	pools, jobs := aQuestion(time.Now(), true), aQuestion(time.Now(), false)
	values, err := asked.Quota(entitle(func() ([]resource.Vector, error) { return pools.Entitlements, nil }), "drf@1").Entitle(pools.Snapshot)
	if err != nil || !reflect.DeepEqual(values, pools.Entitlements) {
		t.Errorf("%v, %v", values, err)
	}
	broken := errors.New("broken")
	if _, err := asked.Adviser(rank(func() ([]int32, error) { return nil, broken }), "cost@1").Rank(jobs.Contenders); !errors.Is(err, broken) {
		t.Error(err)
	}
	asked.Close()
	got, _ := readQuestions(t, dir)
	if len(got) != 2 || got[0].By != "drf@1" || !reflect.DeepEqual(got[0].Entitlements, pools.Entitlements) || got[1].Err != "broken" || len(got[1].Contenders) != 2 {
		t.Errorf("%+v", got)
	}
}

// FuzzQuestions: whatever a file says, reading ends, and what is read as a question is one that may be asked.
func FuzzQuestions(f *testing.F) {
	dir := f.TempDir()
	log, err := decision.OpenLog(decision.Config{Dir: dir})
	if err != nil {
		f.Fatal(err)
	}
	asked, err := log.RecordAsked()
	if err != nil {
		f.Fatal(err)
	}
	asked.Record(aQuestion(time.Now(), true))
	asked.Record(aQuestion(time.Now(), false))
	asked.Close()
	segments, err := decision.Segments(decision.QuestionsDir(dir))
	if err != nil || len(segments) != 1 {
		f.Fatal(segments, err)
	}
	whole, err := os.ReadFile(segments[0].Path)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(whole)
	f.Add(whole[:len(whole)/2])
	f.Fuzz(func(t *testing.T, b []byte) {
		seal(b)
		dir := t.TempDir()
		if err := os.Mkdir(filepath.Join(dir, "cell"), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "cell", "0.decisions"), b, 0o600); err != nil {
			t.Fatal(err)
		}
		_, _ = decision.Visit(dir, decision.Range{}, func(e decision.Event) error {
			if q := e.Question; q != nil && (q.Snapshot != nil) == (len(q.Contenders) > 0) || q != nil && len(q.Ranks) != len(q.Contenders) {
				t.Errorf("%+v", q)
			}
			return nil
		})
	})
}
