package client_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"

	"github.com/paceline-sched/paceline/sdk/client"
	pacelinev1 "github.com/paceline-sched/paceline/sdk/gen/paceline/v1"
	"github.com/paceline-sched/paceline/sdk/gen/paceline/v1/pacelinev1connect"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// memory is a network of one address whose connections stay in the process, so that time in it can be a bubble's.
type memory struct {
	accepted chan net.Conn
	closed   chan struct{}
	once     sync.Once
}

func newMemory() *memory { return &memory{accepted: make(chan net.Conn), closed: make(chan struct{})} }

func (m *memory) Accept() (net.Conn, error) {
	select {
	case c := <-m.accepted:
		return c, nil
	case <-m.closed:
		return nil, net.ErrClosed
	}
}

func (m *memory) Close() error {
	m.once.Do(func() { close(m.closed) })
	return nil
}

func (m *memory) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1} }

func (m *memory) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	here, there := net.Pipe()
	select {
	case m.accepted <- there:
		return here, nil
	case <-m.closed:
		return nil, errors.New("connection refused")
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// fake is a server whose answers a test scripts.
type fake struct {
	pacelinev1connect.UnimplementedJobServiceHandler
	pacelinev1connect.UnimplementedEventServiceHandler
	create  func(*connect.Request[pacelinev1.CreateJobRequest]) error
	get     func(context.Context) error
	remove  func() error
	streams []func(context.Context, *pacelinev1.WatchEventsRequest, *connect.ServerStream[pacelinev1.WatchEventsResponse]) error
	cursors []string
}

func (f *fake) CreateJob(_ context.Context, r *connect.Request[pacelinev1.CreateJobRequest]) (*connect.Response[pacelinev1.CreateJobResponse], error) {
	return connect.NewResponse(&pacelinev1.CreateJobResponse{}), f.create(r)
}

func (f *fake) GetJob(ctx context.Context, _ *connect.Request[pacelinev1.GetJobRequest]) (*connect.Response[pacelinev1.GetJobResponse], error) {
	return connect.NewResponse(&pacelinev1.GetJobResponse{}), f.get(ctx)
}

func (f *fake) DeleteJob(context.Context, *connect.Request[pacelinev1.DeleteJobRequest]) (*connect.Response[pacelinev1.DeleteJobResponse], error) {
	return connect.NewResponse(&pacelinev1.DeleteJobResponse{}), f.remove()
}

func (f *fake) WatchEvents(ctx context.Context, r *connect.Request[pacelinev1.WatchEventsRequest], stream *connect.ServerStream[pacelinev1.WatchEventsResponse]) error {
	f.cursors = append(f.cursors, r.Msg.GetCursor())
	if len(f.streams) == 0 {
		return connect.NewError(connect.CodePermissionDenied, errors.New("the script is over"))
	}
	next := f.streams[0]
	f.streams = f.streams[1:]
	return next(ctx, r.Msg, stream)
}

// inBubble runs a test against a fake in a bubble of its own time.
func inBubble(t *testing.T, f *fake, options []client.Option, test func(t *testing.T, c *client.Client)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		mux := http.NewServeMux()
		mux.Handle(pacelinev1connect.NewJobServiceHandler(f))
		mux.Handle(pacelinev1connect.NewEventServiceHandler(f))
		protocols := new(http.Protocols)
		protocols.SetUnencryptedHTTP2(true)
		network := newMemory()
		server := &http.Server{Handler: mux, Protocols: protocols, ReadHeaderTimeout: time.Second}
		done := make(chan struct{})
		go func() {
			defer close(done)
			_ = server.Serve(network) // ends with Close
		}()
		transport := &http.Transport{DialContext: network.dial, Protocols: protocols}
		c, err := client.New("127.0.0.1:1", append([]client.Option{client.WithHTTPClient(&http.Client{Transport: transport})}, options...)...)
		if err != nil {
			t.Fatal(err)
		}
		test(t, c)
		transport.CloseIdleConnections()
		if err := server.Close(); err != nil {
			t.Error(err)
		}
		<-done
		synctest.Wait()
	})
}

func unavailable(retryAfter time.Duration) error { return failure(connect.CodeUnavailable, retryAfter) }

