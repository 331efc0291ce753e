package api

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"regexp"
	"runtime/debug"
	"strings"
	"time"

	"buf.build/go/protovalidate"
	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"github.com/paceline-sched/paceline/core/api/auth"
	"github.com/paceline-sched/paceline/core/telemetry"
)

const (
	requestIDHeader = "X-Request-Id"
	maxStackBytes   = 8 << 10 // of a panic's stack in the log
)

var requestIDPattern = regexp.MustCompile(`^[A-Za-z0-9._-]{1,64}$`)

// edge is the one interceptor before all handlers.
type edge struct {
	tokens   *auth.Tokens
	log      *slog.Logger
	trace    *telemetry.Trace
	stopping context.Context // ended when the server goes down
}

// call is one call on its way through the edge.
type call struct {
	method    string
	requestID string
	principal string
	peer      string
	protocol  string
	stream    bool
	began     time.Time
	quiet     bool // reads are logged at debug level
	access    *access
}

func (e *edge) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, request connect.AnyRequest) (response connect.AnyResponse, err error) {
		c := e.begin(request.Spec(), request.Peer(), request.Header())
		defer func() {
			if recovered := recover(); recovered != nil {
				err = e.contain(c, recovered)
			}
			if err = e.end(c, err); err != nil {
				response = nil
				return
			}
			response.Header().Set(requestIDHeader, c.requestID)
		}()
		if ctx, err = e.enter(ctx, c, request.Header()); err != nil {
			return nil, err
		}
		if err = validate(request.Any()); err != nil {
			return nil, err
		}
		response, err = next(ctx, request)
		return response, c.checkAsked(err)
	}
}

func (e *edge) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return func(ctx context.Context, conn connect.StreamingHandlerConn) (err error) {
		c := e.begin(conn.Spec(), conn.Peer(), conn.RequestHeader())
		c.stream = true
		defer func() {
			if recovered := recover(); recovered != nil {
				err = e.contain(c, recovered)
			}
			err = e.end(c, err)
		}()
		conn.ResponseHeader().Set(requestIDHeader, c.requestID)
		if ctx, err = e.enter(ctx, c, conn.RequestHeader()); err != nil {
			return err
		}
		ctx, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		unhook := context.AfterFunc(e.stopping, func() { cancel(errStopping) })
		defer unhook()
		err = next(ctx, &validatingConn{StreamingHandlerConn: conn, access: c.access})
		if err != nil && errors.Is(context.Cause(ctx), errStopping) {
			return errStopping
		}
		return c.checkAsked(err)
	}
}

func (e *edge) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return next
}

func (e *edge) begin(spec connect.Spec, peer connect.Peer, header http.Header) *call {
	c := &call{
		method: strings.TrimPrefix(spec.Procedure, "/"), requestID: requestIDOf(header), peer: peer.Addr, protocol: peer.Protocol,
		began: time.Now(), quiet: spec.IdempotencyLevel == connect.IdempotencyNoSideEffects,
		access: &access{rule: rules[spec.Procedure]},
	}
	e.trace.CallStarted(c.method)
	return c
}

// requestIDOf is the caller's name for his request, if it is one, or a new one.
func requestIDOf(header http.Header) string {
	if id := header.Get(requestIDHeader); requestIDPattern.MatchString(id) {
		return id
	}
	return rand.Text()
}

// enter finds out who calls and whether the method is open to him at all.
func (e *edge) enter(ctx context.Context, c *call, header http.Header) (context.Context, error) {
	a := c.access
	if a.rule == (rule{}) {
		return ctx, fmt.Errorf("method %s has no rule of access", c.method)
	}
	token, _ := strings.CutPrefix(header.Get("Authorization"), "Bearer ")
	a.renew = func() error {
		principal, ok := e.tokens.Authenticate(token)
		if !ok {
			return errUnauthenticated
		}
		a.principal = principal
		return a.admit()
	}
	if err := a.renew(); err != nil {
		return ctx, err
	}
	c.principal = a.principal.Name
	return withAccess(ctx, a), nil
}

var errUnauthenticated = refuse(connect.CodeUnauthenticated,
	"send a token of the server's token file as 'Authorization: Bearer <token>'; with the command line, set PACELINE_TOKEN_FILE or --token-file",
	"the call carries no valid token")

func (e *edge) contain(c *call, recovered any) error {
	if recovered == http.ErrAbortHandler { //nolint:errorlint // net/http compares it by identity too
		panic(recovered)
	}
	e.trace.Panicked("api")
	e.log.Error("a handler panicked", slog.String(telemetry.KeyMethod, c.method), slog.String(telemetry.KeyRequestID, c.requestID),
		slog.String(telemetry.KeyError, clip(fmt.Sprint(recovered), maxMessageBytes)),
		slog.String(telemetry.KeyStack, clip(string(debug.Stack()), maxStackBytes)))
	return fmt.Errorf("panic in %s", c.method)
}

// checkAsked withholds an answer for which nobody asked whether the caller may have it.
func (c *call) checkAsked(err error) error {
	if err == nil && c.access.rule.scope == inPool && !c.access.asked {
		return fmt.Errorf("%s answered without asking for permission", c.method)
	}
	return err
}

// end tells of the call and gives its error the form that leaves the server.
func (e *edge) end(c *call, err error) error {
	code := "ok"
	level := slog.LevelInfo
	if c.quiet {
		level = slog.LevelDebug
	}
	var out *connect.Error
	attributes := []slog.Attr{
		slog.String(telemetry.KeyMethod, c.method), slog.String(telemetry.KeyRequestID, c.requestID), slog.String(telemetry.KeyPrincipal, c.principal),
		slog.String(telemetry.KeyPeer, clip(c.peer, 128)), slog.String(telemetry.KeyProtocol, c.protocol),
	}
	if err != nil {
		var internal bool
		out, internal = toConnect(err, c.requestID)
		code = out.Code().String()
		if internal {
			level = slog.LevelError
		}
		attributes = append(attributes, slog.String(telemetry.KeyError, clip(err.Error(), maxMessageBytes)))
	}
	took := time.Since(c.began)
	attributes = append(attributes, slog.String(telemetry.KeyCode, code), slog.Duration(telemetry.KeyDuration, took))
	e.log.LogAttrs(context.Background(), level, "call", attributes...)
	e.trace.CallDone(telemetry.Call{Method: c.method, Code: code, Duration: took, Stream: c.stream})
	if out == nil {
		return nil
	}
	return out
}

// validatingConn checks each request message of a stream as it comes in, and lets no answer out before permission was asked for.
type validatingConn struct {
	connect.StreamingHandlerConn
	access *access
}

func (c *validatingConn) Receive(message any) error {
	if err := c.StreamingHandlerConn.Receive(message); err != nil {
		return err
	}
	return validate(message)
}

func (c *validatingConn) Send(message any) error {
	if c.access.rule.scope == inPool && !c.access.asked {
		return errors.New("a stream began to answer without asking for permission")
	}
	return c.StreamingHandlerConn.Send(message)
}

func validate(message any) error {
	m, ok := message.(proto.Message)
	if !ok {
		return fmt.Errorf("message of type %T cannot be checked", message)
	}
	return protovalidate.Validate(m)
}

// clip keeps what comes from outside short.
func clip(s string, most int) string {
	if len(s) <= most {
		return strings.ToValidUTF8(s, "")
	}
	return strings.ToValidUTF8(s[:most-3], "") + "..."
}
