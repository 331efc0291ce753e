package telemetry

import (
	"net/http"
	"strconv"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Metrics are the Prometheus metrics of one process, in base units and with bounded labels: never a job, task or host.
type Metrics struct {
	registry *prometheus.Registry
	trace    Trace
}

// secondsBuckets reach from a memory look-up to a call that waited for its time-out.
var secondsBuckets = []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30}

// NewMetrics returns the metrics of a process that runs the given version. They move with the hooks of Trace.
func NewMetrics(version string) *Metrics {
	m := &Metrics{registry: prometheus.NewRegistry()}
	m.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	info := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "paceline_build_info", Help: "Always 1; the label tells what runs."}, []string{"version"})
	info.WithLabelValues(version).Set(1)
	m.registry.MustRegister(info)
	m.registerAPI()
	m.registerEngine()
	m.registerCell()
	m.registerRules()
	m.registerPolicies()
	m.registerDecisions()
	return m
}

// Trace returns the hooks that move the metrics.
func (m *Metrics) Trace() *Trace { return &m.trace }

// Register adds collectors of the process's other parts.
func (m *Metrics) Register(c ...prometheus.Collector) { m.registry.MustRegister(c...) }

// Handler answers scrapes.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{MaxRequestsInFlight: 4, EnableOpenMetrics: true})
}

func (m *Metrics) registerAPI() {
	calls := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "paceline_api_calls_total", Help: "API calls that ended, by method and code.",
	}, []string{"method", "code"})
	seconds := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "paceline_api_call_seconds", Help: "How long unary API calls took.", Buckets: secondsBuckets,
	}, []string{"method"})
	open := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "paceline_api_open_calls", Help: "API calls in progress, streams included.",
	}, []string{"method"})
	panics := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "paceline_panics_total", Help: "Panics that were contained. Every one is a defect.",
	}, []string{"component"})
	loads := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "paceline_token_loads_total", Help: "Readings of the token file, by result.",
	}, []string{"result"})
	m.registry.MustRegister(calls, seconds, open, panics, loads)
	m.trace.CallStarted = func(method string) { open.WithLabelValues(method).Inc() }
	m.trace.CallDone = func(c Call) {
		open.WithLabelValues(c.Method).Dec()
		calls.WithLabelValues(c.Method, c.Code).Inc()
		if !c.Stream {
			seconds.WithLabelValues(c.Method).Observe(c.Duration.Seconds())
		}
	}
	m.trace.Panicked = func(component string) { panics.WithLabelValues(component).Inc() }
	m.trace.TokensLoaded = func(err error) { loads.WithLabelValues(result(err)).Inc() }
}

func (m *Metrics) registerEngine() {
	steps := prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "paceline_step_seconds", Help: "How long steps of the decision core took.", Buckets: secondsBuckets,
	})
	events := prometheus.NewCounter(prometheus.CounterOpts{Name: "paceline_step_events_total", Help: "Events that the decision core took in."})
	effects := prometheus.NewCounter(prometheus.CounterOpts{Name: "paceline_step_effects_total", Help: "Effects that it asked for."})
	commits := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "paceline_commit_seconds", Help: "How long commits to the store took, by result.", Buckets: secondsBuckets,
	}, []string{"result"})
	groups := prometheus.NewCounter(prometheus.CounterOpts{Name: "paceline_committed_groups_total", Help: "Groups made durable."})
	watchers := prometheus.NewGauge(prometheus.GaugeOpts{Name: "paceline_watchers", Help: "Open watches."})
	m.registry.MustRegister(steps, events, effects, commits, groups, watchers)
	m.trace.StepDone = func(s Step) {
		steps.Observe(s.Duration.Seconds())
		events.Add(float64(s.Events))
		effects.Add(float64(s.Effects))
	}
	m.trace.CommitDone = func(c Commit) {
		commits.WithLabelValues(result(c.Err)).Observe(c.Duration.Seconds())
		if c.Err == nil {
			groups.Add(float64(c.Groups))
		}
	}
	m.trace.WatchersChanged = func(n int) { watchers.Set(float64(n)) }
}

