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

// inputOf is what rules see as input: of all that there is, what they look at. The rest would cost more to make than most rules to evaluate.
func inputOf(r *admit.Request, look *part) ast.Value {
	in := object{look: look}
	in.add("operation", func(*part) *ast.Term { return text(string(r.Operation)) })
	in.add("now", func(*part) *ast.Term { return number(r.Now) })
	in.add("job", func(look *part) *ast.Term {
		return messageValue(spec.FromJob(r.Job, r.Pool.Path, r.Names).ProtoReflect(), look)
	})
	in.add("pool", func(look *part) *ast.Term { return poolValue(r, look) })
	in.add("principal", func(look *part) *ast.Term { return principalValue(r, look) })
	in.add("cell", func(look *part) *ast.Term { return cellValue(r, look) })
	return in.term().Value
}

func poolValue(r *admit.Request, look *part) *ast.Term {
	p := &r.Pool
	out := object{look: look}
	out.text("path", p.Path)
	out.text("name", p.Pool.Name)
	out.text("parent", p.Parent)
	out.vector("reservation", &p.Reservation, r.Names)
	out.vector("entitlement", &p.Entitlement, r.Names)
	out.vector("usage", &p.Usage, r.Names)
	out.vector("non_preemptible_usage", &p.NonPreemptible, r.Names)
	out.vector("demand", &p.Demand, r.Names)
	out.number("jobs", int64(p.Jobs))
	out.number("waiting", int64(p.Waiting))
	return out.term()
}

func principalValue(r *admit.Request, look *part) *ast.Term {
	out := object{look: look}
	out.text("name", r.Principal.Name)
	out.text("tenant", r.Principal.Tenant)
	out.add("roles", func(*part) *ast.Term {
		roles := make([]*ast.Term, 0, len(r.Principal.Bindings))
		for _, b := range r.Principal.Bindings {
			roles = append(roles, ast.ObjectTerm(field("role", text(b.Role.String())), field("pool", text(b.Pool))))
		}
		return ast.ArrayTerm(roles...)
	})
	return out.term()
}

// cellValue has the cell's state only when some rule looks at it: nobody asked for it otherwise.
func cellValue(r *admit.Request, look *part) *ast.Term {
	out := object{look: look}
	out.text("name", r.Cell)
	if r.State == nil {
		return out.term()
	}
	out.number("hosts", int64(r.State.Hosts))
	out.number("ready_hosts", int64(r.State.Ready))
	out.vector("capacity", &r.State.Capacity, r.Names)
	out.vector("used", &r.State.Used, r.Names)
	out.add("clusters", func(*part) *ast.Term {
		var clusters []*ast.Term
		for _, c := range clustersOf(r) {
			clusters = append(clusters, ast.ObjectTerm(field("name", text(c.name)), field("ready", ast.InternedTerm(c.ready)), field("hosts", number(c.hosts))))
		}
		return ast.ArrayTerm(clusters...)
	})
	return out.term()
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

// object is one that is being made: fields that nobody looks at are left out.
type object struct {
	look  *part
	items [][2]*ast.Term
}

func (o *object) add(name string, value func(look *part) *ast.Term) {
	if look := o.look.of(name); look != nil {
		o.items = append(o.items, field(name, value(look)))
	}
}

func (o *object) text(name, s string) { o.add(name, func(*part) *ast.Term { return text(s) }) }

func (o *object) number(name string, n int64) {
	o.add(name, func(*part) *ast.Term { return number(n) })
}

// vector names every kind of resource that the cell knows, those of which there is nothing too.
func (o *object) vector(name string, v *resource.Vector, names *resource.Names) {
	o.add(name, func(look *part) *ast.Term {
		out := object{look: look}
		for k := range resource.Kind(names.Len()) {
			out.number(names.Name(k), v[k])
		}
		return out.term()
	})
}

func (o *object) term() *ast.Term { return ast.ObjectTerm(o.items...) }

// messageValue writes a message as a job file spells it: every plain field is there, numbers are numbers and durations are text in seconds.
func messageValue(m protoreflect.Message, look *part) *ast.Term {
	out := object{look: look}
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		if f.HasPresence() && !m.Has(f) {
			continue
		}
		out.add(string(f.Name()), func(look *part) *ast.Term { return fieldValue(f, m.Get(f), look) })
	}
	return out.term()
}

