package rego

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/paceline-sched/paceline/core/api/admit"
	"github.com/paceline-sched/paceline/core/telemetry"
)

// decision is one entry of the log. The job in it is turned into text only when somebody asks.
type decision struct {
	at      time.Time
	took    time.Duration
	memo    bool
	shadow  string
	request *admit.Request
	verdict *admit.Verdict
}

// keptSpecBytes bounds the job of a decision that is kept to be shown; larger ones are left out.
const keptSpecBytes = 64 << 10

// decisionLog keeps the newest decisions.
type decisionLog struct {
	mu   sync.Mutex
	ring []decision
	next int
}

func (l *decisionLog) add(d decision) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.ring) < maxDecisions {
		l.ring = append(l.ring, d)
		return
	}
	l.ring[l.next] = d
	l.next = (l.next + 1) % maxDecisions
}

// newest returns up to n decisions, newest first.
func (l *decisionLog) newest(n int) []decision {
	l.mu.Lock()
	defer l.mu.Unlock()
	var out []decision
	for i := range min(n, len(l.ring)) {
		out = append(out, l.ring[(l.next+len(l.ring)-1-i)%len(l.ring)])
	}
	return out
}

func (d *decision) outcome() string {
	v := d.verdict
	out := "allow"
	switch {
	case len(v.Denials) > 0:
		out = "deny"
	case v.Failure != nil:
		out = "fail"
	}
	if d.shadow != "" {
		return "would-" + out
	}
	return out
}

// decided keeps and tells a decision.
func (j *Judge) decided(r *admit.Request, v *admit.Verdict, d decision) {
	d.request, d.verdict = r, v
	j.log.add(d)
	outcome := d.outcome()
	j.config.Trace.Admitted(telemetry.Admission{Outcome: outcome, Memo: d.memo, Duration: d.took})
	level := slog.LevelInfo
	if outcome == "allow" && len(v.Changes) == 0 && len(v.Warnings) == 0 {
		level = slog.LevelDebug
	}
	if !j.config.Log.Enabled(context.Background(), level) {
		return
	}
	shown := d.shown()
	j.config.Log.LogAttrs(context.Background(), level, "admission decided", slog.String(telemetry.KeyOutcome, outcome),
		slog.String(telemetry.KeyBundle, d.shadow), slog.String(telemetry.KeyMethod, string(r.Operation)), slog.String(telemetry.KeyPrincipal, r.Principal.Name),
		slog.String(telemetry.KeyPool, r.Pool.Path), slog.String(telemetry.KeyJob, r.Job.Name), slog.String(telemetry.KeyReason, reasonOf(&shown)),
		slog.Int(telemetry.KeyCount, len(v.Changes)), slog.Duration(telemetry.KeyDuration, d.took))
}

// reasonOf joins what was said of a job, short enough for a line.
func reasonOf(d *admit.Decision) string {
	var parts []string
	for _, m := range slices.Concat(d.Messages, d.Warnings) {
		parts = append(parts, m.Bundle+": "+m.Text)
	}
	return clipTo(strings.Join(parts, "; "), maxMessageBytes)
}

// shown is a decision as others may see it: without what may be a secret.
func (d *decision) shown() admit.Decision {
	r, v := d.request, d.verdict
	var hide secrets
	if len(v.Changes) > 0 {
		hide = secretsOf(r)
	}
	out := admit.Decision{
		At: d.at, Operation: r.Operation, Principal: r.Principal.Name, Pool: r.Pool.Path, Job: r.Job.Name, Outcome: d.outcome(), Shadow: d.shadow,
		Messages: v.Denials, Warnings: v.Warnings, Memo: d.memo, Took: d.took,
	}
	if f := v.Failure; f != nil {
		out.Messages = []admit.Message{{Bundle: f.Bundle, Text: f.Reason}}
	}
	for _, c := range v.Changes {
		c.Before, c.After = hide.text(c.Before), hide.text(c.After)
		out.Changes = append(out.Changes, c)
	}
	return out
}

// withInput adds the job as its user wrote it.
func (d *decision) withInput() admit.Decision {
	out := d.shown()
	if proto.Size(d.request.Spec) > keptSpecBytes {
		out.Input = "(too large)"
		return out
	}
	out.Input = clipTo(messageText(masked(d.request.Spec)), maxDecisionInput)
	return out
}

// leastSecret is the length from which a value is taken out of messages; shorter ones would garble them.
const leastSecret = 4

// secrets are the values that a job's processes are given.
type secrets []string

func secretsOf(r *admit.Request) secrets {
	var out secrets
	one := func(value string) {
		if _, err := strconv.ParseBool(value); len(value) >= leastSecret && err != nil {
			out = append(out, value)
		}
	}
	add := func(env map[string]string) {
		for value := range maps.Values(env) {
			one(value)
		}
	}
	add(r.Job.Template.Env)
	if e := r.Job.Template.Execution; e != nil {
		for c := range e.Containers() {
			add(c.Env)
		}
	}
	for i := range r.Job.Overrides {
		add(r.Job.Overrides[i].Env)
	}
	passedOn(r.Spec.GetTask().GetKubernetes().GetPodPatch(), func(value *structpb.Value) { texts(value, one) })
	slices.SortFunc(out, func(a, b string) int { return len(b) - len(a) }) // of two values of which one is in the other, the longer one first
	return out
}

// hideSecrets takes what may be a secret out of all that is said of a job: it goes into logs.
func hideSecrets(r *admit.Request, v *admit.Verdict) {
	if len(v.Denials)+len(v.Warnings) == 0 && v.Failure == nil {
		return
	}
	hide := secretsOf(r)
	v.Denials, v.Warnings = hide.messages(v.Denials), hide.messages(v.Warnings)
	if v.Failure != nil {
		f := *v.Failure
		f.Reason = hide.text(f.Reason)
		v.Failure = &f
	}
}

func (s secrets) text(in string) string {
	for _, value := range s {
		in = strings.ReplaceAll(in, value, maskedValue)
	}
	return in
}

func (s secrets) messages(in []admit.Message) []admit.Message {
	var out []admit.Message
	for _, m := range in {
		out = append(out, admit.Message{Bundle: m.Bundle, Text: s.text(m.Text)})
	}
	return out
}