func (m *Metrics) registerCell() {
	gauge := func(name, help string) prometheus.Gauge {
		g := prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
		m.registry.MustRegister(g)
		return g
	}
	revision := gauge("paceline_revision", "Sequence of the last durable group.")
	jobs := gauge("paceline_jobs", "Jobs that the cell knows.")
	instances := gauge("paceline_instances", "Instances of these jobs.")
	pending := gauge("paceline_pending_instances", "Instances that wait.")
	runs := gauge("paceline_live_runs", "Live runs.")
	hosts := gauge("paceline_hosts", "Hosts that the cell knows.")
	readyHosts := gauge("paceline_ready_hosts", "Hosts that take new work.")
	shards := gauge("paceline_shards", "Shards that the cell knows.")
	readyShards := gauge("paceline_ready_shards", "Shards that may be asked to place.")
	vector := func(name, help string) *prometheus.GaugeVec {
		g := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, []string{"resource"})
		m.registry.MustRegister(g)
		return g
	}
	capacity := vector("paceline_capacity", "What all hosts have, in the unit of the resource.")
	used := vector("paceline_used", "What live runs hold of it.")
	waiting := newWaitingGauge()
	m.registry.MustRegister(waiting)
	m.trace.CellSeen = func(c Cell) {
		revision.Set(float64(c.Revision))
		jobs.Set(float64(c.Jobs))
		instances.Set(float64(c.Instances))
		pending.Set(float64(c.Pending))
		runs.Set(float64(c.LiveRuns))
		hosts.Set(float64(c.Hosts))
		readyHosts.Set(float64(c.ReadyHosts))
		shards.Set(float64(c.Shards))
		readyShards.Set(float64(c.Ready))
		for name, q := range c.Capacity {
			capacity.WithLabelValues(name).Set(float64(q))
		}
		for name, q := range c.Used {
			used.WithLabelValues(name).Set(float64(q))
		}
		waiting.seen.Store(&c.Waiting)
	}
}

// waitingGauge shows the last count as a whole, so that pools which are gone leave nothing behind.
type waitingGauge struct {
	desc *prometheus.Desc
	seen atomic.Pointer[[]Waiting]
}

func newWaitingGauge() *waitingGauge {
	return &waitingGauge{desc: prometheus.NewDesc("paceline_waiting_instances",
		"Instances that are pending, admitted or backing off, by top pool and by the first reason that holds them up.", []string{"pool", "reason"}, nil)}
}

// Describe implements prometheus.Collector.
func (g *waitingGauge) Describe(to chan<- *prometheus.Desc) { to <- g.desc }

// Collect implements prometheus.Collector.
func (g *waitingGauge) Collect(to chan<- prometheus.Metric) {
	seen := g.seen.Load()
	if seen == nil {
		return
	}
	for _, w := range *seen {
		pool := w.Pool
		if pool == "" {
			pool = "others"
		}
		to <- prometheus.MustNewConstMetric(g.desc, prometheus.GaugeValue, float64(w.Instances), pool, w.Reason)
	}
}

func (m *Metrics) registerRules() {
	judged := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "paceline_admission_decisions_total", Help: "Judgements of jobs by admission rules, by outcome; would-... is what shadow bundles say.",
	}, []string{"outcome"})
	remembered := prometheus.NewCounter(prometheus.CounterOpts{
		Name: "paceline_admission_memo_hits_total", Help: "Judgements for which nothing was evaluated.",
	})
	seconds := prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "paceline_admission_seconds", Help: "How long judgements took.", Buckets: secondsBuckets,
	})
	bundles := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "paceline_admission_bundles", Help: "Bundles of admission rules, by state; broken ones are among the others when a former version stays in force.",
	}, []string{"state"})
	m.registry.MustRegister(judged, remembered, seconds, bundles)
	m.trace.Admitted = func(a Admission) {
		judged.WithLabelValues(a.Outcome).Inc()
		seconds.Observe(a.Duration.Seconds())
		if a.Memo {
			remembered.Inc()
		}
	}
	m.trace.RulesLoaded = func(r Rules) {
		bundles.WithLabelValues("active").Set(float64(r.Active))
		bundles.WithLabelValues("shadow").Set(float64(r.Shadow))
		bundles.WithLabelValues("broken").Set(float64(r.Broken))
	}
}

