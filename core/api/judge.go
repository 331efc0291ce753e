package api

import (
	"context"
	"crypto/sha256"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"github.com/paceline-sched/paceline/core/api/admit"
	"github.com/paceline-sched/paceline/core/api/spec"
	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/scheduler"
	"github.com/paceline-sched/paceline/core/telemetry"
	"github.com/paceline-sched/paceline/core/workload"
	pacelinev1 "github.com/paceline-sched/paceline/sdk/gen/paceline/v1"
)

// bench is the judge with what it has been told to judge by.
type bench struct {
	judge  admit.Judge // nil: nothing is judged
	log    *slog.Logger
	loaded atomic.Uint64 // edits that the bundles in force include, plus one; 0: nothing was loaded yet
	mu     sync.Mutex    // held by whoever loads
}

// bring puts the bundles of the cell in force, as they are after so many edits at least. Only what is durable comes in force.
func (c *cell) bring(ctx context.Context, edits uint64) error {
	b := &c.bench
	if b.judge == nil || b.loaded.Load() > edits {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.loaded.Load() > edits {
		return nil
	}
	var seen uint64
	var records []scheduler.RulesRecord
	if err := c.engine.Read(ctx, func(r scheduler.Reader) { seen, records = r.Rules() }); err != nil {
		return err
	}
	var bundles []admit.Bundle
	for i := range records {
		r := &records[i]
		for _, use := range []admit.Bundle{{Name: r.Name, Digest: r.Active}, {Name: r.Name, Digest: r.Shadow, Shadow: true}} {
			if use.Digest == ([32]byte{}) {
				continue
			}
			var err error
			if use.Archive, err = c.engine.Archive(use.Digest); err != nil {
				return err
			}
			bundles = append(bundles, use)
		}
	}
	if err := b.judge.Load(seen+1, bundles); err != nil {
		b.log.Error("a bundle of rules in the store cannot be used; jobs are refused until another version or none is in its place", slog.Any(telemetry.KeyError, err))
	}
	b.loaded.Store(seen + 1)
	return nil
}

// judgement is a job as it is to be submitted or planned.
type judgement struct {
	spec     *pacelinev1.JobSpec // as rules changed it
	job      *workload.JobSpec
	asked    [32]byte
	denied   *scheduler.Error // it goes with the command: what is there already is no matter of rules
	refusal  *fault           // what the caller is told when denied comes back
	warnings []string
	changes  []*pacelinev1.RuleChange
}

// outcome gives a caller who is denied all that the rules say.
func (j *judgement) outcome(err error) error {
	if j.denied != nil && err == error(j.denied) { //nolint:errorlint // the very error that went in
		return j.refusal
	}
	return err
}

// surroundings are what a job is judged in.
type surroundings struct {
	pool  scheduler.PoolView
	found bool
	names *resource.Names
	edits uint64
	state *scheduler.CellView
}

func (s *surroundings) look(r scheduler.Reader, path string, wantState bool) {
	s.pool, s.found = r.Pool(path)
	s.names = r.Names()
	s.edits, _ = r.Rules()
	if wantState {
		state := r.Cell()
		s.state = &state
	}
}

// consider asks for permission in a spec's pool, turns the spec into the scheduler's form, and has it judged. All of that happens on the
// caller's goroutine: what rules cost is no burden to the cell.
func (s *jobService) consider(ctx context.Context, operation admit.Operation, in *pacelinev1.JobSpec) (*judgement, error) {
	out, err := s.judge(ctx, operation, in)
	if err != nil || out.denied != nil {
		return out, err
	}
	if out.refusal = s.cell.checkPolicy("spec.placement.strategy", string(out.job.Placement.Strategy)); out.refusal != nil {
		out.denied = &scheduler.Error{Kind: scheduler.InvalidArgument, Field: out.refusal.field, Message: out.refusal.message}
	}
	return out, nil
}

func (s *jobService) judge(ctx context.Context, operation admit.Operation, in *pacelinev1.JobSpec) (*judgement, error) {
	around, job, err := s.read(ctx, in)
	if err != nil {
		return nil, err
	}
	out := &judgement{spec: in, job: job}
	principal := accessOf(ctx).principal
	if out.asked, err = askedFor(in, principal.Name); err != nil || s.cell.bench.judge == nil {
		return out, err
	}
	if err := s.cell.bring(ctx, around.edits); err != nil {
		return nil, err
	}
	judge := s.cell.bench.judge
	if around.state == nil && judge.WantsState() { // the rules that do have just come in force
		if err := s.cell.engine.Glance(ctx, func(r scheduler.Reader) { around.look(r, around.pool.Path, true) }); err != nil {
			return nil, err
		}
	}
	verdict, err := judge.Judge(ctx, &admit.Request{
		Operation: operation, Spec: in, Job: job, Pool: around.pool, Principal: principal, Cell: s.cell.name, Names: around.names,
		State: around.state, Now: time.Now().UnixNano(),
	})
	if err != nil {
		return nil, err
	}
	out.deny(verdict)
	for _, m := range verdict.Warnings {
		out.warnings = append(out.warnings, "rules of "+m.Bundle+": "+m.Text)
	}
	if verdict.Spec == nil {
		return out, nil
	}
	out.spec, out.changes = verdict.Spec, ruleChangesToWire(verdict.Changes)
	if out.job, err = spec.ToJob(out.spec, spec.Scope{Field: "spec", Pool: around.pool.Pool.ID, Owner: principal.Name, Names: around.names}); err != nil {
		return nil, fmt.Errorf("a job that rules changed: %w", err)
	}
	return out, nil
}

// askedFor is a digest of a spec as its user wrote it.
func askedFor(in *pacelinev1.JobSpec, principal string) ([32]byte, error) {
	raw, err := proto.MarshalOptions{Deterministic: true}.Marshal(in)
	if in.GetOwner() == "" { // whoever submits it
		raw = append(raw, principal...)
	}
	return sha256.Sum256(raw), err
}

// judgeRetry is when a job may be judged that could not be just now.
const judgeRetry = time.Second

func (j *judgement) deny(v *admit.Verdict) {
	switch {
	case len(v.Denials) > 0:
		text := ""
		j.refusal = refuse(connect.CodeFailedPrecondition, "change the job, or ask those who look after the rules", "")
		for i, m := range v.Denials {
			if i > 0 {
				text += "; "
			}
			text += m.Bundle + ": " + m.Text
			j.refusal.violations = append(j.refusal.violations, &pacelinev1.FieldViolation{Field: "spec", Message: m.Text, Rule: m.Bundle})
		}
		j.refusal.message = "the job is refused by rules of admission: " + text
	case v.Failure != nil:
		f := v.Failure
		j.refusal = refuse(connect.CodeFailedPrecondition, f.Hint, "the job is refused, as the rules of bundle %s could not judge it: %s", f.Bundle, f.Reason)
		if f.Passing {
			j.refusal.code, j.refusal.retryAfter = connect.CodeUnavailable, judgeRetry
		}
	default:
		return
	}
	j.denied = &scheduler.Error{Kind: scheduler.FailedPrecondition, Field: "spec", Message: j.refusal.message}
}

func ruleChangesToWire(changes []admit.Change) []*pacelinev1.RuleChange {
	var out []*pacelinev1.RuleChange
	for _, c := range changes {
		out = append(out, &pacelinev1.RuleChange{Bundle: c.Bundle, Field: c.Field, Before: c.Before, After: c.After})
	}
	return out
}
