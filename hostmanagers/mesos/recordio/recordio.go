// Package recordio is the framing of a Mesos event stream: each record is its length in decimal digits, a newline, and that many bytes.
//
// It owns the framing and knows nothing of what a record holds.
//
// Concurrency: a Reader belongs to one goroutine.
package recordio

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strconv"
)

const (
	// MaxBytes bounds one record. The offers of ten thousand agents are some 10 MB.
	MaxBytes = 256 << 20
	// step is how much is read at once, and the least that a Reader holds.
	step = 64 << 10
	// maxKept is the largest record whose memory is used for the next one.
	maxKept = 1 << 20
)

// Append appends one record to a buffer.
func Append(to, data []byte) []byte {
	to = strconv.AppendInt(to, int64(len(data)), 10)
	to = append(to, '\n')
	return append(to, data...)
}

// Reader reads records.
type Reader struct {
	in     *bufio.Reader
	record []byte
}

// NewReader returns a Reader of a stream.
func NewReader(from io.Reader) *Reader { return &Reader{in: bufio.NewReaderSize(from, step)} }

// Next reads one record, whose bytes are valid until the next call. At the end of the stream it returns io.EOF, inside of a record
// io.ErrUnexpectedEOF; after an error there is no way to go on.
func (r *Reader) Next() ([]byte, error) {
	length := 0
	for digits := 0; ; digits++ {
		c, err := r.in.ReadByte()
		switch {
		case errors.Is(err, io.EOF) && digits > 0:
			return nil, io.ErrUnexpectedEOF
		case err != nil:
			return nil, err
		case c == '\n' && digits > 0:
			return r.fill(length)
		case c < '0' || c > '9':
			return nil, fmt.Errorf("read the length of a record: byte %q is not a decimal digit", c)
		}
		if length = length*10 + int(c-'0'); length > MaxBytes || digits > len("268435456") {
			return nil, fmt.Errorf("read a record: it is longer than %d bytes, or its length is written with zeros in front", MaxBytes)
		}
	}
}

// fill reads a record as it comes, so that a length alone costs no memory.
func (r *Reader) fill(length int) ([]byte, error) {
	if cap(r.record) > maxKept {
		r.record = nil
	}
	for r.record = r.record[:0]; len(r.record) < length; {
		at := len(r.record)
		more := min(length-at, max(step, at))
		if cap(r.record)-at < more {
			r.record = append(r.record, make([]byte, more)...)
		} else {
			r.record = r.record[:at+more]
		}
		if _, err := io.ReadFull(r.in, r.record[at:]); err != nil {
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return nil, err
		}
	}
	return r.record, nil
}
