package rego

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/paceline-sched/paceline/core/api/admit"
	feature "github.com/paceline-sched/paceline/core/execution"
	"github.com/paceline-sched/paceline/core/workload"
	pacelinev1 "github.com/paceline-sched/paceline/sdk/gen/paceline/v1"
)

// mutation is one entry of mutate: the changes that rules may make to a job. docs/admission.md has the table of them.
type mutation struct {
	// Labels are set, whatever the job has.
	Labels map[string]string `json:"labels"`
	// PriorityCap is the most that the priority may be.
	PriorityCap *int32 `json:"priority_cap"`
	// Preemptible is set.
	Preemptible *bool `json:"preemptible"`
	// DeadlineCap is the most that the deadline of a batch job may be, and its deadline if it has none.
	DeadlineCap string `json:"deadline_cap"`
	// Constraints are added where the job has none on the same key.
	Constraints []json.RawMessage `json:"constraints"`

	deadline    time.Duration
	constraints []*pacelinev1.Constraint
}

const mutableFields = "labels, priority_cap, preemptible, deadline_cap and constraints"

func (m *mutation) check() (err error) {
	if m.DeadlineCap != "" {
		if m.deadline, err = time.ParseDuration(m.DeadlineCap); err != nil || m.deadline < time.Second {
			return fmt.Errorf("deadline_cap %q must be a duration of at least 1s, such as 90m", clip(m.DeadlineCap))
		}
	}
	for _, raw := range m.Constraints {
		c := &pacelinev1.Constraint{}
		if err := protojson.Unmarshal(raw, c); err != nil {
			return fmt.Errorf("a constraint is not as in placement.constraints of a job: %w", err)
		}
		if c.GetKey() == "" {
			return errors.New("a constraint needs a key")
		}
		if feature.IsFeature(c.GetKey()) {
			return fmt.Errorf("a constraint on %q is not for rules to add: what a host has to be able to do follows from what the task is made of", clip(c.GetKey()))
		}
		m.constraints = append(m.constraints, c)
	}
	if len(m.Labels) == 0 && m.PriorityCap == nil && m.Preemptible == nil && m.DeadlineCap == "" && len(m.constraints) == 0 {
		return errors.New("it changes nothing; the fields are " + mutableFields)
	}
	return nil
}

// wish is a value for a field, and the bundle that wants it.
type wish[T any] struct {
	bundle string
	value  T
}

// wishes are the mutations of all bundles together: one value a field. Their order does not matter.
type wishes struct {
	labels      map[string]wish[string]
	constraints map[string]wish[*pacelinev1.Constraint] // by key
	preemptible *wish[bool]
	priority    *wish[int32]
	deadline    *wish[time.Duration]
}

// conflictError is two bundles, or two entries of one, that want different values of a field.
type conflictError struct{ field, one, other, first, second string }

func (e *conflictError) Error() string {
	return fmt.Sprintf("bundle %s wants %s to be %s, bundle %s wants it to be %s", e.one, e.field, clip(e.first), e.other, clip(e.second))
}

func (w *wishes) add(bundle string, m *mutation) error {
	for _, name := range slices.Sorted(maps.Keys(m.Labels)) {
		value := m.Labels[name]
		if had, ok := w.labels[name]; ok && had.value != value {
			return &conflictError{"labels." + name, had.bundle, bundle, quote(had.value), quote(value)}
		} else if !ok {
			put(&w.labels, name, wish[string]{bundle, value})
		}
	}
	for _, c := range m.constraints {
		if had, ok := w.constraints[c.GetKey()]; ok && !proto.Equal(had.value, c) {
			return &conflictError{"the constraint on " + c.GetKey(), had.bundle, bundle, messageText(had.value), messageText(c)}
		} else if !ok {
			put(&w.constraints, c.GetKey(), wish[*pacelinev1.Constraint]{bundle, c})
		}
	}
	if p := m.Preemptible; p != nil {
		if w.preemptible != nil && w.preemptible.value != *p {
			return &conflictError{"preemptible", w.preemptible.bundle, bundle, strconv.FormatBool(w.preemptible.value), strconv.FormatBool(*p)}
		}
		w.preemptible = cmp.Or(w.preemptible, &wish[bool]{bundle, *p})
	}
	if p := m.PriorityCap; p != nil && (w.priority == nil || *p < w.priority.value) {
		w.priority = &wish[int32]{bundle, *p}
	}
	if m.deadline > 0 && (w.deadline == nil || m.deadline < w.deadline.value) {
		w.deadline = &wish[time.Duration]{bundle, m.deadline}
	}
	return nil
}

