// Package output writes what commands have to say: tables for people, JSON and YAML for programs, names for pipes.
//
// It owns formats and their stability: JSON and YAML are the protobuf schema with its snake_case names, so that what one command
// prints another reads. It never asks a server and never decides what is worth showing; commands hand it messages and columns.
// A Printer has one user at a time.
package output

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"

	"buf.build/go/protoyaml"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

// Format is how a result is written.
type Format string

// The formats.
const (
	Table Format = "table" // columns for people
	Wide  Format = "wide"  // more columns
	JSON  Format = "json"
	YAML  Format = "yaml"
	Name  Format = "name" // one name a line, for pipes
)

// Formats lists what -o takes.
var Formats = []string{string(Table), string(Wide), string(JSON), string(YAML), string(Name)}

// ParseFormat reads the value of -o.
func ParseFormat(s string) (Format, error) {
	if !slices.Contains(Formats, s) {
		return "", fmt.Errorf("output format %q is unknown: it is one of %s", s, strings.Join(Formats, ", "))
	}
	return Format(s), nil
}

// ForPeople reports whether the format is read by people rather than programs.
func (f Format) ForPeople() bool { return f == Table || f == Wide }

// Printer writes results in one format.
type Printer struct {
	Out       io.Writer
	Format    Format
	NoHeaders bool
}

// Column is one column of a table of T.
type Column[T any] struct {
	Header string
	Wide   bool // shown with -o wide only
	Value  func(T) string
}

// Columns lays out a kind of object.
type Columns[T proto.Message] struct {
	Columns []Column[T]
	Name    func(T) string // what -o name prints
}

// List writes items. As JSON or YAML it is a message with one repeated field; envelope makes it.
func List[T proto.Message](p *Printer, items []T, layout Columns[T], envelope func([]T) proto.Message) error {
	switch p.Format {
	case JSON, YAML:
		return p.Message(envelope(items))
	case Name:
		return writeNames(p.Out, items, layout)
	default:
		return p.Rows(Cells(p, items, layout))
	}
}

// One writes a single item: as JSON or YAML the message itself, otherwise as List does.
func One[T proto.Message](p *Printer, item T, layout Columns[T]) error {
	switch p.Format {
	case JSON, YAML:
		return p.Message(item)
	case Name:
		return writeNames(p.Out, []T{item}, layout)
	default:
		return p.Rows(Cells(p, []T{item}, layout))
	}
}

func writeNames[T proto.Message](w io.Writer, items []T, layout Columns[T]) error {
	for _, item := range items {
		if _, err := fmt.Fprintln(w, layout.Name(item)); err != nil {
			return err
		}
	}
	return nil
}

// Cells renders items with the columns of the printer's format; the first row is the headers.
func Cells[T proto.Message](p *Printer, items []T, layout Columns[T]) [][]string {
	rows := make([][]string, 1, len(items)+1)
	for _, c := range layout.Columns {
		if !c.Wide || p.Format == Wide {
			rows[0] = append(rows[0], c.Header)
		}
	}
	for _, item := range items {
		row := make([]string, 0, len(rows[0]))
		for _, c := range layout.Columns {
			if !c.Wide || p.Format == Wide {
				row = append(row, c.Value(item))
			}
		}
		rows = append(rows, row)
	}
	return rows
}

// Rows writes rows of cells as a table; the first row is the headers.
func (p *Printer) Rows(rows [][]string) error { return p.writeTable(rows, !p.NoHeaders) }

// writeTable aligns columns with two spaces between them. Lines have no trailing blanks.
func (p *Printer) writeTable(rows [][]string, headers bool) error {
	if len(rows) == 0 {
		return nil
	}
	widths := make([]int, len(rows[0]))
	if !headers {
		rows = rows[1:]
	}
	for _, row := range rows {
		for i, cell := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	var b strings.Builder
	for _, row := range rows {
		b.Reset()
		for i, cell := range row {
			b.WriteString(cell)
			if i < len(row)-1 {
				b.WriteString(strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell)+2))
			}
		}
		if _, err := fmt.Fprintln(p.Out, strings.TrimRight(b.String(), " ")); err != nil {
			return err
		}
	}
	return nil
}

// Message writes one message as JSON or YAML; in the other formats it writes YAML, which reads best.
func (p *Printer) Message(m proto.Message) error {
	encode := encodeYAML
	if p.Format == JSON {
		encode = encodeJSON
	}
	data, err := encode(m)
	if err != nil {
		return fmt.Errorf("write %s as %s: %w", m.ProtoReflect().Descriptor().Name(), p.Format, err)
	}
	_, err = p.Out.Write(data)
	return err
}

// Line writes one message of a stream: JSON on one line, or a YAML document.
func (p *Printer) Line(m proto.Message) error {
	if p.Format != JSON {
		if _, err := io.WriteString(p.Out, "---\n"); err != nil {
			return err
		}
		return p.Message(m)
	}
	data, err := compactJSON(m)
	if err != nil {
		return fmt.Errorf("write %s as %s: %w", m.ProtoReflect().Descriptor().Name(), p.Format, err)
	}
	_, err = p.Out.Write(append(data, '\n'))
	return err
}

// compactJSON removes the blanks that protojson varies on purpose, so that equal messages print equally.
func compactJSON(m proto.Message) ([]byte, error) {
	raw, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(m)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	if err := json.Compact(&b, raw); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

func encodeJSON(m proto.Message) ([]byte, error) {
	raw, err := compactJSON(m)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	if err := json.Indent(&b, raw, "", "  "); err != nil {
		return nil, err
	}
	b.WriteByte('\n')
	return b.Bytes(), nil
}

func encodeYAML(m proto.Message) ([]byte, error) {
	return protoyaml.MarshalOptions{UseProtoNames: true, Indent: 2}.Marshal(m)
}
