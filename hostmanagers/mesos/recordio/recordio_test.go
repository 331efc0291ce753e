package recordio_test

import (
	"bytes"
	"errors"
	"io"
	"slices"
	"testing"
	"testing/iotest"

	"pgregory.net/rapid"

	"github.com/paceline-sched/paceline/hostmanagers/mesos/recordio"
)

// TestWhatIsAppendedIsRead holds for any records, however they arrive, and for a stream that ends anywhere.
func TestWhatIsAppendedIsRead(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		records := rapid.SliceOfN(rapid.SliceOfN(rapid.Byte(), 0, 300), 0, 8).Draw(t, "records")
		if rapid.Bool().Draw(t, "long") {
			records = append(records, bytes.Repeat([]byte{'7'}, rapid.IntRange(1, 3<<20).Draw(t, "length")))
		}
		var stream []byte
		ends := []int{0}
		for _, record := range records {
			stream = recordio.Append(stream, record)
			ends = append(ends, len(stream))
		}
		cut := rapid.IntRange(0, len(stream)).Draw(t, "cut")
		var from io.Reader = bytes.NewReader(stream[:cut])
		if len(stream) < 1<<12 && rapid.Bool().Draw(t, "slow") {
			from = iotest.OneByteReader(from)
		}
		r := recordio.NewReader(from)
		whole := 0
		for ; whole < len(records) && ends[whole+1] <= cut; whole++ {
			record, err := r.Next()
			if err != nil || !bytes.Equal(record, records[whole]) {
				t.Fatalf("record %d is read as %d bytes (%v), want %d", whole, len(record), err, len(records[whole]))
			}
		}
		want := io.ErrUnexpectedEOF
		if slices.Contains(ends, cut) {
			want = io.EOF
		}
		if record, err := r.Next(); !errors.Is(err, want) || record != nil {
			t.Fatalf("cut at %d of %d: %v, want %v", cut, len(stream), err, want)
		}
	})
}

func TestNonsenseIsRefused(t *testing.T) {
	t.Parallel()
	for _, stream := range []string{"\n", "-1\n", "5 \nhello", "268435457\n", "00000000000\n", "99999999999999999999\n", "0x5\nhello"} {
		if record, err := recordio.NewReader(bytes.NewReader([]byte(stream))).Next(); err == nil || errors.Is(err, io.EOF) {
			t.Errorf("%q is read as %q (%v)", stream, record, err)
		}
	}
}

// FuzzReader reads streams: no input may make it panic, or hold more than was sent.
func FuzzReader(f *testing.F) {
	f.Add([]byte("5\nhello0\n"))
	f.Add([]byte("99999999999999999999\n"))
	f.Add([]byte("\n"))
	f.Fuzz(func(t *testing.T, stream []byte) {
		r := recordio.NewReader(bytes.NewReader(stream))
		var again []byte
		for {
			record, err := r.Next()
			if err != nil {
				break
			}
			if again = recordio.Append(again, record); len(again) > len(stream) {
				t.Fatalf("%q became %d bytes", stream, len(again))
			}
		}
	})
}
