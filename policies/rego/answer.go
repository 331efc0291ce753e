package rego

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/rego"
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
	stop := topdown.NewCancel()
	timer := time.AfterFunc(limit, stop.Cancel)
	defer timer.Stop()
	results, err := p.query.Eval(context.Background(), rego.EvalParsedInput(input), rego.EvalExternalCancel(stop), rego.EvalSortSets(true))
	switch {
	case topdown.IsCancel(err):
		return answer{err: errTooLong}
	case err != nil:
		return answer{err: plain(err)}
	case len(results) == 0:
		return answer{}
	}
	rules, ok := results[0].Expressions[0].Value.(map[string]any)
	if !ok {
		return answer{err: errors.New("its answer is no object")}
	}
	return readAnswer(rules)
}

// readAnswer checks what rules say: it comes from whoever wrote them.
func readAnswer(rules map[string]any) (a answer) {
	if a.deny, a.err = messages("deny", rules["deny"]); a.err != nil {
		return a
	}
	if a.warn, a.err = messages("warn", rules["warn"]); a.err != nil {
		return a
	}
	a.mutate, a.err = mutations(rules["mutate"])
	return a
}

// messages reads a set of texts; they come in order, so that one input gives one answer.
func messages(rule string, value any) ([]string, error) {
	if value == nil {
		return nil, nil
	}
	list, ok := value.([]any)
	if !ok {
		return nil, fmt.Errorf("%s must be a set of texts, as in '%s contains msg if { ... }', not %s", rule, rule, kindOf(value))
	}
	var out []string
	for _, one := range list {
		s, ok := one.(string)
		if !ok {
			return nil, fmt.Errorf("%s must hold texts only, not %s", rule, kindOf(one))
		}
		if s = clipTo(s, maxMessageBytes); s == "" {
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

func mutations(value any) ([]mutation, error) {
	if value == nil {
		return nil, nil
	}
	list, ok := value.([]any)
	switch {
	case !ok:
		return nil, fmt.Errorf("mutate must be a set of objects, as in 'mutate contains {\"labels\": {\"team\": \"ads\"}} if { ... }', not %s", kindOf(value))
	case len(list) > maxMutations:
		return nil, fmt.Errorf("mutate has %d entries, at most %d are taken", len(list), maxMutations)
	}
	var out []mutation
	for _, one := range list {
		raw, err := json.Marshal(one)
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

func kindOf(v any) string {
	switch v.(type) {
	case nil:
		return "null"
	case bool:
		return "a truth value"
	case string:
		return "a text"
	case json.Number, float64:
		return "a number"
	case []any:
		return "a set or array"
	}
	return "an object"
}
