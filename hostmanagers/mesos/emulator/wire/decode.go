package wire

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
)

// SyntaxError says where a text stops being JSON, in a master's words.
type SyntaxError string

func (e SyntaxError) Error() string { return string(e) }

// ParseJSON reads a text into JSON objects, arrays, strings, booleans, nil and json.Number. Errors are a SyntaxError.
func ParseJSON(text []byte) (any, error) {
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	var parsed any
	err := decoder.Decode(&parsed)
	if err == nil {
		return parsed, nil
	}
	at := int64(len(text))
	var syntax *json.SyntaxError
	if errors.As(err, &syntax) {
		at = min(at, syntax.Offset)
	}
	line := 1 + bytes.Count(text[:at], []byte("\n"))
	near, _, _ := bytes.Cut(text[at:], []byte("\n"))
	return nil, SyntaxError(fmt.Sprintf("syntax error at line %d near: %s", line, near))
}

// Assign sets a message of mesos-go, given by pointer, from what ParseJSON returned. Unknown fields and unknown values of enums count as
// absent. The error is in a master's words.
func Assign(message, parsed any) error {
	a := assigner{}
	object, ok := parsed.(map[string]any)
	if !ok {
		return errors.New("Expecting a JSON object") //nolint:staticcheck // a master's words
	}
	if err := a.message(reflect.ValueOf(message).Elem(), object, ""); err != nil {
		return err
	}
	if len(a.missing) > 0 {
		return errors.New("Missing required fields: " + strings.Join(a.missing, ", "))
	}
	return nil
}

// assigner sets messages and notes which required fields it did not find.
type assigner struct {
	missing []string
}

func (a *assigner) message(v reflect.Value, object map[string]any, path string) error {
	for _, f := range fieldsOf(v.Type()) {
		value, ok := object[f.name]
		if !ok || value == nil {
			if f.required {
				a.missing = append(a.missing, path+f.name)
			}
			continue
		}
		if err := a.value(v.Field(f.index), value, f, path+f.name); err != nil {
			return err
		}
	}
	return nil
}

// refuse says that a field cannot be what was sent.
func refuse(f field, value any) error {
	kind := "object"
	switch value.(type) {
	case json.Number:
		kind = "number"
	case string:
		kind = "string"
	case bool:
		kind = "boolean"
	case []any:
		kind = "array"
	}
	return fmt.Errorf("Not expecting a JSON %s for field '%s'", kind, f.name) //nolint:staticcheck // a master's words
}

func (a *assigner) value(v reflect.Value, value any, f field, path string) error {
	switch v.Kind() {
	case reflect.Pointer:
		target := reflect.New(v.Type().Elem())
		if f.names != nil && !known(value, f) {
			return nil
		}
		if err := a.value(target.Elem(), value, f, path); err != nil {
			return err
		}
		v.Set(target)
		return nil
	case reflect.Struct:
		object, ok := value.(map[string]any)
		if !ok {
			return refuse(f, value)
		}
		return a.message(v, object, path+".")
	case reflect.Slice:
		return a.slice(v, value, f, path)
	case reflect.Map:
		return a.table(v, value, f, path)
	default:
		return scalar(v, value, f)
	}
}

// known reports whether a string names no value of a field's enum.
func known(value any, f field) bool {
	name, ok := value.(string)
	if !ok {
		return true // refused by scalar
	}
	_, ok = f.numbers[name]
	return ok
}

func (a *assigner) slice(v reflect.Value, value any, f field, path string) error {
	if v.Type().Elem().Kind() == reflect.Uint8 {
		text, ok := value.(string)
		if !ok {
			return refuse(f, value)
		}
		decoded, err := base64.StdEncoding.DecodeString(text)
		if err != nil {
			return fmt.Errorf("Failed to base64 decode bytes field '%s': %w", f.name, err) //nolint:staticcheck // a master's words
		}
		v.SetBytes(decoded)
		return nil
	}
	array, ok := value.([]any)
	if !ok {
		return refuse(f, value)
	}
	made := reflect.MakeSlice(v.Type(), len(array), len(array))
	for i, item := range array {
		if err := a.value(made.Index(i), item, f, fmt.Sprintf("%s[%d]", path, i)); err != nil {
			return err
		}
	}
	v.Set(made)
	return nil
}

func (a *assigner) table(v reflect.Value, value any, f field, path string) error {
	object, ok := value.(map[string]any)
	if !ok {
		return refuse(f, value)
	}
	made := reflect.MakeMap(v.Type())
	for key, item := range object {
		target := reflect.New(v.Type().Elem()).Elem()
		if err := a.value(target, item, f, path+"."+key); err != nil {
			return err
		}
		made.SetMapIndex(reflect.ValueOf(key), target)
	}
	v.Set(made)
	return nil
}

func scalar(v reflect.Value, value any, f field) error {
	switch value := value.(type) {
	case string:
		switch {
		case f.names != nil:
			v.SetInt(int64(f.numbers[value])) // an unknown name is the zero value, which stands for absent
			return nil
		case v.Kind() == reflect.String:
			v.SetString(value)
			return nil
		}
	case bool:
		if v.Kind() == reflect.Bool {
			v.SetBool(value)
			return nil
		}
	case json.Number:
		if f.names == nil {
			return number(v, value, f)
		}
	}
	return refuse(f, value)
}

// number sets a numeric field. Fractions of integers are cut off.
func number(v reflect.Value, value json.Number, f field) error {
	d, err := value.Float64()
	if err != nil {
		return fmt.Errorf("Number out of range for field '%s'", f.name) //nolint:staticcheck // a master's words
	}
	whole, exact := value.Int64()
	if exact != nil {
		whole = int64(d)
	}
	switch v.Kind() {
	case reflect.Float32, reflect.Float64:
		v.SetFloat(d)
	case reflect.Int32, reflect.Int64:
		v.SetInt(whole)
	case reflect.Uint32, reflect.Uint64:
		v.SetUint(uint64(max(0, whole))) //nolint:gosec // not negative
	default:
		return refuse(f, value)
	}
	return nil
}
