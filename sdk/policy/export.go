//go:build wasm || tinygo.wasm

package policy

import (
	"runtime"
	"unsafe"

	"github.com/paceline-sched/paceline/sdk/policyabi"
)

// What the module exports. Each export ends with runtime.Gosched: a call from outside does not give way to the runtime's own goroutines by itself, such as those of the
// collector, and some toolchains leave modules that never do to grow.

var served *Instance

//go:wasmimport paceline log
func hostLog(level int32, text unsafe.Pointer, bytes int32)

func logToHost(level int, text string) {
	if len(text) > policyabi.MaxLog {
		text = text[:policyabi.MaxLog]
	}
	if text != "" {
		hostLog(int32(level), unsafe.Pointer(unsafe.StringData(text)), int32(len(text)))
	}
}

//go:wasmexport paceline_abi
func exportABI() int32 {
	defer runtime.Gosched()
	return policyabi.Version
}

//go:wasmexport paceline_describe
func exportDescribe() int64 {
	defer runtime.Gosched()
	if registered == nil {
		logToHost(policyabi.LogError, "no policy is registered: call policy.Register in an init function")
		return 0
	}
	b := registered.section
	return int64(uintptr(unsafe.Pointer(&b[0])))<<32 | int64(len(b))
}

//go:wasmexport paceline_arena
func exportArena(bytes int32) uint32 {
	defer runtime.Gosched()
	if registered == nil {
		logToHost(policyabi.LogError, "no policy is registered: call policy.Register in an init function")
		return 0
	}
	if served != nil {
		return 0
	}
	in := registered.Start(logToHost)
	b := in.Arena(int(bytes))
	if b == nil {
		return 0
	}
	served = in
	return uint32(uintptr(unsafe.Pointer(&b[0])))
}

//go:wasmexport paceline_config
func exportConfig(int32) int32 {
	defer runtime.Gosched()
	if served == nil {
		return int32(policyabi.StatusInternal)
	}
	return int32(served.Configure())
}

func serve(kind policyabi.Kind, n int32) int64 {
	defer runtime.Gosched()
	if served == nil {
		internal := policyabi.StatusInternal
		return int64(policyabi.Return(internal, 0))
	}
	return int64(served.Call(kind, int(n)))
}

//go:wasmexport paceline_place
func exportPlace(n int32) int64 { return serve(policyabi.Place, n) }

//go:wasmexport paceline_preempt
func exportPreempt(n int32) int64 { return serve(policyabi.Preempt, n) }

//go:wasmexport paceline_quota
func exportQuota(n int32) int64 { return serve(policyabi.Quota, n) }

//go:wasmexport paceline_route
func exportRoute(n int32) int64 { return serve(policyabi.Route, n) }
