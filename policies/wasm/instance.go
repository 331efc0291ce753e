package wasm

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/paceline-sched/paceline/sdk/policy"
	"github.com/paceline-sched/paceline/sdk/policyabi"
	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"
	"github.com/tetratelabs/wazero/experimental"
)

// linesPerCall bounds what is taken of a guest's log in one call.
const linesPerCall = 16

type instanceKey struct{}

// Instance is one running copy of a policy, with an arena. It has one user at a time.
type Instance struct {
	version *Version
	ctx     context.Context // carries the instance to the functions that the guest calls
	module  api.Module
	memory  api.Memory
	linear  linear // behind memory
	tank    api.MutableGlobal
	calls   [policyabi.Route + 1]api.Function
	base    uint32
	native  *policy.Instance // of a policy that needs no sandbox; nil: the module's
	room    []byte           // its arena
	layout  *policyabi.Layout
	epoch   uint64 // of the last table that was sent

	stderr   ring
	log      func(level int, text string)
	lines    int
	clock    uint64 // nanoseconds, as the guest sees them
	random   uint64
	counters *Counters
	stack    [1]uint64
	watch    watch
	heap     []scanned // scratch of scan_topk
	dead     bool
}

// fault makes a Fault of an error.
func (in *Instance) fault(kind FaultKind, doing string, err error) *Fault {
	in.dead = true
	in.counters.fault(kind)
	return &Fault{Kind: kind, Policy: in.version.Name(), Digest: in.version.digest, Doing: doing, Err: err, Stderr: in.stderr.String()}
}

// start brings an instance up: image is the arena as the layout has it, the configuration in it.
func (v *Version) start(image []byte, layout *policyabi.Layout, seed uint64) (*Instance, error) {
	in := &Instance{version: v, layout: layout, log: v.config.Log, counters: &v.counters, random: seed, clock: uint64(time.Second)}
	in.ctx = context.WithValue(context.Background(), instanceKey{}, in)
	v.counters.Instances.Add(1)
	began := time.Now()
	defer func() { v.counters.Starting.Add(uint64(time.Since(began))) }()
	if v.native != nil {
		if err := in.startNative(image); err != nil {
			return nil, err
		}
		return in, nil
	}
	if err := in.bringUp(image); err != nil {
		in.close()
		return nil, err
	}
	return in, nil
}

// instantiate makes the module's memory and counter.
func (in *Instance) instantiate() error {
	v := in.version
	var err error
	ctx := experimental.WithMemoryAllocator(in.ctx, &in.linear)
	if in.module, err = v.runtime.InstantiateModule(ctx, v.compiled, wazero.NewModuleConfig().WithName("").WithStartFunctions()); err != nil {
		return in.fault(FaultStart, "instantiate", err)
	}
	in.memory = in.module.Memory()
	tank, ok := in.module.ExportedGlobal(policyabi.FuelGlobal).(api.MutableGlobal)
	if !ok || in.memory == nil {
		return in.fault(FaultStart, "instantiate", errors.New("the module has no counter or no memory"))
	}
	in.tank, in.watch.tank = tank, tank
	return nil
}

func (in *Instance) bringUp(image []byte) error {
	if err := in.instantiate(); err != nil {
		return err
	}
	for k := policyabi.Place; k <= policyabi.Route; k++ {
		in.calls[k] = in.module.ExportedFunction(k.Export())
	}
	if _, err := in.startCall(policyabi.ExportInitialize, false); err != nil {
		return err
	}
	version, err := in.startCall(policyabi.ExportABI, true)
	if err != nil {
		return err
	}
	if uint32(version)>>16 != policyabi.Major || uint32(version)&0xffff > policyabi.Minor {
		return in.fault(FaultStart, policyabi.ExportABI, fmt.Errorf("it returned version %d.%d, its section says otherwise", uint32(version)>>16, uint32(version)&0xffff))
	}
	total := in.layout.Header.Total
	base, err := in.startCall(policyabi.ExportArena, true, uint64(total))
	if err != nil {
		return err
	}
	in.base = uint32(base)
	if in.base == 0 || in.base%policyabi.Alignment != 0 || in.arena() == nil {
		return in.fault(FaultStart, policyabi.ExportArena, fmt.Errorf("it returned address %d for %d bytes: that must be a multiple of %d, within memory", in.base, total, policyabi.Alignment))
	}
	clear(in.arena())
	copy(in.arena(), image)
	return in.configure()
}

