package master

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/mesos/mesos-go/api/v1/lib/scheduler"
	"golang.org/x/sync/semaphore"
)

const (
	// maxSpare is the largest buffer that is kept for the next calls.
	maxSpare = 1 << 20
	// maxAnswer bounds the body of a call's answer, which a master leaves empty.
	maxAnswer = 64 << 10
)

// pipe carries calls over one connection, in order, without waiting for the answer to one before the next is sent.
type pipe struct {
	conn    net.Conn
	timeout time.Duration
	head    string                    // of every request, up to its length
	room    *semaphore.Weighted       // calls that may still be in flight
	refused func(*RefusedError) error // says what a refusal means

	mu      sync.Mutex
	out     []byte    // requests to be written
	spare   []byte    // the buffer before, to be used again
	waiting []pending // oldest first; those with handed set stand first
	handed  int       // of waiting, that are written or being written
	failed  error     // the pipe is broken
	last    bool      // no more calls are taken; the pipe ends with the last answer
	news    chan struct{}

	work sync.WaitGroup
}

// pending is a call that waits for its answer.
type pending struct {
	batch *batch
	index int
	since time.Time
}

// batch is some calls of one caller.
type batch struct {
	mu   sync.Mutex
	errs []error // one for each call; nil: all are well
	open []bool  // calls without an outcome
	left int
	done chan struct{} // closed when none is left
}

func newBatch(size int) *batch {
	b := &batch{open: make([]bool, size), left: size, done: make(chan struct{})}
	for i := range b.open {
		b.open[i] = true
	}
	return b
}

// settle gives a call its outcome, unless it has one.
func (b *batch) settle(index int, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.open[index] {
		return
	}
	b.open[index] = false
	if err != nil {
		if b.errs == nil {
			b.errs = make([]error, len(b.open))
		}
		b.errs[index] = err
	}
	if b.left--; b.left == 0 {
		close(b.done)
	}
}

// settleAll gives the calls from one on the same outcome, if they have none.
func (b *batch) settleAll(from int, err error) {
	for i := from; i < len(b.open); i++ {
		b.settle(i, err)
	}
}

func newPipe(conn net.Conn, head string, cfg *Config, refused func(*RefusedError) error) *pipe {
	p := &pipe{
		conn: conn, timeout: cfg.Timeout, head: head, room: semaphore.NewWeighted(int64(cfg.InFlight)), refused: refused,
		news: make(chan struct{}, 1),
	}
	p.work.Add(2)
	go func() {
		defer p.work.Done()
		p.write()
	}()
	go func() {
		defer p.work.Done()
		p.read()
	}()
	return p
}

// enqueue adds calls, for which the caller has made room. What cannot be sent fails at once.
func (p *pipe) enqueue(b *batch, first int, calls []*scheduler.Call) {
	now := time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	idle := len(p.waiting) == 0
	for i, call := range calls {
		err := p.failed
		if err == nil && p.last {
			err = ErrNotSubscribed
		}
		if err == nil {
			err = p.append(call)
		}
		if err != nil {
			p.settle(pending{batch: b, index: first + i}, err)
			continue
		}
		p.waiting = append(p.waiting, pending{batch: b, index: first + i, since: now})
	}
	if idle && len(p.waiting) > 0 {
		p.expect(now)
	}
	p.tell()
}

// append writes a call's request to the buffer, or leaves the buffer as it was.
func (p *pipe) append(call *scheduler.Call) error {
	before, size := len(p.out), call.Size()
	p.out = append(p.out, p.head...)
	p.out = strconv.AppendInt(p.out, int64(size), 10)
	p.out = append(p.out, "\r\n\r\n"...)
	body := len(p.out)
	p.out = append(p.out, make([]byte, size)...)
	if n, err := call.MarshalTo(p.out[body:]); err != nil || n != size {
		p.out = p.out[:before]
		return fmt.Errorf("encode a %s call to the Mesos master: %w", call.Type, err)
	}
	return nil
}

