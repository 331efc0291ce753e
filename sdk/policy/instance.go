package policy

import (
	"errors"
	"reflect"
	"strconv"

	"github.com/paceline-sched/paceline/sdk/policyabi"
)

func itoa(n int64) string { return strconv.FormatInt(n, 10) }

// Instance is one running copy of a program, with an arena. In a module the exports drive it; elsewhere whoever lays out the arena does.
type Instance struct {
	program *Program
	policy  any
	arena   []byte
	table   Table
	call    Call
	rank    ranking
	log     func(level int, text string)
}

// Start makes an instance with a copy of the policy. Log, which may be nil, takes what the policy logs.
func (p *Program) Start(log func(level int, text string)) *Instance {
	in := &Instance{program: p, log: log}
	copied := reflect.New(p.prototype.Type())
	copied.Elem().Set(p.prototype)
	in.policy = copied.Interface()
	if in.log == nil {
		in.log = func(int, string) {}
	}
	in.table.log = in.log
	in.call.bind(in)
	return in
}

// Arena makes room for the shared memory, once: bytes of it, zero, aligned to policyabi.Alignment. It is nil when it was made before or the number is none.
func (in *Instance) Arena(bytes int) []byte {
	if bytes <= 0 || bytes > policyabi.MaxArena || in.arena != nil {
		return nil
	}
	in.arena = aligned(bytes)
	in.table.arena = in.arena
	return in.arena
}

// Configure reads the configuration that stands in the arena and starts the policy.
func (in *Instance) Configure() policyabi.Status {
	h, err := policyabi.DecodeHeader(in.arena)
	if err != nil {
		return in.refuse(err, policyabi.StatusHeader)
	}
	values, err := policyabi.DecodeConfig(in.arena[h.Config : h.Config+h.ConfigBytes])
	if err != nil {
		return in.refuse(err, policyabi.StatusConfig)
	}
	if err := in.program.set(reflect.ValueOf(in.policy).Elem(), values); err != nil {
		return in.refuse(err, policyabi.StatusConfig)
	}
	if s, ok := in.policy.(Starter); ok {
		if err := s.Start(); err != nil {
			return in.refuse(err, policyabi.StatusConfig)
		}
	}
	return policyabi.StatusOK
}

// refuse logs an error and returns its status: that of a Refusal, or else the given one.
func (in *Instance) refuse(err error, otherwise policyabi.Status) policyabi.Status {
	var own Refusal
	if errors.As(err, &own) {
		return policyabi.StatusPolicy - policyabi.Status(own)
	}
	in.log(policyabi.LogError, err.Error())
	return otherwise
}

// Call serves one call of n records, as an export does, and returns what policyabi.Return packs.
func (in *Instance) Call(kind policyabi.Kind, n int) uint64 {
	h, err := policyabi.DecodeHeader(in.arena)
	if err != nil {
		return policyabi.Return(in.refuse(err, policyabi.StatusHeader), 0)
	}
	count := 0
	switch kind {
	case policyabi.Place:
		count, err = in.call.serve(&h, n)
	case policyabi.Preempt:
		count, err = in.serveRanks(&h, n)
	case policyabi.Quota:
		count, err = in.serveQuota(&h)
	case policyabi.Route:
		count, err = in.serveRoutes(&h, n)
	default:
		err = errUnsupported
	}
	switch {
	case errors.Is(err, errUnsupported):
		return policyabi.Return(policyabi.StatusUnsupported, 0)
	case err != nil:
		return policyabi.Return(in.refuse(err, policyabi.StatusInternal), 0)
	}
	return policyabi.Return(policyabi.StatusOK, uint32(count))
}

// errUnsupported is a call that the policy is not for.
var errUnsupported = errors.New("the policy does not serve this call")
