package telemetry

import "time"

// Trace is a set of optional hooks. Hooks are called on the path of the work that they tell of: they return quickly and never
// block. A nil Trace has no hooks.
type Trace struct {
	// CallDone is called at the end of every API call, streams included.
	CallDone func(Call)
	// CallStarted is called at its beginning.
	CallStarted func(method string)
	// Panicked is called when a panic was contained.
	Panicked func(component string)
	// TokensLoaded is called when the token file was read again, or could not be.
	TokensLoaded func(err error)
	// StepDone is called after every step of a cell's decision core.
	StepDone func(Step)
	// CommitDone is called after every commit to the store.
	CommitDone func(Commit)
	// WatchersChanged is called with the number of open watches whenever it changes.
	WatchersChanged func(watchers int)
	// CellSeen is called from time to time with what the cell looks like.
	CellSeen func(Cell)
	// Admitted is called after every judgement of a job by rules, of shadow bundles too.
	Admitted func(Admission)
	// RulesLoaded is called with what is in force whenever it changes.
	RulesLoaded func(Rules)
	// PolicyCalled is called after every call of a policy that succeeded, PolicyFaulted after one that did not.
	PolicyCalled  func(PolicyCall)
	PolicyFaulted func(PolicyFault)
	// PolicyCompared is called when a policy's answer was compared with another's.
	PolicyCompared func(PolicyComparison)
	// PolicyMoved is called when a version of a policy came to another stage, PoliciesInForce with all that are in force then.
	PolicyMoved     func(PolicyMove)
	PoliciesInForce func([]PolicyInForce)
	// DecisionsRecorded is called with what was added to the log of decisions since it was called last. It may be called from several goroutines.
	DecisionsRecorded func(Decisions)
}

// Decisions are batches of placement on their way to the log of decisions.
type Decisions struct {
	Records uint64 // written
	Dropped uint64 // not recorded: the writer lagged or failed
	Bytes   uint64
}

// PolicyCall is one call of a policy.
type PolicyCall struct {
	Policy, Stage string
	Tasks, Placed int
	Duration      time.Duration
}

// PolicyFault is one call of a policy that failed, or a start.
type PolicyFault struct{ Policy, Fault string }

// PolicyComparison is how two answers to one batch differ.
type PolicyComparison struct {
	Policy, Stage    string
	Tasks, Elsewhere int
}

// PolicyMove is what became of a version of a policy.
type PolicyMove struct {
	Policy, Stage string
	Gate          bool // nobody asked for it
}

// PolicyInForce is a version of a policy that is in force.
type PolicyInForce struct{ Policy, Kind, Digest, Stage string }

// Admission is one judgement of a job.
type Admission struct {
	Outcome  string // allow, deny or fail; would-allow and so on when a shadow bundle judged
	Memo     bool   // nothing was evaluated
	Duration time.Duration
}

// Rules are the bundles of rules of a cell.
type Rules struct {
	Active, Shadow int
	Broken         int // of which the newest version cannot be used
}

// Call is one API call.
type Call struct {
	Method   string // for example paceline.v1.JobService/CreateJob
	Code     string // ok, or the name of the RPC code
	Duration time.Duration
	Stream   bool
}

// Step is one step of the decision core.
type Step struct {
	Events   int
	Groups   int
	Effects  int
	Duration time.Duration
}

// Commit is one commit to the store.
type Commit struct {
	Groups   int
	Duration time.Duration
	Err      error
}

// Cell is what a cell looks like at one moment.
type Cell struct {
	Revision                         uint64
	Jobs, Instances, Pending         int
	LiveRuns                         int
	Hosts, ReadyHosts, Shards, Ready int
	// Capacity and Used are by resource name, in the unit of the name's kind. A cell knows at most resource.MaxKinds of them.
	Capacity, Used map[string]int64
	// Waiting counts instances that wait, by top pool and reason.
	Waiting []Waiting
}

// Waiting is how many instances of a pool, and of all below it, wait for one reason.
type Waiting struct {
	Pool      string // empty: of all pools that have no entry of their own
	Reason    string
	Instances int64
}

// Join returns a Trace that calls the hooks of all given ones, in order.
func Join(traces ...*Trace) *Trace {
	joined := &Trace{}
	for _, t := range traces {
		if t == nil {
			continue
		}
		joined.CallDone = both(joined.CallDone, t.CallDone)
		joined.CallStarted = both(joined.CallStarted, t.CallStarted)
		joined.Panicked = both(joined.Panicked, t.Panicked)
		joined.TokensLoaded = both(joined.TokensLoaded, t.TokensLoaded)
		joined.StepDone = both(joined.StepDone, t.StepDone)
		joined.CommitDone = both(joined.CommitDone, t.CommitDone)
		joined.WatchersChanged = both(joined.WatchersChanged, t.WatchersChanged)
		joined.CellSeen = both(joined.CellSeen, t.CellSeen)
		joined.Admitted = both(joined.Admitted, t.Admitted)
		joined.RulesLoaded = both(joined.RulesLoaded, t.RulesLoaded)
		joined.PolicyCalled = both(joined.PolicyCalled, t.PolicyCalled)
		joined.PolicyFaulted = both(joined.PolicyFaulted, t.PolicyFaulted)
		joined.PolicyCompared = both(joined.PolicyCompared, t.PolicyCompared)
		joined.PolicyMoved = both(joined.PolicyMoved, t.PolicyMoved)
		joined.PoliciesInForce = both(joined.PoliciesInForce, t.PoliciesInForce)
		joined.DecisionsRecorded = both(joined.DecisionsRecorded, t.DecisionsRecorded)
	}
	return joined
}

func both[T any](first, second func(T)) func(T) {
	switch {
	case first == nil:
		return second
	case second == nil:
		return first
	}
	return func(v T) {
		first(v)
		second(v)
	}
}

// Complete returns a Trace whose every hook may be called: hooks that t lacks do nothing. t may be nil.
func (t *Trace) Complete() *Trace {
	return Join(t, &Trace{
		CallDone: func(Call) {}, CallStarted: func(string) {}, Panicked: func(string) {}, TokensLoaded: func(error) {}, StepDone: func(Step) {},
		CommitDone: func(Commit) {}, WatchersChanged: func(int) {}, CellSeen: func(Cell) {},
		Admitted: func(Admission) {}, RulesLoaded: func(Rules) {},
		PolicyCalled: func(PolicyCall) {}, PolicyFaulted: func(PolicyFault) {}, PolicyCompared: func(PolicyComparison) {},
		PolicyMoved: func(PolicyMove) {}, PoliciesInForce: func([]PolicyInForce) {}, DecisionsRecorded: func(Decisions) {},
	})
}
