package wire

import "encoding/binary"

// WellFormed reports whether bytes are protobuf fields one after another, whatever they mean. Groups, which nothing in Mesos uses, are not.
func WellFormed(data []byte) bool {
	for len(data) > 0 {
		tag, n := binary.Uvarint(data)
		if n <= 0 || tag>>3 == 0 {
			return false
		}
		data = data[n:]
		var length int
		switch tag & 7 {
		case 0:
			if _, length = binary.Uvarint(data); length <= 0 {
				return false
			}
		case 1:
			length = 8
		case 2:
			size, n := binary.Uvarint(data)
			if n <= 0 || size > uint64(len(data)-n) {
				return false
			}
			length = n + int(size) //nolint:gosec // at most the data
		case 5:
			length = 4
		default:
			return false
		}
		if length > len(data) {
			return false
		}
		data = data[length:]
	}
	return true
}
