package telemetry_test

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/paceline-sched/paceline/core/telemetry"
)

func TestMetricsFollowTrace(t *testing.T) {
	m := telemetry.NewMetrics("v1.2.3")
	trace := m.Trace()
	trace.CallStarted("S/M")
	trace.CallStarted("S/M")
	trace.CallDone(telemetry.Call{Method: "S/M", Code: "ok", Duration: time.Second})
	trace.CommitDone(telemetry.Commit{Groups: 3})
	trace.CommitDone(telemetry.Commit{Groups: 5, Err: errors.New("disk")})
	trace.CellSeen(telemetry.Cell{Waiting: []telemetry.Waiting{{Pool: "/gone", Reason: "queue", Instances: 1}}})
	trace.CellSeen(telemetry.Cell{Revision: 7, Capacity: map[string]int64{"cpu_milli": 4000}, Waiting: []telemetry.Waiting{
		{Pool: "/prod", Reason: "entitlement", Instances: 12}, {Reason: "queue", Instances: 3},
	}})
	trace.TokensLoaded(errors.New("mode"))
	trace.DecisionsRecorded(telemetry.Decisions{Records: 5, Dropped: 2, Bytes: 77})

	answer := httptest.NewRecorder()
	m.Handler().ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	for _, line := range []string{
		`paceline_build_info{version="v1.2.3"} 1`,
		`paceline_api_open_calls{method="S/M"} 1`,
		`paceline_api_calls_total{code="ok",method="S/M"} 1`,
		`paceline_api_call_seconds_sum{method="S/M"} 1`,
		`paceline_committed_groups_total 3`,
		`paceline_revision 7`,
		`paceline_capacity{resource="cpu_milli"} 4000`,
		`paceline_token_loads_total{result="error"} 1`,
		`paceline_decisions_recorded_total 5`,
		`paceline_decisions_dropped_total 2`,
		`paceline_decision_log_bytes_total 77`,
		`paceline_waiting_instances{pool="/prod",reason="entitlement"} 12`,
		`paceline_waiting_instances{pool="others",reason="queue"} 3`,
	} {
		if !strings.Contains(answer.Body.String(), line+"\n") {
			t.Errorf("no line %s", line)
		}
	}
	if strings.Contains(answer.Body.String(), "/gone") {
		t.Error("a pool that is gone is still measured")
	}
}

// TestJoinKeepsEveryHook fails when a hook was added to Trace and not to Join or Complete.
func TestJoinKeepsEveryHook(t *testing.T) {
	complete := reflect.ValueOf(*(*telemetry.Trace)(nil).Complete())
	for i := range complete.NumField() {
		if complete.Field(i).IsNil() {
			t.Errorf("Complete leaves out %s", complete.Type().Field(i).Name)
		}
	}
	var calls []string
	record := func(name string) *telemetry.Trace {
		return &telemetry.Trace{Panicked: func(string) { calls = append(calls, name) }}
	}
	telemetry.Join(record("a"), nil, &telemetry.Trace{}, record("b")).Panicked("x")
	if strings.Join(calls, "") != "ab" {
		t.Errorf("hooks called: %v", calls)
	}
}
