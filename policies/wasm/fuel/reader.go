package fuel

import (
	"fmt"
	"unicode/utf8"
)

// Error is why a module was refused.
type Error struct {
	Offset int    // in the module, in bytes
	Where  string // "code section, function 3"
	Reason string
}

func (e *Error) Error() string {
	return fmt.Sprintf("WebAssembly module: %s, at byte %d: %s", e.Where, e.Offset, e.Reason)
}

// reader walks over a module. The first thing that is wrong is kept, and from then on every read gives zero.
type reader struct {
	b     []byte
	at    int
	end   int // of what is being read
	where string
	err   error
}

func (r *reader) fail(format string, args ...any) {
	if r.err == nil {
		r.err = &Error{Offset: r.at, Where: r.where, Reason: fmt.Sprintf(format, args...)}
	}
	r.at = r.end
}

func (r *reader) more() bool { return r.err == nil && r.at < r.end }

func (r *reader) byte() byte {
	if r.at >= r.end {
		r.fail("it is cut off")
		return 0
	}
	r.at++
	return r.b[r.at-1]
}

// u32 reads an unsigned LEB128 number.
func (r *reader) u32() uint32 {
	var v uint64
	for shift := 0; shift < 35; shift += 7 {
		c := r.byte()
		v |= uint64(c&0x7f) << shift
		if c < 0x80 {
			if v > 1<<32-1 {
				r.fail("a number is beyond 32 bits")
				return 0
			}
			return uint32(v)
		}
	}
	r.fail("a number has more than 5 bytes")
	return 0
}

// skipLEB passes a LEB128 number of at most most bytes.
func (r *reader) skipLEB(most int) {
	for range most {
		if r.byte() < 0x80 {
			return
		}
	}
	r.fail("a number has more than %d bytes", most)
}

func (r *reader) skip(n int) {
	if n > r.end-r.at {
		r.fail("it is cut off")
		return
	}
	r.at += n
}

// count reads the length of a vector and holds it to a limit.
func (r *reader) count(what string, limit int) int {
	n := r.u32()
	if int64(n) > int64(limit) {
		r.fail("%d %s, at most %d are allowed", n, what, limit)
		return 0
	}
	return int(n)
}

func (r *reader) name() string {
	n := int(r.u32())
	if n > r.end-r.at || n > maxNameBytes {
		r.fail("a name of %d bytes: at most %d are allowed, within its section", n, maxNameBytes)
		return ""
	}
	r.at += n
	s := string(r.b[r.at-n : r.at])
	if !utf8.ValidString(s) {
		r.fail("a name is not UTF-8")
	}
	return s
}

// within reads the next n bytes as a part of their own.
func (r *reader) within(n int, read func()) {
	if n > r.end-r.at {
		r.fail("%d bytes are announced, %d are left", n, r.end-r.at)
		return
	}
	outer := r.end
	r.end = r.at + n
	read()
	if r.err == nil && r.at != r.end {
		r.fail("%d bytes are left over", r.end-r.at)
	}
	if r.err != nil {
		r.at = outer
	}
	r.end = outer
}

func appendU32(b []byte, v uint32) []byte {
	for v >= 0x80 {
		b = append(b, byte(v)|0x80)
		v >>= 7
	}
	return append(b, byte(v))
}

func appendS64(b []byte, v int64) []byte {
	for {
		c := byte(v & 0x7f)
		v >>= 7
		if v == 0 && c&0x40 == 0 || v == -1 && c&0x40 != 0 {
			return append(b, c)
		}
		b = append(b, c|0x80)
	}
}
