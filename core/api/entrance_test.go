package api

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/paceline-sched/paceline/core/api/auth"
	"github.com/paceline-sched/paceline/core/api/gate"
	"github.com/paceline-sched/paceline/core/telemetry"
	"github.com/paceline-sched/paceline/sdk/gen/paceline/v1/pacelinev1connect"
)

const (
	annToken = "ann-ann-ann-ann-ann-ann"
	bobToken = "bob-bob-bob-bob-bob-bob"
)

// newEntrance returns an entrance that knows ann and bob, with what it logs.
func newEntrance(t *testing.T, limits gate.Limits, trace *telemetry.Trace) (*entrance, *bytes.Buffer) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "tokens")
	text := "tokens:\n- {principal: ann, token: " + annToken + ", roles: [viewer]}\n- {principal: bob, token: " + bobToken + ", roles: [viewer]}\n"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	tokens, err := auth.Open(path, time.Now, nil)
	if err != nil {
		t.Fatal(err)
	}
	log := &bytes.Buffer{}
	e := &edge{tokens: tokens, log: slog.New(slog.NewTextHandler(log, nil)), trace: trace.Complete()}
	return &entrance{edge: e, gate: gate.New(limits), writer: connect.NewErrorWriter(), stuck: time.Second}, log
}

func newRequest(procedure, token, contentType string, body io.Reader) *http.Request {
	r := httptest.NewRequest(http.MethodPost, procedure, body)
	r.Header.Set("Authorization", "Bearer "+token)
	r.Header.Set("Content-Type", contentType)
	return r
}

// TestLongLivedMethods holds the list together with the protos: a stream that took a call's place would keep it.
func TestLongLivedMethods(t *testing.T) {
	protoregistry.GlobalFiles.RangeFilesByPackage("paceline.v1", func(file protoreflect.FileDescriptor) bool {
		for i := range file.Services().Len() {
			methods := file.Services().Get(i).Methods()
			for j := range methods.Len() {
				m := methods.Get(j)
				procedure := "/" + string(m.Parent().FullName()) + "/" + string(m.Name())
				if streams := m.IsStreamingServer() || m.IsStreamingClient(); streams != longLived[procedure] {
					t.Errorf("%s: streams %v, long-lived %v", procedure, streams, longLived[procedure])
				}
			}
		}
		return true
	})
}

// Who has too many calls in progress is refused in the protocol that he speaks, before his request is read; another is not.
func TestGreedyCallersAreRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var ended []telemetry.Call
		n, log := newEntrance(t, gate.Limits{Calls: 2}, &telemetry.Trace{CallDone: func(c telemetry.Call) { ended = append(ended, c) }})
		release := make(chan struct{})
		handler := n.wrap(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-release }))
		serve := func(token, contentType string, body io.Reader) *httptest.ResponseRecorder {
			w := httptest.NewRecorder()
			handler.ServeHTTP(w, newRequest(pacelinev1connect.JobServiceCreateJobProcedure, token, contentType, body))
			return w
		}
		for range 2 { // one in progress, one that waits
			go serve(annToken, "application/proto", http.NoBody)
		}
		synctest.Wait()
		for contentType, headers := range map[string]map[string]string{
			"application/proto":          {"Retry-After": "1", "X-Request-Id": ""},
			"application/grpc":           {"Grpc-Status": "8", "Retry-After": "1"},
			"application/grpc-web+proto": {"Grpc-Status": "8"},
		} {
			w := serve(annToken, contentType, unread{t})
			for key, want := range headers {
				got := w.Result().Header.Get(key) + w.Result().Trailer.Get(key)
				if got == "" || (want != "" && got != want) {
					t.Errorf("%s: header %s is %q, want %q", contentType, key, got, want)
				}
			}
			if contentType == "application/proto" && (w.Code != http.StatusTooManyRequests || !strings.Contains(w.Body.String(), `"resource_exhausted"`)) {
				t.Errorf("answered %d %s", w.Code, w.Body)
			}
		}
		if len(ended) != 3 || ended[0].Code != "resource_exhausted" || ended[0].Method != "paceline.v1.JobService/CreateJob" {
			t.Errorf("told of %v", ended)
		}
		if lines := strings.Count(log.String(), "\n"); lines != 1 || !strings.Contains(log.String(), "calls are refused") {
			t.Errorf("three refusals are told as\n%s", log)
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			if w := serve(bobToken, "application/proto", http.NoBody); w.Code != http.StatusOK {
				t.Errorf("another is answered %d %s", w.Code, w.Body)
			}
		}()
		synctest.Wait()
		close(release)
		<-done
		synctest.Wait()
	})
}

// unread fails the test when somebody reads it.
type unread struct{ t *testing.T }

func (r unread) Read([]byte) (int, error) {
	r.t.Error("the body of a refused call was read")
	return 0, io.EOF
}

