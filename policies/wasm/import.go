package wasm

import (
	"context"
	"encoding/binary"
	"errors"
	"strings"

	"github.com/paceline-sched/paceline/policies/wasm/fuel"
	"github.com/paceline-sched/paceline/sdk/policyabi"
	"github.com/tetratelabs/wazero/api"
)

// hostFunction is a function that a policy may import: its parameters and results as the letters i (i32) and I (i64), what it costs, and what it does.
type hostFunction struct {
	params, results string
	cost            int64
	call            func(in *Instance, m api.Module, stack []uint64)
}

func letters(s string) string {
	return strings.NewReplacer("i", "\x7f", "I", "\x7e").Replace(s)
}

func (f hostFunction) signature() fuel.Signature {
	return fuel.Signature{Params: letters(f.params), Results: letters(f.results)}
}

func (f hostFunction) types(s string) []api.ValueType { return []api.ValueType(letters(s)) }

// Error numbers of WASI.
const (
	wasiOK     = 0
	wasiBadFD  = 8
	wasiFault  = 21
	wasiInval  = 28
	wasiNoSys  = 52
	wasiModule = "wasi_snapshot_preview1"
)

// What calls of the host cost beside what they move.
const (
	cheap      = 100
	costOfLog  = 2000
	maxRandom  = 65536
	maxVectors = 64
	// tick is how far the clock of a guest goes with each look: time stands still otherwise, and a loop that waits for it must end.
	tick = 1000
)

var errExit = errors.New("the policy ended itself")

// allowed are the imports, by module and name. Of WASI they are what the toolchains of Go, TinyGo, Rust and C link in. Nothing of it reaches outside: randomness is a seed, the
// clock the scheduler's, and of files there is only standard error, a ring that faults are reported with.
var allowed = map[string]map[string]hostFunction{
	policyabi.ImportModule: {
		policyabi.ImportLog:  {"iii", "", costOfLog, logLine},
		policyabi.ImportScan: {"iiii", "i", cheap, scanTopK},
	},
	wasiModule: {
		"args_get":              {"ii", "i", cheap, answer(wasiOK)},
		"args_sizes_get":        {"ii", "i", cheap, noStrings},
		"environ_get":           {"ii", "i", cheap, answer(wasiOK)},
		"environ_sizes_get":     {"ii", "i", cheap, noStrings},
		"clock_res_get":         {"ii", "i", cheap, answer(wasiNoSys)},
		"clock_time_get":        {"iIi", "i", cheap, clockTime},
		"random_get":            {"ii", "i", cheap, random},
		"sched_yield":           {"", "i", cheap, answer(wasiOK)},
		"poll_oneoff":           {"iiii", "i", cheap, sleep},
		"proc_exit":             {"i", "", cheap, exit},
		"fd_write":              {"iiii", "i", cheap, write},
		"fd_read":               {"iiii", "i", cheap, answer(wasiBadFD)},
		"fd_close":              {"i", "i", cheap, answer(wasiBadFD)},
		"fd_seek":               {"iIii", "i", cheap, answer(wasiBadFD)},
		"fd_fdstat_get":         {"ii", "i", cheap, answer(wasiBadFD)},
		"fd_fdstat_set_flags":   {"ii", "i", cheap, answer(wasiBadFD)},
		"fd_filestat_get":       {"ii", "i", cheap, answer(wasiBadFD)},
		"fd_pread":              {"iiiIi", "i", cheap, answer(wasiBadFD)},
		"fd_pwrite":             {"iiiIi", "i", cheap, answer(wasiBadFD)},
		"fd_prestat_get":        {"ii", "i", cheap, answer(wasiBadFD)},
		"fd_prestat_dir_name":   {"iii", "i", cheap, answer(wasiBadFD)},
		"fd_readdir":            {"iiiIi", "i", cheap, answer(wasiBadFD)},
		"path_filestat_get":     {"iiiii", "i", cheap, answer(wasiBadFD)},
		"path_open":             {"iiiiiIIii", "i", cheap, answer(wasiBadFD)},
		"path_readlink":         {"iiiiii", "i", cheap, answer(wasiBadFD)},
		"path_create_directory": {"iii", "i", cheap, answer(wasiBadFD)},
		"path_remove_directory": {"iii", "i", cheap, answer(wasiBadFD)},
		"path_unlink_file":      {"iii", "i", cheap, answer(wasiBadFD)},
		"path_rename":           {"iiiiii", "i", cheap, answer(wasiBadFD)},
	},
}

func (f hostFunction) function() api.GoModuleFunc {
	return func(ctx context.Context, m api.Module, stack []uint64) {
		in, ok := ctx.Value(instanceKey{}).(*Instance)
		if !ok {
			panic(errors.New("a guest is called without its instance"))
		}
		charge(m, f.cost)
		f.call(in, m, stack)
	}
}

// charge takes fuel for what the host does for a guest. The guest finds out at its next step.
func charge(m api.Module, cost int64) {
	if tank, ok := m.ExportedGlobal(policyabi.FuelGlobal).(api.MutableGlobal); ok {
		tank.Set(uint64(int64(tank.Get()) - cost))
	}
}

func answer(errno uint64) func(*Instance, api.Module, []uint64) {
	return func(_ *Instance, _ api.Module, stack []uint64) { stack[0] = errno }
}