func (m *Metrics) registerPolicies() {
	calls := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "paceline_policy_calls_total", Help: "Calls of policies that succeeded, by policy and stage.",
	}, []string{"policy", "stage"})
	placed := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "paceline_policy_tasks_total", Help: "Tasks that policies found a host for; those of stage shadow were placed by another one.",
	}, []string{"policy", "stage"})
	seconds := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "paceline_policy_call_seconds", Help: "How long calls of policies took.", Buckets: secondsBuckets,
	}, []string{"policy"})
	faults := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "paceline_policy_faults_total", Help: "Calls and starts of policies that failed, by kind; the built-in policy served instead.",
	}, []string{"policy", "fault"})
	compared := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "paceline_policy_compared_tasks_total", Help: "Tasks for which a second policy was asked on the same table, by whether it agreed.",
	}, []string{"policy", "stage", "agrees"})
	moves := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "paceline_policy_moves_total", Help: "Versions of policies that came to a stage, and whether a gate brought them there.",
	}, []string{"policy", "stage", "gate"})
	force := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "paceline_policy_in_force", Help: "1 for each version of a policy that is in force.",
	}, []string{"policy", "kind", "digest", "stage"})
	m.registry.MustRegister(calls, placed, seconds, faults, compared, moves, force)
	m.trace.PolicyCalled = func(c PolicyCall) {
		calls.WithLabelValues(c.Policy, c.Stage).Inc()
		placed.WithLabelValues(c.Policy, c.Stage).Add(float64(c.Placed))
		seconds.WithLabelValues(c.Policy).Observe(c.Duration.Seconds())
	}
	m.trace.PolicyFaulted = func(f PolicyFault) { faults.WithLabelValues(f.Policy, f.Fault).Inc() }
	m.trace.PolicyCompared = func(c PolicyComparison) {
		compared.WithLabelValues(c.Policy, c.Stage, "yes").Add(float64(c.Tasks - c.Elsewhere))
		compared.WithLabelValues(c.Policy, c.Stage, "no").Add(float64(c.Elsewhere))
	}
	m.trace.PolicyMoved = func(p PolicyMove) {
		moves.WithLabelValues(p.Policy, p.Stage, strconv.FormatBool(p.Gate)).Inc()
	}
	m.trace.PoliciesInForce = func(list []PolicyInForce) {
		force.Reset()
		for _, p := range list {
			force.WithLabelValues(p.Policy, p.Kind, p.Digest, p.Stage).Set(1)
		}
	}
}

func (m *Metrics) registerDecisions() {
	counter := func(name, help string) prometheus.Counter {
		c := prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
		m.registry.MustRegister(c)
		return c
	}
	recorded := counter("paceline_decisions_recorded_total", "Batches of placement written to the log of decisions.")
	dropped := counter("paceline_decisions_dropped_total", "Batches that are missing in it: its writer lagged or failed.")
	bytes := counter("paceline_decision_log_bytes_total", "Bytes written to it.")
	m.trace.DecisionsRecorded = func(d Decisions) {
		recorded.Add(float64(d.Records))
		dropped.Add(float64(d.Dropped))
		bytes.Add(float64(d.Bytes))
	}
}

func result(err error) string {
	if err != nil {
		return "error"
	}
	return "ok"
}
