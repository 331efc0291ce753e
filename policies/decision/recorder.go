package decision

import (
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/paceline-sched/paceline/core/host"
	"github.com/paceline-sched/paceline/core/placement"
	"github.com/paceline-sched/paceline/core/shard"
	"github.com/paceline-sched/paceline/core/telemetry"
)

// The bounds of what waits to be written, for each shard.
const (
	maxBlocks      = 1 << 10
	maxDecisions   = 1 << 13
	maxAssignments = 1 << 17
	// keptBlocks bounds those that are kept for reuse.
	keptBlocks = 1 << 7
	// blockChanges is how many changes are handed to the writer at once.
	blockChanges = 64
	// stampEvery is how many changes share a reading of the clock at most.
	stampEvery = 16
	// retryAfter is how long a log rests that could not be written.
	retryAfter = 10 * time.Second
)

// Recorder is a placement.PlacerSource whose placers are recorded. It has the owner of the shard's table as its only user, but for Close.
type Recorder struct {
	log    *Log
	shard  string
	source placement.PlacerSource
	placed map[string]*recorded

	table    *host.Table
	fresh    bool // the table was never written
	busy     bool // a placer is at work: what it does is in its results
	lost     bool // the writer cannot follow without another state
	sequence uint64
	dropped  uint64 // decisions, since the last state
	names    int    // that the last state had
	stamps   int    // changes until the clock is read again
	at       int64
	block    []Change // since the last decision, not handed over yet

	mu      sync.Mutex
	pending *chunk // being filled
	spare   *chunk // nil while the writer has it
	blocks  [][]Change

	due    atomic.Bool  // another segment is wanted
	failed atomic.Int64 // when the writer failed, in the time of Config.Now; 0: it did not
	wake   chan struct{}
	urgent chan struct{}
	stop   chan struct{}
	done   chan struct{}
}

// snapshot is a table at one moment, and what goes before it.
type snapshot struct {
	state  *host.State
	header Header
}

// chunk is what the writer takes at once.
type chunk struct {
	pieces      []piece
	blocks      int // pieces that are changes
	decisions   []entry
	requests    []placement.Request
	assignments int // of the decisions
	dropped     uint64
}

// piece is some changes, or where they are none, a decision.
type piece struct {
	changes  []Change
	decision int
}

// entry is a decision, and the table when it begins a segment.
type entry struct {
	Decision
	first *snapshot
}

func (c *chunk) empty() bool { return len(c.pieces) == 0 && c.dropped == 0 }

// half reports whether it is half full.
func (c *chunk) half() bool {
	return c.blocks > maxBlocks/2 || len(c.decisions) > maxDecisions/2 || c.assignments > maxAssignments/2
}

func (c *chunk) reset() {
	clear(c.pieces)
	clear(c.decisions)
	clear(c.requests)
	*c = chunk{pieces: c.pieces[:0], decisions: c.decisions[:0], requests: c.requests[:0]}
}

func newRecorder(l *Log, shard string, source placement.PlacerSource, w *writer, sequence uint64) *Recorder {
	r := &Recorder{
		log: l, shard: shard, source: source, placed: map[string]*recorded{}, sequence: sequence, pending: &chunk{}, spare: &chunk{},
		wake: make(chan struct{}, 1), urgent: make(chan struct{}, 1), stop: make(chan struct{}), done: make(chan struct{}),
	}
	go r.write(w)
	return r
}

// Close writes what waits and ends. Nobody may use the recorder's placers, or its table, meanwhile or afterwards.
func (r *Recorder) Close() {
	if r.table != nil {
		r.table.SetJournal(nil)
	}
	r.mu.Lock()
	r.handOver()
	r.mu.Unlock()
	close(r.stop)
	<-r.done
}

// Placer implements placement.PlacerSource.
func (r *Recorder) Placer(policy string) (placement.Placer, bool) {
	inner, ok := r.source.Placer(policy)
	if !ok {
		return nil, false
	}
	p := r.placed[policy]
	if p == nil {
		p = &recorded{recorder: r, policy: policy}
		r.placed[policy] = p
	}
	p.inner = inner
	if _, can := inner.(planner); can {
		return (*recordedPlanner)(p), true
	}
	return p, true
}

// planner is a placer that can tell where it would place.
type planner interface {
	Plan(t *host.Table, requests []placement.Request) []placement.Result
}

// recorded is a placer whose batches are recorded.
type recorded struct {
	recorder *Recorder
	policy   string
	inner    placement.Placer
}

// recordedPlanner is one that can plan as well.
type recordedPlanner recorded

// Place implements placement.Placer.
func (p *recordedPlanner) Place(t *host.Table, requests []placement.Request) []placement.Result {
	return (*recorded)(p).Place(t, requests)
}

// Plan passes on. What is only planned is not recorded.
func (p *recordedPlanner) Plan(t *host.Table, requests []placement.Request) []placement.Result {
	was := p.recorder.busy
	p.recorder.busy = true                         // it leaves the table as it was
	results := p.inner.(planner).Plan(t, requests) //nolint:errcheck // that is what it was chosen for
	p.recorder.busy = was
	return results
}

