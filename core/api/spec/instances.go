package spec

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/paceline-sched/paceline/core/workload"
)

// Range is instances from First to Last, both included.
type Range = workload.InstanceRange

// maxRanges bounds the ranges of one list.
const maxRanges = 4096

// ParseInstances reads a list such as 0-3,7. Ranges may come in any order and overlap; what that means is for the caller.
func ParseInstances(list string) ([]Range, error) {
	if list == "" {
		return nil, fmt.Errorf("no instances are given: write numbers and ranges, for example 0-3,7")
	}
	parts := strings.SplitN(list, ",", maxRanges+1)
	if len(parts) > maxRanges {
		return nil, fmt.Errorf("there are more than %d ranges: join neighbours or use several overrides", maxRanges)
	}
	ranges := make([]Range, 0, len(parts))
	for _, part := range parts {
		low, high, isRange := strings.Cut(part, "-")
		first, err := parseInstance(low)
		if err != nil {
			return nil, err
		}
		last := first
		if isRange {
			if last, err = parseInstance(high); err != nil {
				return nil, err
			}
		}
		if last < first {
			return nil, fmt.Errorf("range %s runs backwards: write %d-%d", clip(part), last, first)
		}
		ranges = append(ranges, Range{First: first, Last: last})
	}
	return ranges, nil
}

func parseInstance(s string) (uint32, error) {
	if s == "" || strings.Trim(s, "0123456789") != "" {
		return 0, fmt.Errorf("%q is not an instance number: write numbers and ranges, for example 0-3,7", clip(s))
	}
	n, err := strconv.ParseUint(s, 10, 32)
	if err != nil || n >= workload.MaxInstances {
		return 0, fmt.Errorf("instance %s is out of range: a job has at most %d instances", clip(s), workload.MaxInstances)
	}
	return uint32(n), nil
}

// FormatInstances writes ascending instance numbers as ParseInstances reads them.
func FormatInstances(instances []uint32) string {
	var b []byte
	for i := 0; i < len(instances); {
		end := i
		for end+1 < len(instances) && instances[end+1] == instances[end]+1 {
			end++
		}
		if b != nil {
			b = append(b, ',')
		}
		b = appendRange(b, Range{First: instances[i], Last: instances[end]})
		i = end + 1
	}
	return string(b)
}

func appendRange(b []byte, r Range) []byte {
	b = strconv.AppendUint(b, uint64(r.First), 10)
	if r.Last > r.First {
		b = append(b, '-')
		b = strconv.AppendUint(b, uint64(r.Last), 10)
	}
	return b
}