func put[V any](m *map[string]V, k string, v V) {
	if *m == nil {
		*m = map[string]V{}
	}
	(*m)[k] = v
}

// apply changes a copy of a job as the wishes say. Without a change it returns none.
func (w *wishes) apply(in *pacelinev1.JobSpec, job *workload.JobSpec) (*pacelinev1.JobSpec, []admit.Change) {
	out := in
	var changes []admit.Change
	note := func(bundle, field, before, after string) {
		if out == in {
			out, _ = proto.Clone(in).(*pacelinev1.JobSpec)
		}
		changes = append(changes, admit.Change{Bundle: bundle, Field: field, Before: before, After: after})
	}
	for _, name := range slices.Sorted(maps.Keys(w.labels)) {
		wanted := w.labels[name]
		before, had := job.Labels[name]
		if had && before == wanted.value {
			continue
		}
		shown := ""
		if had {
			shown = quote(before)
		}
		note(wanted.bundle, "labels."+name, shown, quote(wanted.value))
		put(&out.Labels, name, wanted.value)
	}
	if p := w.priority; p != nil && job.Priority > p.value {
		note(p.bundle, "priority", strconv.Itoa(int(job.Priority)), strconv.Itoa(int(p.value)))
		out.Priority = p.value
	}
	if p := w.preemptible; p != nil && job.Preemptible != p.value {
		note(p.bundle, "preemptible", strconv.FormatBool(job.Preemptible), strconv.FormatBool(p.value))
		out.Preemptible = &p.value
	}
	if p := w.deadline; p != nil && job.Kind == workload.Batch && (job.Deadline == 0 || job.Deadline > p.value) {
		before := ""
		if job.Deadline > 0 {
			before = quote(seconds(job.Deadline))
		}
		note(p.bundle, "batch.deadline", before, quote(seconds(p.value)))
		if out.GetBatch() == nil {
			out.Kind = &pacelinev1.JobSpec_Batch{Batch: &pacelinev1.BatchSpec{}}
		}
		out.GetBatch().Deadline = durationpb.New(p.value)
	}
	for _, key := range slices.Sorted(maps.Keys(w.constraints)) {
		if slices.ContainsFunc(job.Placement.Constraints, func(c workload.Constraint) bool { return c.Key == key }) {
			continue
		}
		wanted := w.constraints[key]
		note(wanted.bundle, "placement.constraints."+key, "", messageText(wanted.value))
		if out.Placement == nil {
			out.Placement = &pacelinev1.PlacementSpec{}
		}
		out.Placement.Constraints = append(out.Placement.Constraints, wanted.value)
	}
	if len(changes) == 0 {
		return nil, nil
	}
	return out, changes
}

func quote(s string) string {
	raw, err := json.Marshal(s)
	if err != nil {
		return strconv.Quote(s)
	}
	return string(raw)
}

// messageText is a message as stable JSON: protojson varies its spaces on purpose.
func messageText(m proto.Message) string {
	raw, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(m)
	if err != nil {
		return "{}"
	}
	var value any
	if json.Unmarshal(raw, &value) != nil {
		return string(raw)
	}
	if stable, err := json.Marshal(value); err == nil {
		return string(stable)
	}
	return string(raw)
}
