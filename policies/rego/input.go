package rego

import (
	"cmp"
	"encoding/json"
	"slices"
	"strconv"
	"time"

	"github.com/open-policy-agent/opa/v1/ast"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/paceline-sched/paceline/core/api/admit"
	"github.com/paceline-sched/paceline/core/api/spec"
	"github.com/paceline-sched/paceline/core/resource"
)

// inputOf is what rules see as input.
func inputOf(r *admit.Request) ast.Value {
	return object(
		field("operation", text(string(r.Operation))),
		field("now", number(r.Now)),
		field("job", messageValue(spec.FromJob(r.Job, r.Pool.Path, r.Names).ProtoReflect())),
		field("pool", poolValue(r)),
		field("principal", principalValue(r)),
		field("cell", cellValue(r)),
	)
}

func poolValue(r *admit.Request) *ast.Term {
	p := &r.Pool
	return object2(
		field("path", text(p.Path)), field("name", text(p.Pool.Name)), field("parent", text(p.Parent)),
		field("reservation", vectorValue(&p.Reservation, r.Names)), field("entitlement", vectorValue(&p.Entitlement, r.Names)),
		field("usage", vectorValue(&p.Usage, r.Names)), field("non_preemptible_usage", vectorValue(&p.NonPreemptible, r.Names)),
		field("demand", vectorValue(&p.Demand, r.Names)), field("jobs", number(int64(p.Jobs))), field("waiting", number(int64(p.Waiting))),
	)
}

func principalValue(r *admit.Request) *ast.Term {
	roles := make([]*ast.Term, 0, len(r.Principal.Bindings))
	for _, b := range r.Principal.Bindings {
		roles = append(roles, object2(field("role", text(b.Role.String())), field("pool", text(b.Pool))))
	}
	return object2(
		field("name", text(r.Principal.Name)), field("tenant", text(r.Principal.Tenant)), field("roles", ast.NewTerm(ast.NewArray(roles...))),
	)
}

// cellValue leaves out what nobody looks at: clusters are only known when some rule does.
func cellValue(r *admit.Request) *ast.Term {
	if r.State == nil {
		return object2(field("name", text(r.Cell)))
	}
	var clusters []*ast.Term
	for _, c := range clustersOf(r) {
		clusters = append(clusters, object2(field("name", text(c.name)), field("ready", ast.InternedTerm(c.ready)), field("hosts", number(c.hosts))))
	}
	return object2(
		field("name", text(r.Cell)), field("hosts", number(int64(r.State.Hosts))), field("ready_hosts", number(int64(r.State.Ready))),
		field("capacity", vectorValue(&r.State.Capacity, r.Names)), field("used", vectorValue(&r.State.Used, r.Names)),
		field("clusters", ast.NewTerm(ast.NewArray(clusters...))),
	)
}

type cluster struct {
	name  string
	ready bool
	hosts int64
}

// clustersOf joins the shards of each cluster: it is ready when all of them are.
func clustersOf(r *admit.Request) []cluster {
	var out []cluster
	for _, sh := range r.State.Shards {
		i := slices.IndexFunc(out, func(c cluster) bool { return c.name == sh.Cluster })
		if i < 0 {
			i = len(out)
			out = append(out, cluster{name: sh.Cluster, ready: true})
		}
		out[i].hosts += int64(sh.Hosts)
		out[i].ready = out[i].ready && sh.Ready
	}
	slices.SortFunc(out, func(a, b cluster) int { return cmp.Compare(a.name, b.name) })
	return out
}

// vectorValue names every kind of resource that the cell knows, those of which there is nothing too.
func vectorValue(v *resource.Vector, names *resource.Names) *ast.Term {
	items := make([][2]*ast.Term, 0, names.Len())
	for k := range resource.Kind(names.Len()) {
		items = append(items, field(names.Name(k), number(v[k])))
	}
	return object2(items...)
}