// The bytes of requests are counted as they come, and a compressed one counts as what it may come to.
func TestRequestBytesAreBounded(t *testing.T) {
	n, _ := newEntrance(t, gate.Limits{Bytes: 2 * MaxRequestBytes}, nil)
	var failed error
	inside := func() {}
	handler := n.wrap(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, failed = io.Copy(io.Discard, r.Body)
		inside()
	}))
	send := func(token string, bytes int, compressed bool) error {
		failed = nil
		r := newRequest(pacelinev1connect.JobServiceCreateJobProcedure, token, "application/proto", strings.NewReader(strings.Repeat("x", bytes)))
		if compressed {
			r.Header.Set("Content-Encoding", "gzip")
		}
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		if w.Code != http.StatusOK {
			return errors.New(w.Body.String())
		}
		return failed
	}
	inside = func() {
		inside = func() {}
		if err := send(annToken, MaxRequestBytes, false); connect.CodeOf(err) != connect.CodeResourceExhausted {
			t.Errorf("more than half of the bytes: %v", err)
		}
		if err := send(annToken, 10, true); err == nil || !strings.Contains(err.Error(), "resource_exhausted") {
			t.Errorf("a compressed request: %v", err)
		}
		if err := send(bobToken, 10, false); err != nil {
			t.Errorf("another's request: %v", err)
		}
	}
	if err := send(annToken, MaxRequestBytes, false); err != nil {
		t.Errorf("a request of half of the bytes: %v", err)
	}
	if err := send(annToken, 10, true); err != nil {
		t.Errorf("a compressed request when all is quiet: %v", err)
	}
}

// pipes is a listener without a network or buffers.
type pipes struct {
	net.Listener
	conns chan net.Conn
}

func (p *pipes) Accept() (net.Conn, error) {
	c, ok := <-p.conns
	if !ok {
		return nil, net.ErrClosed
	}
	return c, nil
}

func (p *pipes) Close() error { return nil }

func (p *pipes) Addr() net.Addr { return &net.UnixAddr{} }

// A client that reads nothing is cut off after a while, and one that reads slowly is not.
func TestStuckClientIsCutOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, _ := newEntrance(t, gate.Limits{}, nil)
		ended := make(chan error, 1)
		handler := n.wrap(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			for range 10 {
				if _, err := w.Write(bytes.Repeat([]byte("x"), 10_000)); err != nil {
					ended <- err
					return
				}
				w.(http.Flusher).Flush() //nolint:forcetypeassert // Connect needs it too
			}
			ended <- nil
		}))
		listener := &pipes{conns: make(chan net.Conn)}
		server := &http.Server{Handler: handler, ReadHeaderTimeout: time.Minute}
		go func() { _ = server.Serve(listener) }()
		open := func() net.Conn {
			client, inside := net.Pipe()
			listener.conns <- inside
			if _, err := io.WriteString(client, "POST "+pacelinev1connect.EventServiceWatchEventsProcedure+" HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n"); err != nil {
				t.Fatal(err)
			}
			return client
		}
		stuck := open()
		began := time.Now()
		if err := <-ended; err == nil || time.Since(began) != n.stuck {
			t.Errorf("one that reads nothing ends with %v after %v", err, time.Since(began))
		}
		slow := open()
		var reading sync.WaitGroup
		reading.Go(func() {
			buffer := make([]byte, 5000)
			for {
				time.Sleep(n.stuck / 10)
				if _, err := slow.Read(buffer); err != nil {
					return
				}
			}
		})
		if err := <-ended; err != nil {
			t.Errorf("one that reads slowly ends with %v", err)
		}
		close(listener.conns)
		_, _, _ = stuck.Close(), slow.Close(), server.Close()
		reading.Wait()
	})
}

// Connections beyond the limit are closed at once and told of once; when one ends there is room again.
func TestConnectionsAreBounded(t *testing.T) {
	inner, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	log := &bytes.Buffer{}
	door := &doorkeeper{Listener: inner, most: 2, log: slog.New(slog.NewTextHandler(log, nil))}
	defer door.Close()
	accepted := make(chan net.Conn)
	go func() {
		defer close(accepted)
		for {
			c, err := door.Accept()
			if err != nil {
				return
			}
			accepted <- c
		}
	}()
	dial := func() net.Conn {
		c, err := new(net.Dialer).DialContext(t.Context(), "tcp", inner.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	var outside, inside []net.Conn
	for range 2 {
		outside = append(outside, dial())
		inside = append(inside, <-accepted)
	}
	for range 3 {
		c := dial()
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, io.EOF) && !isReset(err) {
			t.Errorf("one connection too many: %v", err)
		}
		outside = append(outside, c)
	}
	_, _ = inside[0].Close(), inside[0].Close()
	outside = append(outside, dial())
	inside = append(inside, <-accepted)
	for _, c := range append(outside, inside...) {
		_ = c.Close()
	}
	_ = inner.Close()
	<-accepted
	if strings.Count(log.String(), "\n") != 1 || !strings.Contains(log.String(), "limit=2") {
		t.Errorf("it logged\n%s", log)
	}
	if door.open != 0 {
		t.Errorf("%d connections are open", door.open)
	}
}

func isReset(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && !errors.Is(err, context.DeadlineExceeded)
}