// Place implements placement.Placer.
func (p *recorded) Place(t *host.Table, requests []placement.Request) []placement.Result {
	r := p.recorder
	began := r.log.config.Now()
	r.stamps, r.at = 0, began.UnixNano()
	first := r.follow(t)
	revision := t.Revision()
	r.busy = true
	results := p.inner.Place(t, requests)
	r.busy = false
	took := r.log.config.Now().Sub(began)
	sequence := r.sequence
	r.sequence++
	if r.lost {
		r.dropped++
		r.tellDropped()
		return results
	}
	d := Decision{Sequence: sequence, At: r.at, Took: took, Revision: revision, Strategy: p.policy}
	if w, ok := p.inner.(placement.Witness); ok {
		d.Served = w.Served()
	}
	r.decided(&d, first, requests, results)
	return results
}

// follow sees to it that the table is followed, and returns its state when a segment begins with this batch.
func (r *Recorder) follow(t *host.Table) *snapshot {
	if r.table != t {
		if r.table != nil {
			r.table.SetJournal(nil)
		}
		r.table, r.fresh, r.lost = t, true, true
		t.SetJournal(r)
	}
	if failed := r.failed.Load(); failed != 0 {
		r.lost = true
		if r.at-failed < int64(retryAfter) {
			return nil
		}
	}
	if names := t.Names().Len(); r.names != names { // a state has the names of all kinds
		r.names = names
		r.due.Store(true)
	}
	if !r.lost && !r.due.Load() {
		return nil
	}
	if r.lost && r.lagging() {
		return nil
	}
	r.mu.Lock()
	r.handOver() // what is of before
	r.mu.Unlock()
	s := &snapshot{state: t.State(), header: Header{Began: r.at, Sequence: r.sequence, Fresh: r.fresh, Gap: r.lost && !r.fresh, Dropped: r.dropped}}
	r.due.Store(false)
	r.failed.Store(0)
	r.lost, r.fresh, r.dropped = false, false, 0
	return s
}

// lagging reports whether so much waits to be written that a state would soon be lost again.
func (r *Recorder) lagging() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.pending.half()
}

// decided hands a decision to the writer.
func (r *Recorder) decided(d *Decision, first *snapshot, requests []placement.Request, results []placement.Result) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.pending
	assignments := 0
	for i := range results {
		assignments += len(results[i].Assignments)
	}
	if len(c.decisions) >= maxDecisions || c.assignments >= maxAssignments {
		r.lost = true
		r.dropped++
		c.dropped++
		return
	}
	empty := c.empty()
	r.handOver()
	if r.lost { // what happened before it could not be kept, so neither can it
		r.dropped++
		c.dropped++
		r.signal(empty)
		return
	}
	from := len(c.requests)
	c.requests = append(c.requests, requests...)
	d.Requests = c.requests[from:len(c.requests):len(c.requests)]
	d.Results = results
	c.assignments += assignments
	c.pieces = append(c.pieces, piece{decision: len(c.decisions)})
	c.decisions = append(c.decisions, entry{Decision: *d, first: first})
	r.signal(empty)
}

// possible returns as many results as there were requests, without assignments that no table can have: those were never taken.
func possible(d *Decision) []placement.Result {
	wrong := func(a placement.Assignment) bool { return a.Row < 0 || a.Row >= shard.MaxRows }
	fine := len(d.Results) == len(d.Requests)
	for i := range d.Results {
		fine = fine && !slices.ContainsFunc(d.Results[i].Assignments, wrong)
	}
	if fine {
		return d.Results
	}
	results := make([]placement.Result, len(d.Requests))
	copy(results, d.Results)
	for i := range results {
		results[i].Assignments = slices.DeleteFunc(slices.Clone(results[i].Assignments), wrong)
	}
	return results
}

// tellDropped counts a decision that is not recorded.
func (r *Recorder) tellDropped() {
	r.mu.Lock()
	defer r.mu.Unlock()
	empty := r.pending.empty()
	r.pending.dropped++
	r.signal(empty)
}

// signal wakes the writer. mu is held.
func (r *Recorder) signal(wasEmpty bool) {
	c := r.pending
	if wasEmpty {
		poke(r.wake)
	}
	if c.half() {
		poke(r.urgent)
	}
}

func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// handOver gives the writer the changes that are not its yet. mu is held.
func (r *Recorder) handOver() {
	if len(r.block) == 0 {
		return
	}
	c := r.pending
	if c.blocks >= maxBlocks {
		r.lost = true
		r.block = r.block[:0]
		return
	}
	empty := c.empty()
	c.pieces = append(c.pieces, piece{changes: r.block})
	c.blocks++
	r.block = nil
	if n := len(r.blocks); n > 0 {
		r.block, r.blocks = r.blocks[n-1], r.blocks[:n-1]
	}
	r.signal(empty)
}

