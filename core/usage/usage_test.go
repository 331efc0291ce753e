package usage_test

import (
	"math"
	"math/big"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/usage"
	"github.com/paceline-sched/paceline/core/workload"
)

// exact is what Seconds should be, in thousandths.
func exact(s usage.Seconds, k resource.Kind) *big.Int {
	whole := new(big.Int).Mul(big.NewInt(s.Whole[k]), big.NewInt(1000))
	return whole.Add(whole, big.NewInt(int64(s.Milli[k])))
}

func TestSecondsAreExact(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var s, part usage.Seconds
		sum, partSum := new(big.Int), new(big.Int)
		limit := new(big.Int).Mul(big.NewInt(math.MaxInt64), big.NewInt(1000))
		for range rapid.IntRange(1, 8).Draw(t, "adds") {
			units := resource.Vector{rapid.Int64Range(0, resource.MaxQuantity).Draw(t, "units")}
			ms := rapid.Int64Range(0, 1<<45).Draw(t, "ms")
			s.Add(&units, ms)
			product := new(big.Int).Mul(big.NewInt(units[0]), big.NewInt(ms))
			sum.Add(sum, product)
			if rapid.Bool().Draw(t, "also") {
				part.Add(&units, ms)
				partSum.Add(partSum, product)
			}
		}
		if sum.Cmp(limit) >= 0 {
			if s.Whole[0] != math.MaxInt64 {
				t.Fatalf("%v does not saturate at %v", s, sum)
			}
			return
		}
		if exact(s, 0).Cmp(sum) != 0 || s.Milli[0] >= 1000 {
			t.Fatalf("%v, not %v", s, sum)
		}
		rest := s.Minus(part)
		if exact(rest, 0).Cmp(new(big.Int).Sub(sum, partSum)) != 0 || rest.Plus(part) != s {
			t.Fatalf("%v - %v is %v", s, part, rest)
		}
	})
}

type run struct {
	key          usage.Key
	needs        resource.Vector
	began, ended int64 // ended 0: lives
}

// TestAccountsAreTheSumOfRuns drives a ledger through runs, readings and restarts at random and works the accounts out anew from the runs.
func TestAccountsAreTheSumOfRuns(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ledger, now := usage.NewLedger(), int64(1_790_000_000_123_456_789)
		var runs []run
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			before := now
			now += rapid.Int64Range(0, int64(2*time.Minute)).Draw(t, "pause")
			if reading := now - now%int64(usage.Period); reading > before && rapid.Bool().Draw(t, "reads") {
				ledger.Roll(reading)
			}
			switch rapid.IntRange(0, 2).Draw(t, "what") {
			case 0:
				r := run{key: key(rapid.IntRange(0, 2).Draw(t, "owner")), needs: resource.Vector{3: rapid.Int64Range(0, 9).Draw(t, "gpu"), 0: 7}, began: now}
				m, _ := ledger.Open(r.key, now)
				m.Begin(&r.needs, now)
				runs = append(runs, r)
			case 1:
				for n := range runs {
					if r := &runs[n]; r.ended == 0 && rapid.Bool().Draw(t, "ends") {
						m, _ := ledger.Open(r.key, now)
						m.End(&r.needs, r.began)
						m.Settle(&r.needs, r.began, now)
						r.ended = now
					}
				}
			case 2:
				ledger = restarted(ledger, runs)
			}
			check(t, ledger, runs, now)
		}
	})
}

func key(owner int) usage.Key {
	return usage.Key{Pool: workload.PoolID{15: byte(owner % 2)}, Owner: string(rune('a' + owner))}
}

// restarted is the ledger that a core finds that knows the accounts and the live runs.
func restarted(ledger *usage.Ledger, runs []run) *usage.Ledger {
	next := usage.NewLedger()
	for _, m := range ledger.All() {
		next.Restore(m.Account())
	}
	for n := range runs {
		if r := &runs[n]; r.ended == 0 {
			m, _ := next.Open(r.key, 0)
			m.Begin(&r.needs, r.began)
		}
	}
	return next
}

func check(t *rapid.T, ledger *usage.Ledger, runs []run, now int64) {
	want := map[usage.Key]usage.Seconds{}
	for _, r := range runs {
		end := r.ended
		if end == 0 {
			end = now
		}
		sum := want[r.key]
		sum.Add(&r.needs, usage.Milliseconds(end)-usage.Milliseconds(r.began))
		want[r.key] = sum
	}
	for k, sum := range want {
		if m, created := ledger.Open(k, now); created || m.Total(now) != sum {
			t.Fatalf("%v: the account says %v, its runs %v", k, m.Total(now), sum)
		}
	}
}

