package policyabi

import (
	"encoding/binary"
	"math"
	"strings"
	"unicode/utf8"
)

// ValueType is the type of a configuration value.
type ValueType uint8

// The types of values.
const (
	Bool ValueType = iota + 1
	Int
	Float
	Text
)

var valueNames = [...]string{Bool: "bool", Int: "int", Float: "float", Text: "text"}

func (t ValueType) String() string {
	if t == 0 || int(t) >= len(valueNames) {
		return "unknown"
	}
	return valueNames[t]
}

// Value is one value of a configuration: the field of its type counts.
type Value struct {
	Key   string
	Type  ValueType
	Bool  bool
	Int   int64
	Float float64 // finite
	Text  string  // UTF-8
}

// Config is the configuration of a policy: at most MaxConfigKeys values in the order of their keys, no key twice.
//
// Encoded it is a u32 number of values and a u32 number of bytes in all, then for each value a u8 type, a u8 length of the key, a u16 length of the
// value, the key, the value, and zeros up to a multiple of 4. A bool is one byte, 0 or 1; an int and a float have 8; a text is UTF-8.
type Config []Value

const configHeaderBytes = 8

// Lookup finds a value.
func (c Config) Lookup(key string) (Value, bool) {
	for i := range c {
		if c[i].Key == key {
			return c[i], true
		}
	}
	return Value{}, false
}

// Append appends the encoded configuration to b. It fails on what DecodeConfig would refuse.
func (c Config) Append(b []byte) ([]byte, error) {
	le := binary.LittleEndian
	start := len(b)
	b = append(b, make([]byte, configHeaderBytes)...)
	if len(c) > MaxConfigKeys {
		return nil, fault("configuration", "", -1, itoa(len(c))+" values are more than "+itoa(MaxConfigKeys))
	}
	for i := range c {
		v := &c[i]
		if err := v.check(); err != nil {
			return nil, err
		}
		if i > 0 && c[i-1].Key >= v.Key {
			return nil, fault("configuration", v.Key, -1, "keys must ascend, each once")
		}
		b = append(b, byte(v.Type), byte(len(v.Key)))
		b = le.AppendUint16(b, uint16(v.size()))
		b = append(b, v.Key...)
		switch v.Type {
		case Bool:
			b = append(b, boolByte(v.Bool))
		case Int:
			b = le.AppendUint64(b, uint64(v.Int))
		case Float:
			b = le.AppendUint64(b, math.Float64bits(v.Float))
		case Text:
			b = append(b, v.Text...)
		}
		for (len(b)-start)%4 != 0 {
			b = append(b, 0)
		}
	}
	if len(b)-start > MaxConfig {
		return nil, fault("configuration", "", -1, itoa(len(b)-start)+" bytes are more than "+itoa(MaxConfig))
	}
	le.PutUint32(b[start:], uint32(len(c)))
	le.PutUint32(b[start+4:], uint32(len(b)-start))
	return b, nil
}

func boolByte(v bool) byte {
	if v {
		return 1
	}
	return 0
}

func (v *Value) size() int {
	switch v.Type {
	case Bool:
		return 1
	case Text:
		return len(v.Text)
	default:
		return 8
	}
}

func (v *Value) check() error {
	part := "configuration value " + v.Key
	switch {
	case !validName(v.Key):
		return fault("configuration", "key", -1, "a key is 1 to "+itoa(MaxName)+" letters, digits or one of _ - . /")
	case v.Type < Bool || v.Type > Text:
		return fault(part, "type", -1, itoa(int(v.Type))+" is no type")
	case v.Type == Float && v.Float-v.Float != 0:
		return fault(part, "", -1, "it is no finite number")
	case v.Type == Text && (len(v.Text) > MaxText || !utf8.ValidString(v.Text) || strings.IndexByte(v.Text, 0) >= 0):
		return fault(part, "", -1, "a text is UTF-8 without zeros, at most "+itoa(MaxText)+" bytes")
	}
	return nil
}

// DecodeConfig reads a configuration. No bytes are an empty one.
func DecodeConfig(b []byte) (Config, error) {
	if len(b) == 0 {
		return nil, nil
	}
	le := binary.LittleEndian
	if len(b) < configHeaderBytes || len(b) > MaxConfig || int64(le.Uint32(b[4:])) != int64(len(b)) || le.Uint32(b) > MaxConfigKeys {
		return nil, fault("configuration", "header", 0, "it must tell the number of values, at most "+itoa(MaxConfigKeys)+", and of its bytes, at most "+itoa(MaxConfig))
	}
	n := int(le.Uint32(b))
	c := make(Config, 0, n)
	at := configHeaderBytes
	for range n {
		v, next, err := decodeValue(b, at)
		if err != nil {
			return nil, err
		}
		if len(c) > 0 && c[len(c)-1].Key >= v.Key {
			return nil, fault("configuration", v.Key, at, "keys must ascend, each once")
		}
		c = append(c, v)
		at = next
	}
	if at != len(b) {
		return nil, fault("configuration", "", at, itoa(len(b)-at)+" bytes are left over")
	}
	return c, nil
}

func decodeValue(b []byte, at int) (Value, int, error) {
	var v Value
	le := binary.LittleEndian
	if at+4 > len(b) {
		return v, 0, fault("configuration", "", at, "a value is cut off")
	}
	v.Type = ValueType(b[at])
	key, size := int(b[at+1]), int(le.Uint16(b[at+2:]))
	from := at + 4 + key
	end := from + size
	next := (end + 3) &^ 3
	if next > len(b) {
		return v, 0, fault("configuration", "", at, "a value is cut off")
	}
	v.Key = string(b[at+4 : from])
	raw := b[from:end]
	if want := v.size(); v.Type != Text && size != want {
		return v, 0, fault("configuration value "+v.Key, "", at, itoa(size)+" bytes instead of "+itoa(want))
	}
	switch v.Type {
	case Bool:
		if raw[0] > 1 {
			return v, 0, fault("configuration value "+v.Key, "", from, "a bool is 0 or 1")
		}
		v.Bool = raw[0] == 1
	case Int:
		v.Int = int64(le.Uint64(raw))
	case Float:
		v.Float = math.Float64frombits(le.Uint64(raw))
	case Text:
		v.Text = string(raw)
	}
	for _, pad := range b[end:next] {
		if pad != 0 {
			return v, 0, fault("configuration value "+v.Key, "", end, "it is filled up with something other than zeros")
		}
	}
	return v, next, v.check()
}
