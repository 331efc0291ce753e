package master_test

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	mesos "github.com/mesos/mesos-go/api/v1/lib"
	"github.com/mesos/mesos-go/api/v1/lib/scheduler"

	"github.com/paceline-sched/paceline/hostmanagers/mesos/master"
	"github.com/paceline-sched/paceline/hostmanagers/mesos/recordio"
)

// script is a master that answers as a test says, byte by byte.
type script struct {
	listener *listener
	// stream is what a SUBSCRIBE call gets; the connection stays open unless it ends in "!". Asked with the number of the attempt.
	stream func(attempt int) string
	// answer is asked for every other call. It may wait. What it returns is sent; "": the connection is closed.
	answer func(c *scheduler.Call, in *bufio.Reader) string
	// operator is what a call of the operator API gets.
	operator string
	// framework and streamID are what calls must carry; "": "f" and "s".
	framework, streamID string

	mu       sync.Mutex
	attempts int
	work     sync.WaitGroup
	conns    []net.Conn
}

const (
	taken      = "HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n"
	streamHead = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nMesos-Stream-Id: s\r\nContent-Type: application/x-protobuf\r\n\r\n"
)

// chunk is one event as it stands in a stream.
func chunk(e *scheduler.Event) string {
	data, err := e.Marshal()
	if err != nil {
		panic(err)
	}
	record := recordio.Append(nil, data)
	return fmt.Sprintf("%x\r\n%s\r\n", len(record), record)
}

func subscribed() *scheduler.Event {
	return &scheduler.Event{Type: scheduler.Event_SUBSCRIBED, Subscribed: &scheduler.Event_Subscribed{FrameworkID: &mesos.FrameworkID{Value: "f"}}}
}

// play starts a script at master:5050 and a framework that subscribes to it.
func play(t *testing.T, s *script, cfg master.Config) (*framework, *network) {
	t.Helper()
	n := newNetwork()
	s.listener = n.listen("master:5050")
	if s.stream == nil {
		s.stream = func(int) string { return streamHead + chunk(subscribed()) }
	}
	s.work.Add(1)
	go func() {
		defer s.work.Done()
		for {
			conn, err := s.listener.Accept()
			if err != nil {
				return
			}
			s.mu.Lock()
			s.conns = append(s.conns, conn)
			s.mu.Unlock()
			s.work.Add(1)
			go func() {
				defer s.work.Done()
				defer conn.Close()
				s.converse(conn)
			}()
		}
	}()
	t.Cleanup(func() {
		_ = s.listener.Close()
		s.mu.Lock()
		for _, conn := range s.conns {
			_ = conn.Close()
		}
		s.mu.Unlock()
		s.work.Wait()
	})
	cfg.Masters, cfg.Dial = []string{"master"}, n.dial
	f := start(t, cfg)
	synctest.Wait()
	return f, n
}

func (s *script) converse(conn net.Conn) {
	in := bufio.NewReaderSize(conn, 1<<16)
	for {
		r, err := http.ReadRequest(in)
		if err != nil {
			return
		}
		body, err := io.ReadAll(r.Body)
		if err == nil && r.URL.Path == "/api/v1" {
			_, _ = io.WriteString(conn, s.operator)
			return
		}
		call := new(scheduler.Call)
		if err != nil || call.Unmarshal(body) != nil || r.Host != "master:5050" {
			panic("not a call")
		}
		if call.Type == scheduler.Call_SUBSCRIBE {
			s.mu.Lock()
			s.attempts++
			attempt := s.attempts
			s.mu.Unlock()
			text, end := strings.CutSuffix(s.stream(attempt), "!")
			_, _ = io.WriteString(conn, text)
			if !end {
				_, _ = io.Copy(io.Discard, in)
			}
			return
		}
		if call.FrameworkID.GetValue() != cmp.Or(s.framework, "f") || r.Header.Get("Mesos-Stream-Id") != cmp.Or(s.streamID, "s") {
			panic("a call without the ids of framework and stream")
		}
		text := s.answer(call, in)
		if _, err := io.WriteString(conn, text); err != nil || text == "" {
			return
		}
	}
}

func refuse(code int, words string) string {
	return fmt.Sprintf("HTTP/1.1 %d %s\r\nContent-Length: %d\r\nContent-Type: text/plain\r\n\r\n%s", code, http.StatusText(code), len(words), words)
}

