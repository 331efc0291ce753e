package engine

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/paceline-sched/paceline/core/preemption"
	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/respool"
	"github.com/paceline-sched/paceline/core/scheduler"
)

// errNoPolicy answers a question that met nobody: the policy went while it was on its way.
var errNoPolicy = errors.New("no policy is in force")

// UseQuota puts a policy of entitlements in force, under the name that the cell tells of it, "" and nil for none: then max-min decides. The policy is
// called by one goroutine at a time, on a snapshot; when UseQuota returns the former one is called no more. It may be called before Run.
func (e *Engine) UseQuota(name string, p respool.Quota) error {
	e.quota.use(p)
	return e.tell(scheduler.PolicyInForce{Kind: scheduler.QuotaPolicy, Name: name})
}

// UseRanks is UseQuota for the policy of whose work makes room first; without one the built-in order holds.
func (e *Engine) UseRanks(name string, p preemption.Adviser) error {
	e.ranks.use(p)
	return e.tell(scheduler.PolicyInForce{Kind: scheduler.RankPolicy, Name: name})
}

// tell hands the loop an event that is no call and no reply.
func (e *Engine) tell(event scheduler.Event) error {
	select {
	case <-e.ended: // first: the queue may have room
		return ErrStopped
	default:
	}
	select {
	case e.told <- event:
		return nil
	case <-e.ended:
		return ErrStopped
	}
}

// asker asks the policy of one kind off the loop. P is an interface, nil for no policy.
type asker[P any] struct {
	questions chan scheduler.Effect // there is at most one without its answer
	mu        sync.Mutex            // held while the policy is called
	policy    P
}

func newAsker[P any]() *asker[P] { return &asker[P]{questions: make(chan scheduler.Effect, 1)} }

func (a *asker[P]) use(p P) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.policy = p
}

// ask never blocks. Only the loop calls it. The cell gives a question up after a while, so a new one takes the place of one that the policy has not come to.
func (a *asker[P]) ask(question scheduler.Effect) {
	select {
	case <-a.questions:
	default:
	}
	a.questions <- question
}

// run answers questions until ctx ends.
func (a *asker[P]) run(ctx context.Context, e *Engine, answer func(P, scheduler.Effect) scheduler.Event) {
	for {
		select {
		case <-ctx.Done():
			return
		case q := <-a.questions:
			if e.tell(a.answer(q, answer)) != nil {
				return
			}
		}
	}
}

func (a *asker[P]) answer(q scheduler.Effect, answer func(P, scheduler.Effect) scheduler.Event) scheduler.Event {
	a.mu.Lock()
	defer a.mu.Unlock()
	return answer(a.policy, q)
}

func answerQuota(p respool.Quota, effect scheduler.Effect) scheduler.Event {
	q, _ := effect.(scheduler.AskQuota)
	out := scheduler.Entitlements{Query: q.Query}
	values, err := guarded(func() ([]resource.Vector, error) {
		if p == nil {
			return nil, errNoPolicy
		}
		return p.Entitle(q.Snapshot)
	})
	if err != nil {
		out.Err = err.Error()
		return out
	}
	out.Values = values
	return out
}

func answerRanks(p preemption.Adviser, effect scheduler.Effect) scheduler.Event {
	q, _ := effect.(scheduler.AskRanks)
	out := scheduler.VictimsRanked{Query: q.Query}
	for _, list := range q.Lists {
		ranks, err := guarded(func() ([]int32, error) {
			if p == nil {
				return nil, errNoPolicy
			}
			return p.Rank(list)
		})
		if err != nil {
			return scheduler.VictimsRanked{Query: q.Query, Err: err.Error()}
		}
		out.Ranks = append(out.Ranks, ranks)
	}
	return out
}

// guarded makes an error of a panic: a policy's mistake must not end the scheduler.
func guarded[T any](call func() (T, error)) (out T, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("the policy panicked: %v", r)
		}
	}()
	return call()
}
