package api_test

import (
	"fmt"
	"strings"
	"testing"

	"connectrpc.com/connect"

	pacelinev1 "github.com/paceline-sched/paceline/sdk/gen/paceline/v1"
)

// A plan says what the clusters say that it would go to, one instance of each class.
func TestPlanAsksClusters(t *testing.T) {
	root := newTestCell(t, 2).as(adminToken)
	plan := func(how, more string) []*pacelinev1.PlanRehearsal {
		t.Helper()
		yaml := fmt.Sprintf("name: a\ninstances: 5\nbatch: {}\ntask: {command: [x], labels: {rehearse: %s}, resources: {cpu_milli: 100}}\n%s", how, more)
		answer, err := root.Jobs.PlanJob(t.Context(), connect.NewRequest(&pacelinev1.PlanJobRequest{Spec: parseYAML[*pacelinev1.JobSpec](t, yaml)}))
		if err != nil {
			t.Fatal(err)
		}
		return answer.Msg.GetRehearsals()
	}
	for how, want := range map[string]struct {
		verdict pacelinev1.RehearsalVerdict
		says    string
	}{
		"refuse": {pacelinev1.RehearsalVerdict_REHEARSAL_VERDICT_REFUSED, "no " + hostName + " for /default"},
		"warn":   {pacelinev1.RehearsalVerdict_REHEARSAL_VERDICT_ADMITTED, ""},
		"late":   {pacelinev1.RehearsalVerdict_REHEARSAL_VERDICT_UNKNOWN, "did not answer within"},
	} {
		list := plan(how, "")
		if len(list) != 1 || list[0].GetVerdict() != want.verdict || !strings.Contains(list[0].GetMessage(), want.says) || list[0].GetInstances() != 2 ||
			list[0].GetCluster() != "test" || (len(list[0].GetWarnings()) == 1) != (how == "warn") {
			t.Errorf("%s: %v", how, list)
		}
	}
	if list := plan("cannot", ""); len(list) != 0 {
		t.Errorf("a cluster that cannot be asked said %v", list)
	}
	// Those that need the same are asked about once.
	list := plan("refuse", `overrides: [{instances: "3", resources: {cpu_milli: 150}}, {instances: "4", resources: {cpu_milli: 190}}]`)
	if len(list) != 3 || list[1].GetInstance() != 3 || list[1].GetInstances() != 1 {
		t.Errorf("three classes: %v", list)
	}
	// So are those of several gangs.
	list = plan("refuse", `gang: {groups: [{name: l, instances: "0-1"}, {name: r, instances: "2-3"}]}`)
	if len(list) != 1 || list[0].GetInstances() != 5 {
		t.Errorf("two gangs of one class: %v", list)
	}
	// What finds no room is asked about without a host.
	root = newTestCell(t, 0).as(adminToken)
	if list := plan("refuse", ""); len(list) != 1 || list[0].GetInstances() != 0 || list[0].GetMessage() != "no  for /default" {
		t.Errorf("without room: %v", list)
	}
}