func fieldValue(f protoreflect.FieldDescriptor, v protoreflect.Value, look *part) *ast.Term {
	switch {
	case f.IsList():
		list := v.List()
		terms := make([]*ast.Term, list.Len())
		for i := range terms {
			terms[i] = singleValue(f, list.Get(i), everything)
		}
		return ast.ArrayTerm(terms...)
	case f.IsMap():
		items := make([][2]*ast.Term, 0, v.Map().Len())
		for k, one := range v.Map().Range {
			items = append(items, [2]*ast.Term{text(k.String()), singleValue(f.MapValue(), one, everything)})
		}
		return ast.ObjectTerm(items...)
	}
	return singleValue(f, v, look)
}

func singleValue(f protoreflect.FieldDescriptor, v protoreflect.Value, look *part) *ast.Term {
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
		return messageValue(v.Message(), look)
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

// masked is a copy of a job without the values that its processes are given, which may be secrets.
func masked(job proto.Message) proto.Message {
	out := proto.Clone(job)
	maskEnv(out.ProtoReflect())
	return out
}

const maskedValue = "***"

func maskEnv(m protoreflect.Message) {
	if patch, ok := m.Interface().(*structpb.Struct); ok {
		passedOn(patch, func(value *structpb.Value) { value.Kind = &structpb.Value_StringValue{StringValue: maskedValue} })
		return
	}
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

// passing are the fields of a pod, wherever they stand in it, whose values Kubernetes does not read: it passes them on to processes, servers and drivers, as it does with an environment.
var passing = map[string]bool{
	"env": true, "httpHeaders": true, "annotations": true, "volumeAttributes": true, "options": true, "gmsaCredentialSpec": true,
}

// naming are the fields of a pod that hold names and what they are to be, so that none of what is in them is one of passing.
var naming = map[string]bool{"labels": true, "matchLabels": true, "nodeSelector": true}

// passedOn finds the values in a patch of a pod that are only passed on.
func passedOn(patch *structpb.Struct, found func(value *structpb.Value)) {
	for name, v := range patch.GetFields() {
		switch {
		case passing[name]:
			values(v, found)
		case naming[name]:
		default:
			passedOn(v.GetStructValue(), found)
			for _, one := range v.GetListValue().GetValues() {
				passedOn(one.GetStructValue(), found)
			}
		}
	}
}

// values finds those of one field: of a list of names with values, of a table, or whatever else somebody wrote there.
func values(field *structpb.Value, found func(value *structpb.Value)) {
	switch kind := field.GetKind().(type) {
	case *structpb.Value_ListValue:
		for _, one := range kind.ListValue.GetValues() {
			if one.GetStructValue() == nil {
				found(one)
			} else if value := one.GetStructValue().GetFields()["value"]; value != nil {
				found(value)
			}
		}
	case *structpb.Value_StructValue:
		for _, value := range kind.StructValue.GetFields() {
			found(value)
		}
	default:
		found(field)
	}
}

// texts calls one for every text in a value.
func texts(v *structpb.Value, one func(string)) {
	switch kind := v.GetKind().(type) {
	case *structpb.Value_StringValue:
		one(kind.StringValue)
	case *structpb.Value_ListValue:
		for _, v := range kind.ListValue.GetValues() {
			texts(v, one)
		}
	case *structpb.Value_StructValue:
		for _, v := range kind.StructValue.GetFields() {
			texts(v, one)
		}
	}
}
