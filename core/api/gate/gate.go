// Package gate decides which calls come in when there are more than the cell can do.
//
// It owns the room that calls take while they are under way: those in progress, those that wait for their turn, open streams, and the bytes
// of requests. All of it is divided by one rule: nobody may hold more than is left. So one greedy principal gets half of the room and two
// get a third each, whoever comes next finds room at once, and nothing has to be configured or remembered per principal (Choudhury and
// Hahne, "Dynamic queue length thresholds for shared-memory packet switches", 1998). A place that becomes free goes to the call that
// has waited longest of those whose principals may have it.
//
// The package knows neither HTTP nor who a principal is, and never looks at what is called.
//
// Concurrency: everything may be called from any goroutine. It starts none.
package gate

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
)

// The defaults of Limits, and how long a call waits at most.
const (
	DefaultCalls   = 128
	DefaultStreams = 4096
	DefaultBytes   = 128 << 20
	Patience       = 10 * time.Second
)

// Errors of calls that found no room. Nothing was done for them.
var (
	ErrCalls   = errors.New("this principal has as many calls in progress and waiting as it may have now")
	ErrStreams = errors.New("this principal has as many streams open as it may have now")
	ErrBytes   = errors.New("this principal has requests of as many bytes under way as it may have now")
	ErrLate    = fmt.Errorf("the call has waited for its turn for %v", Patience)
)

// Limits is the room there is. Zero fields take the defaults.
type Limits struct {
	// Calls are in progress at once, and as many more wait. Default 128, at least 2. More make better use of a machine with many cores or a slow
	// disk; each may hold a request in memory, and whoever asks for little waits behind more of those who ask for much.
	Calls int
	// Streams are open at once: watches, logs, backups. Default 4096, at least 2.
	Streams int
	// Bytes of requests are held at once. Default 128 MiB. Decoded they take some times as much.
	Bytes int64
}

// WithDefaults fills zero fields.
func (l Limits) WithDefaults() Limits {
	if l.Calls == 0 {
		l.Calls = DefaultCalls
	}
	if l.Streams == 0 {
		l.Streams = DefaultStreams
	}
	if l.Bytes == 0 {
		l.Bytes = DefaultBytes
	}
	return l
}

// Validate refuses limits with which nobody could call.
func (l Limits) Validate() error {
	switch {
	case l.Calls < 2:
		return fmt.Errorf("%d calls at once are too few: use 2 or more", l.Calls)
	case l.Streams < 2:
		return fmt.Errorf("%d streams at once are too few: use 2 or more", l.Streams)
	}
	return nil
}

// Gate lets calls in.
type Gate struct {
	limits Limits

	mu         sync.Mutex
	principals map[string]*principal // those that hold room or wait for it, so at most as many as there is room
	total      usage
	arrivals   uint64
}

// usage is room that is taken.
type usage struct {
	calls, waiting, streams int
	bytes                   int64
}

func (u *usage) add(n usage) {
	u.calls += n.calls
	u.waiting += n.waiting
	u.streams += n.streams
	u.bytes += n.bytes
}

type principal struct {
	usage
	line []*waiter // in order of arrival; as long as usage.waiting
}

type waiter struct {
	arrival uint64
	turn    chan struct{} // closed when it is the waiter's turn
}

// New returns an empty gate. Zero limits take the defaults.
func New(limits Limits) *Gate {
	return &Gate{limits: limits.WithDefaults(), principals: map[string]*principal{}}
}

// Pass is the room that one call has. Leave gives it back.
type Pass struct {
	gate *Gate
	name string

	mu   sync.Mutex
	held usage
	left bool
}

// Enter returns when there is room for a call, or why there is none: ErrCalls, ErrLate, or the context's error.
func (g *Gate) Enter(ctx context.Context, name string) (*Pass, error) {
	w := g.arrive(name)
	if w == nil {
		return nil, ErrCalls
	}
	late := time.NewTimer(Patience)
	defer late.Stop()
	select {
	case <-w.turn:
		return &Pass{gate: g, name: name, held: usage{calls: 1}}, nil
	default:
	}
	var err error
	select {
	case <-w.turn:
		return &Pass{gate: g, name: name, held: usage{calls: 1}}, nil
	case <-ctx.Done():
		err = ctx.Err()
	case <-late.C:
		err = ErrLate
	}
	g.giveUp(name, w)
	return nil, err
}