func failure(code connect.Code, retryAfter time.Duration) error {
	err := connect.NewError(code, errors.New("restarting"))
	if detail, derr := connect.NewErrorDetail(&pacelinev1.ErrorDetail{Hint: "wait", RetryAfterMillis: retryAfter.Milliseconds()}); derr == nil {
		err.AddDetail(detail)
	}
	return err
}

// failing returns unavailable so many times, then nil, and counts.
func failing(times int, retryAfter time.Duration, calls *int) func() error {
	return func() error {
		*calls++
		if *calls <= times {
			return unavailable(retryAfter)
		}
		return nil
	}
}

func TestRetries(t *testing.T) {
	calls := 0
	fail := failing(3, 0, &calls)
	f := &fake{get: func(context.Context) error { return fail() }}
	inBubble(t, f, nil, func(t *testing.T, c *client.Client) {
		if _, err := c.Jobs.GetJob(t.Context(), connect.NewRequest(&pacelinev1.GetJobRequest{})); err != nil {
			t.Error(err)
		}
		if calls != 4 {
			t.Errorf("%d calls, want 4", calls)
		}
		calls = -100 // more failures than tries
		if _, err := c.Jobs.GetJob(t.Context(), connect.NewRequest(&pacelinev1.GetJobRequest{})); connect.CodeOf(err) != connect.CodeUnavailable {
			t.Errorf("got %v", err)
		}
		if calls != -96 {
			t.Errorf("%d calls, want 4", calls+100)
		}
	})
}

func TestRetryAfterIsHonoured(t *testing.T) {
	calls := 0
	fail := failing(1, 7*time.Second, &calls)
	f := &fake{get: func(context.Context) error { return fail() }}
	inBubble(t, f, nil, func(t *testing.T, c *client.Client) {
		began := time.Now()
		if _, err := c.Jobs.GetJob(t.Context(), connect.NewRequest(&pacelinev1.GetJobRequest{})); err != nil {
			t.Error(err)
		}
		if took := time.Since(began); took < 7*time.Second || took > 10500*time.Millisecond {
			t.Errorf("took %v", took)
		}
	})
}

// TestOverload: who is refused for overload comes back after the time that he was told and not together with all others; a bound that
// waiting does not move is told at once; and there is an end to it.
func TestOverload(t *testing.T) {
	calls, retryAfter := 0, time.Second
	var times []time.Time
	f := &fake{get: func(context.Context) error {
		calls++
		times = append(times, time.Now())
		return failure(connect.CodeResourceExhausted, retryAfter)
	}}
	inBubble(t, f, nil, func(t *testing.T, c *client.Client) {
		call := func() error {
			_, err := c.Jobs.GetJob(t.Context(), connect.NewRequest(&pacelinev1.GetJobRequest{}))
			return err
		}
		spread := map[time.Duration]bool{}
		for range 10 {
			calls, times = 0, nil
			if err := call(); connect.CodeOf(err) != connect.CodeResourceExhausted || calls != 4 {
				t.Errorf("got %v after %d calls, want 4", err, calls)
			}
			for n := 1; n < len(times); n++ {
				pause := times[n].Sub(times[n-1])
				spread[pause] = true
				if pause < retryAfter || pause > retryAfter*3/2+time.Millisecond {
					t.Errorf("came back after %v", pause)
				}
			}
		}
		if len(spread) < 20 {
			t.Errorf("30 clients come back after only %d different times", len(spread))
		}
		calls, retryAfter = 0, 0
		if err := call(); connect.CodeOf(err) != connect.CodeResourceExhausted || calls != 1 {
			t.Errorf("got %v after %d calls, want 1", err, calls)
		}
	})
}

// TestDeadlineBeatsRetry: when the time left does not reach to the next try, the caller gets the true error at once.
func TestDeadlineBeatsRetry(t *testing.T) {
	calls := 0
	fail := failing(9, time.Minute, &calls)
	f := &fake{get: func(context.Context) error { return fail() }}
	inBubble(t, f, []client.Option{client.WithTimeout(10 * time.Second)}, func(t *testing.T, c *client.Client) {
		began := time.Now()
		_, err := c.Jobs.GetJob(t.Context(), connect.NewRequest(&pacelinev1.GetJobRequest{}))
		if connect.CodeOf(err) != connect.CodeUnavailable || client.Detail(err).GetHint() != "wait" || time.Since(began) > time.Second {
			t.Errorf("got %v after %v", err, time.Since(began))
		}
	})
}

