package rego

import (
	"context"
	"encoding/json"
	"maps"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/rego"

	"github.com/paceline-sched/paceline/core/api/admit"
)

// Builtins are the names of the functions that rules may call.
func Builtins() []string {
	var names []string
	for _, b := range capabilities().Builtins {
		names = append(names, b.Name)
	}
	return names
}

// Forget makes a judge ask the rules each time.
func (j *Judge) Forget() {
	s := *j.force.Load()
	s.memo = &memo{off: true}
	j.force.Store(&s)
}

// Drain lets shadow bundles see what waits for them.
func (j *Judge) Drain() {
	for {
		select {
		case s := <-j.shadow:
			j.watch(s)
		default:
			return
		}
	}
}

// MemoAnswers is how many answers are remembered.
func (j *Judge) MemoAnswers() int {
	m := j.force.Load().memo
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.young) + len(m.old)
}

// MaxMemo bounds them.
const MaxMemo = maxMemo

// Evaluation asks the rules about a request whose input is made.
func (j *Judge) Evaluation(r *admit.Request) func() {
	s := j.force.Load()
	input := inputOf(r, s.look)
	return func() { evaluate(s.active, input, j.config.Limit) }
}

// Remembered looks a request up in the memo.
func (j *Judge) Remembered(ctx context.Context, r *admit.Request) func() bool {
	s, left := j.force.Load(), j.config.Limit
	_, _, err := j.ask(ctx, s, r, &left)
	return func() bool {
		k, _ := keys.Get().(*key)
		defer keys.Put(k)
		_, ok := s.memo.find(k, r)
		return ok && err == nil
	}
}

// wholeQuestion gathers all rules in one document.
const wholeQuestion = `package system.paceline.question

answer["deny"] := data.paceline.admission.deny

answer["mutate"] := data.paceline.admission.mutate

answer["warn"] := data.paceline.admission.warn
`

// Plain asks a bundle as one would with the engine's library alone: one prepared query, and an input with everything in it. It returns the
// evaluation of a request whose input is made.
func Plain(archive []byte) (func(r *admit.Request) func() (any, error), error) {
	read, err := open(archive, Keys{})
	if err != nil {
		return nil, err
	}
	prepared, err := rego.New(
		rego.Query("data.system.paceline.question.answer"), rego.ParsedBundle("rules", read), rego.Module("question.rego", wholeQuestion),
		rego.Capabilities(capabilities()), rego.StrictBuiltinErrors(true),
	).PrepareForEval(context.Background())
	if err != nil {
		return nil, err
	}
	return func(r *admit.Request) func() (any, error) {
		input := inputOf(r, everything)
		return func() (any, error) {
			results, err := prepared.Eval(context.Background(), rego.EvalParsedInput(input), rego.EvalSortSets(true))
			if err != nil || len(results) == 0 {
				return map[string]any{}, err
			}
			return results[0].Expressions[0].Value, nil
		}
	}, nil
}

// PlainAnswer is what Plain answers, as text.
func PlainAnswer(ask func() (any, error)) string {
	value, err := ask()
	if err != nil {
		return plain(err).Error()
	}
	rules, _ := value.(map[string]any)
	maps.DeleteFunc(rules, func(_ string, v any) bool { return v == nil })
	return jsonText(rules)
}

// Asker asks a bundle as a Judge does.
func Asker(archive []byte) (func(r *admit.Request) string, error) {
	p, err := compile(archive, Keys{})
	if err != nil {
		return nil, err
	}
	return func(r *admit.Request) string {
		values, err := p.query.eval(inputOf(r, p.reads.tree()), nil)
		if err != nil {
			return plain(err).Error()
		}
		rules := map[string]any{}
		for name, value := range map[string]ast.Value{"deny": values.deny, "mutate": values.mutate, "warn": values.warn} {
			if value == nil {
				continue
			}
			if rules[name], err = ast.JSONWithOpt(value, ast.JSONOpt{SortSets: true}); err != nil {
				return err.Error()
			}
		}
		return jsonText(rules)
	}, nil
}

func jsonText(v any) string {
	raw, err := json.Marshal(v)
	if err != nil {
		return err.Error()
	}
	return string(raw)
}

// InputText is all that rules may see of a request.
func InputText(r *admit.Request) string { return inputOf(r, everything).String() }