// TestWhatBecameOfACall tells a call that was not taken from one of which nobody knows, and goes on with the next.
func TestWhatBecameOfACall(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		answer     func() string
		unanswered bool
		code       int // of a refusal
	}{
		"no answer":              {answer: func() string { time.Sleep(time.Minute); return "" }, unanswered: true},
		"connection closed":      {answer: func() string { return "" }, unanswered: true},
		"half an answer":         {answer: func() string { return "HTTP/1.1 202 Acc" }, unanswered: true},
		"garbage":                {answer: func() string { return "\x00\x01\x02 nonsense\r\n\r\n" }, unanswered: true},
		"a proxy's words":        {answer: func() string { return refuse(502, "<html>") }, code: 502},
		"unavailable":            {answer: func() string { return refuse(503, "No leader elected") }, code: 503},
		"malformed":              {answer: func() string { return refuse(400, "Failed to validate scheduler::Call: Not a valid UUID") }, code: 400},
		"too many":               {answer: func() string { return refuse(429, "") }, code: 429},
		"go on first":            {answer: func() string { return "HTTP/1.1 100 Continue\r\n\r\n" + taken }},
		"update framework":       {answer: func() string { return "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n" }},
		"last of its connection": {answer: func() string { return "HTTP/1.1 202 Accepted\r\nConnection: close\r\nContent-Length: 0\r\n\r\n" }},
		"until the end":          {answer: func() string { return "HTTP/1.0 202 Accepted\r\n\r\n" }, unanswered: false},
		"an endless body": {answer: func() string {
			return "HTTP/1.1 202 Accepted\r\nContent-Length: 1000000\r\n\r\n" + strings.Repeat("x", 1<<17)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T) {
				var calls atomic.Int64
				f, _ := play(t, &script{answer: func(*scheduler.Call, *bufio.Reader) string {
					if calls.Add(1) == 1 {
						return test.answer()
					}
					return taken
				}}, master.Config{})
				err := f.Call(t.Context(), revive())
				var refused *master.RefusedError
				switch {
				case errors.Is(err, master.ErrUnanswered) != test.unanswered, errors.Is(err, master.ErrNotSubscribed):
					t.Errorf("the call returned %v", err)
				case errors.As(err, &refused) != (test.code != 0), refused != nil && refused.Code != test.code:
					t.Errorf("the call was refused: %v", err)
				case (err != nil) != (test.unanswered || test.code != 0):
					t.Errorf("the call returned %v", err)
				}
				if err := f.Call(t.Context(), revive()); err != nil {
					t.Errorf("the next call returned %v", err)
				}
				if begun, over := f.subscriptions(); begun != 1 || over != 0 {
					t.Errorf("%d subscriptions began, %d ended", begun, over)
				}
			})
		})
	}
}

// TestACallThatCannotBeSentWasNotTaken refuses the connection for calls, and lets it come back.
func TestACallThatCannotBeSentWasNotTaken(t *testing.T) {
	virtual(t, func(t *testing.T) {
		s := &script{answer: func(*scheduler.Call, *bufio.Reader) string { return taken }}
		f, n := play(t, s, master.Config{})
		n.mu.Lock()
		delete(n.listeners, "master:5050")
		n.mu.Unlock()
		err := f.Call(t.Context(), revive())
		if err == nil || errors.Is(err, master.ErrUnanswered) || errors.Is(err, master.ErrNotSubscribed) {
			t.Fatalf("the call returned %v", err)
		}
		n.mu.Lock()
		n.listeners["master:5050"] = s.listener
		n.mu.Unlock()
		if err := f.Call(t.Context(), revive()); err != nil {
			t.Fatal(err)
		}
	})
}

// TestCallsKeepTheirOrder sends thousands at once: they arrive in order, and each outcome is its call's.
func TestCallsKeepTheirOrder(t *testing.T) {
	t.Parallel()
	for _, inFlight := range []int{0, 1, 7} {
		t.Run(fmt.Sprint(inFlight), func(t *testing.T) {
			virtual(t, func(t *testing.T) {
				const count = 3000
				arrived := 0
				f, n := play(t, &script{answer: func(c *scheduler.Call, in *bufio.Reader) string {
					if c.Kill.TaskID.Value != fmt.Sprint(arrived) {
						return refuse(409, "got "+c.Kill.TaskID.Value)
					}
					if inFlight == 1 && in.Buffered() > 0 {
						return refuse(409, "one was in flight already")
					}
					if arrived++; arrived%3 == 0 {
						return refuse(400, "odd")
					}
					return taken
				}}, master.Config{InFlight: inFlight})
				var calls []*scheduler.Call
				for i := range count {
					calls = append(calls, &scheduler.Call{Type: scheduler.Call_KILL, Kill: &scheduler.Call_Kill{TaskID: mesos.TaskID{Value: fmt.Sprint(i)}}})
				}
				errs := f.Send(t.Context(), calls...)
				if len(errs) != count || arrived != count {
					t.Fatalf("%d outcomes of %d calls that arrived", len(errs), arrived)
				}
				for i, err := range errs {
					if (err != nil) != ((i+1)%3 == 0) {
						t.Fatalf("call %d: %v", i, err)
					}
				}
				if n.dials() != 2 {
					t.Errorf("%d connections", n.dials())
				}
			})
		})
	}
}