func TestTimeout(t *testing.T) {
	f := &fake{get: func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }}
	inBubble(t, f, []client.Option{client.WithTimeout(10 * time.Second)}, func(t *testing.T, c *client.Client) {
		began := time.Now()
		_, err := c.Jobs.GetJob(t.Context(), connect.NewRequest(&pacelinev1.GetJobRequest{}))
		if connect.CodeOf(err) != connect.CodeDeadlineExceeded || time.Since(began) != 10*time.Second {
			t.Errorf("got %v after %v", err, time.Since(began))
		}
	})
}

func TestUnsafeCallsAreNotRepeated(t *testing.T) {
	calls := 0
	f := &fake{remove: failing(1, 0, &calls)}
	inBubble(t, f, nil, func(t *testing.T, c *client.Client) {
		_, err := c.Jobs.DeleteJob(t.Context(), connect.NewRequest(&pacelinev1.DeleteJobRequest{}))
		if connect.CodeOf(err) != connect.CodeUnavailable || calls != 1 {
			t.Errorf("%d calls: %v", calls, err)
		}
	})
}

// TestCreateJobIsRepeatedUnderOneKey also holds that the caller's message stays his: the next job gets a key of its own.
func TestCreateJobIsRepeatedUnderOneKey(t *testing.T) {
	var keys []string
	f := &fake{create: func(r *connect.Request[pacelinev1.CreateJobRequest]) error {
		keys = append(keys, r.Msg.GetIdempotencyKey())
		if r.Header().Get("Authorization") != "Bearer t" || r.Msg.GetSpec().GetName() != "a" {
			t.Errorf("header %v, message %v", r.Header(), r.Msg)
		}
		if len(keys)%2 == 1 {
			return unavailable(0)
		}
		return nil
	}}
	inBubble(t, f, []client.Option{client.WithToken("t")}, func(t *testing.T, c *client.Client) {
		message := &pacelinev1.CreateJobRequest{Spec: &pacelinev1.JobSpec{Name: "a"}}
		before := proto.CloneOf(message)
		for range 2 {
			if _, err := c.Jobs.CreateJob(t.Context(), connect.NewRequest(message)); err != nil {
				t.Error(err)
			}
		}
		if len(keys) != 4 || keys[0] == "" || keys[0] != keys[1] || keys[2] != keys[3] || keys[0] == keys[2] {
			t.Errorf("keys %q", keys)
		}
		if !proto.Equal(message, before) {
			t.Errorf("the caller's message became %v", message)
		}
		message.IdempotencyKey = "mine"
		if _, err := c.Jobs.CreateJob(t.Context(), connect.NewRequest(message)); err != nil || keys[4] != "mine" || keys[5] != "mine" {
			t.Errorf("keys %q: %v", keys[4:], err)
		}
	})
}

type watchStream = connect.ServerStream[pacelinev1.WatchEventsResponse]

// tell sends one response per cursor, then returns err.
func tell(err error, cursors ...string) func(context.Context, *pacelinev1.WatchEventsRequest, *watchStream) error {
	return func(_ context.Context, _ *pacelinev1.WatchEventsRequest, stream *watchStream) error {
		for _, cursor := range cursors {
			if err := stream.Send(&pacelinev1.WatchEventsResponse{Cursor: cursor}); err != nil {
				return err
			}
		}
		return err
	}
}

