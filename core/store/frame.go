package store

import (
	"fmt"
	"sync"

	"github.com/klauspost/compress/zstd"
)

// A stored value is one byte that names its frame, then the body. Small values stay plain: under CompressFrom bytes zstd gains
// less than a block of the LSM tree's padding and costs a microsecond on every read.
const (
	framePlain byte = 0
	frameZstd  byte = 1
)

const (
	// CompressFrom is the size in bytes above which values are compressed.
	CompressFrom = 1 << 10
	// MaxExpandedBytes bounds what one value may expand to, on both ways.
	MaxExpandedBytes = 16 << 20
)

// Both coders are safe for concurrent use in their whole-buffer form and start no goroutines there.
var (
	newEncoder = sync.OnceValues(func() (*zstd.Encoder, error) {
		return zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithEncoderLevel(zstd.SpeedDefault),
			zstd.WithWindowSize(1<<20), zstd.WithLowerEncoderMem(true))
	})
	newDecoder = sync.OnceValues(func() (*zstd.Decoder, error) {
		return zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(MaxExpandedBytes),
			zstd.WithDecoderMaxWindow(MaxExpandedBytes), zstd.WithDecoderLowmem(true))
	})
)

// AppendFrame appends value to dst in its stored form, compressed when that pays. It refuses a value over MaxExpandedBytes with
// ErrTooLarge. It may be called concurrently.
func AppendFrame(dst, value []byte) ([]byte, error) {
	if len(value) > MaxExpandedBytes {
		return dst, fmt.Errorf("%w: a value of %d bytes, at most %d before compression", ErrTooLarge, len(value), MaxExpandedBytes)
	}
	if len(value) > CompressFrom {
		encoder, err := newEncoder()
		if err != nil {
			return dst, fmt.Errorf("compress a value: %w", err)
		}
		start := len(dst)
		dst = encoder.EncodeAll(value, append(dst, frameZstd))
		if len(dst)-start <= len(value) {
			return dst, nil
		}
		dst = dst[:start]
	}
	dst = append(dst, framePlain)
	return append(dst, value...), nil
}

// OpenFrame returns the value of a stored form. A plain one aliases frame; what is damaged or would expand over MaxExpandedBytes
// is refused with ErrCorrupt. It may be called concurrently.
func OpenFrame(frame []byte) ([]byte, error) {
	if len(frame) == 0 {
		return nil, fmt.Errorf("%w: a stored value lacks its frame", ErrCorrupt)
	}
	body := frame[1:]
	switch frame[0] {
	case framePlain:
		if len(body) > MaxExpandedBytes {
			return nil, fmt.Errorf("%w: a stored value has %d bytes, at most %d", ErrCorrupt, len(body), MaxExpandedBytes)
		}
		return body, nil
	case frameZstd:
		decoder, err := newDecoder()
		if err != nil {
			return nil, fmt.Errorf("expand a value: %w", err)
		}
		value, err := decoder.DecodeAll(body, nil)
		if err != nil {
			return nil, fmt.Errorf("%w: a compressed value: %w", ErrCorrupt, err)
		}
		if len(value) > MaxExpandedBytes {
			return nil, fmt.Errorf("%w: a compressed value expands over %d bytes", ErrCorrupt, MaxExpandedBytes)
		}
		return value, nil
	default:
		return nil, fmt.Errorf("%w: a stored value has the unknown frame %#x", ErrCorrupt, frame[0])
	}
}