// TestCallsAreSentAheadOfAnswers holds all answers back until ten calls have come.
func TestCallsAreSentAheadOfAnswers(t *testing.T) {
	virtual(t, func(t *testing.T) {
		held := 0
		f, _ := play(t, &script{answer: func(*scheduler.Call, *bufio.Reader) string {
			if held++; held < 10 {
				return "HTTP/1.1 100 Continue\r\n\r\n" // nothing that settles a call
			}
			return strings.Repeat(taken, 10)
		}}, master.Config{})
		calls := make([]*scheduler.Call, 10)
		for i := range calls {
			calls[i] = revive()
		}
		if errs := f.Send(t.Context(), calls...); errs != nil {
			t.Fatal(errs)
		}
		if errs := f.Send(t.Context()); errs != nil {
			t.Fatalf("no calls: %v", errs)
		}
	})
}

// TestACallerThatGivesUp leaves the answers to others as they are.
func TestACallerThatGivesUp(t *testing.T) {
	virtual(t, func(t *testing.T) {
		calls := 0
		f, _ := play(t, &script{answer: func(*scheduler.Call, *bufio.Reader) string {
			time.Sleep(2 * time.Second)
			if calls++; calls == 1 {
				return refuse(400, "first")
			}
			return taken
		}}, master.Config{})
		var work sync.WaitGroup
		work.Add(1)
		go func() {
			defer work.Done()
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			if err := f.Call(ctx, revive()); !errors.Is(err, master.ErrUnanswered) || !errors.Is(err, ctx.Err()) {
				t.Errorf("the call that was given up returned %v", err)
			}
		}()
		pass(time.Millisecond)
		if err := f.Call(t.Context(), revive()); err != nil {
			t.Errorf("the call after it returned %v", err)
		}
		work.Wait()
	})
}

// TestNonsenseInAStream is survived, told, and tried again after a while.
func TestNonsenseInAStream(t *testing.T) {
	t.Parallel()
	good := streamHead + chunk(subscribed())
	for name, stream := range map[string]string{
		"not HTTP":               "hello\r\n!",
		"nothing":                "!",
		"JSON":                   strings.Replace(streamHead, "x-protobuf", "json", 1) + "!",
		"an offer first":         streamHead + chunk(&scheduler.Event{Type: scheduler.Event_OFFERS, Offers: &scheduler.Event_Offers{}}) + "!",
		"no id":                  streamHead + chunk(&scheduler.Event{Type: scheduler.Event_SUBSCRIBED, Subscribed: &scheduler.Event_Subscribed{FrameworkID: &mesos.FrameworkID{}}}) + "!",
		"an empty event":         streamHead + "2\r\n0\n\r\n!",
		"silence":                streamHead,
		"no answer":              "",
		"a chunk of nonsense":    good + "zz\r\n!",
		"a length of nonsense":   good + "4\r\nabc\n\r\n!",
		"an endless length":      good + "9\r\n99999999\n\r\n!",
		"too long a length":      good + "b\r\n9999999999\n\r\n!",
		"a message of nonsense":  good + "8\r\n6\n\xff\xff\xff\xff\xff\xff\r\n!",
		"a field beyond the end": good + "d\r\na\n\x0a\xff\xff\xff\xff\xff\xff\xff\xff\x7f\x00\r\n!",
		"an error of its own":    good + chunk(&scheduler.Event{Type: scheduler.Event_ERROR, Error: &scheduler.Event_Error{Message: "Out of \x1b[31mspace"}}) + "!",
		"its end":                good + "0\r\n\r\n!",
		"not found":              refuse(404, "404 Not Found.") + "!",
		"a secret wanted":        refuse(401, "") + "!",
		"nowhere to go":          "HTTP/1.1 307 Temporary Redirect\r\nContent-Length: 0\r\n\r\n!",
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T) {
				f, _ := play(t, &script{stream: func(attempt int) string {
					if attempt <= 5 {
						return stream
					}
					return good
				}}, master.Config{})
				pass(time.Second)
				if s := f.Status(); !s.Subscribed && s.Err != nil && strings.ContainsAny(s.Err.Error(), "\x1b\n") {
					t.Errorf("status tells %q", s.Err)
				}
				pass(5 * time.Minute)
				if begun, over := f.subscriptions(); !f.Status().Subscribed || begun != over+1 {
					t.Errorf("%d subscriptions began, %d ended; %+v", begun, over, f.Status())
				}
			})
		})
	}
}
