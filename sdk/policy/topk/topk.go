//go:build wasm || tinygo.wasm

package topk

import (
	"unsafe"

	"github.com/paceline-sched/paceline/sdk/policy/internal/outside"
)

//go:wasmimport paceline scan_topk
func scan(request, column, k int32, to unsafe.Pointer) int32

func init() { outside.Scan = scan }
