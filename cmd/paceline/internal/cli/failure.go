package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"strings"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	"github.com/paceline-sched/paceline/cmd/paceline/internal/jobfile"
	pacelinev1 "github.com/paceline-sched/paceline/sdk/gen/paceline/v1"

	"github.com/paceline-sched/paceline/sdk/client"
)

// The exit codes; scripts rely on them.
const (
	ExitOK          = 0
	ExitFailure     = 1 // the work failed; job plan: there are changes
	ExitUsage       = 2
	ExitNotFound    = 3
	ExitRefused     = 4
	ExitUnavailable = 5
	ExitTimeout     = 124
	ExitInterrupted = 130
	ExitPlanError   = 255
)

// failure is an error with its exit code and what to do about it. A nil err exits without a word: all was said.
type failure struct {
	code int
	err  error
	hint string
}

func (f *failure) Error() string {
	if f.err == nil {
		return fmt.Sprintf("exit code %d", f.code)
	}
	return f.err.Error()
}

func (f *failure) Unwrap() error { return f.err }

// silently ends the command with ExitFailure; the output has said why.
func silently() error { return &failure{code: ExitFailure} }

// usage is a wrong command line.
func usage(cmd *cobra.Command, err error) error {
	return &failure{code: ExitUsage, err: err, hint: fmt.Sprintf("see '%s --help'", cmd.CommandPath())}
}

// report prints an error and returns its exit code.
func (a *app) report(err error) int {
	if err == nil {
		return ExitOK
	}
	f := explain(err)
	if f.err == nil {
		return f.code
	}
	fmt.Fprintf(a.Err, "Error: %s\n", strings.TrimRight(f.err.Error(), "\n"))
	if f.hint != "" {
		fmt.Fprintf(a.Err, "Hint: %s\n", f.hint)
	}
	return f.code
}

// explain finds the exit code and hint of any error.
func explain(err error) *failure {
	var f *failure
	var remote *connect.Error
	var mistake interface{ Mistake() } // of a command that was made elsewhere: its settings are wrong, and nothing was done
	problems, isFile := jobfile.AsProblems(err)
	switch {
	case errors.As(err, &f):
		return f
	case isFile:
		return &failure{code: ExitUsage, err: err, hint: problems.Hint()}
	case errors.As(err, &remote):
		return explainRemote(err, remote)
	case errors.As(err, &mistake):
		return &failure{code: ExitUsage, err: err}
	case errors.Is(err, context.DeadlineExceeded):
		return &failure{code: ExitTimeout, err: err}
	case errors.Is(err, context.Canceled):
		return &failure{code: ExitInterrupted, err: errors.New("interrupted")}
	case strings.HasPrefix(err.Error(), "required flag"), strings.HasPrefix(err.Error(), "if any flags in the group"),
		strings.HasPrefix(err.Error(), "at least one of the flags in the group"):
		return &failure{code: ExitUsage, err: err} // cobra has no types for these
	}
	return &failure{code: ExitFailure, err: err}
}

// exitCodes maps what servers answer. A code that is not here is a failure of the server: ExitFailure.
var exitCodes = map[connect.Code]int{
	connect.CodeCanceled:           ExitInterrupted,
	connect.CodeInvalidArgument:    ExitUsage,
	connect.CodeDeadlineExceeded:   ExitTimeout,
	connect.CodeNotFound:           ExitNotFound,
	connect.CodeAlreadyExists:      ExitRefused,
	connect.CodePermissionDenied:   ExitRefused,
	connect.CodeResourceExhausted:  ExitRefused,
	connect.CodeFailedPrecondition: ExitRefused,
	connect.CodeAborted:            ExitRefused,
	connect.CodeOutOfRange:         ExitRefused,
	connect.CodeUnauthenticated:    ExitRefused,
	connect.CodeUnavailable:        ExitUnavailable,
}

func explainRemote(err error, remote *connect.Error) *failure {
	f := &failure{code: ExitFailure}
	if code, ok := exitCodes[remote.Code()]; ok {
		f.code = code
	}
	detail := client.Detail(err)
	lines := []string{remote.Message()}
	for _, v := range detail.GetViolations() {
		lines = append(lines, fmt.Sprintf("  %s: %s", v.GetField(), v.GetMessage()))
	}
	if len(detail.GetViolations()) == 1 && strings.Contains(remote.Message(), detail.GetViolations()[0].GetMessage()) {
		lines = lines[:1] // the message says it already
	}
	f.err = errors.New(strings.Join(lines, "\n"))
	f.hint = detail.GetHint()
	switch {
	case remote.Code() == connect.CodeCanceled && detail == nil:
		f.err = errors.New("interrupted")
	case f.code == ExitUnavailable && isNetwork(err):
		f.err = fmt.Errorf("the server cannot be reached: %s", remote.Message())
		f.hint = first(f.hint, "start one here with 'paceline dev', or name yours with --address or 'paceline context use'")
	case remote.Code() == connect.CodeUnauthenticated:
		f.hint = first(f.hint, "give the token with --token-file or PACELINE_TOKEN_FILE")
	case f.code == ExitFailure && detail.GetRequestId() != "":
		f.hint = first(f.hint, "the server's log has more under request "+detail.GetRequestId())
	}
	return f
}

func isNetwork(err error) bool {
	var op *net.OpError
	return errors.As(err, &op)
}

func first(values ...string) string {
	for _, v := range values {
		if v != "" {
			return v
		}
	}
	return ""
}

// specPrefix leads the fields of a spec in a request.
const specPrefix = "spec."

// locate moves what a server says about fields of a spec to the lines of its file.
func locate[M interface {
	*pacelinev1.JobSpec | *pacelinev1.PoolSpec
	message
}](doc *jobfile.Document[M], err error,
) error {
	var remote *connect.Error
	if !errors.As(err, &remote) || !aboutRequest(remote.Code()) {
		return err
	}
	f := explainRemote(err, remote)
	var problems jobfile.Problems
	for _, v := range client.Detail(err).GetViolations() {
		if field, ok := strings.CutPrefix(v.GetField(), specPrefix); ok {
			problems = append(problems, doc.Problem(field, v.GetMessage()))
		}
	}
	if len(problems) == 0 {
		problems = jobfile.Problems{{File: doc.File, Line: doc.Line, Message: f.err.Error()}}
	}
	return &failure{code: f.code, err: problems, hint: f.hint}
}

// aboutRequest reports whether a code says that something is wrong with what was asked, rather than with who asked or with the server.
func aboutRequest(code connect.Code) bool {
	switch code {
	case connect.CodeInvalidArgument, connect.CodeNotFound, connect.CodeAlreadyExists, connect.CodeFailedPrecondition, connect.CodeResourceExhausted:
		return true
	default:
		return false
	}
}

// readFailure is a file of the user's that cannot be read.
func readFailure(err error) error {
	f := &failure{code: ExitUsage, err: err}
	if errors.Is(err, fs.ErrNotExist) {
		f.hint = "a single - reads standard input"
	}
	return f
}
