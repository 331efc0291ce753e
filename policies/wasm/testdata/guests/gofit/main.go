// Command gofit is best fit for one task at a time, by the plain Go toolchain and without the SDK: what such guests cost.
package main

import (
	"runtime"
	"unsafe"
)

const (
	offRows, offDirectory, offColumns, offRequests, offResults = 48, 56, 60, 64, 72
	columnFree, columnLeftover                                 = 16, 71
)

var arena []byte

//go:wasmexport paceline_abi
func version() int32 { return 1 << 16 }

//go:wasmexport paceline_arena
func room(bytes int32) uint32 {
	b := make([]byte, bytes+64)
	at := -uintptr(unsafe.Pointer(&b[0])) & 63
	arena = b[at : at+uintptr(bytes)]
	runtime.Gosched()
	return uint32(uintptr(unsafe.Pointer(&arena[0])))
}

func word(at uint32) uint32 { return *(*uint32)(unsafe.Pointer(&arena[at])) }

func numbers(at, n uint32) []int32 { return unsafe.Slice((*int32)(unsafe.Pointer(&arena[at])), n) }

func column(id uint32) []int32 {
	for i, at := uint32(0), word(offDirectory); i < word(offColumns); i, at = i+1, at+32 {
		if word(at) == id {
			return numbers(word(at+8), word(offRows))
		}
	}
	return nil
}

func best(request uint32) int32 {
	cost := column(columnLeftover)
	rows := len(cost)
	cols, needs := [4][]int32{cost, cost, cost, cost}, [4]int32{-1 << 30, -1 << 30, -1 << 30, -1 << 30}
	for k := range uint32(4) {
		if need := int32(word(request + 24 + 4*k)); need > 0 {
			if cols[k] = column(columnFree + k); cols[k] == nil {
				return -1
			}
			needs[k] = need
		}
	}
	a, b, c, d := cols[0][:rows], cols[1][:rows], cols[2][:rows], cols[3][:rows]
	open := arena[word(request+16):]
	at, least := int32(-1), int32(1<<31-1)
	for i := range rows {
		if (a[i]-needs[0])|(b[i]-needs[1])|(c[i]-needs[2])|(d[i]-needs[3])|(cost[i]-least) >= 0 {
			continue
		}
		if cost[i] < least && (a[i]-needs[0])|(b[i]-needs[1])|(c[i]-needs[2])|(d[i]-needs[3]) >= 0 && open[i/8]>>(i%8)&1 != 0 {
			at, least = int32(i), cost[i]
		}
	}
	return at
}

//go:wasmexport paceline_place
func place(requests int32) int64 {
	n, at := int64(0), word(offResults)
	for i := range requests {
		row := best(word(offRequests) + 64*uint32(i))
		if row < 0 {
			continue
		}
		*(*[4]uint32)(unsafe.Pointer(&arena[at])) = [4]uint32{uint32(i) | 1<<16, uint32(row)}
		n, at = n+1, at+16
	}
	runtime.Gosched()
	return n
}

func main() {}
