package sim

import (
	"slices"
	"time"

	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/scheduler"
	"github.com/paceline-sched/paceline/core/usage"
	"github.com/paceline-sched/paceline/core/workload"
)

// bill is what the durable run history says that an owner's ended runs held in a pool, worked out run by run.
type bill struct {
	seconds usage.Seconds
	runs    map[workload.RunID]bool
}

// billFor adds an ended run to its owner's bill.
func (j *judge) billFor(r *scheduler.RunRecord) {
	spec := j.w.users.spec(r.ID.Job)
	if spec == nil {
		return // launching has complained
	}
	key := usage.Key{Pool: spec.Pool, Owner: spec.Owner}
	b := j.bills[key]
	if b == nil {
		b = &bill{runs: map[workload.RunID]bool{}}
		j.bills[key] = b
	}
	if b.runs[r.ID] {
		j.w.fail(CheckRecords, "run %s ends for a second time in the history", r.ID)
	}
	b.runs[r.ID] = true
	needs := needsOf(spec, r.ID.Instance)
	b.seconds.Add(&needs, millis(r.Ended)-millis(r.Placed))
}

func millis(at int64) int64 { return at / int64(time.Millisecond) }

func needsOf(spec *workload.JobSpec, instance uint32) resource.Vector {
	at := slices.IndexFunc(spec.Overrides, func(o workload.Override) bool { return o.Instance == instance })
	if at >= 0 && spec.Overrides[at].Needs != nil {
		return *spec.Overrides[at].Needs
	}
	return spec.Template.Needs
}

// checkAccounts works every account out anew from the records of runs: those that ended, and of the live ones what the account has counted.
func (j *judge) checkAccounts() {
	want := map[usage.Key]usage.Seconds{}
	for key, b := range j.bills {
		want[key] = b.seconds
	}
	for _, job := range j.image.Jobs {
		if job.Spec == nil {
			continue
		}
		key := usage.Key{Pool: job.Spec.Pool, Owner: job.Spec.Owner}
		account, known := j.image.Accounts[key]
		if !known {
			continue
		}
		sum := want[key]
		for n := range job.Tasks {
			if t := &job.Tasks[n]; t.RunState.Live() {
				needs := needsOf(job.Spec, t.Instance)
				sum.Add(&needs, account.Since-millis(t.Placed))
			}
		}
		want[key] = sum
	}
	for key, sum := range want {
		if got := j.image.Accounts[key].Held; got != sum {
			j.w.fail(CheckRecords, "the account of %s in pool %s says %v; its runs held %v", key.Owner, key.Pool, got, sum)
		}
	}
	for key, account := range j.image.Accounts {
		if _, known := want[key]; !known && !account.Held.IsZero() {
			j.w.fail(CheckRecords, "the account of %s in pool %s says %v; it had no run", key.Owner, key.Pool, account.Held)
		}
	}
}
