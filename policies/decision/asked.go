package decision

import (
	"log/slog"
	"maps"
	"path/filepath"
	"sync"
	"time"

	"github.com/paceline-sched/paceline/core/host"
	"github.com/paceline-sched/paceline/core/preemption"
	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/respool"
	"github.com/paceline-sched/paceline/core/telemetry"
)

const (
	// asking is the name under which questions are recorded, in place of a shard's, and askingDir their part of the log.
	asking    = "cell"
	askingDir = "questions"
	// askingPart is the part of the log's bytes that questions may take: one in so many.
	askingPart = 8
	// AskedEvery is the least time between two questions of a kind to one policy that are recorded: a question about all pools is large, and the next one much like it.
	AskedEvery = time.Second
	// maxAsked bounds the questions that wait to be written.
	maxAsked = 16
)

// Asked records what policies of quota and of preemption are asked. Its methods but Close may be called from any number of goroutines, and delay nobody: when the writer
// lags, questions are dropped and counted.
type Asked struct {
	log     *Log
	mu      sync.Mutex
	pending []*Question
	dropped uint64
	last    map[asker]int64 // when a question was taken, of those within AskedEvery of the last taken
	wake    chan struct{}
	stop    chan struct{}
	done    chan struct{}
}

// asker is a policy, and whether it was asked about pools; else it was asked about candidates.
type asker struct {
	by    string
	pools bool
}

// QuestionsDir is where the log in dir keeps questions.
func QuestionsDir(dir string) string { return filepath.Join(dir, askingDir) }

// RecordAsked begins to record questions, in a log of their own below this one. Close ends it.
func (l *Log) RecordAsked() (*Asked, error) {
	config := l.config
	config.Dir, config.Retain, config.SegmentBytes = QuestionsDir(l.config.Dir), max(l.config.Retain/askingPart, LeastRetain), 0
	own, err := OpenLog(config)
	if err != nil {
		return nil, err
	}
	next := uint64(0)
	segments, err := listDir(filepath.Join(config.Dir, asking))
	if err != nil {
		return nil, err
	}
	if n := len(segments); n > 0 {
		next = segments[n-1].number + 1
	}
	a := &Asked{log: own, last: map[asker]int64{}, wake: make(chan struct{}, 1), stop: make(chan struct{}), done: make(chan struct{})}
	w := &writer{log: own, shard: asking, dir: filepath.Join(config.Dir, asking), next: next}
	if err := makeDir(w.dir); err != nil {
		return nil, err
	}
	go a.write(w)
	return a, nil
}

// Close writes what waits and ends.
func (a *Asked) Close() {
	close(a.stop)
	<-a.done
}

// Record takes a question to be written, unless one of its kind to the same policy was taken within AskedEvery. What another policy was asked before hides nothing: the first question
// to one that has just been activated is the one that is looked for.
func (a *Asked) Record(q *Question) {
	a.mu.Lock()
	defer a.mu.Unlock()
	// A question that took long is recorded after a quick one that was asked later, and a clock may be set back: what counts is the time between them.
	maps.DeleteFunc(a.last, func(_ asker, at int64) bool { return q.At-at >= int64(AskedEvery) || at-q.At >= int64(AskedEvery) })
	who := asker{q.By, q.Snapshot != nil}
	if _, soon := a.last[who]; soon {
		return
	}
	a.last[who] = q.At
	if len(a.pending) >= maxAsked {
		a.dropped++
		return
	}
	a.pending = append(a.pending, q)
	poke(a.wake)
}

func (a *Asked) write(w *writer) {
	defer close(a.done)
	for {
		select {
		case <-a.wake:
			a.writeAll(w)
		case <-a.stop:
			a.writeAll(w)
			if err := w.close(); err != nil {
				a.fail(w, err)
			}
			return
		}
	}
}

// writeAll writes what waits.
func (a *Asked) writeAll(w *writer) {
	a.mu.Lock()
	pending, dropped := a.pending, a.dropped
	a.pending, a.dropped = nil, 0
	a.mu.Unlock()
	before, written := w.total, uint64(0)
	lost := dropped // that the log does not know of yet
	for _, q := range pending {
		if err := a.writeOne(w, q, lost); err != nil {
			a.fail(w, err)
			dropped++
			lost++
			continue
		}
		lost = 0
		written++
	}
	told := telemetry.Decisions{Records: written, Dropped: dropped, Bytes: uint64(w.total - before)} //nolint:gosec // it grows
	if told != (telemetry.Decisions{}) {
		a.log.config.OnWrite(told)
	}
}

// writeOne writes a question, in a segment of its own behind those that were lost.
func (a *Asked) writeOne(w *writer, q *Question, lost uint64) error {
	now := a.log.config.Now().UnixNano()
	if w.file == nil || lost > 0 || w.written >= a.log.config.SegmentBytes || now-w.began >= int64(a.log.config.SegmentAge) {
		h := Header{Began: q.At, Gap: lost > 0, Dropped: lost}
		w.dropped = 0 // h says it
		if err := w.segment(h, &snapshot{state: &host.State{}}); err != nil {
			return err
		}
	}
	if err := w.encoder.question(q); err != nil {
		return err
	}
	_, err := w.flush(now)
	return err
}

func (a *Asked) fail(w *writer, err error) {
	_ = w.abandon() // the error that counts is reported
	a.log.config.Log.Error("a question to a policy cannot be recorded; it is dropped", slog.Any(telemetry.KeyError, err))
}

// Quota records what a policy of quota is asked. by names it.
func (a *Asked) Quota(inner respool.Quota, by string) respool.Quota {
	return &askedQuota{a, inner, by}
}

type askedQuota struct {
	asked *Asked
	inner respool.Quota
	by    string
}

// Entitle implements respool.Quota.
func (q *askedQuota) Entitle(s *respool.Snapshot) ([]resource.Vector, error) {
	began := q.asked.log.config.Now()
	values, err := q.inner.Entitle(s)
	x := &Question{At: began.UnixNano(), Took: q.asked.log.config.Now().Sub(began), By: q.by, Snapshot: s, Entitlements: append([]resource.Vector(nil), values...)}
	if err != nil {
		x.Err = err.Error()
	}
	q.asked.Record(x)
	return values, err
}

// Adviser records what a policy of preemption is asked.
func (a *Asked) Adviser(inner preemption.Adviser, by string) preemption.Adviser {
	return &askedAdviser{a, inner, by}
}

type askedAdviser struct {
	asked *Asked
	inner preemption.Adviser
	by    string
}

// Rank implements preemption.Adviser.
func (r *askedAdviser) Rank(list []preemption.Contender) ([]int32, error) {
	began := r.asked.log.config.Now()
	ranks, err := r.inner.Rank(list)
	n := min(len(list), preemption.MaxContenders)
	x := &Question{
		At: began.UnixNano(), Took: r.asked.log.config.Now().Sub(began), By: r.by,
		Contenders: append([]preemption.Contender(nil), list[:n]...), Ranks: append([]int32(nil), ranks[:min(len(ranks), n)]...),
	}
	if err != nil {
		x.Err = err.Error()
	}
	if n > 0 {
		r.asked.Record(x)
	}
	return ranks, err
}
