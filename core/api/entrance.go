package api

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"

	"github.com/paceline-sched/paceline/core/api/gate"
	"github.com/paceline-sched/paceline/core/telemetry"
	"github.com/paceline-sched/paceline/sdk/gen/paceline/v1/pacelinev1connect"
)

const (
	// bodyTimeout bounds the time in which a request has to arrive: a call holds its place meanwhile.
	bodyTimeout = 30 * time.Second
	// writePiece is what a client has to take within Config.Stuck: a large answer on a poor line may take longer altogether.
	writePiece = 64 << 10
	// complaintPause is between two lines in the log about the same kind of overload.
	complaintPause = 10 * time.Second
)

// longLived are the methods whose calls last for as long as their callers like. They are counted as streams and wait for nothing.
var longLived = map[string]bool{
	pacelinev1connect.EventServiceWatchEventsProcedure:               true,
	pacelinev1connect.TaskServiceReadLogsProcedure:                   true,
	pacelinev1connect.AdminServiceBackupProcedure:                    true,
	"/grpc.reflection.v1.ServerReflection/ServerReflectionInfo":      true,
	"/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": true,
}

// entrance is before everything, where a request is still nothing but its headers. It lets requests through the gate, under the name of
// their token's principal; those without a valid token are one principal together, so that they only get in one another's way. What it
// refuses has cost neither a body nor a line in the log.
type entrance struct {
	edge   *edge
	gate   *gate.Gate
	writer *connect.ErrorWriter
	stuck  time.Duration
	busy   complaint
}

func (n *entrance) wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name := ""
		token, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		if principal, ok := n.edge.tokens.Authenticate(token); ok {
			name = principal.Name
		}
		pass, err := n.enter(r, name)
		if err != nil {
			n.refuse(w, r, name, err)
			return
		}
		defer pass.Leave()
		control := http.NewResponseController(w)
		out := &boundedWriter{ResponseWriter: w, control: control, timeout: n.stuck}
		defer out.extend() // for what net/http sends after the handler
		if r.Body != nil && r.Body != http.NoBody {
			_ = control.SetReadDeadline(time.Now().Add(bodyTimeout)) // a connection that cannot is one of tests
			r.Body = &meteredBody{paid: isCompressed(r.Header), ReadCloser: r.Body, pass: pass, control: control, full: func(err error) { n.complain(name, err) }}
		}
		next.ServeHTTP(out, r)
	})
}

func (n *entrance) enter(r *http.Request, name string) (*gate.Pass, error) {
	if longLived[r.URL.Path] {
		return n.gate.EnterStream(name)
	}
	pass, err := n.gate.Enter(r.Context(), name)
	if err != nil {
		return nil, err
	}
	if isCompressed(r.Header) { // a few bytes may come to a whole message
		if err := pass.Hold(MaxRequestBytes); err != nil {
			pass.Leave()
			return nil, err
		}
	}
	return pass, nil
}

func isCompressed(h http.Header) bool {
	for _, key := range []string{"Content-Encoding", "Connect-Content-Encoding", "Grpc-Encoding"} {
		if v := h.Get(key); v != "" && v != "identity" {
			return true
		}
	}
	return false
}

// refuse answers in the protocol that was asked in.
func (n *entrance) refuse(w http.ResponseWriter, r *http.Request, name string, err error) {
	c := &call{requestID: requestIDOf(r.Header), method: strings.TrimPrefix(r.URL.Path, "/")}
	out, _ := toConnect(err, c.requestID)
	w.Header().Set(requestIDHeader, c.requestID)
	if err := n.writer.Write(w, r, out); err != nil {
		n.edge.log.Debug("a refusal was not sent", slog.Any(telemetry.KeyError, err))
	}
	if rules[r.URL.Path] != (rule{}) { // other paths are whatever callers make up
		n.edge.trace.CallStarted(c.method)
		n.edge.trace.CallDone(telemetry.Call{Method: c.method, Code: out.Code().String(), Stream: true}) // its time would say nothing of the method's
	}
	n.complain(name, err)
}

func (n *entrance) complain(name string, err error) {
	if errors.Is(err, context.Canceled) {
		return
	}
	if count, due := n.busy.add(time.Now()); due {
		n.edge.log.Warn("calls are refused: there are more than the cell takes", slog.Int(telemetry.KeyCount, count),
			slog.String(telemetry.KeyPrincipal, name), slog.Any(telemetry.KeyError, err))
	}
}

// complaint keeps an overload from filling the log with its own story.
type complaint struct {
	mu    sync.Mutex
	last  time.Time
	count int
}

// add counts one more event. When it is time for a line in the log it returns how many there were since the last.
func (c *complaint) add(now time.Time) (count int, due bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.count++
	if now.Sub(c.last) < complaintPause {
		return 0, false
	}
	count, c.count, c.last = c.count, 0, now
	return count, true
}

// meteredBody takes room for what it reads, and lets the deadline of the body go with its end.
type meteredBody struct {
	io.ReadCloser
	paid    bool // there is room already, for whatever comes
	pass    *gate.Pass
	control *http.ResponseController
	full    func(error) // told when there is no room
}

func (b *meteredBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if errors.Is(err, io.EOF) {
		_ = b.control.SetReadDeadline(time.Time{}) // HTTP/1 looks for the connection's end from now on
	}
	if n > 0 && !b.paid {
		if full := b.pass.Hold(int64(n)); full != nil {
			b.full(full)
			out, _ := toConnect(full, "")
			return 0, out
		}
	}
	return n, err
}

// boundedWriter cuts off a client that takes nothing for too long. Its connection, or its HTTP/2 stream, ends with an error, which frees what
// was held for it; there is no way to tell it why.
type boundedWriter struct {
	http.ResponseWriter
	control *http.ResponseController
	timeout time.Duration
}

func (w *boundedWriter) extend() { _ = w.control.SetWriteDeadline(time.Now().Add(w.timeout)) }

func (w *boundedWriter) WriteHeader(code int) {
	w.extend()
	w.ResponseWriter.WriteHeader(code)
}

func (w *boundedWriter) Write(p []byte) (written int, err error) {
	for first := true; err == nil && (first || written < len(p)); first = false {
		w.extend()
		var n int
		n, err = w.ResponseWriter.Write(p[written:min(written+writePiece, len(p))])
		written += n
	}
	return written, err
}

// Flush comes right after a Write and has its deadline.
func (w *boundedWriter) Flush() { _ = w.control.Flush() }

func (w *boundedWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
