package engine

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/paceline-sched/paceline/core/scheduler"
	"github.com/paceline-sched/paceline/core/store/record"
	"github.com/paceline-sched/paceline/core/telemetry"
)

// The bounds of watching.
const (
	ringGroups  = 4096    // newest parts of the event log that are served from memory, at most
	ringChanges = 1 << 16 // changes in them, at most: some 20 MiB, as much again encoded, and more than what comes in half a second
	watchPage   = 64      // parts of the event log that one Next looks at
	pageChanges = 512     // and changes, unless a single part has more: what a watcher that is stuck keeps in memory
	MaxWatchers = 4096
	// lookPause is between two wakings of all watchers, for each of them: a commit wakes ten of them at once and a thousand after 20 ms at most,
	// so that together they look 50,000 times a second, however often there is something new.
	lookPause = 20 * time.Microsecond
)

// Errors of watching.
var (
	// ErrCompacted says that the event log does not reach back that far.
	ErrCompacted = errors.New("the event log no longer holds this revision: list again and watch from there")
	// ErrFuture says that the revision was not reached yet, so the cursor is not of this cell's history.
	ErrFuture       = errors.New("the revision lies in the future of this cell")
	ErrManyWatchers = fmt.Errorf("%d watches are open, and no more are taken", MaxWatchers)
)

// hub keeps the newest part of the event log in memory and wakes those who wait for more. It holds nothing per watcher: one that is stuck
// costs what one that keeps up costs.
type hub struct {
	trace *telemetry.Trace

	mu       sync.Mutex
	ring     []part        // in order of sequence; gaps are groups without changes
	changes  int           // in ring
	last     uint64        // newest durable sequence
	begun    uint64        // newest sequence that a commit was begun with: its removals may be in the store already
	covers   uint64        // ring holds every change after this sequence
	more     chan struct{} // closed when there is more to look at
	woken    time.Time     // when it was last
	waking   *time.Timer   // closes more later; nil: nothing has come since it was closed
	watchers int
	closed   bool
}

// part is one revision's part of the event log.
type part struct {
	scheduler.ChangesRecord
	memos []memo // one for each change; none in what was read from the store
}

// memo keeps what one watcher made of a change for the others. It goes when the change leaves the ring.
type memo struct{ kept atomic.Pointer[encoding] }

type encoding struct {
	key   string
	bytes []byte
}

func newHub(sequence uint64, trace *telemetry.Trace) *hub {
	return &hub{last: sequence, begun: sequence, covers: sequence, more: make(chan struct{}), trace: trace}
}

// announce says that a commit up to the sequence begins.
func (h *hub) announce(sequence uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.begun = sequence
}

func (h *hub) publish(groups []scheduler.Group) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, g := range groups {
		h.last = g.Sequence
		for n := len(g.Writes) - 1; n >= 0 && n >= len(g.Writes)-2; n-- { // it stands last, or before the removal of an old one
			if c, ok := g.Writes[n].Record.(scheduler.ChangesRecord); ok && !g.Writes[n].Delete {
				h.ring = append(h.ring, part{c, make([]memo, len(c.Changes))})
				h.changes += len(c.Changes)
			}
		}
	}
	h.trim()
	if h.waking != nil {
		return
	}
	if pause := time.Duration(h.watchers)*lookPause - time.Since(h.woken); pause > 0 {
		h.waking = time.AfterFunc(pause, h.wakeLate)
		return
	}
	h.wake()
}

func (h *hub) wakeLate() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.closed {
		h.wake()
	}
}

func (h *hub) wake() {
	h.woken, h.waking = time.Now(), nil
	close(h.more)
	h.more = make(chan struct{})
}

// trim drops the oldest parts until the ring is within its bounds.
func (h *hub) trim() {
	over := 0
	for len(h.ring)-over > ringGroups || (h.changes > ringChanges && over < len(h.ring)) {
		h.changes -= len(h.ring[over].Changes)
		over++
	}
	if over > 0 {
		h.covers = h.ring[over-1].Sequence
		clear(h.ring[:over])
		h.ring = h.ring[over:] // the next growth leaves the dropped ones behind
	}
}

