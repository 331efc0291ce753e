// Package jobfile reads files of jobs and pools: YAML documents of the protobuf schema.
//
// It owns the way from bytes to validated messages, and errors that name file, line and field. It never fills in defaults or talks to
// a server: a server that finds more to say about a field gets its line from Document.Locate. Everything is a pure function of the
// bytes; a Document is read-only once made.
package jobfile

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"

	"buf.build/go/protoyaml"
	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/proto"

	"buf.build/go/protovalidate"
)

// The bounds of what is read. A server accepts jobs of 512 KiB.
const (
	MaxFileBytes = 8 << 20
	MaxDocuments = 1000
	// maxDepth bounds the nesting of a document; the schema needs 8.
	maxDepth = 32
	// maxProblems bounds what is reported of one document.
	maxProblems = 20
)

// Document is one message with where its fields stand in the file.
type Document[M proto.Message] struct {
	Message M
	File    string
	Line    int // of the document's first field
	root    *yaml.Node
}

// Problem is one thing wrong with one place in a file.
type Problem struct {
	File    string
	Line    int    // 0: the file as a whole
	Field   string // empty: not about one field
	Message string
	Hint    string
}

func (p Problem) Error() string {
	var b strings.Builder
	b.WriteString(p.File)
	if p.Line > 0 {
		fmt.Fprintf(&b, ":%d", p.Line)
	}
	if p.Field != "" {
		fmt.Fprintf(&b, ": %s", p.Field)
	}
	fmt.Fprintf(&b, ": %s", p.Message)
	return b.String()
}

// Problems is everything wrong with a file, by line.
type Problems []Problem

func (ps Problems) Error() string {
	lines := make([]string, len(ps))
	for i, p := range ps {
		lines[i] = p.Error()
	}
	return strings.Join(lines, "\n")
}

// Hint returns the first problem's hint that there is.
func (ps Problems) Hint() string {
	for _, p := range ps {
		if p.Hint != "" {
			return p.Hint
		}
	}
	return ""
}

// validator compiles the rules of a message on its first use, once for the process.
var validator = sync.OnceValues(func() (protovalidate.Validator, error) { return protovalidate.New() })

// Parse reads every document of a file. The error is a Problems.
func Parse[M proto.Message](file string, data []byte, newMessage func() M) ([]Document[M], error) {
	chunks, problems := split(file, data)
	var documents []Document[M]
	for _, c := range chunks {
		message := newMessage()
		root, found := parseOne(file, c, message)
		problems = append(problems, found...)
		if root != nil && len(found) == 0 {
			documents = append(documents, Document[M]{Message: message, File: file, Line: root.Line, root: root})
		}
	}
	if len(problems) == 0 && len(documents) == 0 {
		problems = Problems{{File: file, Message: "holds no document"}}
	}
	if len(problems) > 0 {
		return nil, problems
	}
	return documents, nil
}

// split cuts a file at its document markers. Each chunk is led by as many empty lines as stand before it in the file, so that line
// numbers stay true.
func split(file string, data []byte) ([][]byte, Problems) {
	refuse := func(line int, text string) ([][]byte, Problems) {
		return nil, Problems{{File: file, Line: line, Message: text}}
	}
	if len(data) > MaxFileBytes {
		return refuse(0, fmt.Sprintf("is over %d MiB", MaxFileBytes>>20))
	}
	if !utf8.Valid(data) {
		return refuse(0, "is not UTF-8 text")
	}
	text := strings.ReplaceAll(strings.TrimPrefix(string(data), "\ufeff"), "\r\n", "\n")
	// YAML counts these as line ends and editors do not: line numbers would be a guess.
	if i := strings.IndexAny(text, "\r\u0085\u2028\u2029"); i >= 0 {
		return refuse(1+strings.Count(text[:i], "\n"), `holds an odd line break (\r, U+0085, U+2028 or U+2029): write \n, or its escape inside quotes`)
	}
	var chunks [][]byte
	start, line := 0, 0 // of the current chunk: byte offset, and lines before it
	lines := strings.SplitAfter(text, "\n")
	offset := 0
	flush := func(end int) {
		if strings.TrimSpace(stripComments(text[start:end])) != "" {
			chunks = append(chunks, []byte(strings.Repeat("\n", line)+text[start:end]))
		}
	}
	for i, l := range lines {
		bare := strings.TrimRight(l, "\n")
		if bare == "---" || bare == "..." || strings.HasPrefix(bare, "--- ") {
			flush(offset)
			if start, line = offset+len(l), i+1; strings.HasPrefix(bare, "--- ") {
				start, line = offset, i // content may follow the marker on its line
			}
		}
		offset += len(l)
	}
	flush(len(text))
	if len(chunks) > MaxDocuments {
		return refuse(0, fmt.Sprintf("holds %d documents, more than %d", len(chunks), MaxDocuments))
	}
	return chunks, nil
}