func TestOwnersAreBounded(t *testing.T) {
	ledger := usage.NewLedger()
	for n := range usage.MaxOwners + 3 {
		ledger.Open(usage.Key{Owner: "owner" + string(rune(0x100+n))}, 0)
	}
	all := ledger.All()
	if len(all) != usage.MaxOwners+1 || all[0].Account().Owner != usage.Others {
		t.Fatalf("%d accounts, the first of %s", len(all), all[0].Account().Owner)
	}
	ledger.Close(all[1].Account().Key)
	if len(ledger.All()) != usage.MaxOwners {
		t.Error("a closed account is still there")
	}
}

// TestReportOverMoves: a pool counts where it was, owners and sums fit together, and spans are cut at readings.
func TestReportOverMoves(t *testing.T) {
	minute := int64(time.Minute)
	start := 100 * int64(time.Hour)
	pool, inner := workload.PoolID{15: 1}, workload.PoolID{15: 2}
	var samples []usage.Sample
	for n := range int64(31) {
		path := "/a/x"
		if n > 20 {
			path = "/b/x"
		}
		s := usage.Sample{
			At: start + n*minute, Pool: pool, Path: path, Leaf: true, First: start - int64(time.Hour), Held: resource.Vector{100 + 60*n},
			Entitled: resource.Vector{120 * n}, Demanded: resource.Vector{90 * n}, Deficit: resource.Vector{30 * n},
		}
		if n%10 == 0 {
			s.Owners = []usage.OwnerReading{{Owner: "ada", Held: resource.Vector{100 + 40*n}}, {Owner: "bob", Held: resource.Vector{20 * n}}}
		}
		samples = append(samples, s, usage.Sample{At: s.At, Pool: inner, Path: "/a", First: s.First, Entitled: resource.Vector{1000 * n}})
	}
	report := func(q usage.Query) usage.Report {
		return usage.Compute(q, func(yield func(*usage.Sample) bool) {
			for n := range samples {
				if samples[n].At >= q.From() && !yield(&samples[n]) {
					return
				}
			}
		})
	}
	r := report(usage.Query{Since: start + 10*minute, Until: start + 30*minute, Root: "/", Step: 10 * time.Minute})
	want := map[string]int64{"/": 20 * 60, "/a": 10 * 60, "/a/x": 10 * 60, "/b": 10 * 60, "/b/x": 10 * 60}
	if len(r.Rows) != len(want) {
		t.Errorf("%d rows: %+v", len(r.Rows), r.Rows)
	}
	for _, row := range r.Rows {
		if row.Held[0] != want[row.Path] {
			t.Errorf("%s held %d, not %d", row.Path, row.Held[0], want[row.Path])
		}
	}
	owners := map[string]int64{}
	for _, o := range r.Owners {
		owners[o.Path+" "+o.Owner] = o.Held[0]
	}
	if owners["/a/x ada"] != 400 || owners["/a/x bob"] != 200 || owners["/b/x ada"] != 400 {
		t.Errorf("owners %v", owners)
	}
	if len(r.Points) != 7 || r.Points[0].At != start+20*minute || r.Points[0].Path != "/" || r.Points[0].Held[0] != 600 {
		t.Errorf("points %+v", r.Points)
	}
	if r = report(usage.Query{Since: start, Until: start + 30*minute, Root: "/a"}); len(r.Rows) != 2 || r.Points != nil {
		t.Errorf("below /a: %+v", r.Rows)
	}
	if x := r.Rows[1]; x.Deficit[0] != 600 || x.Entitled[0] != 2400 || !x.Leaf {
		t.Errorf("/a/x: %+v", x)
	}
	if j := usage.JainIndex(r.Rows, resource.CPU); j != 1 {
		t.Errorf("one pool is fair to itself: %v", j)
	}
}

// TestJain holds the index to figures worked out by hand: two pools, of which one got all that it was due and the other half.
func TestJain(t *testing.T) {
	row := func(deficit int64) usage.Row {
		return usage.Row{Leaf: true, Amounts: usage.Amounts{
			Entitled: resource.Vector{100}, Demanded: resource.Vector{200}, Deficit: resource.Vector{deficit},
		}}
	}
	if got := usage.JainIndex([]usage.Row{row(0), row(50)}, resource.CPU); math.Abs(got-0.9) > 1e-9 { // 1.5^2 / (2 * 1.25)
		t.Errorf("got %v", got)
	}
	if got := usage.JainIndex([]usage.Row{row(0), row(100)}, resource.CPU); math.Abs(got-0.5) > 1e-9 {
		t.Errorf("got %v", got)
	}
	if got := usage.JainIndex(nil, resource.CPU); got != 1 {
		t.Errorf("got %v", got)
	}
}

// TestEveryReadingHasOneLevel: of all readings of a day each goes with exactly one level.
func TestEveryReadingHasOneLevel(t *testing.T) {
	for at := int64(0); at < int64(24*time.Hour); at += int64(usage.Period) {
		levels := 0
		for _, l := range usage.Levels {
			if l.IsDue(at) {
				levels++
			}
		}
		if levels != 1 {
			t.Fatalf("the reading at %v belongs to %d levels", time.Duration(at), levels)
		}
	}
}
