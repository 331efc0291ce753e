package policyabi

import "strconv"

// Error is something in the shared memory, a configuration or a capability section that is not as it must be.
type Error struct {
	Part   string // what was read: "header", "request 3"
	Field  string // of it, "" for the whole
	Offset int    // in bytes from the beginning of the part, or the line of a text; -1: of no use
	Reason string // what is wrong and what would be right
}

func (e *Error) Error() string {
	s := "policy ABI: " + e.Part
	if e.Field != "" {
		s += ": " + e.Field
	}
	if e.Offset >= 0 {
		s += " (at " + strconv.Itoa(e.Offset) + ")"
	}
	return s + ": " + e.Reason
}

func fault(part, field string, offset int, reason string) error {
	return &Error{Part: part, Field: field, Offset: offset, Reason: reason}
}

func itoa[N ~int | ~int32 | ~int64 | ~uint16 | ~uint32](n N) string {
	return strconv.FormatInt(int64(n), 10)
}
