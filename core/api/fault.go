package api

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"buf.build/go/protovalidate"
	"connectrpc.com/connect"

	"github.com/paceline-sched/paceline/core/api/gate"
	"github.com/paceline-sched/paceline/core/api/spec"
	"github.com/paceline-sched/paceline/core/driver"
	"github.com/paceline-sched/paceline/core/engine"
	"github.com/paceline-sched/paceline/core/scheduler"
	pacelinev1 "github.com/paceline-sched/paceline/sdk/gen/paceline/v1"
)

// fault is a refusal by the edge itself.
type fault struct {
	code       connect.Code
	message    string
	hint       string
	field      string
	violations []*pacelinev1.FieldViolation
	retryAfter time.Duration
}

func (f *fault) Error() string { return f.message }

func refuse(code connect.Code, hint, format string, args ...any) *fault {
	return &fault{code: code, hint: hint, message: fmt.Sprintf(format, args...)}
}

func refuseField(field, hint, format string, args ...any) *fault {
	f := refuse(connect.CodeInvalidArgument, hint, format, args...)
	f.field = field
	return f
}

// errStopping ends streams when the server goes down.
var errStopping = refuse(connect.CodeUnavailable, "try again: the server is restarting, or another one answers at this address", "the server is stopping")

// codes gives the cell's refusals their RPC codes.
var codes = map[scheduler.ErrorKind]connect.Code{
	scheduler.InvalidArgument:    connect.CodeInvalidArgument,
	scheduler.NotFound:           connect.CodeNotFound,
	scheduler.AlreadyExists:      connect.CodeAlreadyExists,
	scheduler.FailedPrecondition: connect.CodeFailedPrecondition,
	scheduler.Aborted:            connect.CodeAborted,
	scheduler.ResourceExhausted:  connect.CodeResourceExhausted,
	scheduler.Unavailable:        connect.CodeUnavailable,
}

// maxMessageBytes bounds an error's message and each part of its detail.
const maxMessageBytes = 2048

// toConnect turns any error of a call into the one that its caller gets. internal reports an error that says nothing to a caller and
// belongs in the log.
func toConnect(err error, requestID string) (out *connect.Error, internal bool) {
	detail := &pacelinev1.ErrorDetail{RequestId: requestID}
	code, message := connect.CodeInternal, ""
	var (
		own     *fault
		refusal *scheduler.Error
		invalid *spec.InvalidError
		rules   *protovalidate.ValidationError
		rpc     *connect.Error
	)
	switch {
	case errors.As(err, &own):
		code, message, detail.Hint = own.code, own.message, own.hint
		detail.RetryAfterMillis = own.retryAfter.Milliseconds()
		detail.Violations = own.violations
		if own.field != "" {
			detail.Violations = []*pacelinev1.FieldViolation{{Field: own.field, Message: own.message}}
		}
	case errors.As(err, &refusal):
		code, message, detail.Hint = codeOf(refusal.Kind), refusal.Message, refusal.Hint
		detail.RetryAfterMillis = refusal.RetryAfter.Milliseconds()
		if refusal.Field != "" {
			detail.Violations = []*pacelinev1.FieldViolation{{Field: refusal.Field, Message: refusal.Message}}
		}
	case errors.As(err, &invalid):
		code, message = connect.CodeInvalidArgument, invalid.Error()
		for _, v := range invalid.Violations {
			detail.Violations = append(detail.Violations, &pacelinev1.FieldViolation{Field: v.Field, Message: v.Message})
		}
	case errors.As(err, &rules):
		code = connect.CodeInvalidArgument
		message, detail.Violations = describeRules(rules)
	case errors.Is(err, engine.ErrStopped):
		code, message, detail.Hint = errStopping.code, errStopping.message, errStopping.hint
	case isOverload(err):
		code, message, detail.RetryAfterMillis = connect.CodeResourceExhausted, err.Error(), engine.RetryAfter.Milliseconds()
		detail.Hint = overloadHint
	case errors.Is(err, engine.ErrCompacted), errors.Is(err, engine.ErrFuture):
		code, message = connect.CodeOutOfRange, "the events after this cursor are not kept: list again and watch from the list's cursor"
	case errors.Is(err, driver.ErrUnknownRun):
		code, message = connect.CodeNotFound, err.Error()
	case errors.Is(err, driver.ErrNoLogs):
		code, message = connect.CodeUnimplemented, err.Error()
	case errors.Is(err, context.Canceled):
		code, message = connect.CodeCanceled, "the call was cancelled"
	case errors.Is(err, context.DeadlineExceeded):
		code, message = connect.CodeDeadlineExceeded, "the call took longer than its deadline; what it asked for may still happen"
	case errors.As(err, &rpc):
		code, message = rpc.Code(), rpc.Message()
	default:
		internal = true
		message = "the server failed at this call; its log says more under request id " + requestID
	}
	bound(&message, detail)
	out = connect.NewError(code, errors.New(message))
	if d, err := connect.NewErrorDetail(detail); err == nil {
		out.AddDetail(d)
	}
	out.Meta().Set(requestIDHeader, requestID)
	if detail.RetryAfterMillis > 0 { // for proxies and clients that know HTTP only, which knows whole seconds only
		out.Meta().Set("Retry-After", strconv.FormatInt((detail.RetryAfterMillis+999)/1000, 10))
	}
	return out, internal
}

// overloads say that nothing was done because there is too much to do.
var overloads = []error{engine.ErrOverloaded, engine.ErrManyWatchers, gate.ErrCalls, gate.ErrStreams, gate.ErrBytes, gate.ErrLate}

const overloadHint = "nothing was done: try again after the time that the answer names, and with fewer calls at once if it goes on"

func isOverload(err error) bool {
	return slices.ContainsFunc(overloads, func(one error) bool { return errors.Is(err, one) })
}

func codeOf(kind scheduler.ErrorKind) connect.Code {
	if code, ok := codes[kind]; ok {
		return code
	}
	return connect.CodeUnknown
}

// bound keeps an answer to a hostile request small.
func bound(message *string, detail *pacelinev1.ErrorDetail) {
	*message = clip(*message, maxMessageBytes)
	detail.Hint = clip(detail.Hint, maxMessageBytes)
	if len(detail.Violations) > maxViolations {
		detail.Violations = detail.Violations[:maxViolations]
	}
	for _, v := range detail.Violations {
		v.Field, v.Message = clip(v.Field, maxMessageBytes), clip(v.Message, maxMessageBytes)
	}
}

const maxViolations = 32

// describeRules lists the rules of the protos that a message breaks.
func describeRules(err *protovalidate.ValidationError) (string, []*pacelinev1.FieldViolation) {
	var message string
	var list []*pacelinev1.FieldViolation
	for i, v := range err.Violations {
		if i == maxViolations {
			message += fmt.Sprintf("; and %d more", len(err.Violations)-i)
			break
		}
		one := &pacelinev1.FieldViolation{
			Field: protovalidate.FieldPathString(v.Proto.GetField()), Message: v.Proto.GetMessage(), Rule: v.Proto.GetRuleId(),
		}
		list = append(list, one)
		if i > 0 {
			message += "; "
		}
		if one.Field != "" {
			message += one.Field + ": "
		}
		message += one.Message
	}
	return message, list
}
