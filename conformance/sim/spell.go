package sim

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"

	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/respool"
	"github.com/paceline-sched/paceline/core/scheduler"
)

// commands are what a scenario may have users say, by name; ApplyPool has a spelling of its own.
var commands = byName(scheduler.SubmitJob{}, scheduler.PlanJob{}, scheduler.StopJob{}, scheduler.RestartJob{}, scheduler.DeletePool{},
	scheduler.MovePool{}, scheduler.NameResources{}, scheduler.DrainHost{})

func byName(all ...scheduler.Command) map[string]reflect.Type {
	named := map[string]reflect.Type{}
	for _, c := range all {
		named[reflect.TypeOf(c).Name()] = reflect.TypeOf(c)
	}
	return named
}

// applyPool spells out a scheduler.ApplyPool, whose limits cannot be seen from outside.
type applyPool struct {
	Command          scheduler.ApplyPool
	Limit, UserLimit map[resource.Kind]int64
}

const applyPoolName = "ApplyPool"

func encodeCommand(c scheduler.Command) string {
	if a, is := c.(scheduler.ApplyPool); is {
		return applyPoolName + " " + compact(applyPool{Command: a, Limit: limits(&a.Pool.Limit), UserLimit: limits(&a.Pool.UserLimit)})
	}
	return reflect.TypeOf(c).Name() + " " + compact(c)
}

func limits(l *respool.Limits) map[resource.Kind]int64 {
	set := map[resource.Kind]int64{}
	for k := range resource.Kind(resource.MaxKinds) {
		if q := l.Of(k); q != respool.Unlimited {
			set[k] = q
		}
	}
	return set
}

func decodeCommand(text string) (scheduler.Command, error) {
	name, fields, _ := strings.Cut(text, " ")
	if name == applyPoolName {
		return decodeApplyPool(fields)
	}
	kind, known := commands[name]
	if !known {
		return nil, fmt.Errorf("no command is called %q", name)
	}
	made := reflect.New(kind)
	if err := json.Unmarshal([]byte(fields), made.Interface()); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	command, _ := made.Elem().Interface().(scheduler.Command)
	if s, is := command.(scheduler.SubmitJob); is && s.Spec == nil {
		return nil, fmt.Errorf("%s without a Spec", name)
	}
	if p, is := command.(scheduler.PlanJob); is && p.Spec == nil {
		return nil, fmt.Errorf("%s without a Spec", name)
	}
	return command, nil
}

func decodeApplyPool(fields string) (scheduler.Command, error) {
	var a applyPool
	if err := json.Unmarshal([]byte(fields), &a); err != nil {
		return nil, fmt.Errorf("%s: %w", applyPoolName, err)
	}
	for from, to := range map[*map[resource.Kind]int64]*respool.Limits{&a.Limit: &a.Command.Pool.Limit, &a.UserLimit: &a.Command.Pool.UserLimit} {
		for k, q := range *from {
			if k >= resource.MaxKinds {
				return nil, fmt.Errorf("%s: there is no kind %d", applyPoolName, k)
			}
			*to = to.With(k, q)
		}
	}
	return a.Command, nil
}

// compact renders a value in JSON without what is zero: decoding it into a zero value gives it back.
func compact(v any) string {
	text, err := json.Marshal(prune(reflect.ValueOf(v)))
	if err != nil {
		panic(fmt.Sprintf("sim: %T cannot be spelled: %v", v, err)) // plain data always can
	}
	return string(text)
}

// prune is v as maps, slices and scalars: no zero fields, no zeros at the end of arrays, nothing that is not data.
func prune(v reflect.Value) any {
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		if v.IsNil() {
			return nil
		}
		return prune(v.Elem())
	case reflect.Struct:
		fields := map[string]any{}
		for f := range v.Type().Fields() {
			if at := v.FieldByIndex(f.Index); f.IsExported() && f.Tag.Get("json") != "-" && !at.IsZero() {
				fields[f.Name] = prune(at)
			}
		}
		return fields
	case reflect.Array:
		end := v.Len()
		for end > 0 && v.Index(end-1).IsZero() {
			end--
		}
		return pruneList(v, end)
	case reflect.Slice:
		return pruneList(v, v.Len())
	default:
		return v.Interface()
	}
}

func pruneList(v reflect.Value, n int) []any {
	list := make([]any, n)
	for i := range list {
		list[i] = prune(v.Index(i))
	}
	return list
}
