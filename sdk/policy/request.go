package policy

import (
	"math"

	"github.com/paceline-sched/paceline/sdk/policyabi"
)

// Request asks for room for a number of tasks that are alike.
type Request struct {
	index    int
	class    uint64
	count    int
	flags    uint32
	needs    [policyabi.MaxKinds]int32
	share    int32
	devices  int32
	priority int32
	pool     uint32
	spread   uint32
	models   []uint16 // nil: any
	buffer   []uint16 // of models
	open     []uint64 // a bit for each row
	bias     []int32  // for each row; nil: none
	named    bool     // there are needs beyond the four kinds
}

// Index is its place among the requests of the call.
func (r *Request) Index() int { return r.index }

// Class is the same number for tasks that are alike, in every call.
func (r *Request) Class() uint64 { return r.class }

// Count is how many tasks it asks for in this call.
func (r *Request) Count() int { return r.count }

// Need is what a task takes of a kind.
func (r *Request) Need(k Kind) int64 { return int64(r.needs[k]) }

// Devices is how many GPUs a task takes, and share how many thousandths of each.
func (r *Request) Devices() (n int, share int64) { return int(r.devices), int64(r.share) }

// Models are the numbers of the models that will do, none for any.
func (r *Request) Models() []uint16 { return r.models }

// Priority is comparable within a pool; higher goes first.
func (r *Request) Priority() int { return int(r.priority) }

// Pool is the number of the pool that the tasks are of, as PoolNumber makes it of its path; 0 is an unknown one.
func (r *Request) Pool() uint32 { return r.pool }

// PoolNumber is the number of the pool at a path: the lower half of policyabi.Hash, and 1 where that is 0. Of no path it is 0.
func PoolNumber(path string) uint32 {
	if path == "" {
		return 0
	}
	return max(uint32(policyabi.Hash(path)), 1)
}

// Flags are policyabi's Request* bits.
func (r *Request) Flags() uint32 { return r.flags }

// Revocable reports that the tasks run on slack, and are the first to make room.
func (r *Request) Revocable() bool { return r.flags&policyabi.RequestRevocable != 0 }

// Gang reports that all tasks find room or none.
func (r *Request) Gang() bool { return r.flags&policyabi.RequestGang != 0 }

// Open reports whether a host meets what columns do not tell.
func (r *Request) Open(row int) bool { return r.open[row/64]>>(row%64)&1 != 0 }

// Bias is what preferences put on the cost of a host.
func (r *Request) Bias(row int) int64 {
	if r.bias == nil {
		return 0
	}
	return int64(r.bias[row])
}

func (r *Request) allows(model int16) bool {
	if r.models == nil {
		return true
	}
	for _, m := range r.models {
		if m == uint16(model) {
			return true
		}
	}
	return false
}

// decode reads request i of the arena. It allocates nothing once models has grown.
func (r *Request) decode(arena []byte, h *policyabi.Header, i int) {
	raw := arena[int(h.Requests)+i*policyabi.RequestBytes:][:policyabi.RequestBytes]
	word := func(at int) uint32 { return le.Uint32(raw[at:]) }
	models := r.buffer[:0]
	*r = Request{
		index: i, class: le.Uint64(raw[policyabi.RequestClass:]), count: int(int32(word(policyabi.RequestCount))), flags: word(policyabi.RequestFlags),
		share: int32(word(policyabi.RequestShare)), devices: int32(word(policyabi.RequestDevices)), priority: int32(word(policyabi.RequestPriority)),
		pool: word(policyabi.RequestPool), spread: word(policyabi.RequestSpread),
	}
	for k := range 4 {
		r.needs[k] = int32(word(policyabi.RequestNeeds + 4*k))
	}
	r.open = view[uint64](arena, word(policyabi.RequestBitmap), int(h.Capacity)/64)
	if at := word(policyabi.RequestBias); at != 0 {
		r.bias = view[int32](arena, at, int(h.Capacity))
	}
	if at := word(policyabi.RequestExtension); at != 0 {
		models = r.extend(arena[at:h.Extension+h.ExtensionBytes], models)
	}
	if r.buffer = models; len(models) > 0 {
		r.models = models
	}
}

// extend reads what stands behind a request.
func (r *Request) extend(b []byte, models []uint16) []uint16 {
	for len(b) >= 4 {
		tag, size := le.Uint16(b), int(le.Uint16(b[2:]))
		payload := b[4 : 4+size]
		switch tag {
		case policyabi.ExtensionEnd:
			return models
		case policyabi.ExtensionNeed:
			if k := le.Uint32(payload); k < policyabi.MaxKinds {
				r.needs[k], r.named = int32(le.Uint32(payload[4:])), true
			}
		case policyabi.ExtensionModels:
			for ; len(payload) > 1; payload = payload[2:] {
				models = append(models, le.Uint16(payload))
			}
		}
		b = b[4+(size+3)&^3:]
	}
	return models
}

// condition is "column >= need".
type condition struct {
	column []int32
	need   int64
}

// noNeed is below every value of a column.
const noNeed = math.MinInt32

// conditions lists what a host must have for a task, the most telling first: devices, then CPU, memory, disk and named resources, then the sum of GPUs. A kind without a column
// is in the bitmap.
func (t *Table) conditions(r *Request, list []condition) []condition {
	list = list[:0]
	add := func(column []int32, need int32) {
		if need > 0 && column != nil {
			list = append(list, condition{column, int64(need)})
		}
	}
	if r.devices > 0 {
		if r.share < policyabi.DeviceMilli {
			add(t.deviceLargest, r.share)
		} else {
			add(t.deviceWhole, r.devices)
		}
	}
	for k := range t.kinds {
		if Kind(k) != GPU {
			add(t.free[k], r.needs[k])
		}
	}
	add(t.free[GPU], r.needs[GPU])
	return list
}
