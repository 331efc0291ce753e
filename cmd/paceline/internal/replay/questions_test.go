package replay

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/paceline-sched/paceline/core/preemption"
	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/respool"
	"github.com/paceline-sched/paceline/core/workload"
	"github.com/paceline-sched/paceline/policies/decision"
)

// recordQuestions records three questions about two pools that want more than there is, and three about two jobs of which the first has done the most work.
func recordQuestions(t *testing.T, dir string, now time.Time) {
	t.Helper()
	log, err := decision.OpenLog(decision.Config{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	asked, err := log.RecordAsked()
	if err != nil {
		t.Fatal(err)
	}
	cpu := func(n int64) resource.Vector { return resource.Vector{resource.CPU: n} }
	snapshot := &respool.Snapshot{Kinds: []string{"cpu", "memory", "disk", "gpu"}, Rows: []respool.Row{
		{ID: workload.PoolID{1}, Parent: -1, Path: "/", Reservation: cpu(9000), Ceiling: cpu(9000), Demand: cpu(14000)},
		{ID: workload.PoolID{2}, Path: "/a", Reservation: cpu(1000), Ceiling: cpu(9000), Share: 1, Demand: cpu(7000)},
		{ID: workload.PoolID{3}, Path: "/b", Reservation: cpu(1000), Ceiling: cpu(9000), Share: 1, Demand: cpu(7000)},
	}}
	contenders := []preemption.Contender{
		{Candidate: preemption.Candidate{Job: workload.JobID{1}, Pool: workload.PoolID{2}}, Runs: 1, Use: cpu(1000), Work: int64(time.Hour)},
		{Candidate: preemption.Candidate{Job: workload.JobID{2}, Pool: workload.PoolID{2}}, Runs: 1, Use: cpu(1000), Work: int64(time.Minute)},
	}
	for i := range 3 {
		at := now.Add(time.Duration(i-10) * time.Second).UnixNano()
		asked.Record(&decision.Question{At: at, By: "bands@12", Snapshot: snapshot, Entitlements: []resource.Vector{cpu(9000), cpu(7000), cpu(2000)}})
		asked.Record(&decision.Question{At: at, By: "by-overage", Contenders: contenders, Ranks: []int32{0, 1}})
	}
	asked.Close()
}

// TestQuestions runs the verbs on what policies of quota and preemption were asked.
func TestQuestions(t *testing.T) {
	t.Parallel()
	now, data := time.Now(), t.TempDir()
	recordQuestions(t, filepath.Join(data, "decisions"), now)
	first, second := workload.JobID{1}.String(), workload.JobID{2}.String()
	for _, c := range []struct {
		args string
		want []string // parts of the output, or of the error after "!"
	}{
		{"decisions --kind quota", []string{"bands@12", "3 pools"}},
		{"decisions --kind quota --policy bands -o json --limit 1", []string{`"path": "/a"`, `"entitlement": "cpu=7000"`}},
		{"decisions --kind quota --policy nobody -o json", []string{"[]"}},
		{"decisions --kind preempt", []string{"by-overage", "2 candidates", first}},
		{"replay --kind quota --policy max-min", []string{"max-min: 3 questions, 0 answered as recorded, 0 faults", "/a    cpu       7000.0    4500.0  0     3     3", "/b    cpu       2000.0    4500.0  3     0     3"}},
		{"replay --kind quota --policy max-min --since 8500ms -o json", []string{`"questions": 1`, `"recorded_mean": 7000`}},
		{"diff --kind preempt least-work-lost gang-cost", []string{"least-work-lost: 3 questions, 0 answered as recorded", "of 3 pairs of candidates 3 are in the other order; another goes first in 3 questions", second, "gang-cost: 3 questions"}},
		{"replay --kind preempt --policy max-min", []string{"!policy max-min is none of preempt"}},
		{"replay --kind quota --policy max-min --until 2001-01-01T00:00:00Z", []string{"!no question to a policy of quota is recorded"}},
		{"decisions --kind quota --policy 1 -o json --limit 1", []string{`"by": "bands@12"`}},
		{"decisions --kind quota --policy sha256:1234 -o json --limit 1", []string{`"by": "bands@12"`}},
		{"decisions --kind quota --pool /a", []string{"!--pool chooses among batches of placement: leave it out with --kind quota"}},
		{"diff --kind preempt --only pack least-work-lost gang-cost", []string{"!--only chooses among batches"}},
		{"replay --kind preempt", []string{"!one that is built in: gang-cost, least-work-lost"}},
		{"replay --kind quota --policy nothing.wasm", []string{"!neither built in (bands, drf, max-min, static) nor a file"}},
		{"replay --kind route --policy max-min", []string{"!none of place, quota, preempt"}},
	} {
		var out strings.Builder
		root := &cobra.Command{Use: "policy", SilenceUsage: true, SilenceErrors: true}
		root.PersistentFlags().StringP("output", "o", "table", "")
		root.AddCommand(NewCommands(data, func() time.Time { return now })...)
		root.SetArgs(strings.Fields(c.args))
		root.SetOut(&out)
		root.SetErr(&out)
		err := root.ExecuteContext(t.Context())
		for _, part := range c.want {
			failure, fails := strings.CutPrefix(part, "!")
			switch {
			case fails != (err != nil):
				t.Errorf("%s: %v\n%s", c.args, err, out.String())
			case fails && !strings.Contains(err.Error(), failure):
				t.Errorf("%s: %v; that does not say %q", c.args, err, failure)
			case !fails && !strings.Contains(out.String(), part):
				t.Errorf("%s: no %q in\n%s", c.args, part, out.String())
			}
		}
	}
}
