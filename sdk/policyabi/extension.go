package policyabi

import "encoding/binary"

// Tags of extension records.
const (
	ExtensionEnd    = 0
	ExtensionNeed   = 1 // kind u32, amount i32: of a named resource
	ExtensionModels = 2 // u16 each: the models of devices that will do
)

// Extension is what a request asks for beyond its 64 bytes. In the arena it is a row of records, each a u16 tag, a u16 number of payload bytes, and the payload,
// filled up to a multiple of 4; tag 0 ends it. Tags that a reader does not know it passes over.
type Extension struct {
	Named  []NamedNeed
	Models []uint16
}

// NamedNeed is what a task takes of a named resource, in the unit of its column.
type NamedNeed struct {
	Kind   uint32
	Amount int32
}

// Append appends the encoded extension to b.
func (x *Extension) Append(b []byte) []byte {
	le := binary.LittleEndian
	for _, n := range x.Named {
		b = le.AppendUint16(b, ExtensionNeed)
		b = le.AppendUint16(b, 8)
		b = le.AppendUint32(b, n.Kind)
		b = le.AppendUint32(b, uint32(n.Amount))
	}
	if len(x.Models) > 0 {
		b = le.AppendUint16(b, ExtensionModels)
		b = le.AppendUint16(b, uint16(2*len(x.Models)))
		for _, m := range x.Models {
			b = le.AppendUint16(b, m)
		}
		if len(x.Models)%2 != 0 {
			b = append(b, 0, 0)
		}
	}
	return le.AppendUint32(b, ExtensionEnd)
}

// DecodeExtension reads an extension from the beginning of b.
func DecodeExtension(b []byte) (Extension, error) {
	var x Extension
	le := binary.LittleEndian
	for at := 0; ; {
		if at+4 > len(b) {
			return x, fault("extension", "", at, "it has no end record")
		}
		tag, size := le.Uint16(b[at:]), int(le.Uint16(b[at+2:]))
		if tag == ExtensionEnd {
			return x, nil
		}
		at += 4
		if at+size > len(b) {
			return x, fault("extension", "record "+itoa(tag), at, itoa(size)+" bytes of payload reach beyond the section")
		}
		payload := b[at : at+size]
		switch tag {
		case ExtensionNeed:
			if size != 8 {
				return x, fault("extension", "need", at, "it has 8 bytes, not "+itoa(size))
			}
			n := NamedNeed{Kind: le.Uint32(payload), Amount: int32(le.Uint32(payload[4:]))}
			if n.Kind >= MaxKinds || n.Amount < 0 || n.Amount > MaxNeed || len(x.Named) >= MaxKinds {
				return x, fault("extension", "need", at, itoa(n.Amount)+" of kind "+itoa(n.Kind)+": kinds are below "+itoa(MaxKinds)+", amounts 0 to "+itoa(MaxNeed))
			}
			x.Named = append(x.Named, n)
		case ExtensionModels:
			if size%2 != 0 || size == 0 || len(x.Models) > 0 {
				return x, fault("extension", "models", at, "there is one list of 2 bytes each")
			}
			for ; len(payload) > 0; payload = payload[2:] {
				x.Models = append(x.Models, le.Uint16(payload))
			}
		}
		at += (size + 3) &^ 3
	}
}
