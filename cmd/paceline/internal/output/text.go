package output

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// Dash stands for a value that is not there, so that columns stay countable for awk.
const Dash = "-"

// OrDash returns s, or Dash when it is empty.
func OrDash(s string) string {
	if s == "" {
		return Dash
	}
	return s
}

// Enum returns the short lower-case name of an enum value: JOB_STATE_BACKING_OFF is backing-off. The unspecified value is Dash.
func Enum(e protoreflect.Enum) string {
	value := e.Descriptor().Values().ByNumber(e.Number())
	switch {
	case value == nil:
		return strconv.Itoa(int(e.Number()))
	case value.Number() == 0:
		return Dash
	}
	return shortEnum(value)
}

func shortEnum(value protoreflect.EnumValueDescriptor) string {
	enum, ok := value.Parent().(protoreflect.EnumDescriptor)
	if !ok {
		return string(value.Name())
	}
	zero := string(enum.Values().ByNumber(0).Name())
	prefix := strings.TrimSuffix(zero, "UNSPECIFIED")
	return strings.ToLower(strings.ReplaceAll(strings.TrimPrefix(string(value.Name()), prefix), "_", "-"))
}

// EnumNames returns the short names of an enum's values, without the unspecified one.
func EnumNames(d protoreflect.EnumDescriptor) []string {
	var names []string
	for i := range d.Values().Len() {
		if v := d.Values().Get(i); v.Number() != 0 {
			names = append(names, shortEnum(v))
		}
	}
	return names
}

// ParseEnum reads a short name as Enum writes it, in any case.
func ParseEnum(d protoreflect.EnumDescriptor, s string) (protoreflect.EnumNumber, error) {
	for i := range d.Values().Len() {
		if v := d.Values().Get(i); v.Number() != 0 && shortEnum(v) == strings.ToLower(strings.ReplaceAll(s, "_", "-")) {
			return v.Number(), nil
		}
	}
	return 0, fmt.Errorf("%q is not one of %s", s, strings.Join(EnumNames(d), ", "))
}

// Age returns how long ago t was, coarse as people say it.
func Age(now time.Time, t *timestamppb.Timestamp) string {
	if t == nil || !t.IsValid() {
		return Dash
	}
	return Span(now.Sub(t.AsTime()))
}

// Span returns a duration in at most two units.
func Span(d time.Duration) string {
	d = max(d, 0)
	const day = 24 * time.Hour
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%ds", d/time.Second)
	case d < time.Hour:
		return twoUnits(d/time.Minute, "m", d%time.Minute/time.Second, "s")
	case d < day:
		return twoUnits(d/time.Hour, "h", d%time.Hour/time.Minute, "m")
	}
	return twoUnits(d/day, "d", d%day/time.Hour, "h")
}

func twoUnits(major time.Duration, majorUnit string, minor time.Duration, minorUnit string) string {
	if minor == 0 || major >= 10 {
		return fmt.Sprintf("%d%s", major, majorUnit)
	}
	return fmt.Sprintf("%d%s%d%s", major, majorUnit, minor, minorUnit)
}

// Clock returns a time of day in the local zone, with the date when that is not today's.
func Clock(now time.Time, t *timestamppb.Timestamp) string {
	if t == nil || !t.IsValid() {
		return Dash
	}
	local := t.AsTime().In(now.Location())
	if local.Format(time.DateOnly) == now.Format(time.DateOnly) {
		return local.Format(time.TimeOnly)
	}
	return local.Format(time.DateTime)
}

// Quantity returns an amount of a named resource with its unit, scaled for people: 1500 of cpu_milli is 1.5.
func Quantity(resource string, n int64) string {
	switch resource {
	case "cpu_milli", "gpu_milli":
		return trimZeros(float64(n)/1000, 3)
	case "memory_mib", "disk_mib":
		switch {
		case n == 0:
			return "0"
		case n >= 1<<20 || n <= -(1<<20):
			return trimZeros(float64(n)/(1<<20), 1) + "Ti"
		case n >= 1<<10 || n <= -(1<<10):
			return trimZeros(float64(n)/(1<<10), 1) + "Gi"
		}
		return strconv.FormatInt(n, 10) + "Mi"
	}
	return strconv.FormatInt(n, 10)
}

func trimZeros(f float64, decimals int) string {
	s := strconv.FormatFloat(f, 'f', decimals, 64)
	if strings.Contains(s, ".") {
		s = strings.TrimRight(strings.TrimRight(s, "0"), ".")
	}
	return s
}

// Pairs returns a map as key=value, sorted and comma-separated.
func Pairs(m map[string]string) string {
	parts := make([]string, 0, len(m))
	for _, k := range slices.Sorted(maps.Keys(m)) {
		parts = append(parts, k+"="+m[k])
	}
	return OrDash(strings.Join(parts, ","))
}

// Plural returns "1 host" or "3 hosts".
func Plural[N ~int | ~int32 | ~uint32 | ~int64 | ~uint64](n N, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