// settle gives a call its outcome.
func (p *pipe) settle(c pending, err error) {
	p.room.Release(1)
	c.batch.settle(c.index, err)
}

func (p *pipe) tell() {
	select {
	case p.news <- struct{}{}:
	default:
	}
}

// expect sets the time by which the oldest call has to be answered.
func (p *pipe) expect(since time.Time) {
	_ = p.conn.SetReadDeadline(since.Add(p.timeout)) // a connection that is closed fails by itself
}

// write sends what is queued, all that stands there at once.
func (p *pipe) write() {
	for {
		p.mu.Lock()
		out := p.out
		p.out, p.spare = p.spare[:0], nil
		p.handed = len(p.waiting)
		failed := p.failed
		p.mu.Unlock()
		if failed != nil {
			return
		}
		if len(out) == 0 {
			p.recycle(out)
			<-p.news
			continue
		}
		err := p.conn.SetWriteDeadline(time.Now().Add(p.timeout))
		if err == nil {
			_, err = p.conn.Write(out)
		}
		if err != nil {
			p.fail(fmt.Errorf("send calls to the Mesos master: %w", err))
			return
		}
		p.recycle(out)
	}
}

func (p *pipe) recycle(buffer []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.spare == nil && cap(buffer) <= maxSpare {
		p.spare = buffer
	}
}

// read takes answers, which come in the order of the calls.
func (p *pipe) read() {
	in := bufio.NewReaderSize(p.conn, readBuffer)
	for {
		outcome, last, err := p.answer(in)
		if err != nil {
			p.fail(err)
			return
		}
		p.mu.Lock()
		if p.handed == 0 {
			p.mu.Unlock()
			p.fail(errors.New("the Mesos master answers what nobody asked"))
			return
		}
		oldest := p.waiting[0]
		p.waiting[0] = pending{}
		p.waiting, p.handed = p.waiting[1:], p.handed-1
		if len(p.waiting) > 0 {
			p.expect(p.waiting[0].since)
		} else {
			_ = p.conn.SetReadDeadline(time.Time{}) // a connection that is closed fails by itself
		}
		p.settle(oldest, outcome)
		last = last || p.last && len(p.waiting) == 0
		p.mu.Unlock()
		if last {
			p.fail(errors.New("the Mesos master closed the connection"))
			return
		}
	}
}

// answer reads one answer and says what it means, and whether it is the connection's last.
func (p *pipe) answer(in *bufio.Reader) (outcome error, last bool, err error) {
	response, err := readHead(in) //nolint:bodyclose // it is read to its end, and the connection goes on
	if err != nil {
		return nil, false, err
	}
	if code := response.StatusCode; code != http.StatusAccepted && code != http.StatusOK {
		outcome = p.refused(refusal(response))
	}
	if n, err := io.Copy(io.Discard, io.LimitReader(response.Body, maxAnswer)); err != nil || n == maxAnswer {
		return outcome, true, nil // the answer is known; what follows it cannot be
	}
	return outcome, response.Close, nil
}

// fail breaks the pipe: calls that may have been sent are unanswered, others were not taken.
func (p *pipe) fail(reason error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.failed != nil {
		return
	}
	p.failed = reason
	_ = p.conn.Close() // ends the other goroutine
	for i, c := range p.waiting {
		if i < p.handed {
			p.settle(c, fmt.Errorf("%w: %w", ErrUnanswered, reason))
		} else {
			p.settle(c, reason)
		}
	}
	p.waiting, p.handed = nil, 0
	p.tell()
}

func (p *pipe) broken() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.failed != nil
}

// finish takes no more calls, and ends the pipe when those that were sent are answered, or their time is up.
func (p *pipe) finish() {
	p.mu.Lock()
	p.last = true
	idle := len(p.waiting) == 0
	p.mu.Unlock()
	if idle {
		p.fail(ErrNotSubscribed)
	}
}

// close breaks the pipe and waits for its goroutines.
func (p *pipe) close(reason error) {
	p.fail(reason)
	p.work.Wait()
}
