package rego

import (
	"context"
	"fmt"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/bundle"
	"github.com/open-policy-agent/opa/v1/metrics"
	"github.com/open-policy-agent/opa/v1/rego"
	"github.com/open-policy-agent/opa/v1/storage"
	"github.com/open-policy-agent/opa/v1/storage/inmem"
	"github.com/open-policy-agent/opa/v1/topdown"
)

// queries are what is asked of compiled rules, one query for each rule that the bundle has. The library's own prepared query would gather
// their answers in one document first and turn that into plain Go values, which costs as much again as most rules do. It is immutable and
// may be used concurrently.
type queries struct {
	compiler *ast.Compiler
	store    storage.Store
	txn      storage.Transaction // reads; nobody writes to the store any more
	rules    []query
}

// query asks for one rule.
type query struct {
	rule     string // one of ruleNames
	body     ast.Body
	compiler ast.QueryCompiler
}

// answerVar is what a query binds to the value of its rule.
const answerVar = ast.Var("answer")

// ruleValues are what rules answered; nil is a rule without an answer.
type ruleValues struct{ deny, mutate, warn ast.Value }

// newQueries compiles the rules of a bundle, with its data as the engine's own values.
func newQueries(read *bundle.Bundle) (*queries, error) {
	ctx := context.Background()
	q := &queries{store: inmem.NewWithOpts(inmem.OptReturnASTValuesOnRead(true))}
	txn, err := q.store.NewTransaction(ctx, storage.WriteParams)
	if err != nil {
		return nil, err
	}
	if _, err := rego.New(
		rego.ParsedQuery(ast.NewBody(ast.NewExpr(ast.NewTerm(rulesPackage)))), rego.ParsedBundle("rules", read), rego.Capabilities(capabilities()),
		rego.Store(q.store), rego.Transaction(txn), rego.CompilerHook(func(c *ast.Compiler) { q.compiler = c }),
	).PrepareForEval(ctx); err != nil {
		q.store.Abort(ctx, txn)
		return nil, fmt.Errorf("its rules do not compile: %w", plain(err))
	}
	if err := q.store.Commit(ctx, txn); err != nil {
		return nil, err
	}
	if q.txn, err = q.store.NewTransaction(ctx); err != nil {
		return nil, err
	}
	for _, rule := range ruleNames {
		ref := rulesPackage.Append(ast.StringTerm(rule))
		if !q.has(ref) {
			continue
		}
		one := query{rule: rule, compiler: q.compiler.QueryCompiler()}
		if one.body, err = one.compiler.Compile(ast.NewBody(ast.Equality.Expr(ast.NewTerm(answerVar), ast.NewTerm(ref)))); err != nil {
			return nil, plain(err)
		}
		q.rules = append(q.rules, one)
	}
	return q, nil
}

// has reports whether a reference can have a value: by a rule at, above or below it, or as data.
func (q *queries) has(ref ast.Ref) bool {
	if len(q.compiler.GetRules(ref)) > 0 {
		return true
	}
	path, err := storage.NewPathForRef(ref)
	if err == nil {
		_, err = q.store.Read(context.Background(), q.txn, path)
	}
	return !storage.IsNotFound(err)
}

// eval asks all rules about one input. They share what they compute on the way.
func (q *queries) eval(input ast.Value, stop topdown.Cancel) (out ruleValues, err error) {
	shared, asked := topdown.NewVirtualCache(), ast.NewTerm(input)
	for i := range q.rules {
		one := &q.rules[i]
		run := topdown.NewQuery(one.body).WithQueryCompiler(one.compiler).WithCompiler(q.compiler).WithStore(q.store).WithTransaction(q.txn).
			WithInput(asked).WithCancel(stop).WithVirtualCache(shared).WithMetrics(metrics.NoOp()).WithStrictBuiltinErrors(true)
		err := run.Iter(context.Background(), func(r topdown.QueryResult) error {
			if term := r[answerVar]; term != nil {
				out.put(one.rule, term.Value)
			}
			return nil
		})
		if err != nil {
			return ruleValues{}, err
		}
	}
	return out, nil
}

// put keeps an answer. One of null is none.
func (v *ruleValues) put(rule string, value ast.Value) {
	if _, null := value.(ast.Null); null {
		return
	}
	switch rule {
	case "deny":
		v.deny = value
	case "mutate":
		v.mutate = value
	case "warn":
		v.warn = value
	}
}
