package policy

import (
	"unsafe"

	"github.com/paceline-sched/paceline/sdk/policyabi"
)

// aligned makes zero bytes whose first stands at a multiple of policyabi.Alignment. Go moves nothing that is not on a stack, and this is too large or escapes.
func aligned(bytes int) []byte {
	b := make([]byte, bytes+policyabi.Alignment)
	skip := int(-uintptr(unsafe.Pointer(&b[0])) & (policyabi.Alignment - 1))
	return b[skip : skip+bytes : skip+bytes]
}
