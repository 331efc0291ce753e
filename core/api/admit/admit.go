// Package admit is the seam between the API edge and whatever judges jobs before they are accepted.
//
// It owns the words of that exchange: what a judge is told of a job, and what it may answer. It judges nothing itself. Everything here is a
// value that its receiver must not change.
package admit

import (
	"context"
	"time"

	"github.com/paceline-sched/paceline/core/api/auth"
	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/scheduler"
	"github.com/paceline-sched/paceline/core/workload"
	pacelinev1 "github.com/paceline-sched/paceline/sdk/gen/paceline/v1"
)

// Operation is what is about to be done with a job.
type Operation string

// The operations.
const (
	Create Operation = "create"
	Plan   Operation = "plan"
)

// Request is one job that is to be judged, with what stands around it.
type Request struct {
	Operation Operation
	Spec      *pacelinev1.JobSpec // as its user wrote it
	Job       *workload.JobSpec   // the same with every default filled in
	Pool      scheduler.PoolView
	Principal *auth.Principal
	Cell      string
	Names     *resource.Names
	State     *scheduler.CellView // of the cell's clusters; nil unless Judge.WantsState says so
	Now       int64               // UTC nanoseconds
}

// Verdict is what became of a Request.
type Verdict struct {
	// Denials are why the job is refused; empty: it is not.
	Denials []Message
	// Failure is set when the job is refused because it could not be judged.
	Failure *Failure
	// Warnings are for the user; the job is accepted.
	Warnings []Message
	// Spec is the job as the rules changed it; nil: they did not.
	Spec    *pacelinev1.JobSpec
	Changes []Change
}

// Message is what one bundle of rules has to say.
type Message struct{ Bundle, Text string }

// Failure says which bundle could not judge, and why.
type Failure struct {
	Bundle  string
	Reason  string
	Hint    string
	Passing bool // it may go away by itself, so that trying again makes sense
}

// Change is one field that a bundle changed. Values are JSON; empty is absent.
type Change struct{ Bundle, Field, Before, After string }

// Bundle is one version of a bundle of rules that is to be in force.
type Bundle struct {
	Name    string
	Digest  [32]byte
	Shadow  bool // it is evaluated and reported, and decides nothing
	Archive []byte
}

// Info is what can be said of a bundle's archive before it is in force.
type Info struct {
	Revision string   // as its manifest says
	FailOpen bool     // jobs pass when it cannot judge
	Rules    []string // of deny, warn and mutate: those that it has
	SignedBy string   // id of the key; empty: it carries no signature
	Inputs   []string // the parts of the input that it looks at
	Modules  int
}

// Status is how a bundle in force fares.
type Status struct {
	Name      string
	Source    string // store, or the path that it was read from
	Digest    [32]byte
	Shadow    bool
	Info      Info
	Since     time.Time // in force
	Error     string    // why it, or the newest version of its path, cannot be used; empty: it can
	Evaluated uint64    // of the memo's answers, too
	Denied    uint64
	Warned    uint64
	Mutated   uint64
	Failed    uint64
}

// Decision is one judgement, as it is kept for those who look into it.
type Decision struct {
	At        time.Time
	Operation Operation
	Principal string
	Pool      string
	Job       string
	Outcome   string // allow, deny, fail; of a shadow bundle: would-allow, would-deny, would-fail
	Shadow    string // the bundle that was only watched; empty: this decided
	Messages  []Message
	Warnings  []Message
	Changes   []Change
	Memo      bool // nothing was evaluated for it
	Took      time.Duration
	Input     string // the job as the rules saw it, as JSON, cut short and with the values of its environment masked
}

// Judge judges jobs by rules. All of it may be called concurrently.
type Judge interface {
	// Judge says what is to become of a job. An error says that ctx ended before it was judged.
	Judge(ctx context.Context, r *Request) (*Verdict, error)
	// WantsState reports whether any rule looks at the cell's clusters.
	WantsState() bool
	// Inspect reads an archive and changes nothing.
	Inspect(archive []byte) (Info, error)
	// Load puts exactly these stored bundles in force under a revision, unless a later one is. One that cannot be used keeps its place and
	// refuses every job, and the error says so.
	Load(revision uint64, bundles []Bundle) error
	// Report tells the revision in force, how the bundles fare, and the newest decisions, newest first.
	Report(decisions int) (uint64, []Status, []Decision)
}
