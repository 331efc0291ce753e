package policy

import (
	"errors"
	"reflect"
	"slices"
	"strings"

	"github.com/paceline-sched/paceline/sdk/policy/internal/outside"
	"github.com/paceline-sched/paceline/sdk/policyabi"
)

// sdkName is what modules say that they were made with.
const sdkName = "go 1.0"

// Info is what a policy says of itself beside what its type shows.
type Info struct {
	Name    string // 1 to 63 letters, digits or one of _ - . /
	Version string // the author's; "" for none
	// Columns that the policy reads beyond what is free and the devices, which are always there: names as in policyabi.Want, such as "leftover",
	// "usage.cpu", "topology:rack".
	Columns []string
	// Scratch is a number of bytes that the policy keeps in the arena, ScratchPerRow more for every row. See Table.Scratch.
	Scratch, ScratchPerRow int
	// Remember says that a Scorer's or BlockScorer's cost follows from the class of the request, the host and Table.Mix, and from nothing else: not from its priority, its pool, the time or the
	// seed, nor from what the policy remembers. Then a host is priced anew only when something on it has changed.
	Remember bool
}

// wrong is an error about a policy. Package fmt would make modules twice as large.
func (i *Info) wrong(text string) error { return errors.New("policy " + i.Name + ": " + text) }

// Program is a policy that is ready to serve. It is immutable and may be shared.
type Program struct {
	capability policyabi.Capability
	section    []byte
	prototype  reflect.Value // of the struct that policy points to
	fields     []field
	remember   bool
}

// field is a configured field of the policy's struct.
type field struct {
	key   string
	index int
}

// New makes a program of a policy, a pointer to a struct. It fails when the type implements none of the interfaces or the wrong ones together, when a
// tag is on a field of another type than the allowed ones, or when Info is not as it must be.
func New(info Info, policy any) (*Program, error) {
	v := reflect.ValueOf(policy)
	if v.Kind() != reflect.Pointer || v.IsNil() || v.Elem().Kind() != reflect.Struct {
		return nil, info.wrong(reflect.TypeOf(policy).String() + " is no pointer to a struct")
	}
	p := &Program{prototype: reflect.New(v.Elem().Type()).Elem(), remember: info.Remember}
	p.prototype.Set(v.Elem())
	c := &p.capability
	*c = policyabi.Capability{
		Name: info.Name, Version: info.Version, Major: policyabi.Major, Minor: policyabi.Minor, Kinds: kindsOf(policy),
		Scratch: info.Scratch, ScratchPerRow: info.ScratchPerRow, SDK: sdkName,
	}
	if err := checkInterfaces(policy); err != nil {
		return nil, info.wrong(v.Type().String() + " " + err.Error())
	}
	if info.Remember && !is[Scorer](policy) && !is[BlockScorer](policy) {
		return nil, info.wrong("there is nothing to remember: " + v.Type().String() + " is no Scorer and no BlockScorer")
	}
	if err := p.want(info.Columns, policy); err != nil {
		return nil, info.wrong(err.Error())
	}
	if outside.Scan != nil {
		c.Features = []string{policyabi.FeatureScan}
	}
	if err := p.readFields(); err != nil {
		return nil, info.wrong(err.Error())
	}
	section, err := c.Append(nil)
	if err != nil {
		return nil, err
	}
	p.section = section
	return p, nil
}

func is[T any](policy any) bool {
	_, ok := policy.(T)
	return ok
}

// kindsOf lists the kinds of policy that a type implements.
func kindsOf(policy any) []policyabi.Kind {
	var kinds []policyabi.Kind
	if is[Placer](policy) || scores(policy) > 0 || is[Filter](policy) {
		kinds = append(kinds, policyabi.Place)
	}
	if is[Ranker](policy) {
		kinds = append(kinds, policyabi.Preempt)
	}
	if is[Quota](policy) {
		kinds = append(kinds, policyabi.Quota)
	}
	if is[Router](policy) {
		kinds = append(kinds, policyabi.Route)
	}
	return kinds
}

// scores counts the ways in which a policy prices hosts.
func scores(policy any) int {
	n := 0
	for _, yes := range []bool{is[ByColumn](policy), is[Scorer](policy), is[BlockScorer](policy)} {
		if yes {
			n++
		}
	}
	return n
}

func checkInterfaces(policy any) error {
	switch {
	case len(kindsOf(policy)) == 0:
		return errors.New("implements none of ByColumn, Scorer, BlockScorer, Filter, Placer, Ranker, Quota, Router")
	case scores(policy) > 1:
		return errors.New("implements more than one of ByColumn, Scorer and BlockScorer: leave one")
	case is[Placer](policy) && (scores(policy) > 0 || is[Filter](policy)):
		return errors.New("is a Placer and prices or filters hosts: a Placer does that for itself")
	}
	return nil
}

