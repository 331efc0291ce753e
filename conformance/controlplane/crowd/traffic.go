package crowd

import (
	"context"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Traffic is what an API server was asked about pods, by verb, since it started; Cut are the watches of pods that it ended because who watched fell
// behind.
type Traffic struct {
	Requests map[string]int
	Cut      int
}

var (
	requestsOfPods = regexp.MustCompile(`(?m)^apiserver_request_total\{.*resource="pods".*verb="([A-Z]+)".*\} (\S+)$`)
	watchersOfPods = regexp.MustCompile(`(?m)^apiserver_terminated_watchers_total\{.*resource="pods".*\} (\S+)$`)
)

// Traffic reads the API server's own counters.
func (c *Crowd) Traffic(ctx context.Context) (Traffic, error) {
	raw, err := c.api.RESTClient().Get().AbsPath("/metrics").DoRaw(ctx)
	if err != nil {
		return Traffic{}, fmt.Errorf("read the API server's metrics: %w", err)
	}
	return readTraffic(string(raw)), nil
}

func readTraffic(text string) Traffic {
	t := Traffic{Requests: map[string]int{}}
	for _, m := range requestsOfPods.FindAllStringSubmatch(text, -1) {
		t.Requests[m[1]] += whole(m[2])
	}
	for _, m := range watchersOfPods.FindAllStringSubmatch(text, -1) {
		t.Cut += whole(m[1])
	}
	return t
}

// whole reads a counter, which has no fraction but may be written as 1e+06.
func whole(text string) int {
	v, _ := strconv.ParseFloat(text, 64)
	return int(v)
}

// Since is what came after an earlier time.
func (t Traffic) Since(before Traffic) Traffic {
	d := Traffic{Requests: map[string]int{}, Cut: t.Cut - before.Cut}
	for verb, n := range t.Requests {
		if n -= before.Requests[verb]; n > 0 {
			d.Requests[verb] = n
		}
	}
	return d
}

func (t Traffic) String() string {
	var b strings.Builder
	for _, verb := range slices.Sorted(maps.Keys(t.Requests)) {
		fmt.Fprintf(&b, "%d %s, ", t.Requests[verb], verb)
	}
	fmt.Fprintf(&b, "%d watches cut", t.Cut)
	return b.String()
}
