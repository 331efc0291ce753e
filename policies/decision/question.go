package decision

import (
	"bytes"
	"compress/flate"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"time"

	"github.com/paceline-sched/paceline/core/preemption"
	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/respool"
	"github.com/paceline-sched/paceline/core/workload"
)

// Question is what a policy of quota or of preemption was asked, and its answer: exactly one of Snapshot and Contenders is there.
type Question struct {
	At   int64 // UTC nanoseconds, when it was asked
	Took time.Duration
	By   string // whose answer it is: a policy with its version, or the built-in one
	Err  string // why there is no answer

	Snapshot     *respool.Snapshot
	Entitlements []resource.Vector // by row of the snapshot

	Contenders []preemption.Contender
	Ranks      []int32 // by contender
}

// maxQuestion bounds a question that is read, inflated.
const maxQuestion = 64 << 20

type questionForm struct {
	At         int64           `json:"at"`
	Took       int64           `json:"took,omitempty"`
	By         string          `json:"by,omitempty"`
	Err        string          `json:"err,omitempty"`
	Kinds      []string        `json:"kinds,omitempty"`
	Pools      []poolForm      `json:"pools,omitempty"`
	Contenders []contenderForm `json:"contenders,omitempty"`
}

type poolForm struct {
	ID          string  `json:"id"`
	Parent      int32   `json:"parent"`
	Path        string  `json:"path"`
	Reservation []int64 `json:"reservation,omitempty"`
	Ceiling     []int64 `json:"ceiling,omitempty"`
	Share       int64   `json:"share,omitempty"`
	Demand      []int64 `json:"demand,omitempty"`
	Usage       []int64 `json:"usage,omitempty"`
	Entitlement []int64 `json:"entitlement,omitempty"`
}

type contenderForm struct {
	Job       string  `json:"job"`
	Pool      string  `json:"pool"`
	Priority  int32   `json:"priority,omitempty"`
	Over      int64   `json:"over,omitempty"`
	Revocable bool    `json:"revocable,omitempty"`
	Gang      int32   `json:"gang,omitempty"`
	Runs      int32   `json:"runs,omitempty"`
	Use       []int64 `json:"use,omitempty"`
	Work      int64   `json:"work,omitempty"`
	Rank      int32   `json:"rank"`
}

func newQuestionForm(q *Question) *questionForm {
	f := &questionForm{At: q.At, Took: int64(q.Took), By: q.By, Err: q.Err}
	if q.Snapshot != nil {
		f.Kinds = q.Snapshot.Kinds
		for i := range q.Snapshot.Rows {
			r := &q.Snapshot.Rows[i]
			p := poolForm{
				ID: r.ID.String(), Parent: r.Parent, Path: r.Path, Reservation: vectorForm(&r.Reservation), Ceiling: vectorForm(&r.Ceiling), Share: r.Share,
				Demand: vectorForm(&r.Demand), Usage: vectorForm(&r.Usage),
			}
			if len(q.Entitlements) > i {
				p.Entitlement = vectorForm(&q.Entitlements[i])
			}
			f.Pools = append(f.Pools, p)
		}
	}
	for i := range q.Contenders {
		c := &q.Contenders[i]
		x := contenderForm{
			Job: c.Job.String(), Pool: c.Pool.String(), Priority: c.Priority, Over: c.Over, Revocable: c.Revocable, Gang: c.Gang, Runs: c.Runs,
			Use: vectorForm(&c.Use), Work: c.Work, Rank: preemption.Unranked,
		}
		if len(q.Ranks) > i {
			x.Rank = q.Ranks[i]
		}
		f.Contenders = append(f.Contenders, x)
	}
	return f
}