// messageValue writes a message as a job file spells it: every plain field is there, numbers are numbers and durations are text in seconds.
func messageValue(m protoreflect.Message) *ast.Term {
	fields := m.Descriptor().Fields()
	items := make([][2]*ast.Term, 0, fields.Len())
	for i := range fields.Len() {
		f := fields.Get(i)
		if f.HasPresence() && !m.Has(f) {
			continue
		}
		items = append(items, field(string(f.Name()), fieldValue(f, m.Get(f))))
	}
	return object2(items...)
}

func fieldValue(f protoreflect.FieldDescriptor, v protoreflect.Value) *ast.Term {
	switch {
	case f.IsList():
		list := v.List()
		terms := make([]*ast.Term, list.Len())
		for i := range terms {
			terms[i] = singleValue(f, list.Get(i))
		}
		return ast.NewTerm(ast.NewArray(terms...))
	case f.IsMap():
		items := make([][2]*ast.Term, 0, v.Map().Len())
		for k, one := range v.Map().Range {
			items = append(items, [2]*ast.Term{text(k.String()), singleValue(f.MapValue(), one)})
		}
		return object2(items...)
	}
	return singleValue(f, v)
}

func singleValue(f protoreflect.FieldDescriptor, v protoreflect.Value) *ast.Term {
	switch f.Kind() {
	case protoreflect.BoolKind:
		return ast.InternedTerm(v.Bool())
	case protoreflect.StringKind:
		return text(v.String())
	case protoreflect.MessageKind:
		if d, ok := v.Message().Interface().(*durationpb.Duration); ok {
			return text(seconds(d.AsDuration()))
		}
		if free, ok := v.Message().Interface().(*structpb.Struct); ok {
			if value, err := ast.InterfaceToValue(free.AsMap()); err == nil {
				return ast.NewTerm(value)
			}
		}
		return messageValue(v.Message())
	case protoreflect.EnumKind:
		if value := f.Enum().Values().ByNumber(v.Enum()); value != nil {
			return text(string(value.Name()))
		}
		return number(int64(v.Enum()))
	case protoreflect.Uint32Kind, protoreflect.Fixed32Kind, protoreflect.Uint64Kind, protoreflect.Fixed64Kind:
		return ast.UIntNumberTerm(v.Uint())
	case protoreflect.FloatKind, protoreflect.DoubleKind:
		return ast.FloatNumberTerm(v.Float())
	case protoreflect.BytesKind:
		return text(string(v.Bytes()))
	default:
		return number(v.Int())
	}
}

// seconds writes a duration as job files in JSON do, such as 90s or 0.5s.
func seconds(d time.Duration) string { return strconv.FormatFloat(d.Seconds(), 'f', -1, 64) + "s" }

func object(items ...[2]*ast.Term) ast.Value  { return ast.NewObject(items...) }
func object2(items ...[2]*ast.Term) *ast.Term { return ast.NewTerm(ast.NewObject(items...)) }
func field(name string, value *ast.Term) [2]*ast.Term {
	return [2]*ast.Term{ast.InternedTerm(name), value}
}
func text(s string) *ast.Term { return ast.StringTerm(s) }

func number(n int64) *ast.Term {
	if n >= 0 && n < 256 {
		return ast.InternedTerm(int(n))
	}
	return ast.NumberTerm(json.Number(strconv.FormatInt(n, 10)))
}

// masked is a copy of a job without the values of its environment, which may be secrets.
func masked(job proto.Message) proto.Message {
	out := proto.Clone(job)
	maskEnv(out.ProtoReflect())
	return out
}

const maskedValue = "***"

func maskEnv(m protoreflect.Message) {
	for f, v := range m.Range {
		switch {
		case f.IsMap() && f.Name() == "env":
			for k := range v.Map().Range {
				v.Map().Set(k, protoreflect.ValueOfString(maskedValue))
			}
		case f.Message() == nil || f.IsMap():
		case f.IsList():
			for i := range v.List().Len() {
				maskEnv(v.List().Get(i).Message())
			}
		default:
			maskEnv(v.Message())
		}
	}
}
