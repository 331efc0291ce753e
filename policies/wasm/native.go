package wasm

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"runtime/debug"

	"github.com/paceline-sched/paceline/sdk/policy"
	"github.com/paceline-sched/paceline/sdk/policyabi"
)

// LoadNative makes a version of a policy that is part of this program: the same table, calls and checks, and the same answers as its module gives, without a sandbox. Its digest is that of
// what it says of itself. Nothing stops it when it runs on for ever: it is trusted as the program is. A panic is a fault like a guest's trap. The error is a *Fault.
func LoadNative(program *policy.Program, config Config) (*Version, error) {
	m := &Module{Digest: sha256.Sum256(program.Section()), Capability: program.Capability()}
	v := &Version{module: m, digest: m.Digest, native: program, config: config, limits: config.Limits.orDefault(), closed: make(chan struct{})}
	bad := func(err error) (*Version, error) {
		v.close()
		return nil, &Fault{Kind: FaultStart, Policy: m.Capability.Name, Digest: m.Digest, Doing: "configure", Err: err}
	}
	var err error
	if v.encoded, v.digest, err = m.configure(config.Values); err != nil {
		return bad(err)
	}
	if err := v.try(); err != nil {
		v.close()
		return nil, err
	}
	return v, nil
}

// startNative brings up an instance of a native policy.
func (in *Instance) startNative(image []byte) error {
	in.native = in.version.native.Start(in.logNative)
	in.room = in.native.Arena(int(in.layout.Header.Total))
	if in.room == nil {
		return in.fault(FaultStart, policyabi.ExportArena, fmt.Errorf("no arena of %d bytes", in.layout.Header.Total))
	}
	copy(in.room, image)
	var status policyabi.Status
	if err := in.guard(policyabi.ExportConfig, func() { status = in.native.Configure() }); err != nil {
		return err
	}
	if status != policyabi.StatusOK {
		return in.fault(FaultStart, policyabi.ExportConfig, fmt.Errorf("it returned %d: %s", int32(status), status))
	}
	return nil
}

// callNative is call without a sandbox.
func (in *Instance) callNative(kind policyabi.Kind, n int) (uint64, error) {
	in.lines = 0
	var result uint64
	err := in.guard(kind.Export(), func() { result = in.native.Call(kind, n) })
	return result, err
}

// guard makes a fault of a panic: a policy's mistake must not end the scheduler.
func (in *Instance) guard(doing string, run func()) (err error) {
	defer func() {
		if r := recover(); r != nil {
			in.stderr.add(fmt.Appendf(nil, "panic: %v\n\n%s", r, debug.Stack())) // as the Go runtime begins, so that the beginning is kept
			err = in.fault(FaultTrap, doing, errors.New("it panicked"))
		}
	}()
	run()
	return nil
}

func (in *Instance) logNative(level int, text string) {
	in.counters.LogLines.Add(1)
	if in.lines++; in.log == nil || in.lines > linesPerCall {
		return
	}
	in.log(level, printable([]byte(text[:min(len(text), policyabi.MaxLog)])))
}