func (in *Instance) configure() error {
	if in.module.ExportedFunction(policyabi.ExportConfig) == nil {
		return nil
	}
	status, err := in.startCall(policyabi.ExportConfig, true, uint64(in.layout.Header.ConfigBytes))
	if err != nil {
		return err
	}
	if s := policyabi.Status(int32(uint32(status))); s != policyabi.StatusOK {
		return in.fault(FaultStart, policyabi.ExportConfig, fmt.Errorf("it returned %d: %s", int32(s), s))
	}
	return nil
}

// startCall makes a call that belongs to coming up.
func (in *Instance) startCall(name string, result bool, args ...uint64) (uint64, error) {
	f := in.module.ExportedFunction(name)
	if f == nil {
		return 0, nil
	}
	in.lines = 0
	in.tank.Set(uint64(in.version.limits.StartFuel))
	out, err := f.Call(in.ctx, args...)
	if err != nil {
		return 0, in.fault(in.why(FaultStart), name, shortly(err))
	}
	if !result {
		return 0, nil
	}
	return out[0], nil
}

// why tells running out of fuel from other ends.
func (in *Instance) why(otherwise FaultKind) FaultKind {
	if int64(in.tank.Get()) < 0 {
		return FaultFuel
	}
	return otherwise
}

// arena is the shared memory, nil when it is not within the guest's memory. It is good until the guest runs again.
func (in *Instance) arena() []byte {
	if in.native != nil {
		return in.room
	}
	b, ok := in.memory.Read(in.base, in.layout.Header.Total)
	if !ok {
		return nil
	}
	return b
}

// call makes one call with n records and returns how many results there are. fuel is what it may use.
func (in *Instance) call(kind policyabi.Kind, n int, fuel int64) (int, error) {
	var result uint64
	var err error
	if in.native != nil {
		in.counters.Calls.Add(1)
		result, err = in.callNative(kind, n)
	} else {
		result, err = in.callModule(kind, n, fuel)
	}
	if err != nil {
		return 0, err
	}
	status, count := policyabi.SplitReturn(result)
	if status != policyabi.StatusOK {
		return 0, in.fault(FaultStatus, kind.Export(), fmt.Errorf("it returned %d: %s", int32(status), status))
	}
	if in.arena() == nil {
		return 0, in.fault(FaultResult, kind.Export(), errors.New("the arena is not within memory any more"))
	}
	return int(count), nil
}

func (in *Instance) callModule(kind policyabi.Kind, n int, fuel int64) (uint64, error) {
	f := in.calls[kind]
	if f == nil {
		return 0, in.fault(FaultResult, kind.Export(), errors.New("the policy has no such call"))
	}
	in.lines = 0
	in.tank.Set(uint64(fuel))
	in.stack[0] = uint64(n)
	in.watch.begin()
	err := f.CallWithStack(in.ctx, in.stack[:])
	late := in.watch.end()
	in.counters.Calls.Add(1)
	in.counters.Fuel.Add(uint64(in.used(fuel)))
	switch {
	case err != nil && late:
		return 0, in.fault(FaultTime, kind.Export(), fmt.Errorf("it computed for more than %v", maxCallTime))
	case err != nil:
		return 0, in.fault(in.why(FaultTrap), kind.Export(), shortly(err))
	}
	return in.stack[0], nil
}

// used is what the last call used of the fuel that it had, at most all of it: the clock stops a call by taking far more away. Native policies use none.
func (in *Instance) used(fuel int64) int64 {
	if in.native != nil {
		return 0
	}
	return fuel - max(int64(in.tank.Get()), 0)
}

// size is the bytes of the instance's memory; of a native policy's, its arena.
func (in *Instance) size() int {
	if in.native != nil {
		return len(in.room)
	}
	return int(in.memory.Size())
}

// shortly keeps the reason of a trap and leaves out the stack, which has a line for each of a guest's frames.
func shortly(err error) error {
	text := err.Error()
	for i, c := range text {
		if c == '\n' {
			return errors.New(text[:i])
		}
	}
	return err
}

// close ends the instance, and with it its memory: nothing that was read of that may be looked at afterwards.
func (in *Instance) close() {
	if in.module != nil {
		_ = in.module.Close(in.ctx) // it has nothing that could fail to close: no files, no listeners
	}
	in.memory = nil
	in.linear.Free() // of one that did not come up, too
}
