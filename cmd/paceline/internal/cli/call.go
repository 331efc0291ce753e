package cli

import (
	"context"
	"fmt"
	"io"
	"os"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/paceline-sched/paceline/cmd/paceline/internal/jobfile"
	"github.com/paceline-sched/paceline/cmd/paceline/internal/output"
)

type message = proto.Message

// call sends one request and returns the bare answer.
func call[Q, A any](ctx context.Context, method func(context.Context, *connect.Request[Q]) (*connect.Response[A], error), request *Q) (*A, error) {
	response, err := method(ctx, connect.NewRequest(request))
	if err != nil {
		return nil, err
	}
	return response.Msg, nil
}

// The bounds of lists.
const (
	maxPage      = 1000 // what the API gives at once
	defaultLimit = 1000
	maxLimit     = 1_000_000
)

// page asks for at most size items from a token on; it returns the next token.
type page[T any] func(size int32, token string) ([]T, string, error)

// collect reads pages until there is no more or limit is reached. more says that the server has further items.
func collect[T any](limit int, next page[T]) (items []T, more bool, err error) {
	token := ""
	for len(items) < limit {
		got, following, err := next(int32(min(limit-len(items), maxPage)), token)
		if err != nil {
			return nil, false, err
		}
		items = append(items, got...)
		if following == "" {
			return items, false, nil
		}
		if following == token || len(got) == 0 && len(items) == 0 && token != "" {
			return nil, false, fmt.Errorf("the server's list does not advance at page token %q", token)
		}
		token = following
	}
	return items, true, nil
}

// noteMore says that a list was cut.
func (a *app) noteMore(more bool, shown int) {
	if more {
		fmt.Fprintf(a.Err, "There are more; the first %d are shown. Narrow the list, or raise --limit.\n", shown)
	}
}

func checkLimit(limit int) error {
	if limit < 1 || limit > maxLimit {
		return &failure{code: ExitUsage, err: fmt.Errorf("--limit is %d: give 1 to %d", limit, maxLimit)}
	}
	return nil
}

// enums reads short names of enum values, as in --state running.
func enums[E interface {
	~int32
	protoreflect.Enum
}](flag string, names []string,
) ([]E, error) {
	var zero E
	values := make([]E, 0, len(names))
	for _, name := range names {
		n, err := output.ParseEnum(zero.Descriptor(), name)
		if err != nil {
			return nil, &failure{code: ExitUsage, err: fmt.Errorf("--%s: %w", flag, err)}
		}
		values = append(values, E(n))
	}
	return values, nil
}

// readFiles parses every document of the named files; "-" is standard input.
func readFiles[M proto.Message](a *app, names []string, newMessage func() M) ([]jobfile.Document[M], error) {
	var documents []jobfile.Document[M]
	for _, name := range names {
		data, err := a.readFile(name)
		if err != nil {
			return nil, readFailure(err)
		}
		if name == "-" {
			name = "standard input"
		}
		found, err := jobfile.Parse(name, data, newMessage)
		if err != nil {
			return nil, err
		}
		documents = append(documents, found...)
	}
	return documents, nil
}

// distinct refuses documents that say two things of one object: which of them counts would be a guess.
func distinct[M proto.Message](documents []jobfile.Document[M], field string, name func(M) string) error {
	first := map[string]*jobfile.Document[M]{}
	var problems jobfile.Problems
	for i := range documents {
		d := &documents[i]
		if other := first[name(d.Message)]; other != nil {
			problems = append(problems, d.Problem(field, fmt.Sprintf("%s is in %s:%d already", name(d.Message), other.File, other.Locate(field))))
			continue
		}
		first[name(d.Message)] = d
	}
	if len(problems) == 0 {
		return nil
	}
	return problems
}

// readFile reads a little more than the most that is accepted, so that the parser refuses what is larger.
func (a *app) readFile(name string) ([]byte, error) {
	in := a.In
	if name != "-" {
		file, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		defer file.Close() //nolint:errcheck // nothing was written
		in = file
	}
	return io.ReadAll(io.LimitReader(in, jobfile.MaxFileBytes+1))
}
