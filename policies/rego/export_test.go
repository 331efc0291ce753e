package rego

import (
	"context"

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
	s, input := j.force.Load(), inputOf(r)
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
