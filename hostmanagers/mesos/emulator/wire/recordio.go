package wire

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strconv"
)

// MaxRecordBytes bounds one record that Reader accepts.
const MaxRecordBytes = 64 << 20

// AppendRecord appends one record: the decimal length of data, a newline, data.
func AppendRecord(to, data []byte) []byte {
	to = strconv.AppendInt(to, int64(len(data)), 10)
	to = append(to, '\n')
	return append(to, data...)
}

// ReadRecord reads one record. At the end of the stream it returns io.EOF, inside of a record io.ErrUnexpectedEOF.
func ReadRecord(from *bufio.Reader) ([]byte, error) {
	length := 0
	for digits := 0; ; digits++ {
		c, err := from.ReadByte()
		switch {
		case errors.Is(err, io.EOF) && digits > 0:
			return nil, io.ErrUnexpectedEOF
		case err != nil:
			return nil, err
		case c == '\n' && digits > 0:
			data := make([]byte, 0, min(length, 1<<16))
			return readRest(from, data, length)
		case c < '0' || c > '9':
			return nil, fmt.Errorf("read the length of a record: byte %q is not a decimal digit", c)
		}
		if length = length*10 + int(c-'0'); length > MaxRecordBytes {
			return nil, fmt.Errorf("read a record: it is longer than %d bytes", MaxRecordBytes)
		}
	}
}

// readRest reads a record's data as it comes, so that a length alone costs no memory.
func readRest(from *bufio.Reader, data []byte, length int) ([]byte, error) {
	for len(data) < length {
		step := min(length-len(data), 1<<16)
		at := len(data)
		data = append(data, make([]byte, step)...)
		if _, err := io.ReadFull(from, data[at:]); err != nil {
			return nil, io.ErrUnexpectedEOF
		}
	}
	return data, nil
}
