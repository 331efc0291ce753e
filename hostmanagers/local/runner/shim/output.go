package shim

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"
)

const (
	// copyBuffer is what one read of a task's output takes at most.
	copyBuffer = 16 << 10
	// maxPipe bounds what is taken of a pipe whose deadline has passed: more than a pipe holds was written later.
	maxPipe = 1 << 20
)

// LogFile is the name of the n-th file of a stream, n from 0. It holds the stream's bytes from n times LogLimits.FileBytes on,
// so that an offset into the stream names its file by division, whatever was rotated away.
func LogFile(stream string, n int64) string { return stream + "." + strconv.FormatInt(n, 10) }

// output writes one stream of a task into numbered files and removes old ones. It never fails: what the disk does not take is
// counted and dropped, for a full disk must not stop the task.
type output struct {
	dir, stream string
	limits      LogLimits
	file        *os.File
	number      int64 // of file
	room        int64 // left in file
	lost        int64
}

func newOutput(dir, stream string, limits LogLimits) *output {
	o := &output{dir: dir, stream: stream, limits: limits}
	o.open()
	return o
}

func (o *output) open() {
	file, err := os.OpenFile(filepath.Join(o.dir, LogFile(o.stream, o.number)), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		o.file = nil // every byte is then counted as lost until the next file opens
	} else {
		o.file = file
	}
	o.room = o.limits.FileBytes
}

func (o *output) rotate() {
	o.close()
	o.number++
	if old := o.number - int64(o.limits.Files); old >= 0 {
		_ = os.Remove(filepath.Join(o.dir, LogFile(o.stream, old))) // it may be gone already
	}
	o.open()
}

func (o *output) Write(p []byte) (int, error) {
	total := len(p)
	for len(p) > 0 {
		if o.room == 0 {
			o.rotate()
		}
		part := p[:min(int64(len(p)), o.room)]
		p = p[len(part):]
		written := 0
		if o.file != nil {
			written, _ = o.file.Write(part) // the shortfall is counted
		}
		// Only bytes in the file count toward its end: offsets stay exact and the gap is in lost.
		o.room -= int64(written)
		o.lost += int64(len(part) - written)
	}
	return total, nil
}

func (o *output) close() {
	if o.file != nil {
		_ = o.file.Close() // the data was written; nothing is left to do about it
		o.file = nil
	}
}

// pump copies from the pipe until every writer has closed it, or its deadline comes; then it takes what is in the pipe by then.
func (o *output) pump(from *os.File, done chan<- struct{}) {
	defer close(done)
	buffer := make([]byte, copyBuffer)
	// CopyBuffer would look for shortcuts (ReadFrom, splice) that bypass the accounting.
	if _, err := io.CopyBuffer(writerOnly{o}, readerOnly{from}, buffer); errors.Is(err, os.ErrDeadlineExceeded) {
		o.rest(from, buffer)
	}
	o.close()
}

// rest takes what is in a pipe, and waits for nothing. Once its deadline has passed a file reads no more, whatever there is: on a machine that stood still for so long, or whose disk
// did, that would be all the output of the task.
func (o *output) rest(from *os.File, buffer []byte) {
	_ = from.SetReadDeadline(time.Time{}) // it took a deadline before
	raw, err := from.SyscallConn()
	if err != nil {
		return // it is closed
	}
	for left := maxPipe; left > 0; {
		n := 0
		err := raw.Read(func(fd uintptr) bool {
			for {
				var failed error
				if n, failed = syscall.Read(int(fd), buffer[:min(len(buffer), left)]); !errors.Is(failed, syscall.EINTR) {
					return true // also when there is nothing: the pipe does not block
				}
			}
		})
		if err != nil || n <= 0 {
			return
		}
		_, _ = o.Write(buffer[:n]) // never fails
		left -= n
	}
}

type (
	writerOnly struct{ io.Writer }
	readerOnly struct{ io.Reader }
)