func (f *questionForm) question() (*Question, error) {
	q := &Question{At: f.At, Took: time.Duration(f.Took), By: f.By, Err: f.Err}
	if (len(f.Pools) > 0) == (len(f.Contenders) > 0) {
		return nil, errors.New("a question is about pools or about candidates")
	}
	if len(f.Kinds) > resource.MaxKinds || len(f.Contenders) > preemption.MaxContenders {
		return nil, fmt.Errorf("a question about %d kinds and %d candidates", len(f.Kinds), len(f.Contenders))
	}
	if len(f.Pools) > 0 {
		q.Snapshot = &respool.Snapshot{Kinds: f.Kinds, Rows: make([]respool.Row, len(f.Pools))}
		q.Entitlements = make([]resource.Vector, len(f.Pools))
	}
	for i := range f.Pools {
		if err := f.Pools[i].row(i, &q.Snapshot.Rows[i], &q.Entitlements[i]); err != nil {
			return nil, fmt.Errorf("pool %d: %w", i, err)
		}
	}
	for i := range f.Contenders {
		c, err := f.Contenders[i].contender()
		if err != nil {
			return nil, fmt.Errorf("candidate %d: %w", i, err)
		}
		q.Contenders, q.Ranks = append(q.Contenders, c), append(q.Ranks, f.Contenders[i].Rank)
	}
	return q, nil
}

func (f *poolForm) row(at int, r *respool.Row, entitlement *resource.Vector) error {
	id, err := workload.ParseID(f.ID)
	if err != nil {
		return err
	}
	if (at == 0) != (f.Parent == -1) || int64(f.Parent) >= int64(at) || f.Parent < -1 {
		return fmt.Errorf("its parent is %d: parents stand before their children", f.Parent)
	}
	*r = respool.Row{ID: workload.PoolID(id), Parent: f.Parent, Path: f.Path, Share: f.Share}
	for _, v := range []struct {
		form []int64
		to   *resource.Vector
	}{{f.Reservation, &r.Reservation}, {f.Ceiling, &r.Ceiling}, {f.Demand, &r.Demand}, {f.Usage, &r.Usage}, {f.Entitlement, entitlement}} {
		if *v.to, err = vectorOf(v.form); err != nil {
			return err
		}
		for _, n := range v.to {
			if n < 0 {
				return fmt.Errorf("a quantity of %d", n)
			}
		}
	}
	return nil
}

func (f *contenderForm) contender() (c preemption.Contender, err error) {
	job, err := workload.ParseID(f.Job)
	if err != nil {
		return c, err
	}
	pool, err := workload.ParseID(f.Pool)
	if err != nil {
		return c, err
	}
	if f.Rank < preemption.Unranked || f.Gang < 0 || f.Runs < 0 || f.Work < 0 || f.Work == math.MaxInt64 {
		return c, fmt.Errorf("rank %d, gang %d, runs %d, work %d", f.Rank, f.Gang, f.Runs, f.Work)
	}
	c = preemption.Contender{
		Candidate: preemption.Candidate{Job: workload.JobID(job), Pool: workload.PoolID(pool), Priority: f.Priority, Over: f.Over},
		Revocable: f.Revocable, Gang: f.Gang, Runs: f.Runs, Work: f.Work,
	}
	c.Use, err = needsOf(f.Use)
	return c, err
}

func (e *encoder) question(q *Question) error {
	var out bytes.Buffer
	w, err := flate.NewWriter(&out, flate.BestSpeed)
	if err != nil {
		return err
	}
	if err := json.NewEncoder(w).Encode(newQuestionForm(q)); err != nil {
		return fmt.Errorf("encode a question: %w", err)
	}
	if err := w.Close(); err != nil {
		return err
	}
	e.record(recordQuestion, func(b []byte) []byte { return append(b, out.Bytes()...) })
	return nil
}

func (d *decoder) question(payload []byte) error {
	var form questionForm
	if err := json.NewDecoder(io.LimitReader(flate.NewReader(bytes.NewReader(payload)), maxQuestion)).Decode(&form); err != nil {
		return fmt.Errorf("read a question: %w", err)
	}
	q, err := form.question()
	if err != nil {
		return fmt.Errorf("read a question: %w", err)
	}
	return d.tell(Event{Question: q})
}