// stripComments removes lines that only comment, so that a chunk of comments is no document.
func stripComments(s string) string {
	var b strings.Builder
	for line := range strings.SplitSeq(s, "\n") {
		if !strings.HasPrefix(strings.TrimSpace(line), "#") {
			b.WriteString(line)
		}
	}
	return b.String()
}

func parseOne(file string, data []byte, message proto.Message) (*yaml.Node, Problems) {
	var doc yaml.Node
	if err := yaml.Unmarshal(data, &doc); err != nil {
		return nil, Problems{syntaxProblem(file, err)}
	}
	if len(doc.Content) != 1 {
		return nil, Problems{{File: file, Message: "holds no document"}}
	}
	root := doc.Content[0]
	walk := &walker{file: file}
	walk.message(root, message.ProtoReflect().Descriptor(), "", 0)
	if len(walk.problems) > 0 {
		return nil, walk.sorted()
	}
	check, err := validator()
	if err != nil {
		return nil, Problems{{File: file, Message: fmt.Sprintf("the schema's rules do not compile: %v", err)}}
	}
	if err := (protoyaml.UnmarshalOptions{Path: file}).Unmarshal(data, message); err != nil {
		walk.decoding(root, err)
		return nil, walk.sorted()
	}
	walk.violations(root, check.Validate(message))
	return root, walk.sorted()
}

// syntaxProblem turns yaml's "yaml: line N: text" into a Problem.
func syntaxProblem(file string, err error) Problem {
	text := strings.TrimPrefix(err.Error(), "yaml: ")
	var line int
	if n, scanErr := fmt.Sscanf(text, "line %d:", &line); n == 1 && scanErr == nil {
		_, text, _ = strings.Cut(text, ": ")
	}
	if strings.HasPrefix(text, "did not find expected") {
		line++ // yaml's parser, unlike its scanner, counts lines from 0 and leaves out 0
	}
	p := Problem{File: file, Line: line, Message: text}
	if strings.Contains(text, "cannot start any token") {
		p.Hint = "YAML indents with blanks, never with tabs"
	}
	return p
}

// Locate returns the line of a field, named as in task.resources.cpu_milli or overrides[2].instances, or of the nearest field around
// it that the file has.
func (d *Document[M]) Locate(field string) int {
	node := nearest(d.root, field)
	return node.Line
}

// Problem describes something that is wrong with one field of the document.
func (d *Document[M]) Problem(field, message string) Problem {
	return Problem{File: d.File, Line: d.Locate(field), Field: field, Message: message}
}

// sorted returns the problems by line, at most maxProblems of them.
func (w *walker) sorted() Problems {
	slices.SortStableFunc(w.problems, func(a, b Problem) int { return a.Line - b.Line })
	if over := len(w.problems) - maxProblems; over > 0 {
		last := w.problems[maxProblems-1]
		w.problems = append(w.problems[:maxProblems], Problem{File: last.File, Line: last.Line, Message: fmt.Sprintf("and %d more problems", over)})
	}
	return w.problems
}

// AsProblems returns the Problems in an error's chain.
func AsProblems(err error) (Problems, bool) {
	var ps Problems
	ok := errors.As(err, &ps)
	return ps, ok
}
