package wire

import (
	"reflect"
	"strconv"
	"strings"
	"sync"

	"github.com/gogo/protobuf/proto"
)

// field is one field of a message, as its generated tag describes it.
type field struct {
	index    int
	name     string
	required bool
	names    map[int32]string // of an enum
	numbers  map[string]int32
	absent   string // what an absent field with a default is written as, in JSON; "": not at all
}

// newer are the enum values that a current master sends and mesos-go v0.0.11 has no name for.
var newer = map[string]map[string]int32{
	"mesos.MasterInfo_Capability_Type": {"QUOTA_V2": CapabilityQuotaV2},
}

// deprecated are the fields whose defaults a master does not write.
var deprecated = map[string]bool{"Resource.role": true, "FrameworkInfo.role": true}

// CapabilityQuotaV2 is the value of MasterInfo.Capability.Type that mesos-go v0.0.11 does not name.
const CapabilityQuotaV2 = 3

var plans sync.Map // reflect.Type -> []field

// fieldsOf returns the fields of a message in the order of their declaration, which is that of a master's JSON.
func fieldsOf(t reflect.Type) []field {
	if known, ok := plans.Load(t); ok {
		return known.([]field) //nolint:errcheck // nothing else is stored
	}
	var fields []field
	for i := range t.NumField() {
		tag, ok := t.Field(i).Tag.Lookup("protobuf")
		if !ok {
			continue
		}
		f := field{index: i}
		for n, part := range strings.Split(tag, ",") {
			switch {
			case n == 2:
				f.required = part == "req"
			case strings.HasPrefix(part, "name="):
				f.name = part[len("name="):]
			case strings.HasPrefix(part, "enum="):
				f.numbers, f.names = enum(part[len("enum="):])
			case strings.HasPrefix(part, "def=") && !deprecated[t.Name()+"."+f.name]:
				f.absent = defaultJSON(t.Field(i).Type, f, part[len("def="):])
			}
		}
		fields = append(fields, f)
	}
	plans.Store(t, fields)
	return fields
}

// defaultJSON writes the default of an optional field; "": it has a type that mesos-go gives no defaults.
func defaultJSON(t reflect.Type, f field, value string) string {
	if t.Kind() != reflect.Pointer {
		return ""
	}
	switch t.Elem().Kind() {
	case reflect.Int32, reflect.Int64, reflect.Uint32, reflect.Uint64:
		if number, err := strconv.ParseInt(value, 10, 32); err == nil && f.names != nil {
			return strconv.Quote(f.names[int32(number)])
		}
		return value
	case reflect.Float32, reflect.Float64:
		number, err := strconv.ParseFloat(value, 64)
		if err != nil {
			return ""
		}
		return string(appendDouble(nil, number))
	case reflect.Bool:
		return strconv.FormatBool(value == "1")
	case reflect.String:
		return strconv.Quote(value)
	default:
		return ""
	}
}

// enum returns the values of an enum by its name in a tag.
func enum(name string) (numbers map[string]int32, names map[int32]string) {
	numbers, names = map[string]int32{}, map[int32]string{}
	for _, values := range []map[string]int32{proto.EnumValueMap(name), newer[name]} {
		for value, number := range values {
			numbers[value] = number
			names[number] = value
		}
	}
	return numbers, names
}
