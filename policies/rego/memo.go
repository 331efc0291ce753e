package rego

import (
	"encoding/binary"
	"encoding/json"
	"slices"
	"strings"
	"sync"

	"google.golang.org/protobuf/proto"

	"github.com/paceline-sched/paceline/core/api/admit"
	"github.com/paceline-sched/paceline/core/resource"
)

// memo remembers what a set of bundles answered, by the values of all that their rules look at: nothing has to be invalidated, as another
// value is another key. It keeps two generations of answers, so that what is asked for stays.
type memo struct {
	writers []func(*key, *admit.Request)
	off     bool // the rules look at what is never twice the same

	mu         sync.Mutex
	young, old map[string][]answer
}

func newMemo(r reads) *memo {
	m := &memo{young: map[string][]answer{}, off: r.under("now")}
	written := map[string]bool{}
	for _, path := range r.paths {
		if name := writerOf(path); !written[name] {
			written[name] = true
			m.writers = append(m.writers, writers[name])
		}
	}
	return m
}

// find returns what the rules answered to the same before. The key it leaves in k is what keep takes.
func (m *memo) find(k *key, r *admit.Request) ([]answer, bool) {
	k.raw = k.raw[:0]
	if m.off {
		return nil, false
	}
	for _, write := range m.writers {
		write(k, r)
	}
	if len(k.raw) > maxMemoKey {
		return nil, false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if a, ok := m.young[string(k.raw)]; ok {
		return a, true
	}
	a, ok := m.old[string(k.raw)]
	if ok {
		m.put(string(k.raw), a)
	}
	return a, ok
}

func (m *memo) keep(k *key, answers []answer) {
	if m.off || len(k.raw) > maxMemoKey {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.put(string(k.raw), answers)
}

func (m *memo) put(raw string, answers []answer) {
	if len(m.young) >= maxMemo/2 {
		m.old, m.young = m.young, make(map[string][]answer, maxMemo/2)
	}
	m.young[raw] = answers
}

// key is what an answer is remembered by. Every part has its length before it, or a fixed one, so that no two inputs share a key.
type key struct {
	raw   []byte
	names []string // scratch
}

var keys = sync.Pool{New: func() any { return &key{} }}

func (k *key) text(s string) {
	k.raw = binary.AppendUvarint(k.raw, uint64(len(s)))
	k.raw = append(k.raw, s...)
}

func (k *key) number(n int64) { k.raw = binary.AppendVarint(k.raw, n) }

func (k *key) flag(b bool) {
	if b {
		k.raw = append(k.raw, 1)
		return
	}
	k.raw = append(k.raw, 0)
}

func (k *key) list(list []string) {
	k.number(int64(len(list)))
	for _, s := range list {
		k.text(s)
	}
}

func (k *key) table(t map[string]string) {
	k.number(int64(len(t)))
	k.names = k.names[:0]
	for name := range t {
		k.names = append(k.names, name)
	}
	slices.Sort(k.names)
	for _, name := range k.names {
		k.text(name)
		k.text(t[name])
	}
}

func (k *key) vector(v *resource.Vector) {
	for _, q := range v {
		k.number(q)
	}
}

// writerOf names what writes the value of a path, or of a path above it, of all that is told apart.
func writerOf(path string) string {
	for at := path; at != ""; at = at[:max(strings.LastIndexByte(at, '.'), 0)] {
		if executionPaths[at] {
			return execution
		}
		if writers[at] != nil {
			return at
		}
	}
	return wholeJob
}

// The names of writers that are no paths.
const (
	wholeJob  = ""
	execution = "execution" // all of it: its parts are not told apart
)

var executionPaths = map[string]bool{
	"job.task.container": true, "job.task.inits": true, "job.task.sidecars": true, "job.task.artifacts": true,
	"job.task.volumes": true, "job.task.user": true, "job.task.mesos": true, "job.task.kubernetes": true,
}

var writers = map[string]func(*key, *admit.Request){
	wholeJob:    writeWholeJob,
	execution:   writeExecution,
	"operation": func(k *key, r *admit.Request) { k.text(string(r.Operation)) },
	"principal": func(k *key, r *admit.Request) {
		k.text(r.Principal.Name)
		k.text(r.Principal.Tenant)
		k.number(int64(len(r.Principal.Bindings)))
		for _, b := range r.Principal.Bindings {
			k.number(int64(b.Role))
			k.text(b.Pool)
		}
	},
	"principal.name":   func(k *key, r *admit.Request) { k.text(r.Principal.Name) },
	"principal.tenant": func(k *key, r *admit.Request) { k.text(r.Principal.Tenant) },
	"pool": func(k *key, r *admit.Request) {
		k.text(r.Pool.Path)
		for _, v := range []*resource.Vector{&r.Pool.Reservation, &r.Pool.Entitlement, &r.Pool.Usage, &r.Pool.NonPreemptible, &r.Pool.Demand} {
			k.vector(v)
		}
		k.number(int64(r.Pool.Jobs))
		k.number(int64(r.Pool.Waiting))
		k.number(int64(r.Names.Len()))
	},
	"pool.path":   writePool,
	"pool.name":   writePool,
	"pool.parent": writePool,
	"cell": func(k *key, r *admit.Request) {
		k.text(r.Cell)
		if r.State == nil {
			k.number(-1)
			return
		}
		k.number(int64(r.State.Hosts))
		k.number(int64(r.State.Ready))
		k.vector(&r.State.Capacity)
		k.vector(&r.State.Used)
		k.number(int64(r.Names.Len()))
		k.number(int64(len(r.State.Shards)))
		for _, sh := range r.State.Shards {
			k.text(sh.Cluster)
			k.flag(sh.Ready)
			k.number(int64(sh.Hosts))
		}
	},
	"cell.name":         func(k *key, r *admit.Request) { k.text(r.Cell) },
	"job.name":          func(k *key, r *admit.Request) { k.text(r.Job.Name) },
	"job.pool":          writePool,
	"job.owner":         func(k *key, r *admit.Request) { k.text(r.Job.Owner) },
	"job.labels":        func(k *key, r *admit.Request) { k.table(r.Job.Labels) },
	"job.priority":      func(k *key, r *admit.Request) { k.number(int64(r.Job.Priority)) },
	"job.preemptible":   func(k *key, r *admit.Request) { k.flag(r.Job.Preemptible) },
	"job.revocable":     func(k *key, r *admit.Request) { k.flag(r.Job.Revocable) },
	"job.controller":    func(k *key, r *admit.Request) { k.flag(r.Job.Controller) },
	"job.run_time":      func(k *key, r *admit.Request) { k.number(int64(r.Job.RunTime)) },
	"job.on_preemption": func(k *key, r *admit.Request) { k.number(int64(r.Job.OnPreemption)) },
	"job.instances": func(k *key, r *admit.Request) {
		k.number(int64(r.Job.Kind))
		k.number(int64(r.Job.Instances))
	},
	"job.batch":   writeKind,
	"job.service": writeKind,
	"job.daemon":  writeKind,

	"job.task.command": func(k *key, r *admit.Request) { k.list(r.Job.Template.Command) },
	"job.task.env":     func(k *key, r *admit.Request) { k.table(r.Job.Template.Env) },
	"job.task.labels":  func(k *key, r *admit.Request) { k.table(r.Job.Template.Labels) },
	"job.task.resources": func(k *key, r *admit.Request) {
		k.vector(&r.Job.Template.Needs)
		k.number(int64(r.Names.Len()))
		k.list(r.Job.Template.GPUModels)
		k.number(int64(len(r.Job.Template.Ports)))
		for _, p := range r.Job.Template.Ports {
			k.text(p.Name)
			k.number(int64(p.Number))
		}
	},
}

func writePool(k *key, r *admit.Request) { k.text(r.Pool.Path) }

func writeKind(k *key, r *admit.Request) {
	k.number(int64(r.Job.Kind))
	k.number(int64(r.Job.Retry.MaxRetries))
	k.number(int64(r.Job.MaxRunning))
	k.number(int64(r.Job.Deadline))
	k.number(int64(r.Job.MaxUnavailable))
}

// writeExecution stands for all that a task runs in.
func writeExecution(k *key, r *admit.Request) {
	if r.Job.Template.Execution == nil {
		k.flag(false)
		return
	}
	k.flag(true)
	raw, err := json.Marshal(r.Job.Template.Execution) // sorted, and one text a value
	if err != nil {
		raw = make([]byte, maxMemoKey+1)
	}
	k.text(string(raw))
}

// writeWholeJob stands for every part of a job that has no writer of its own.
func writeWholeJob(k *key, r *admit.Request) {
	k.text(r.Principal.Name) // the owner by default
	k.text(r.Pool.Path)
	raw, err := proto.MarshalOptions{Deterministic: true}.Marshal(r.Spec)
	if err != nil { // it came off the wire, so it can go back; a key too long to be kept is none
		raw = make([]byte, maxMemoKey+1)
	}
	k.text(string(raw))
}