func noStrings(_ *Instance, m api.Module, stack []uint64) {
	ok := m.Memory().WriteUint32Le(uint32(stack[0]), 0) && m.Memory().WriteUint32Le(uint32(stack[1]), 0)
	stack[0] = errno(ok)
}

func errno(ok bool) uint64 {
	if ok {
		return wasiOK
	}
	return wasiFault
}

func clockTime(in *Instance, m api.Module, stack []uint64) {
	in.clock += tick
	stack[0] = errno(m.Memory().WriteUint64Le(uint32(stack[2]), in.clock))
}

// sleep serves a wait for one clock, at once: time moves on by as much. The Go runtime waits so before it says what it panicked of.
func sleep(in *Instance, m api.Module, stack []uint64) {
	const (
		tagAt, timeoutAt, flagsAt = 8, 24, 40 // of a subscription
		subscriptionBytes         = 48
		eventBytes                = 32
		absolute                  = 1
	)
	list, events, n, count := uint32(stack[0]), uint32(stack[1]), uint32(stack[2]), uint32(stack[3])
	asked, ok := m.Memory().Read(list, subscriptionBytes)
	if !ok {
		stack[0] = wasiFault
		return
	}
	if n != 1 || asked[tagAt] != 0 {
		stack[0] = wasiNoSys
		return
	}
	if timeout := binary.LittleEndian.Uint64(asked[timeoutAt:]); asked[flagsAt]&absolute == 0 {
		in.clock += timeout
	} else {
		in.clock = max(in.clock, timeout)
	}
	var event [eventBytes]byte // all went well, for a clock
	copy(event[:], asked[:tagAt])
	stack[0] = errno(m.Memory().Write(events, event[:]) && m.Memory().WriteUint32Le(count, 1))
}

func random(in *Instance, m api.Module, stack []uint64) {
	at, n := uint32(stack[0]), uint32(stack[1])
	if n > maxRandom {
		stack[0] = wasiInval
		return
	}
	charge(m, int64(n))
	to, ok := m.Memory().Read(at, n)
	for len(to) > 0 {
		var b [8]byte
		binary.LittleEndian.PutUint64(b[:], in.draw())
		to = to[copy(to, b[:]):]
	}
	stack[0] = errno(ok)
}

// draw is one step of SplitMix64.
func (in *Instance) draw() uint64 {
	in.random += 0x9e3779b97f4a7c15
	z := in.random
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

func exit(_ *Instance, _ api.Module, _ []uint64) { panic(errExit) }

// write takes what goes to standard output and error.
func write(in *Instance, m api.Module, stack []uint64) {
	fd, list, n, written := uint32(stack[0]), uint32(stack[1]), uint32(stack[2]), uint32(stack[3])
	if fd != 1 && fd != 2 {
		stack[0] = wasiBadFD
		return
	}
	if n > maxVectors {
		stack[0] = wasiInval
		return
	}
	total := uint32(0)
	for i := range n {
		at, ok1 := m.Memory().ReadUint32Le(list + 8*i)
		size, ok2 := m.Memory().ReadUint32Le(list + 8*i + 4)
		b, ok3 := m.Memory().Read(at, size)
		if !ok1 || !ok2 || !ok3 {
			stack[0] = wasiFault
			return
		}
		charge(m, int64(size)/8)
		in.stderr.add(b)
		total += size
	}
	stack[0] = errno(m.Memory().WriteUint32Le(written, total))
}

func logLine(in *Instance, m api.Module, stack []uint64) {
	level, at, n := uint32(stack[0]), uint32(stack[1]), uint32(stack[2])
	in.counters.LogLines.Add(1)
	if in.lines >= linesPerCall || in.log == nil {
		return
	}
	in.lines++
	b, ok := m.Memory().Read(at, min(n, policyabi.MaxLog))
	if !ok {
		return
	}
	in.log(int(min(level, policyabi.LogError)), printable(b))
}

// printable makes one harmless line of what a guest says.
func printable(b []byte) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r >= 0x80 && r < 0xa0 || r == 0x2028 || r == 0x2029 {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(string(b), "?"))
}

// ring keeps the last bytes written to it, and of a crash of the Go runtime the first: what it died of stands above a long trace.
type ring struct {
	b     [ringBytes]byte
	next  int
	full  bool
	crash bool
}

const ringBytes = 4096

func (r *ring) add(b []byte) {
	if !r.crash && crashes(b) {
		*r = ring{crash: true}
	}
	if r.crash {
		r.next += copy(r.b[r.next:ringBytes-1], b)
		return
	}
	if len(b) > ringBytes {
		b = b[len(b)-ringBytes:]
	}
	n := copy(r.b[r.next:], b)
	if n < len(b) {
		copy(r.b[:], b[n:])
	}
	r.full = r.full || r.next+len(b) >= ringBytes
	r.next = (r.next + len(b)) % ringBytes
}

// crashes reports whether a text is the beginning of the Go runtime's last words.
func crashes[T string | []byte](text T) bool {
	const longest = len("fatal error: ")
	first := string(text[:min(len(text), longest)])
	return strings.HasPrefix(first, "panic: ") || strings.HasPrefix(first, "fatal error: ")
}

func (r *ring) String() string {
	s := string(r.b[:r.next])
	if r.full {
		s = string(r.b[r.next:]) + s
	}
	lines := strings.Split(strings.TrimSpace(strings.ToValidUTF8(s, "?")), "\n")
	for i := range lines {
		lines[i] = printable([]byte(lines[i]))
	}
	return strings.Join(lines, "\n")
}
