package wasm

import "syscall"

// hugePages asks for large pages (MADV_HUGEPAGE, which package syscall leaves out).
const hugePages = 14

// widen asks the kernel to back memory with large pages: whoever begins with much of it goes far and wide in it, and each small page costs a fault.
func widen(b []byte) {
	_ = syscall.Madvise(b, hugePages) // a wish
}
