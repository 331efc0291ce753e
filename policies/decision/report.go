package decision

import (
	"slices"
	"time"
)

// Report is what a replay found.
type Report struct {
	From     time.Time `json:"from"` // the first and the last batch
	Until    time.Time `json:"until"`
	Shards   int       `json:"shards"`
	Segments int       `json:"segments"`
	Batches  int       `json:"batches"`
	Tasks    int       `json:"tasks"`  // asked for, each time
	Placed   int       `json:"placed"` // of them, as recorded
	// Outside counts room that was taken outside of batches: for pledges, which others have to leave first, and for runs that turned up.
	Outside int `json:"outside"`
	// Gaps are where something is missing, among it Dropped batches. Torn segments end in the middle of a record. Work of before a gap is not followed beyond it.
	Gaps    int    `json:"gaps"`
	Dropped uint64 `json:"dropped"`
	Torn    int    `json:"torn"`
	// Mismatches are tables of segments that are not what the segment before leads to. There are none, or the log is wrong.
	Mismatches int `json:"mismatches"`

	Recorded Figures      `json:"recorded"`
	Policies []Comparison `json:"policies"`
	// Pair is how the first two policies agree with each other.
	Pair *Agreement `json:"pair,omitempty"`
}

// Agreement is how two ways to place the same tasks agree.
type Agreement struct {
	Same       int `json:"same_host"`
	Elsewhere  int `json:"elsewhere"`
	OnlyFirst  int `json:"only_first"` // placed by the first alone
	OnlySecond int `json:"only_second"`
}

// Comparison is what became of the recorded work with another policy; First in its Agreement is what was recorded.
type Comparison struct {
	Name   string `json:"name"`
	Digest string `json:"digest,omitempty"`
	// Identical are batches that got the same answer to the last bit: hosts, devices, ports and reasons.
	Identical int `json:"identical_batches"`
	Agreement
	Waits Waits `json:"waits"`
	// Displaced are tasks that lost their host under this policy alone, because the host left the cluster.
	Displaced int `json:"displaced"`
	// Overfull is how often room that was taken outside of batches was not free on that host under this policy: others would have had to go.
	Overfull int `json:"overfull"`
	// Faults of the policy in the replay; what it left undone another one did.
	Faults      int          `json:"faults"`
	Figures     Figures      `json:"figures"`
	Differences []Difference `json:"differences,omitempty"`
}

// Waits is how much longer, or shorter, recorded tasks waited. The times are of the recorded tasks, also of those that did not wait.
type Waits struct {
	Tasks   int     `json:"tasks"` // that were placed later than recorded, or never
	Mean    float64 `json:"mean_seconds"`
	P99     float64 `json:"p99_seconds"`
	Never   int     `json:"never"` // waited until the recorded run had ended, or the recording
	Sooner  int     `json:"sooner"`
	SoonerS float64 `json:"sooner_mean_seconds"`
}

// Figures describe a cell over a replay.
type Figures struct {
	// Samples is how often the tables were looked at.
	Samples int `json:"samples"`
	// Fragmented is the GPU capacity that is free and of no use to a task drawn from the recorded ones, in percent of all, on average and at the end.
	Fragmented    float64 `json:"fragmented_percent"`
	FragmentedEnd float64 `json:"fragmented_end_percent"`
	GPUAllocated  float64 `json:"gpu_allocated_percent"`
	HostsUsed     float64 `json:"hosts_used"` // with a task, on average
	Hosts         float64 `json:"hosts"`
	BatchMean     float64 `json:"batch_mean_micros"`
	BatchP99      float64 `json:"batch_p99_micros"`
	Fuel          float64 `json:"fuel_per_batch"`
}

// Difference is one request that was answered otherwise.
type Difference struct {
	Shard    string    `json:"shard"`
	Sequence uint64    `json:"sequence"`
	Time     time.Time `json:"time"`
	Request  int       `json:"request"`
	Tasks    int       `json:"tasks"`
	Recorded []string  `json:"recorded_hosts"` // those that the other did not choose, some of them
	Other    []string  `json:"other_hosts"`
}

// gather collects what Figures are made of.
type gather struct {
	samples                   int
	lost, capacity, allocated float64
	lostEnd, capacityEnd      float64
	used, hosts               float64
	times                     []float64 // microseconds
	fuel                      float64
}

// maxTimes bounds the batches whose times are looked at: the first ones.
const maxTimes = 1 << 20

func (g *gather) batch(took time.Duration, fuel int64) {
	g.fuel += float64(fuel)
	if len(g.times) < maxTimes {
		g.times = append(g.times, float64(took)/1e3)
	}
}

func (g *gather) figures() Figures {
	f := Figures{Samples: g.samples, Fragmented: percent(g.lost, g.capacity), FragmentedEnd: percent(g.lostEnd, g.capacityEnd), GPUAllocated: percent(g.allocated, g.capacity)}
	if g.samples > 0 {
		f.HostsUsed, f.Hosts = g.used/float64(g.samples), g.hosts/float64(g.samples)
	}
	f.BatchMean, f.BatchP99 = meanAndP99(g.times, len(g.times))
	if len(g.times) > 0 {
		f.Fuel = g.fuel / float64(len(g.times))
	}
	return f
}

func percent(part, whole float64) float64 {
	if whole == 0 {
		return 0
	}
	return 100 * part / whole
}

// meanAndP99 is of n values, of which those that are not listed are 0.
func meanAndP99(values []float64, n int) (mean, p99 float64) {
	if n == 0 {
		return 0, 0
	}
	sum := 0.0
	for _, v := range values {
		sum += v
	}
	slices.Sort(values)
	if above := n - 1 - n*99/100; above < len(values) {
		p99 = values[len(values)-1-above]
	}
	return sum / float64(n), p99
}
