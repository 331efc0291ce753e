// Package tracefile reads traces: CSV files with a header, plain or gzip, by column name.
//
// It owns the form of the messages: whatever is wrong is reported as file:line:column, so that an editor can go there. It never
// knows what a column means. A Table has one owner; nothing here is shared or started.
package tracefile

import (
	"compress/gzip"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
)

// Table is one file being read, row after row. The first failure ends it.
type Table struct {
	name   string
	csv    *csv.Reader
	column map[string]int
	row    []string
	err    error
}

// Open reads the header. Columns that are in neither list are ignored; name is for messages.
func Open(in io.Reader, name string, required, optional []string) (*Table, error) {
	t := &Table{name: name, csv: csv.NewReader(in), column: map[string]int{}}
	t.csv.ReuseRecord = true
	header, err := t.csv.Read()
	if errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%s:1:1: the file is empty, its first line must name the columns %s", name, strings.Join(required, ", "))
	}
	if err != nil {
		return nil, t.located(err)
	}
	for i, c := range header {
		if slices.Contains(required, c) || slices.Contains(optional, c) {
			t.column[c] = i
		}
	}
	for _, c := range required {
		if _, ok := t.column[c]; !ok {
			return nil, fmt.Errorf("%s:1:1: column %s is missing", name, c)
		}
	}
	return t, nil
}

// Next goes to the next row, and returns false at the end or after a failure, which Err tells apart.
func (t *Table) Next() bool {
	if t.err != nil {
		return false
	}
	row, err := t.csv.Read()
	switch {
	case errors.Is(err, io.EOF):
		return false
	case err != nil:
		t.err = t.located(err)
		return false
	}
	t.row = row
	return true
}

// Err returns the first failure.
func (t *Table) Err() error { return t.err }

// located puts the csv package's errors into the one form.
func (t *Table) located(err error) error {
	var parse *csv.ParseError
	if errors.As(err, &parse) {
		return fmt.Errorf("%s:%d:%d: %w", t.name, parse.Line, max(parse.Column, 1), parse.Err)
	}
	line, _ := t.csv.FieldPos(0)
	return fmt.Errorf("%s:%d:1: %w", t.name, line, err)
}

// Text returns a field of the row; "" when the file lacks the column. It shares memory with its whole row: clone what is kept.
func (t *Table) Text(column string) string {
	i, ok := t.column[column]
	if !ok {
		return ""
	}
	return t.row[i]
}

// Number reads a whole number from 0 to most.
func (t *Table) Number(column string, most int64) int64 {
	text := t.Text(column)
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 0 || n > most {
		t.Fail(column, "%.40q must be a whole number from 0 to %d", text, most)
		return 0
	}
	return n
}

// Fraction reads a number from 0 to 1.
func (t *Table) Fraction(column string) float64 {
	text := t.Text(column)
	v, err := strconv.ParseFloat(text, 64)
	if err != nil || !(v >= 0 && v <= 1) {
		t.Fail(column, "%.40q must be a fraction from 0 to 1", text)
		return 0
	}
	return v
}

// Fail records what is wrong with a field of the row, unless something was wrong before.
func (t *Table) Fail(column, format string, args ...any) {
	if t.err == nil {
		line, at := t.csv.FieldPos(t.column[column])
		t.err = fmt.Errorf("%s:%d:%d: column %s: %s", t.name, line, at, column, fmt.Sprintf(format, args...))
	}
}

// ReadFile opens a file, unpacks it when its name ends in .gz, and has it read.
func ReadFile[T any](path string, read func(io.Reader, string) ([]T, error)) (list []T, err error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err //nolint:wrapcheck // it names the operation and the file already
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	if !strings.HasSuffix(path, ".gz") {
		return read(file, path)
	}
	plain, err := gzip.NewReader(file)
	if err != nil {
		return nil, fmt.Errorf("%s: unpack: %w", path, err)
	}
	return read(plain, path)
}
