package wire

import (
	"encoding/base64"
	"fmt"
	"math"
	"reflect"
	"sort"
	"strconv"
)

// AppendJSON appends a message of mesos-go, given by pointer, in a master's JSON: fields by their names in the protocol in the order of
// their declaration, unset ones left out unless they have a default, enums by name, bytes in base64, and numbers of type double with a fraction.
func AppendJSON(to []byte, message any) []byte {
	return appendMessage(to, reflect.ValueOf(message).Elem())
}

func appendMessage(to []byte, v reflect.Value) []byte {
	to = append(to, '{')
	first := true
	for _, f := range fieldsOf(v.Type()) {
		value := v.Field(f.index)
		set := present(value, f)
		if !set && f.absent == "" {
			continue
		}
		if !first {
			to = append(to, ',')
		}
		first = false
		to = appendString(to, f.name)
		to = append(to, ':')
		if set {
			to = appendValue(to, value, f)
		} else {
			to = append(to, f.absent...)
		}
	}
	return append(to, '}')
}

// present reports whether a field is set. mesos-go keeps optional enums that may be unknown by value, with zero for absent.
func present(v reflect.Value, f field) bool {
	switch v.Kind() {
	case reflect.Pointer:
		return !v.IsNil()
	case reflect.Slice:
		return v.Len() > 0 || (f.required && v.Type().Elem().Kind() == reflect.Uint8)
	case reflect.Map:
		return v.Len() > 0
	case reflect.Int32:
		return f.required || f.names == nil || v.Int() != 0
	default:
		return true
	}
}

func appendValue(to []byte, v reflect.Value, f field) []byte {
	switch v.Kind() {
	case reflect.Pointer:
		return appendValue(to, v.Elem(), f)
	case reflect.Struct:
		return appendMessage(to, v)
	case reflect.Slice:
		return appendSlice(to, v, f)
	case reflect.Map:
		return appendMap(to, v, f)
	case reflect.String:
		return appendString(to, v.String())
	case reflect.Bool:
		return strconv.AppendBool(to, v.Bool())
	case reflect.Float32, reflect.Float64:
		return appendDouble(to, v.Float())
	case reflect.Int32, reflect.Int64:
		if name, ok := f.names[int32(v.Int())]; ok && f.names != nil { //nolint:gosec // an enum's number
			return appendString(to, name)
		}
		return strconv.AppendInt(to, v.Int(), 10)
	case reflect.Uint32, reflect.Uint64:
		return strconv.AppendUint(to, v.Uint(), 10)
	default:
		panic(fmt.Sprintf("a message of mesos-go has a field of type %s, which its generator does not make", v.Type()))
	}
}

func appendSlice(to []byte, v reflect.Value, f field) []byte {
	if v.Type().Elem().Kind() == reflect.Uint8 {
		to = append(to, '"')
		to = base64.StdEncoding.AppendEncode(to, v.Bytes())
		return append(to, '"')
	}
	to = append(to, '[')
	for i := range v.Len() {
		if i > 0 {
			to = append(to, ',')
		}
		to = appendValue(to, v.Index(i), f)
	}
	return append(to, ']')
}

func appendMap(to []byte, v reflect.Value, f field) []byte {
	keys := v.MapKeys()
	sort.Slice(keys, func(i, j int) bool { return keys[i].String() < keys[j].String() })
	to = append(to, '{')
	for i, key := range keys {
		if i > 0 {
			to = append(to, ',')
		}
		to = appendString(to, key.String())
		to = append(to, ':')
		to = appendValue(to, v.MapIndex(key), f)
	}
	return append(to, '}')
}

// appendDouble writes a double so that it is never mistaken for an integer.
func appendDouble(to []byte, d float64) []byte {
	if math.IsNaN(d) || math.IsInf(d, 0) {
		return append(to, "null"...)
	}
	from, form := len(to), byte('f')
	if abs := math.Abs(d); abs != 0 && (abs < 1e-4 || abs >= 1e15) {
		form = 'e'
	}
	to = strconv.AppendFloat(to, d, form, -1, 64)
	for _, c := range to[from:] {
		if c == '.' || c == 'e' {
			return to
		}
	}
	return append(to, ".0"...)
}

const hexDigits = "0123456789abcdef"

func appendString(to []byte, s string) []byte {
	to = append(to, '"')
	for i := range len(s) {
		switch c := s[i]; {
		case c == '"' || c == '\\':
			to = append(to, '\\', c)
		case c == '\n':
			to = append(to, '\\', 'n')
		case c == '\r':
			to = append(to, '\\', 'r')
		case c == '\t':
			to = append(to, '\\', 't')
		case c < ' ':
			to = append(to, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&15])
		default:
			to = append(to, c)
		}
	}
	return append(to, '"')
}
