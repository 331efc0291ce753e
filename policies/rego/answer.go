package rego

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/topdown"
)

// answer is what one bundle says of one job, checked.
type answer struct {
	deny, warn []string
	mutate     []mutation
	err        error // it could not judge
}

var errTooLong = errors.New("its rules took longer than their part of the time for a job")

// eval asks a program. limit bounds its time; what has no answer by then is stopped.
func (p *program) eval(input ast.Value, limit time.Duration) (a answer) {
	defer contain(&a.err)
	alarm := newAlarm(limit)
	defer alarm.end()
	rules, err := p.query.eval(input, alarm.stop)
	switch {
	case topdown.IsCancel(err):
		return answer{err: errTooLong}
	case err != nil:
		return answer{err: plain(err)}
	}
	return readAnswer(rules)
}

// readAnswer checks what rules say: it comes from whoever wrote them.
func readAnswer(rules ruleValues) (a answer) {
	if a.deny, a.err = messages("deny", rules.deny); a.err != nil {
		return a
	}
	if a.warn, a.err = messages("warn", rules.warn); a.err != nil {
		return a
	}
	a.mutate, a.err = mutations(rules.mutate)
	return a
}

// elements are those of a set or array, in their order; no other value has any.
func elements(value ast.Value) (list []*ast.Term, ok bool) {
	switch v := value.(type) {
	case ast.Set:
		return v.Slice(), true
	case *ast.Array:
		v.Foreach(func(t *ast.Term) { list = append(list, t) })
		return list, true
	}
	return nil, false
}

// messages reads a set of texts; they come in order, so that one input gives one answer.
func messages(rule string, value ast.Value) ([]string, error) {
	if value == nil {
		return nil, nil
	}
	list, ok := elements(value)
	if !ok {
		return nil, fmt.Errorf("%s must be a set of texts, as in '%s contains msg if { ... }', not %s", rule, rule, kindOf(value))
	}
	var out []string
	for _, one := range list {
		text, ok := one.Value.(ast.String)
		if !ok {
			return nil, fmt.Errorf("%s must hold texts only, not %s", rule, kindOf(one.Value))
		}
		s := clipTo(string(text), maxMessageBytes)
		if s == "" {
			s = "(no reason was given)"
		}
		out = append(out, s)
	}
	slices.Sort(out)
	if len(out) > maxMessages {
		more := len(out) - maxMessages + 1
		out = append(out[:maxMessages-1], fmt.Sprintf("and %d more", more))
	}
	return out, nil
}

func mutations(value ast.Value) ([]mutation, error) {
	if value == nil {
		return nil, nil
	}
	list, ok := elements(value)
	switch {
	case !ok:
		return nil, fmt.Errorf("mutate must be a set of objects, as in 'mutate contains {\"labels\": {\"team\": \"ads\"}} if { ... }', not %s", kindOf(value))
	case len(list) > maxMutations:
		return nil, fmt.Errorf("mutate has %d entries, at most %d are taken", len(list), maxMutations)
	}
	var out []mutation
	for _, one := range list {
		plainValue, err := ast.JSONWithOpt(one.Value, ast.JSONOpt{SortSets: true})
		if err != nil {
			return nil, fmt.Errorf("mutate: %w", err)
		}
		raw, err := json.Marshal(plainValue)
		if err != nil {
			return nil, fmt.Errorf("mutate: %w", err)
		}
		if len(raw) > maxMutationBytes {
			return nil, fmt.Errorf("an entry of mutate is %d bytes long, at most %d are taken", len(raw), maxMutationBytes)
		}
		m, err := readMutation(raw)
		if err != nil {
			return nil, fmt.Errorf("mutate: %s: %w", clip(string(raw)), err)
		}
		out = append(out, m)
	}
	return out, nil
}

func readMutation(raw []byte) (m mutation, err error) {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.DisallowUnknownFields()
	if err := d.Decode(&m); err != nil {
		return m, fmt.Errorf("%w; the fields are %s", err, mutableFields)
	}
	return m, m.check()
}

func kindOf(v ast.Value) string {
	switch v.(type) {
	case ast.Null:
		return "null"
	case ast.Boolean:
		return "a truth value"
	case ast.String:
		return "a text"
	case ast.Number:
		return "a number"
	case ast.Set, *ast.Array:
		return "a set or array"
	}
	return "an object"
}