// EnterStream lets a stream in, or returns ErrStreams. Streams do not wait: one that ends may be hours away.
func (g *Gate) EnterStream(name string) (*Pass, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	p := g.principal(name)
	defer g.forget(name, p)
	if p.streams >= g.limits.Streams-g.total.streams {
		return nil, ErrStreams
	}
	g.change(p, usage{streams: 1})
	return &Pass{gate: g, name: name, held: usage{streams: 1}}, nil
}

// Hold takes room for some bytes more of the call's request, or returns ErrBytes.
func (p *Pass) Hold(bytes int64) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.left {
		return ErrBytes
	}
	g := p.gate
	g.mu.Lock()
	defer g.mu.Unlock()
	whose := g.principal(p.name)
	if whose.bytes+bytes > g.limits.Bytes-g.total.bytes {
		return ErrBytes
	}
	g.change(whose, usage{bytes: bytes})
	p.held.bytes += bytes
	return nil
}

// Leave gives the call's room back. Further calls do nothing.
func (p *Pass) Leave() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.left {
		return
	}
	p.left = true
	g := p.gate
	g.mu.Lock()
	defer g.mu.Unlock()
	whose := g.principal(p.name)
	g.change(whose, usage{calls: -p.held.calls, streams: -p.held.streams, bytes: -p.held.bytes})
	g.forget(p.name, whose)
	g.admit()
}

// arrive puts a call in line, and at once through the gate if it may. nil: the line is full.
func (g *Gate) arrive(name string) *waiter {
	g.mu.Lock()
	defer g.mu.Unlock()
	p := g.principal(name)
	defer g.forget(name, p)
	g.arrivals++
	w := &waiter{arrival: g.arrivals, turn: make(chan struct{})}
	switch {
	case len(p.line) == 0 && g.mayCall(p):
		g.change(p, usage{calls: 1})
		close(w.turn)
	case p.waiting < g.limits.Calls-g.total.waiting:
		p.line = append(p.line, w)
		g.change(p, usage{waiting: 1})
	default:
		return nil
	}
	return w
}

// giveUp takes a call that waits no longer out of its line. If its turn has come meanwhile, the next one has it.
func (g *Gate) giveUp(name string, w *waiter) {
	g.mu.Lock()
	defer g.mu.Unlock()
	p := g.principal(name)
	if at := slices.Index(p.line, w); at >= 0 {
		p.line = slices.Delete(p.line, at, at+1)
		g.change(p, usage{waiting: -1})
	} else {
		g.change(p, usage{calls: -1})
	}
	g.forget(name, p)
	g.admit()
}

func (g *Gate) mayCall(p *principal) bool { return p.calls < g.limits.Calls-g.total.calls }

// admit gives free places to those who wait.
func (g *Gate) admit() {
	for g.total.waiting > 0 {
		var next *principal
		for _, p := range g.principals {
			if len(p.line) == 0 || !g.mayCall(p) {
				continue
			}
			if next == nil || p.line[0].arrival < next.line[0].arrival {
				next = p
			}
		}
		if next == nil {
			return
		}
		close(next.line[0].turn)
		next.line = slices.Delete(next.line, 0, 1)
		g.change(next, usage{calls: 1, waiting: -1})
	}
}

func (g *Gate) principal(name string) *principal {
	p := g.principals[name]
	if p == nil {
		p = &principal{}
		g.principals[name] = p
	}
	return p
}

func (g *Gate) forget(name string, p *principal) {
	if p.usage == (usage{}) {
		delete(g.principals, name)
	}
}

func (g *Gate) change(p *principal, by usage) {
	p.add(by)
	g.total.add(by)
}