func (h *hub) close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed = true
	if h.waking != nil {
		h.waking.Stop()
	}
	close(h.more)
}

// Events are the changes of one or more revisions, in order. Changes is good until the next call of Next, what it points to for good.
type Events struct {
	Changes []Event
	// Revision is how far the watch has looked: resume after it.
	Revision uint64
}

// Event is one change and the revision that made it durable. The change is shared by all watchers: it must not be altered.
type Event struct {
	Revision uint64
	*scheduler.Change
	memo *memo // nil: none
}

// Encoded returns what encode makes of the change. Of one that many watch it is made once for all of them; key names what it depends on
// beside the change. The bytes must not be altered.
func (e *Event) Encoded(key string, encode func() []byte) []byte {
	if e.memo == nil {
		return encode()
	}
	if kept := e.memo.kept.Load(); kept != nil && kept.key == key {
		return kept.bytes
	}
	made := &encoding{key, encode()}
	e.memo.kept.Store(made)
	return made.bytes
}

// Subscription is one watch. It is not safe for concurrent use.
type Subscription struct {
	engine *Engine
	codec  *record.Codec
	after  uint64
	match  func(*scheduler.Change) bool
	parts  []part  // scratch; at most a page
	found  []Event // likewise
	closed bool
}

// Revision is the newest durable revision.
func (e *Engine) Revision() uint64 {
	e.hub.mu.Lock()
	defer e.hub.mu.Unlock()
	return e.hub.last
}

// Watch follows the changes after a revision for which match says yes. The caller closes the subscription.
func (e *Engine) Watch(after uint64, match func(*scheduler.Change) bool) (*Subscription, error) {
	h := e.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.closed:
		return nil, ErrStopped
	case h.watchers >= MaxWatchers:
		return nil, ErrManyWatchers
	case after > h.last:
		return nil, ErrFuture
	case compacted(after, h.last):
		return nil, ErrCompacted
	}
	h.watchers++
	h.trace.WatchersChanged(h.watchers)
	return &Subscription{engine: e, codec: record.NewCodec(e.config.Keys), after: after, match: match}, nil
}

// sinceMargin is how many groups may be committed between a RevisionAt that names the oldest revision and the Watch from there.
const sinceMargin = 1024

// RevisionAt returns the revision after which a watch sees what changed from a time on, as far back as the event log goes.
func (e *Engine) RevisionAt(at time.Time) (uint64, error) {
	h := e.hub
	h.mu.Lock()
	begun, last := h.begun, h.last
	h.mu.Unlock()
	var first uint64
	if begun > scheduler.ChangesKept-sinceMargin {
		first = min(begun-scheduler.ChangesKept+sinceMargin, last)
	}
	codec := record.NewCodec(e.config.Keys)
	for first < last { // times never fall from one part to the next
		middle := first + (last-first)/2
		s := Subscription{engine: e, codec: codec, after: middle}
		parts, more, err := s.page()
		for err == nil && more == nil && len(parts) == 0 { // groups without changes
			parts, more, err = s.page()
		}
		switch {
		case err != nil:
			return 0, err
		case len(parts) == 0 || !time.Unix(0, parts[0].Changes[0].At).Before(at):
			last = middle
		default:
			first = max(parts[0].Sequence, middle+1)
		}
	}
	return min(first, last), nil
}

// compacted reports whether parts after the revision have been dropped from the event log.
func compacted(after, last uint64) bool {
	return last > scheduler.ChangesKept && after < last-scheduler.ChangesKept
}

// mayLack reports whether a snapshot taken before may lack parts after the revision.
func (h *hub) mayLack(after uint64) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return compacted(after, h.begun)
}

// Close ends the subscription.
func (s *Subscription) Close() {
	if s.closed {
		return
	}
	s.closed = true
	h := s.engine.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	h.watchers--
	h.trace.WatchersChanged(h.watchers)
}