// always are the columns that placing needs.
var always = []string{"free.*", "device_free", "device_model", "device_whole", "device_largest"}

// want lists the wanted columns: those that placing needs, the author's, and total room where a column that moves with what is taken follows from it.
func (p *Program) want(names []string, policy any) error {
	names = slices.Clone(names)
	if by, ok := policy.(ByColumn); ok {
		column, _ := by.Order()
		names = append(names, column)
	} else if is[Filter](policy) && scores(policy) == 0 {
		names = append(names, "leftover")
	}
	if slices.Contains(names, "leftover") || slices.Contains(names, "free_share") {
		names = append(names, "total.*")
	}
	if slices.Contains(p.capability.Kinds, policyabi.Place) {
		names = append(names, always...)
	}
	if slices.Contains(p.capability.Kinds, policyabi.Quota) {
		names = append(names, "parent", "pool", "reservation.*", "limit.*", "share.*", "demand.*", "pool_usage.*", "entitlement.*", "capacity.*")
	}
	if slices.Contains(p.capability.Kinds, policyabi.Route) {
		names = append(names, "free.*", "total.*", "cluster", "placeable", "waiting", "price")
	}
	for _, name := range names {
		w, err := policyabi.ParseWant(name)
		if err != nil {
			return err
		}
		if !slices.Contains(p.capability.Columns, w) {
			p.capability.Columns = append(p.capability.Columns, w)
		}
	}
	return nil
}

// readFields finds the configuration in the struct.
func (p *Program) readFields() error {
	t := p.prototype.Type()
	for i := range t.NumField() {
		key, tagged := t.Field(i).Tag.Lookup("policy")
		if !tagged {
			continue
		}
		v := policyabi.Value{Key: key}
		switch f := p.prototype.Field(i); {
		case !t.Field(i).IsExported():
			return errors.New("field " + t.Field(i).Name + " is configured and must be exported")
		case f.Kind() == reflect.Bool:
			v.Type, v.Bool = policyabi.Bool, f.Bool()
		case f.Kind() == reflect.Int || f.Kind() == reflect.Int64:
			v.Type, v.Int = policyabi.Int, f.Int()
		case f.Kind() == reflect.Float64:
			v.Type, v.Float = policyabi.Float, f.Float()
		case f.Kind() == reflect.String:
			v.Type, v.Text = policyabi.Text, f.String()
		default:
			return errors.New("field " + t.Field(i).Name + " is configured and a " + f.Type().String() + ": it must be a bool, int, int64, float64 or string")
		}
		p.capability.Config = append(p.capability.Config, v)
		p.fields = append(p.fields, field{key, i})
	}
	slices.SortFunc(p.capability.Config, func(a, b policyabi.Value) int { return strings.Compare(a.Key, b.Key) })
	return nil
}

// Capability is what the program says of itself.
func (p *Program) Capability() policyabi.Capability { return p.capability }

// Section is the text of the custom section policyabi.SectionName.
func (p *Program) Section() []byte { return slices.Clone(p.section) }

// set puts a configuration into a copy of the policy's struct. A value that is not there keeps its default.
func (p *Program) set(to reflect.Value, values policyabi.Config) error {
	full, err := p.capability.With(values)
	if err != nil {
		return err
	}
	for _, f := range p.fields {
		v, _ := full.Lookup(f.key)
		switch at := to.Field(f.index); v.Type {
		case policyabi.Bool:
			at.SetBool(v.Bool)
		case policyabi.Int:
			if at.OverflowInt(v.Int) {
				return errors.New("configuration value " + f.key + ": " + itoa(v.Int) + " is too large")
			}
			at.SetInt(v.Int)
		case policyabi.Float:
			at.SetFloat(v.Float)
		case policyabi.Text:
			at.SetString(v.Text)
		}
	}
	return nil
}

// registered is what this program was built to be.
var registered *Program

// Register makes a module of this program. It is called once, from an init function: main does not run in a module. It panics where New fails.
func Register(info Info, policy any) {
	p, err := New(info, policy)
	if err != nil {
		panic(err)
	}
	Serve(p)
}

// Serve is Register for a program that is there already.
func Serve(p *Program) {
	if registered != nil {
		panic("policy " + p.capability.Name + ": " + registered.capability.Name + " is registered already; a module is one policy")
	}
	registered = p
}
