package client

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"math"
	mathrand "math/rand/v2"
	"slices"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	pacelinev1 "github.com/paceline-sched/paceline/sdk/gen/paceline/v1"
)

// maxAttempts bounds WithAttempts.
const maxAttempts = 20

// backoff spaces tries: initial, doubled each time up to max, each spread over its upper half so that clients do not come back in
// step.
type backoff struct{ initial, max time.Duration }

var defaultBackoff = backoff{initial: 100 * time.Millisecond, max: 5 * time.Second}

func (b backoff) delay(attempt int) time.Duration {
	d := b.max
	if attempt < 32 {
		d = min(b.max, b.initial<<attempt)
	}
	if d <= 0 {
		d = b.max
	}
	return d/2 + mathrand.N(d/2+1)
}

// after is the delay after an error: what the server asked for, and never less. Those whom one overload refused were refused together, so what
// is asked for is spread over half as much again.
func (b backoff) after(attempt int, err error) time.Duration {
	asked := RetryAfter(err)
	return max(b.delay(attempt), asked+mathrand.N(asked/2+1))
}

// passes reports whether an error says that the same call may succeed later: the server was not there, or had too much to do and named a
// time. A refusal without one is of a bound that waiting does not move.
func passes(err error) bool {
	switch connect.CodeOf(err) {
	case connect.CodeUnavailable:
		return true
	case connect.CodeResourceExhausted:
		return RetryAfter(err) > 0
	default:
		return false
	}
}

// caller is the interceptor around every call of a Client.
type caller struct{ settings settings }

func (c *caller) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, request connect.AnyRequest) (connect.AnyResponse, error) {
		c.setHeaders(request.Header())
		if c.settings.timeout > 0 {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, c.settings.timeout)
			defer cancel()
		}
		request, repeatable := makeRepeatable(request)
		attempts := 1
		if repeatable {
			attempts = c.settings.attempts
		}
		for attempt := 0; ; attempt++ {
			response, err := next(ctx, request)
			err = plainOutage(ctx, err)
			if err == nil || attempt+1 == attempts || !passes(err) {
				return response, err
			}
			delay := c.settings.backoff.after(attempt, err)
			if deadline, ok := ctx.Deadline(); ok && time.Until(deadline) < delay {
				return response, err // more telling than the time-out that would follow
			}
			if sleep(ctx, delay) != nil {
				return response, err
			}
		}
	}
}

// plainOutage gives the error of a connection that was cut in the middle of a call the code that it has when there is none to begin with.
// HTTP/2 makes of it whatever the server's end came to: often a cancellation that nobody asked for.
func plainOutage(ctx context.Context, err error) error {
	if err == nil || ctx.Err() != nil || connect.IsWireError(err) {
		return err
	}
	if slices.Contains(cutCodes, connect.CodeOf(err)) {
		return connect.NewError(connect.CodeUnavailable, fmt.Errorf("the connection to the server was lost: %w", err))
	}
	return err
}

var cutCodes = []connect.Code{connect.CodeCanceled, connect.CodeUnknown, connect.CodeInternal, connect.CodeDataLoss}

func (c *caller) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return func(ctx context.Context, spec connect.Spec) connect.StreamingClientConn {
		conn := next(ctx, spec)
		c.setHeaders(conn.RequestHeader())
		return conn
	}
}

func (c *caller) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return next
}

func (c *caller) setHeaders(header interface{ Set(key, value string) }) {
	if c.settings.token != "" {
		header.Set("Authorization", "Bearer "+c.settings.token)
	}
	header.Set("User-Agent", c.settings.userAgent)
}

// makeRepeatable reports whether sending the request twice does no more than sending it once. A CreateJob without an idempotency key
// is given one for that, in a copy: the caller may go on to use its message for another job.
func makeRepeatable(request connect.AnyRequest) (connect.AnyRequest, bool) {
	create, ok := request.(*connect.Request[pacelinev1.CreateJobRequest])
	if !ok {
		return request, request.Spec().IdempotencyLevel != connect.IdempotencyUnknown
	}
	if create.Msg.GetIdempotencyKey() != "" {
		return request, true
	}
	keyed := *create
	keyed.Msg = &pacelinev1.CreateJobRequest{}
	proto.Merge(keyed.Msg, create.Msg)
	keyed.Msg.IdempotencyKey = rand.Text()
	return &keyed, true
}

// Detail returns what the server said about an error beside its code and message. It is nil for errors that did not come from a
// Paceline server.
func Detail(err error) *pacelinev1.ErrorDetail {
	var failure *connect.Error
	if !errors.As(err, &failure) {
		return nil
	}
	for _, d := range failure.Details() {
		if value, err := d.Value(); err == nil {
			if detail, ok := value.(*pacelinev1.ErrorDetail); ok {
				return proto.CloneOf(detail)
			}
		}
	}
	return nil
}

// RetryAfter returns when the server wants to be asked again; 0 when it did not say.
func RetryAfter(err error) time.Duration {
	const most = int64(math.MaxInt64) / 2 / int64(time.Millisecond)
	millis := min(Detail(err).GetRetryAfterMillis(), most)
	return max(0, time.Duration(millis)*time.Millisecond)
}
