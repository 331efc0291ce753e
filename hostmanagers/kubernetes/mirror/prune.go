package mirror

import (
	"bytes"
	"encoding/binary"
	"errors"
)

// fields are what is kept of a message of protobuf, by the number of the field; of one that has fields of its own, those.
type fields [maxField]*fields

// maxField is above the highest number that is kept.
const maxField = 48

// whole keeps a field as it is.
var whole = &fields{}

// The numbers are those of the messages' definitions. Whatever ReadPod and ReadNode look at must be here; a property holds them to it.
var (
	keptMeta = &fields{
		1: whole, 3: whole, 5: whole, 6: whole, 8: whole, 9: whole, 10: whole, 11: whole, 12: whole, // name to annotations, without managed fields
	}
	keptRequirements = &fields{2: whole}                                                                        // requests
	keptContainer    = &fields{1: whole, 6: whole, 8: keptRequirements, 10: {}, 24: whole}                      // name, ports, resources, that there is a liveness probe, restart policy
	keptStatus       = &fields{1: whole, 2: whole, 4: whole}                                                    // of a container: name, state, ready
	keptPod          = &fields{1: keptMeta, 2: keptPodSpec, 3: keptPodStatus}                                   //
	keptPodSpec      = &fields{2: keptContainer, 10: whole, 20: keptContainer, 32: whole, 40: keptRequirements} // containers, node, init containers, overhead, resources
	keptPodStatus    = &fields{1: whole, 2: keptCondition, 3: whole, 4: whole, 8: keptStatus, 10: keptStatus}
	keptCondition    = &fields{1: whole, 2: whole, 5: whole, 6: whole} // type, status, reason, message
	keptNode         = &fields{1: keptMeta, 2: {4: whole, 5: whole}, 3: {2: whole, 4: keptCondition, 7: {7: whole}}}

	// kept are objects by their kinds. Anything else is kept whole.
	kept = map[string]*fields{
		"Pod": keptPod, "PodList": {1: whole, 2: keptPod}, "Node": keptNode, "NodeList": {1: whole, 2: keptNode},
	}
)

// magic begins an object in protobuf. An envelope with its kind follows.
const magic = "k8s\x00"

// The numbers of the envelope's fields.
const (
	envelopeType   = 1
	envelopeObject = 2
	typeVersion    = 1
	typeKind       = 2
)

// Prune appends to out an object in protobuf without what this package does not look at: of pods and nodes, and of lists of them, which are
// mostly that. It is then decoded in a fraction of the time. Anything else, and what is broken, is appended as it is.
func Prune(out, object []byte) []byte {
	rest, ok := bytes.CutPrefix(object, []byte(magic))
	if !ok {
		return append(out, object...)
	}
	kind := find(rest, envelopeType)
	table := kept[string(find(kind, typeKind))]
	if table == nil || string(find(kind, typeVersion)) != "v1" {
		return append(out, object...)
	}
	start := len(out)
	pruned, err := prune(append(out, magic...), rest, &fields{envelopeType: whole, envelopeObject: table, 3: whole, 4: whole})
	if err != nil {
		return append(out[:start], object...)
	}
	return pruned
}

var errBroken = errors.New("the message is broken")

// maxPruned bounds a message inside another one: its length is written in four bytes.
const maxPruned = 1<<28 - 1

func prune(out, message []byte, kept *fields) ([]byte, error) {
	for len(message) > 0 {
		number, value, size := next(message)
		if size == 0 {
			return nil, errBroken
		}
		var inside *fields
		if number < maxField {
			inside = kept[number]
		}
		switch {
		case inside == nil:
		case inside == whole:
			out = append(out, message[:size]...)
		case value == nil:
			return nil, errBroken
		default:
			out = binary.AppendUvarint(out, number<<3|lengthBytes)
			at := len(out)
			var err error
			if out, err = prune(append(out, 0, 0, 0, 0), value, inside); err != nil {
				return nil, err
			}
			length := len(out) - at - 4
			if length > maxPruned {
				return nil, errBroken
			}
			for i := range 4 { // the longest form of a number is as good as the shortest
				out[at+i] = byte(length>>(7*i))&0x7f | 0x80
			}
			out[at+3] &^= 0x80
		}
		message = message[size:]
	}
	return out, nil
}

// The forms of a field's value.
const (
	varint      = 0
	fixed64     = 1
	lengthBytes = 2
	fixed32     = 5
)

// next reads one field: its number, its value if that is bytes (never nil then), and how long it is in all. 0: it is broken.
func next(message []byte) (number uint64, value []byte, size int) {
	key, n := binary.Uvarint(message)
	if n <= 0 || key>>3 == 0 {
		return 0, nil, 0
	}
	switch key & 7 {
	case varint:
		_, m := binary.Uvarint(message[n:])
		if m <= 0 {
			return 0, nil, 0
		}
		size = n + m
	case fixed64:
		size = n + 8
	case fixed32:
		size = n + 4
	case lengthBytes:
		length, m := binary.Uvarint(message[n:])
		if m <= 0 || length > uint64(len(message)-n-m) {
			return 0, nil, 0
		}
		size = n + m + int(length) //nolint:gosec // at most the message's length
		value = message[n+m : size : size]
	default:
		return 0, nil, 0
	}
	if size > len(message) {
		return 0, nil, 0
	}
	return key >> 3, value, size
}

// find returns the last field of a number that holds bytes; nil: there is none before the message's end or where it is broken.
func find(message []byte, number uint64) (found []byte) {
	for len(message) > 0 {
		n, value, size := next(message)
		if size == 0 {
			return found
		}
		if n == number && value != nil {
			found = value
		}
		message = message[size:]
	}
	return found
}
