package admission_test

import (
	"bytes"
	"cmp"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/paceline-sched/paceline/core/admission"
	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/workload"
)

// jobID spreads numbers over the whole id, as drawn ids are.
func jobID(n int) workload.JobID {
	x := uint64(n+1) * 0x9e3779b97f4a7c15
	var id workload.JobID
	for i := range id {
		id[i] = byte(x >> (8 * (i % 8)))
	}
	id[14], id[15] = byte(n>>8), byte(n)
	return id
}

// sorted is the naive queue.
func sorted(entries map[workload.JobID]admission.Entry) []admission.Entry {
	var list []admission.Entry
	for _, e := range entries {
		list = append(list, e)
	}
	slices.SortFunc(list, func(a, b admission.Entry) int {
		return cmp.Or(cmp.Compare(b.Priority, a.Priority), cmp.Compare(a.Sequence, b.Sequence), bytes.Compare(a.Job[:], b.Job[:]))
	})
	return list
}

func TestQueueAgreesWithList(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var q admission.Queue
		naive := map[workload.JobID]admission.Entry{}
		for range rapid.IntRange(0, 60).Draw(t, "operations") {
			job := jobID(rapid.IntRange(0, 20).Draw(t, "job"))
			if rapid.IntRange(0, 3).Draw(t, "verb") == 0 {
				_, known := naive[job]
				if q.Remove(job) != known {
					t.Fatalf("Remove said %v", !known)
				}
				delete(naive, job)
				continue
			}
			e := admission.Entry{
				Job: job, Count: rapid.IntRange(1, 3).Draw(t, "count"),
				Priority: rapid.Int32Range(-1, 1).Draw(t, "priority"), Sequence: rapid.Uint64Range(0, 9).Draw(t, "sequence"),
			}
			if err := q.Set(e); err != nil {
				t.Fatal(err)
			}
			naive[job] = e
		}
		want := sorted(naive)
		if got := slices.Collect(q.All()); !slices.Equal(got, want) || q.Len() != len(want) {
			t.Fatalf("%d entries in order %v, want %v", q.Len(), got, want)
		}
		for i, e := range want {
			ahead, ok := q.Ahead(e.Job)
			if got, _ := q.Get(e.Job); !ok || ahead != i || got != e {
				t.Fatalf("entry %d: %d ahead, %v, reads %+v", i, ahead, ok, got)
			}
		}
		for range q.All() {
			break
		}
	})
}

func TestUnknownJobs(t *testing.T) {
	var q admission.Queue
	_, got := q.Get(jobID(1))
	_, ahead := q.Ahead(jobID(1))
	_, explained := q.Explain(jobID(1), &admission.Room{})
	if got || ahead || explained || q.Remove(jobID(1)) {
		t.Error("an empty queue knows a job")
	}
}

func TestSetRefuses(t *testing.T) {
	tests := []struct {
		name  string
		entry admission.Entry
		want  string
	}{
		{"negative needs", admission.Entry{Count: 1, Needs: resource.Vector{0, -1}}, "must not be negative"},
		{"no tasks", admission.Entry{}, "0 waiting tasks"},
		{"too many tasks", admission.Entry{Count: workload.MaxInstances + 1}, "4194305 waiting tasks"},
		{"a negative gang", admission.Entry{Count: 1, Gang: -1}, "gang of -1"},
		{"a gang larger than its job", admission.Entry{Count: 3, Gang: 4}, "gang of 4"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var q admission.Queue
			if err := q.Set(tt.entry); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v, want one that says %q", err, tt.want)
			}
			if q.Len() != 0 {
				t.Error("refused, yet queued")
			}
		})
	}
}