// Next waits for changes that match and returns them, whole revisions at a time. A subscription that fell out of the event log gets
// ErrCompacted.
func (s *Subscription) Next(ctx context.Context) (Events, error) {
	for {
		out, more, err := s.look(ctx)
		if err != nil || len(out.Changes) > 0 {
			return out, err
		}
		select {
		case <-more:
		case <-ctx.Done():
			return out, ctx.Err()
		}
	}
}

// Poll is Next for who does not wait: without changes it has looked at all there is.
func (s *Subscription) Poll(ctx context.Context) (Events, error) {
	out, _, err := s.look(ctx)
	return out, err
}

// look finds changes that match, or what to wait for when there are none.
func (s *Subscription) look(ctx context.Context) (Events, <-chan struct{}, error) {
	for {
		parts, more, err := s.page()
		if err != nil {
			return Events{}, nil, err
		}
		out := Events{Revision: s.after, Changes: s.matching(parts)}
		switch {
		case len(out.Changes) > 0 || more != nil:
			return out, more, nil
		case ctx.Err() != nil:
			return out, nil, ctx.Err()
		}
	}
}

// matching finds the changes that match. They are not copied: ten watchers of everything would otherwise make most of a busy cell's garbage.
func (s *Subscription) matching(parts []part) []Event {
	clear(s.found)
	s.found = s.found[:0]
	for n := range parts {
		p := &parts[n]
		for m := range p.Changes {
			if c := &p.Changes[m]; s.match(c) {
				e := Event{Revision: p.Sequence, Change: c}
				if p.memos != nil {
					e.memo = &p.memos[m]
				}
				s.found = append(s.found, e)
			}
		}
	}
	clear(parts)
	return s.found
}

// page returns the next parts of the event log and moves on behind them. When there are none it returns what to wait for.
func (s *Subscription) page() ([]part, <-chan struct{}, error) {
	h := s.engine.hub
	h.mu.Lock()
	switch {
	case h.closed:
		h.mu.Unlock()
		return nil, nil, ErrStopped
	case compacted(s.after, h.last):
		h.mu.Unlock()
		return nil, nil, ErrCompacted
	case s.after >= h.last:
		defer h.mu.Unlock()
		return nil, h.more, nil
	case s.after >= h.covers:
		defer h.mu.Unlock()
		return s.fromRing(h), nil, nil
	}
	upTo := h.covers
	h.mu.Unlock()
	parts, err := s.fromStore(upTo)
	return parts, nil, err
}

func (s *Subscription) fromRing(h *hub) []part {
	lo, hi := 0, len(h.ring)
	for lo < hi {
		if mid := (lo + hi) / 2; h.ring[mid].Sequence <= s.after {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	s.parts = s.parts[:0]
	for changes := 0; lo < len(h.ring) && len(s.parts) < watchPage && changes < pageChanges; lo++ {
		s.parts = append(s.parts, h.ring[lo])
		changes += len(h.ring[lo].Changes)
	}
	if lo == len(h.ring) {
		s.after = h.last
	} else {
		s.after = s.parts[len(s.parts)-1].Sequence
	}
	return s.parts
}

// fromStore reads parts up to upTo, beyond which the ring goes on. What the snapshot has of later ones may not be durable yet.
func (s *Subscription) fromStore(upTo uint64) ([]part, error) {
	snap, err := s.engine.config.Store.Snapshot()
	if err != nil {
		return nil, fmt.Errorf("read the event log: %w", err)
	}
	defer snap.Close()
	parts, err := s.codec.Changes(snap, s.after+1, watchPage, pageChanges)
	if err != nil {
		return nil, fmt.Errorf("read the event log: %w", err)
	}
	if s.engine.hub.mayLack(s.after) {
		return nil, ErrCompacted
	}
	s.parts = s.parts[:0]
	changes := 0
	for _, p := range parts {
		s.parts = append(s.parts, part{ChangesRecord: p})
		changes += len(p.Changes)
	}
	full := len(parts) >= watchPage || changes >= pageChanges
	for len(s.parts) > 0 && s.parts[len(s.parts)-1].Sequence > upTo {
		s.parts, full = s.parts[:len(s.parts)-1], false
	}
	s.after = upTo
	if full {
		s.after = s.parts[len(s.parts)-1].Sequence
	}
	return s.parts, nil
}