// change returns where a change is to be noted, nil: nowhere. What stands there is of an earlier one.
func (r *Recorder) change(kind ChangeKind, row host.Row) *Change {
	if r.busy || r.lost {
		return nil
	}
	if r.stamps == 0 {
		r.at, r.stamps = r.log.config.Now().UnixNano(), stampEvery
	}
	r.stamps--
	if len(r.block) == blockChanges {
		r.mu.Lock()
		r.handOver()
		r.mu.Unlock()
		if r.lost {
			return nil
		}
	}
	if r.block == nil {
		r.block = make([]Change, 0, blockChanges)
	}
	r.block = r.block[:len(r.block)+1]
	x := &r.block[len(r.block)-1]
	x.Kind, x.Row, x.At, x.Host = kind, row, r.at, nil
	return x
}

// undoes takes back the last change when it took the room that is released now: whoever tries out what would fit takes room and gives it back, the last first.
func (r *Recorder) undoes(row host.Row, b *host.Occupant) bool {
	n := len(r.block)
	if n == 0 {
		return false
	}
	last := &r.block[n-1]
	a := &last.Occupant
	if last.Kind != Took || last.Row != row || a.Job != b.Job || a.Labels != b.Labels || a.Needs != b.Needs || a.Devices != b.Devices ||
		a.Exclusive != b.Exclusive || a.Milli != b.Milli || !slices.Equal(a.Ports, b.Ports) {
		return false
	}
	r.block = r.block[:n-1]
	return true
}

// Upserted implements host.Journal.
func (r *Recorder) Upserted(row host.Row, h *host.Host) {
	if x := r.change(Upserted, row); x != nil {
		x.Host = h
	}
}

// Removed implements host.Journal.
func (r *Recorder) Removed(row host.Row) { r.change(Removed, row) }

// Drained implements host.Journal.
func (r *Recorder) Drained(row host.Row, draining bool) {
	if draining {
		r.change(Drained, row)
	} else {
		r.change(Undrained, row)
	}
}

// Took implements host.Journal.
func (r *Recorder) Took(row host.Row, o host.Occupant) {
	if x := r.change(Took, row); x != nil {
		x.Occupant = o
	}
}

// Released implements host.Journal.
func (r *Recorder) Released(row host.Row, o host.Occupant) {
	if r.busy || r.undoes(row, &o) {
		return
	}
	if x := r.change(Released, row); x != nil {
		x.Occupant = o
	}
}

// write writes chunks until the recorder is closed.
func (r *Recorder) write(w *writer) {
	defer close(r.done)
	timer := time.NewTimer(r.log.config.FlushEvery)
	defer timer.Stop()
	for {
		select {
		case <-r.wake:
		case <-r.stop:
			r.writeChunk(w)
			r.writeChunk(w) // what came while the first one was written
			if err := w.close(); err != nil {
				r.fail(w, err)
			}
			return
		}
		timer.Reset(r.log.config.FlushEvery)
		select {
		case <-timer.C:
		case <-r.urgent:
		case <-r.stop:
		}
		r.writeChunk(w)
	}
}

// writeChunk takes what is pending and writes it.
func (r *Recorder) writeChunk(w *writer) {
	r.mu.Lock()
	c := r.pending
	r.pending, r.spare = r.spare, nil
	r.mu.Unlock()
	before := w.total
	records, err := r.encode(w, c)
	if err != nil {
		r.fail(w, err)
	}
	unwritten := uint64(len(c.decisions)) - records
	w.dropped += unwritten
	dropped := c.dropped + unwritten
	r.log.config.OnWrite(telemetry.Decisions{Records: records, Dropped: dropped, Bytes: uint64(w.total - before)}) //nolint:gosec // it grows
	r.mu.Lock()
	for i := range c.pieces {
		if block := c.pieces[i].changes; block != nil && len(r.blocks) < keptBlocks {
			r.blocks = append(r.blocks, block[:0])
		}
	}
	r.mu.Unlock()
	c.reset()
	r.mu.Lock()
	r.spare = c
	r.mu.Unlock()
}

// encode writes a chunk and returns how many decisions of it were written.
func (r *Recorder) encode(w *writer, c *chunk) (records uint64, err error) {
	for i := range c.pieces {
		if list := c.pieces[i].changes; list != nil {
			if err := w.changes(list); err != nil {
				return records, err
			}
			continue
		}
		d := &c.decisions[c.pieces[i].decision]
		if d.first != nil {
			if err := w.segment(d.first.header, d.first); err != nil {
				return records, err
			}
		}
		if w.file == nil {
			continue // its segment could not be begun
		}
		d.Results = possible(&d.Decision)
		if err := w.encoder.decision(&d.Decision); err != nil {
			return records, err
		}
		records++
	}
	if w.file == nil {
		return records, nil
	}
	due, err := w.flush(r.log.config.Now().UnixNano())
	if due {
		r.due.Store(true)
	}
	return records, err
}

// fail gives up the segment that is being written; the owner begins another one later.
func (r *Recorder) fail(w *writer, err error) {
	_ = w.abandon() // the error that counts is reported
	r.failed.Store(r.log.config.Now().UnixNano())
	r.log.config.Log.Error("decisions cannot be recorded; they are dropped for a while", slog.String(telemetry.KeyShard, r.shard), slog.Any(telemetry.KeyError, err))
}
