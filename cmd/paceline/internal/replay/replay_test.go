package replay

import (
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"go.uber.org/goleak"

	"github.com/paceline-sched/paceline/core/host"
	"github.com/paceline-sched/paceline/core/placement"
	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/workload"
	"github.com/paceline-sched/paceline/policies/decision"
	"github.com/paceline-sched/paceline/policies/wasm"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// source is a shard's placers.
type placers struct{ placer placement.Placer }

func (p placers) Placer(string) (placement.Placer, bool) { return p.placer, true }

var guests = filepath.Join("..", "..", "..", "..", "policies", "wasm", "testdata", "guests")

// record has a policy place random work on a table of its own, as a shard would: calls are as large as the time allows, with seeds and clock.
func record(t *testing.T, dir, policy string, batches int) {
	t.Helper()
	version, err := load(t.Context(), policy, "place", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer version.Release()
	slot := &wasm.Slot{}
	slot.Swap(version)
	defer slot.Swap(nil)
	rng := rand.New(rand.NewPCG(11, 3))
	placer := wasm.NewPlacer(wasm.PlacerConfig{Slot: slot, Moment: func() (uint64, time.Time) { return rng.Uint64(), time.Now() }})
	defer placer.Close()
	log, err := decision.OpenLog(decision.Config{Dir: dir, SegmentBytes: 24 << 10, FlushEvery: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	recorder, err := log.Record("c/0", placers{placer})
	if err != nil {
		t.Fatal(err)
	}
	defer recorder.Close()
	churn(t, rng, recorder, batches)
}

type resident struct {
	row host.Row
	o   host.Occupant
}

// churn places batches and ends tasks.
func churn(t *testing.T, rng *rand.Rand, source placement.PlacerSource, batches int) {
	t.Helper()
	table := host.New(&resource.Names{}, 600)
	for i := range 600 {
		h := host.Host{
			ID: workload.HostID{0: byte(i), 1: byte(i >> 8), 15: 1}, Name: fmt.Sprint("h", i), Ready: true,
			Capacity: resource.Vector{resource.CPU: int64(16000 * (1 + i%3)), resource.Memory: 65536},
		}
		for range i % 5 {
			h.Devices = append(h.Devices, host.Device{Model: "a", Milli: 1000})
		}
		if _, err := table.Upsert(h); err != nil {
			t.Fatal(err)
		}
	}
	var live []resident
	for range batches {
		placer, _ := source.Placer("")
		var requests []placement.Request
		for range 1 + rng.IntN(4) {
			spec := &workload.JobSpec{Kind: workload.Batch}
			spec.Template.Needs = resource.Vector{resource.CPU: int64(500 * (1 + rng.IntN(12))), resource.Memory: 1024, resource.GPU: int64(250 * rng.IntN(5))}
			requests = append(requests, placement.Request{Class: placement.NewClass(workload.JobID{}, spec, nil), Count: 1 + rng.IntN(300), Gang: rng.IntN(5) == 0})
		}
		for i, r := range placer.Place(table, requests) {
			for _, a := range r.Assignments {
				live = append(live, resident{a.Row, requests[i].Class.Occupant(a.Devices, a.Ports)})
			}
		}
		rng.Shuffle(len(live), func(i, j int) { live[i], live[j] = live[j], live[i] })
		for range len(live) / 4 {
			last := live[len(live)-1]
			live = live[:len(live)-1]
			if err := table.Release(last.row, last.o); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// TestReplayOfPolicies: a policy in a sandbox, or one that looks at the mix of work, agrees with itself to the last bit when it gets what it got before, however the batches
// were cut into calls; another one does not.
func TestReplayOfPolicies(t *testing.T) {
	t.Parallel()
	for _, policy := range []string{filepath.Join(guests, "bestfit.wasm"), "fgd", "load-aware"} {
		t.Run(filepath.Base(policy), func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			record(t, dir, policy, 60)
			faults := map[string]*wasm.Fault{}
			same, free, err := contender(t.Context(), policy, nil, faults)
			if err != nil {
				t.Fatal(err)
			}
			defer free()
			report, err := decision.Replay(t.Context(), dir, decision.Options{
				Contenders: []decision.Contender{same, decision.Builtin("spread", workload.StrategySpread)}, Differences: 2,
			})
			if err != nil {
				t.Fatal(err)
			}
			if p := report.Policies[0]; p.Identical != 60 || report.Batches != 60 || report.Mismatches != 0 || p.Faults != 0 || p.Digest == "" {
				t.Errorf("%s differs from itself: %+v\n%+v", policy, report, p)
			}
			if p := report.Policies[1]; p.Identical > 10 || p.Elsewhere == 0 {
				t.Errorf("spread agrees with %s: %+v", policy, p)
			}
			if a, b := report.Recorded.Fuel, report.Policies[0].Figures.Fuel; a != b || (a == 0) == strings.HasSuffix(policy, ".wasm") {
				t.Errorf("it used %v fuel a batch, and %v when it was replayed", a, b)
			}
		})
	}
}

// TestCommands runs the verbs on a log.
func TestCommands(t *testing.T) {
	t.Parallel()
	data := t.TempDir()
	dir := filepath.Join(data, "decisions")
	record(t, dir, "fgd", 12)
	now := time.Now()
	for _, c := range []struct {
		args string
		want []string // parts of the output, or of the error after "!"
	}{
		{"replay --policy fgd --policy pack", []string{"12 batches", "identical batches", "FGD", "PACK", "fgd and pack agree on", "the first differences of pack", "h"}},
		{"replay --policy native --differences 0 -o json", []string{`"batches": 12`, `"identical_batches"`, `"fragmented_percent"`}},
		{"diff best-fit spread --differences 1", []string{"best-fit and spread agree on", "the first differences of spread"}},
		{"decisions --limit 3", []string{"SHARD", "c/0", "fgd@"}},
		{"decisions --policy nobody", []string{"TIME"}},
		{"decisions --pool / -o json", []string{"[]"}},
		{"decisions -o json --limit 1 --policy fgd", []string{`"sequence": 11`, `"by": "fgd"`, `"needs": "cpu_milli=`, `"table_revision"`}},
		{"replay", []string{"!name the policy"}},
		{"replay --policy nothing.wasm", []string{"!neither built in (native, best-fit"}},
		{"replay --policy " + filepath.Join(guests, "trio.wasm"), []string{"!is none of placement"}},
		{"replay --policy bands", []string{"!is none of placement"}},
		{"replay --policy native --since yesterday", []string{"!--since \"yesterday\" is neither"}},
		{"replay --policy native --shard d/0", []string{"!holds no batch"}},
		{"replay --policy native --until 2001-01-01T00:00:00Z", []string{"!holds no batch"}},
		{"replay --policy native --log " + filepath.Join(data, "nowhere"), []string{"!there is no log of decisions in"}},
		{"replay --policy native -o yaml", []string{"!-o yaml"}},
		{"decisions --limit 0", []string{"!--limit 0"}},
		{"diff native", []string{"!accepts 2 arg"}},
	} {
		var out, errs strings.Builder
		root := &cobra.Command{Use: "policy", SilenceUsage: true, SilenceErrors: true}
		root.PersistentFlags().StringP("output", "o", "table", "")
		root.AddCommand(NewCommands(data, func() time.Time { return now })...)
		root.SetArgs(strings.Fields(c.args))
		root.SetOut(&out)
		root.SetErr(&errs)
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