func TestWatchResumes(t *testing.T) {
	hang := func(ctx context.Context, _ *pacelinev1.WatchEventsRequest, stream *watchStream) error {
		if err := stream.Send(&pacelinev1.WatchEventsResponse{Cursor: "4"}); err != nil {
			return err
		}
		<-ctx.Done() // a server that is gone without a word
		return ctx.Err()
	}
	f := &fake{streams: []func(context.Context, *pacelinev1.WatchEventsRequest, *watchStream) error{
		tell(nil, "1", "2"), tell(unavailable(0)), tell(unavailable(0), "3"), hang, tell(connect.NewError(connect.CodeOutOfRange, errors.New("compacted")), "5"),
	}}
	inBubble(t, f, nil, func(t *testing.T, c *client.Client) {
		var got []string
		request := &pacelinev1.WatchEventsRequest{Cursor: "0"}
		err := c.Watch(t.Context(), request, func(r *pacelinev1.WatchEventsResponse) error {
			got = append(got, r.GetCursor())
			return nil
		})
		if !errors.Is(err, client.ErrCompacted) {
			t.Errorf("ended with %v", err)
		}
		if want := []string{"1", "2", "3", "4", "5"}; !slices.Equal(got, want) {
			t.Errorf("told of %q, want %q", got, want)
		}
		if want := []string{"0", "2", "2", "3", "4"}; !slices.Equal(f.cursors, want) {
			t.Errorf("resumed at %q, want %q", f.cursors, want)
		}
		if request.GetCursor() != "0" {
			t.Error("the caller's request was changed")
		}
	})
}

func TestWatchEnds(t *testing.T) {
	stop := errors.New("enough")
	f := &fake{streams: []func(context.Context, *pacelinev1.WatchEventsRequest, *watchStream) error{
		tell(nil, "1"), tell(connect.NewError(connect.CodeUnauthenticated, errors.New("who"))),
		func(ctx context.Context, _ *pacelinev1.WatchEventsRequest, _ *watchStream) error {
			<-ctx.Done()
			return ctx.Err()
		},
	}}
	inBubble(t, f, nil, func(t *testing.T, c *client.Client) {
		err := c.Watch(t.Context(), &pacelinev1.WatchEventsRequest{}, func(*pacelinev1.WatchEventsResponse) error { return stop })
		if !errors.Is(err, stop) {
			t.Errorf("the handler's error came back as %v", err)
		}
		nothing := func(*pacelinev1.WatchEventsResponse) error { return nil }
		if err := c.Watch(t.Context(), &pacelinev1.WatchEventsRequest{}, nothing); connect.CodeOf(err) != connect.CodeUnauthenticated {
			t.Errorf("a refused token came back as %v", err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := c.Watch(ctx, &pacelinev1.WatchEventsRequest{}, nothing); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("an ended context came back as %v", err)
		}
	})
}

func TestAddresses(t *testing.T) {
	good := map[string]string{
		"127.0.0.1:7450": "http://127.0.0.1:7450", "localhost:1": "http://localhost:1", "[::1]:1": "http://[::1]:1",
		"cell.example:443": "https://cell.example:443", "https://cell.example/": "https://cell.example", "http://10.0.0.1:80": "http://10.0.0.1:80",
	}
	for address, want := range good {
		c, err := client.New(address)
		if err != nil || c.Address() != want {
			t.Errorf("%s: %v", address, err)
			continue
		}
		c.Close()
	}
	for _, bad := range []string{"", "host", "ftp://x", "http://", "https://u:p@host", "http://h?x=1", "http://h h"} {
		if _, err := client.New(bad); err == nil {
			t.Errorf("%q is accepted", bad)
		}
	}
}

func TestOptions(t *testing.T) {
	dir := t.TempDir()
	file := func(name, content string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	cases := []struct {
		address string
		option  client.Option
		says    string
	}{
		{"http://10.0.0.1:80", client.WithToken("t"), "plain text"},
		{"localhost:1", client.WithToken("a\nb"), "white space"},
		{"localhost:1", client.WithTokenFile(filepath.Join(dir, "absent")), "read the token file"},
		{"localhost:1", client.WithCAFile(file("ca", "no PEM")), "holds no PEM certificate"},
		{"localhost:1", client.WithAttempts(0), "out of range"},
		{"localhost:1", client.WithTimeout(-1), "negative"},
	}
	for _, c := range cases {
		if _, err := client.New(c.address, c.option); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("want %q, got %v", c.says, err)
		}
	}
	if _, err := client.New("localhost:1", client.WithTokenFile(file("token", "abc\n"))); err != nil {
		t.Error(err)
	}
}

func TestDetailOfForeignErrors(t *testing.T) {
	for _, err := range []error{nil, io.EOF, connect.NewError(connect.CodeInternal, io.EOF)} {
		if client.Detail(err) != nil || client.RetryAfter(err) != 0 {
			t.Errorf("%v has a detail", err)
		}
	}
}
