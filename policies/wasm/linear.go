package wasm

import (
	"syscall"

	"github.com/tetratelabs/wazero/experimental"
)

// linear gives an instance its memory straight from the system. A page costs nothing until the guest touches it, growing moves nothing, and what the instance had is given back when it is
// closed: the collector never hears of it. The zero value is ready for one instance.
type linear struct {
	b      []byte
	mapped bool
}

var (
	_ experimental.MemoryAllocator = (*linear)(nil)
	_ experimental.LinearMemory    = (*linear)(nil)
)

// Allocate implements experimental.MemoryAllocator. What the memory may ever be is at most the limit of the runtime. Where the system maps nothing, the heap serves.
func (l *linear) Allocate(first, most uint64) experimental.LinearMemory {
	l.Free()
	b, err := syscall.Mmap(-1, 0, int(most), syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_PRIVATE|syscall.MAP_ANON)
	if l.b, l.mapped = b, err == nil; err != nil {
		l.b = make([]byte, most)
	} else if first > cachedBytes {
		widen(l.b)
	}
	return l
}

// Reallocate implements experimental.LinearMemory; nil refuses the guest to grow.
func (l *linear) Reallocate(size uint64) []byte {
	if size > uint64(len(l.b)) {
		return nil
	}
	return l.b[:size]
}

// Free implements experimental.LinearMemory. It may be called more than once. Nobody may look at the memory afterwards: the process would die of it.
func (l *linear) Free() {
	if l.mapped {
		_ = syscall.Munmap(l.b) // fails only for what was never mapped
	}
	*l = linear{}
}
