// Package orders carries out the orders of an emulated cluster: to start processes of this machine, and to end them.
//
// It owns a runner, the queue in front of it, and the end of what nobody wants any more. What a process is, and what its phases mean, is the
// cluster's. Concurrency: all methods of a Queue may be called from any goroutine, and Start and Signal never block; one goroutine carries orders
// out, one after another, and Close waits for it, and for the end of all processes.
package orders

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/paceline-sched/paceline/hostmanagers/local/runner"
)

// endPatience bounds Close's wait for the end of what it has killed: only a process that hangs in the kernel takes so long.
const endPatience = 30 * time.Second

// Start is the order to start a process. Its functions are called by the goroutine that carries out orders.
type Start struct {
	Spec func() (runner.Spec, error)
	// Refused hears why there will be no process.
	Refused func(error)
}

type signal struct {
	id    string
	grace time.Duration
	why   string
}

// Queue is orders and who carries them out.
type Queue struct {
	runner *runner.Runner
	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	work   sync.WaitGroup
	news   chan struct{} // holds one
	ended  chan struct{} // holds one: a process has

	mu     sync.Mutex
	orders []any // Start and signal, oldest first
}

// Open opens a runner below a directory that must be empty or another queue's; what runs there from before is ended. Observe hears of
// the phases of processes, as runner.Config says; an end is acknowledged right after, so that only its output is kept.
func Open(root string, observe func(runner.Run)) (*Queue, error) {
	q := &Queue{news: make(chan struct{}, 1), ended: make(chan struct{}, 1)}
	q.ctx, q.cancel = context.WithCancel(context.Background())
	opened := make(chan struct{}) // the runner may have something to tell before it is ours
	r, err := runner.Open(runner.Config{Root: root, Observe: func(run runner.Run) {
		<-opened
		observe(run)
		if run.Phase == runner.Ended {
			_ = q.runner.Acknowledge(run.Spec.ID) // kept for its output alone
			wake(q.ended)
		}
	}})
	if err != nil {
		q.cancel()
		return nil, fmt.Errorf("run processes on this machine: %w", err)
	}
	q.runner = r
	close(opened)
	q.forget()
	q.work.Go(q.obey)
	return q, nil
}

// Runner is where the processes are.
func (q *Queue) Runner() *runner.Runner { return q.runner }

// Context ends when Close begins.
func (q *Queue) Context() context.Context { return q.ctx }

// Close stops taking orders, ends what runs, and waits until nothing of it is left that could write to the directory. It is called once.
func (q *Queue) Close() error {
	q.cancel()
	q.work.Wait()
	q.forget()
	err := q.awaitEnds()
	if closing := q.runner.Close(); closing != nil {
		err = errors.Join(err, fmt.Errorf("close the runner: %w", closing))
	}
	return err
}

// awaitEnds waits until nothing runs.
func (q *Queue) awaitEnds() error {
	over := time.NewTimer(endPatience)
	defer over.Stop()
	for {
		left := 0
		for _, run := range q.runner.Runs() {
			if run.Phase != runner.Ended {
				left++
			}
		}
		if left == 0 {
			return nil
		}
		select {
		case <-q.ended:
		case <-over.C:
			return fmt.Errorf("%d processes were killed and have not ended in %v; what they write goes on", left, endPatience)
		}
	}
}

// forget ends runs that nobody wants to hear of.
func (q *Queue) forget() {
	for _, run := range q.runner.Runs() {
		_, _ = q.runner.Kill(run.Spec.ID, 0, "its cluster is gone") // a disk that takes nothing more is reported by the runner
		_ = q.runner.Acknowledge(run.Spec.ID)                       // kept for its output alone
	}
}

// Start takes the order to start a process.
func (q *Queue) Start(s Start) { q.add(s) }

// Signal takes the order to end a process: after a grace, or at once.
func (q *Queue) Signal(id string, grace time.Duration, why string) { q.add(signal{id, grace, why}) }

func (q *Queue) add(order any) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.orders = append(q.orders, order)
	wake(q.news)
}

// wake tells who waits at a channel that holds one.
func wake(who chan<- struct{}) {
	select {
	case who <- struct{}{}:
	default:
	}
}

// obey carries orders out, one after another, starts that stand together in one go.
func (q *Queue) obey() {
	for {
		select {
		case <-q.news:
		case <-q.ctx.Done():
			return
		}
		q.mu.Lock()
		orders := q.orders
		q.orders = nil
		q.mu.Unlock()
		var starts []Start
		for _, order := range orders {
			switch order := order.(type) {
			case Start:
				starts = append(starts, order)
			case signal:
				q.launch(starts)
				starts = nil
				// A run that the runner does not know, or that ended, needs no signal.
				_, _ = q.runner.Kill(order.id, order.grace, order.why)
			}
		}
		q.launch(starts)
	}
}

func (q *Queue) launch(starts []Start) {
	specs := make([]runner.Spec, 0, len(starts))
	taken := make([]Start, 0, len(starts))
	for _, s := range starts {
		spec, err := s.Spec()
		if err != nil {
			s.Refused(err)
			continue
		}
		specs, taken = append(specs, spec), append(taken, s)
	}
	if len(specs) == 0 {
		return
	}
	if _, err := q.runner.Launch(q.ctx, specs); err == nil || errors.Is(err, context.Canceled) {
		return
	}
	for i, spec := range specs { // one that cannot run must not take the others with it
		if _, err := q.runner.Launch(q.ctx, []runner.Spec{spec}); err != nil {
			taken[i].Refused(err)
		}
	}
}
