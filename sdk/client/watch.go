package client

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	pacelinev1 "github.com/paceline-sched/paceline/sdk/gen/paceline/v1"
)

// ErrCompacted is returned by Watch when the server no longer keeps the events after the cursor: list again and watch from the
// list's cursor.
var ErrCompacted = errors.New("the events after this cursor are no longer kept")

// watchSilence is how long a watch may be without any response before it is taken for dead: three of the server's beats.
const watchSilence = 45 * time.Second

// Watch gives handle every response of WatchEvents, in order and without gaps, until handle returns an error, which Watch returns,
// or ctx ends, or with until_now all was handled that had happened. A stream that breaks off is resumed at the last cursor for as long as ctx lives; an answer that no repetition mends,
// such as a refused token, is returned.
func (c *Client) Watch(ctx context.Context, request *pacelinev1.WatchEventsRequest, handle func(*pacelinev1.WatchEventsResponse) error) error {
	request = proto.CloneOf(request)
	for attempt := 0; ; attempt++ {
		got, err := c.watchOnce(ctx, request, handle)
		var stopped *handlerError
		switch {
		case errors.As(err, &stopped):
			return stopped.cause
		case ctx.Err() != nil:
			return ctx.Err()
		case connect.CodeOf(err) == connect.CodeOutOfRange:
			return fmt.Errorf("%w: %w", ErrCompacted, err)
		case err != nil && !resumable(err):
			return err
		case err == nil && got && request.GetUntilNow():
			return nil
		}
		if got {
			attempt = 0
		}
		if err := sleep(ctx, c.backoff.after(attempt, err)); err != nil {
			return err
		}
	}
}

// handlerError tells an error of the caller's function from one of the stream.
type handlerError struct{ cause error }

func (e *handlerError) Error() string { return e.cause.Error() }

// watchOnce reads one stream to its end and moves the request's cursor along. It reports whether it got anything.
func (c *Client) watchOnce(ctx context.Context, request *pacelinev1.WatchEventsRequest, handle func(*pacelinev1.WatchEventsResponse) error) (bool, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	silence := time.AfterFunc(watchSilence, func() { cancel(errSilent) })
	defer silence.Stop()

	stream, err := c.Events.WatchEvents(ctx, connect.NewRequest(request))
	if err != nil {
		return false, silent(ctx, err)
	}
	defer stream.Close() //nolint:errcheck // the stream's own error says more
	got := false
	for stream.Receive() {
		silence.Stop() // the handler may take its time
		got = true
		response := stream.Msg()
		if err := handle(response); err != nil {
			return got, &handlerError{cause: err}
		}
		request.Cursor = response.GetCursor()
		silence.Reset(watchSilence)
	}
	return got, silent(ctx, stream.Err())
}

var errSilent = errors.New("the server has been silent for too long")

// silent replaces the cancellation that watchOnce caused itself by one that is resumed.
func silent(ctx context.Context, err error) error {
	if errors.Is(context.Cause(ctx), errSilent) {
		return connect.NewError(connect.CodeUnavailable, errSilent)
	}
	return err
}

// resumable reports whether a broken stream may be opened again as it was. Besides the server's plain word these are the codes that
// a connection cut in the middle comes to.
func resumable(err error) bool {
	return slices.Contains(resumableCodes, connect.CodeOf(err))
}

var resumableCodes = []connect.Code{
	connect.CodeUnavailable, connect.CodeResourceExhausted, connect.CodeDeadlineExceeded, connect.CodeCanceled, connect.CodeInternal,
	connect.CodeUnknown, connect.CodeAborted, connect.CodeDataLoss,
}
