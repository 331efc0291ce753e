package emulator_test

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// slack is how far an event's time may be from the recorded one, in seconds. Processes start and end here when they did there, and the
// allocator's clock is set alike, so that only what two loaded processors added remains: the steps of 1, 5, 10 and 15 s must fit.
const slack = 0.35

// normal is one event as it is compared.
type normal struct {
	at   float64
	text string
}

// normalizer gives ids names in the order in which they come, so that two streams can be compared.
type normalizer struct {
	offers map[string]string
	uuids  map[string]string
	byLane map[string]int
	lanes  map[string][]normal
}

func normalize(events []heard) map[string][]normal {
	n := &normalizer{offers: map[string]string{}, uuids: map[string]string{}, byLane: map[string]int{}, lanes: map[string][]normal{}}
	for _, e := range events {
		lane := laneOf(e.event)
		n.nameOffers(e.event)
		text, err := json.Marshal(n.walk(e.event, lane))
		if err != nil {
			panic(err)
		}
		n.lanes[lane] = append(n.lanes[lane], normal{e.at, n.rename(string(text))})
	}
	return n.lanes
}

// laneOf says with which other events an event has an order. Tasks run side by side; what executors say of one has no order with the rest.
func laneOf(event map[string]any) string {
	kind := fmt.Sprint(event["type"])
	switch kind {
	case "HEARTBEAT":
		return kind
	case "UPDATE_OPERATION_STATUS":
		return "operations"
	case "UPDATE":
		if at(event, "update", "status", "reason") == "REASON_RECONCILIATION" { // a master answers in any order
			return "reconciled " + fmt.Sprint(at(event, "update", "status", "task_id", "value"))
		}
		if at(event, "update", "status", "source") == "SOURCE_MASTER" {
			return "master"
		}
		return "task " + fmt.Sprint(at(event, "update", "status", "task_id", "value"))
	default:
		return "master"
	}
}

// nameOffers names the offers of an event by their hosts.
func (n *normalizer) nameOffers(event map[string]any) {
	byHost := offersByHost(event)
	for _, host := range sortedKeys(byHost) {
		n.offers[byHost[host]] = fmt.Sprintf("offer-%d", len(n.offers))
	}
	for _, kind := range []string{"offers", "inverse_offers"} {
		list, _ := at(event, kind, kind).([]any)
		slices.SortFunc(list, func(a, b any) int {
			return cmp.Compare(fmt.Sprint(at(a, "url", "address", "hostname")), fmt.Sprint(at(b, "url", "address", "hostname")))
		})
	}
}

func sortedKeys(m map[string]string) []string {
	keys := make([]string, 0, len(m))
	for key := range m {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}

func (n *normalizer) rename(text string) string {
	text = anyOffer.ReplaceAllStringFunc(text, func(id string) string {
		if name, ok := n.offers[id]; ok {
			return name
		}
		return id
	})
	return containerName.ReplaceAllString(text, "container 'C'")
}

var containerName = regexp.MustCompile(`container '[0-9a-f-]{36}'`)

// walk copies JSON without what differs from run to run.
func (n *normalizer) walk(value any, lane string) any {
	switch value := value.(type) {
	case map[string]any:
		copied := map[string]any{}
		for key, item := range value {
			switch key {
			case "timestamp", "executor_pid", "unreachable_time":
				copied[key] = "TIME"
			case "container_id":
				copied[key] = "CONTAINER"
			case "uuid":
				copied[key] = n.uuid(asJSON(item), lane)
			case "container_status":
				copied[key] = n.container(item, lane)
			default:
				copied[key] = n.walk(item, lane)
			}
		}
		return copied
	case []any:
		copied := make([]any, len(value))
		for i, item := range value {
			copied[i] = n.walk(item, lane)
		}
		if len(copied) > 0 && at(copied[0], "name") != nil && at(copied[0], "type") != nil {
			slices.SortFunc(copied, func(a, b any) int { return strings.Compare(asJSON(a), asJSON(b)) })
		}
		return copied
	default:
		return value
	}
}

// container leaves out what a nested container's status only has sometimes.
func (n *normalizer) container(value any, lane string) any {
	if at(value, "container_id", "parent") != nil {
		return "NESTED"
	}
	return n.walk(value, lane)
}

func (n *normalizer) uuid(id, lane string) string {
	if n.uuids[id] == "" {
		n.byLane[lane]++
		n.uuids[id] = fmt.Sprintf("uuid-%d", n.byLane[lane])
	}
	return n.uuids[id]
}

func asJSON(value any) string {
	text, err := json.Marshal(value)
	if err != nil {
		panic(err)
	}
	return string(text)
}

// compareStreams holds what a subscription heard to what it heard from the real master.
func compareStreams(t *testing.T, s *subscriber, dropped bool) {
	t.Helper()
	want, got := normalize(s.want.events), normalize(s.events)
	for lane := range want {
		compareLane(t, s.stage+", "+lane, want[lane], got[lane])
	}
	for lane := range got {
		if want[lane] == nil {
			t.Errorf("%s: unexpected %s: %s", s.stage, lane, got[lane][0].text)
		}
	}
	if !dropped && s.closed != s.want.closed {
		t.Errorf("%s: ended by the master: %v, want %v", s.stage, s.closed, s.want.closed)
	}
}

func compareLane(t *testing.T, name string, want, got []normal) {
	t.Helper()
	for i := range max(len(want), len(got)) {
		switch {
		case i >= len(got):
			t.Errorf("%s: event %d is missing: want at %.3f %s", name, i, want[i].at, want[i].text)
			return
		case i >= len(want):
			t.Errorf("%s: event %d is too much: at %.3f %s", name, i, got[i].at, got[i].text)
			return
		case want[i].text != got[i].text:
			got, want, from := got[i], want[i], difference(want[i].text, got[i].text)
			t.Errorf("%s: event %d is at %.3f\n  ...%s\nwant at %.3f\n  ...%s", name, i, got.at, got.text[from:], want.at, want.text[from:])
			return
		case math.Abs(want[i].at-got[i].at) > slack:
			t.Errorf("%s: event %d came at %.3f, want %.3f: %s", name, i, got[i].at, want[i].at, want[i].text)
		}
	}
}

// difference returns where two texts begin to differ, and a little before.
func difference(a, b string) int {
	i := 0
	for i < min(len(a), len(b)) && a[i] == b[i] {
		i++
	}
	return max(0, i-40)
}
