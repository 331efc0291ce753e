package framework_test

import (
	"testing"

	mesos "github.com/mesos/mesos-go/api/v1/lib"

	"github.com/paceline-sched/paceline/core/workload"
	"github.com/paceline-sched/paceline/hostmanagers/mesos/framework"
)

// ends says which of Mesos' states are the last of a task, by its documentation. TASK_UNKNOWN is an answer, and the last word on a task.
var ends = map[mesos.TaskState]bool{
	mesos.TASK_STAGING: false, mesos.TASK_STARTING: false, mesos.TASK_RUNNING: false, mesos.TASK_KILLING: false, mesos.TASK_UNREACHABLE: false,
	mesos.TASK_FINISHED: true, mesos.TASK_FAILED: true, mesos.TASK_KILLED: true, mesos.TASK_ERROR: true, mesos.TASK_LOST: true,
	mesos.TASK_DROPPED: true, mesos.TASK_GONE: true, mesos.TASK_GONE_BY_OPERATOR: true, mesos.TASK_UNKNOWN: true,
}

// TestEveryWordHasAMeaning holds the table to all states and reasons that mesos-go knows.
func TestEveryWordHasAMeaning(t *testing.T) {
	t.Parallel()
	if len(ends) != len(mesos.TaskState_name) {
		t.Errorf("the test speaks of %d states, Mesos has %d", len(ends), len(mesos.TaskState_name))
	}
	for number := range mesos.TaskState_name {
		state := mesos.TaskState(number)
		plain, _ := framework.Meaning(state, nil)
		if plain.Traits().Terminal != ends[state] || plain < workload.RunStarting {
			t.Errorf("%s means %s", state, plain)
		}
		for n := range mesos.TaskStatus_Reason_name {
			reason := mesos.TaskStatus_Reason(n)
			got, why := framework.Meaning(state, &reason)
			switch {
			case got.Traits().Terminal != ends[state]:
				t.Errorf("%s for %s means %s", state, reason, got)
			case (!ends[state] || state == mesos.TASK_FINISHED) && got != plain:
				t.Errorf("%s means %s, but for %s %s", state, plain, reason, got)
			case got == workload.RunLost && why == workload.ReasonNone:
				t.Errorf("%s for %s means %s for no reason", state, reason, got)
			}
		}
	}
	for n := range mesos.TaskStatus_Reason_name {
		reason := mesos.TaskStatus_Reason(n)
		if !framework.Knows(reason) {
			t.Errorf("the table has no row for %s", reason)
		}
	}
}

// TestAReasonThatIsAbsentIsNotTheFirstOne holds the table to the difference between a reason that was not given and its zero value.
func TestAReasonThatIsAbsentIsNotTheFirstOne(t *testing.T) {
	t.Parallel()
	_, absent := framework.Meaning(mesos.TASK_FAILED, nil)
	_, given := framework.Meaning(mesos.TASK_FAILED, mesos.REASON_COMMAND_EXECUTOR_FAILED.Enum())
	if absent != workload.ReasonExited || given != workload.ReasonLaunchFailed {
		t.Errorf("a failure without a reason is %s, one of the command executor %s", absent, given)
	}
}

// TestMeanings names the rows that users notice.
func TestMeanings(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		state  mesos.TaskState
		reason *mesos.TaskStatus_Reason
		want   workload.RunState
		why    workload.Reason
	}{
		{mesos.TASK_LOST, mesos.REASON_AGENT_REMOVED.Enum(), workload.RunLost, workload.ReasonHostLost},
		{mesos.TASK_LOST, mesos.REASON_AGENT_DISCONNECTED.Enum(), workload.RunLost, workload.ReasonHostLost},
		{mesos.TASK_LOST, mesos.REASON_INVALID_OFFERS.Enum(), workload.RunLost, workload.ReasonLaunchRefused},
		{mesos.TASK_DROPPED, mesos.REASON_INVALID_OFFERS.Enum(), workload.RunLost, workload.ReasonLaunchRefused},
		{mesos.TASK_UNREACHABLE, mesos.REASON_AGENT_REMOVED.Enum(), workload.RunUnreachable, workload.ReasonHostUnreachable},
		{mesos.TASK_UNREACHABLE, mesos.REASON_RECONCILIATION.Enum(), workload.RunUnreachable, workload.ReasonHostUnreachable},
		{mesos.TASK_GONE_BY_OPERATOR, mesos.REASON_AGENT_REMOVED_BY_OPERATOR.Enum(), workload.RunLost, workload.ReasonHostLost},
		{mesos.TASK_FAILED, mesos.REASON_CONTAINER_LIMITATION_MEMORY.Enum(), workload.RunFailed, workload.ReasonMemoryExceeded},
		{mesos.TASK_FAILED, mesos.REASON_CONTAINER_LAUNCH_FAILED.Enum(), workload.RunFailed, workload.ReasonLaunchFailed},
		{mesos.TASK_FAILED, mesos.REASON_MAX_COMPLETION_TIME_REACHED.Enum(), workload.RunFailed, workload.ReasonDeadline},
		{mesos.TASK_KILLED, mesos.REASON_AGENT_DRAINING.Enum(), workload.RunLost, workload.ReasonHostLost},
		{mesos.TASK_KILLED, mesos.REASON_CONTAINER_PREEMPTED.Enum(), workload.RunPreempted, workload.ReasonPreempted},
		{mesos.TASK_KILLED, nil, workload.RunKilled, workload.ReasonNone},
		{mesos.TASK_ERROR, mesos.REASON_TASK_INVALID.Enum(), workload.RunFailed, workload.ReasonLaunchFailed},
		{mesos.TASK_RUNNING, mesos.REASON_AGENT_REREGISTERED.Enum(), workload.RunRunning, workload.ReasonNone},
		{mesos.TaskState(99), nil, workload.RunStarting, workload.ReasonNone},
	} {
		if got, why := framework.Meaning(c.state, c.reason); got != c.want || why != c.why {
			t.Errorf("%s for %v means %s %s, want %s %s", c.state, c.reason, got, why, c.want, c.why)
		}
	}
}
