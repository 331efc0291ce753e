package framework

import (
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	mesos "github.com/mesos/mesos-go/api/v1/lib"

	"github.com/paceline-sched/paceline/core/driver"
	"github.com/paceline-sched/paceline/core/workload"
)

// Short names of what is used all over this package.
const (
	runStarting    = workload.RunStarting
	runRunning     = workload.RunRunning
	runKilling     = workload.RunKilling
	runUnreachable = workload.RunUnreachable
	runSucceeded   = workload.RunSucceeded
	runFailed      = workload.RunFailed
	runKilled      = workload.RunKilled
	runPreempted   = workload.RunPreempted
	runLost        = workload.RunLost

	reasonNone          = workload.ReasonNone
	reasonExited        = workload.ReasonExited
	reasonSignalled     = workload.ReasonSignalled
	reasonUnhealthy     = workload.ReasonUnhealthy
	reasonLaunchFailed  = workload.ReasonLaunchFailed
	reasonLaunchRefused = workload.ReasonLaunchRefused
	reasonDeadline      = workload.ReasonDeadline
	reasonHostLost      = workload.ReasonHostLost
	reasonUnreachable   = workload.ReasonHostUnreachable
	reasonNotFound      = workload.ReasonNotFound
	reasonMemory        = workload.ReasonMemoryExceeded
	reasonPreempted     = workload.ReasonPreempted
	reasonEmpty         = workload.ReasonHostReturnedEmpty
)

// meaning is what a word of Mesos means for a run.
type meaning struct {
	state  workload.RunState
	reason workload.Reason
}

// states is what a task's state means by itself.
var states = map[mesos.TaskState]meaning{
	mesos.TASK_STAGING:          {runStarting, reasonNone},
	mesos.TASK_STARTING:         {runStarting, reasonNone},
	mesos.TASK_RUNNING:          {runRunning, reasonNone},
	mesos.TASK_KILLING:          {runKilling, reasonNone},
	mesos.TASK_UNREACHABLE:      {runUnreachable, reasonUnreachable},
	mesos.TASK_FINISHED:         {runSucceeded, reasonExited},
	mesos.TASK_FAILED:           {runFailed, reasonExited},
	mesos.TASK_KILLED:           {runKilled, reasonNone},
	mesos.TASK_ERROR:            {runFailed, reasonLaunchFailed},
	mesos.TASK_LOST:             {runLost, reasonHostLost},
	mesos.TASK_DROPPED:          {runLost, reasonLaunchRefused},
	mesos.TASK_GONE:             {runLost, reasonNotFound},
	mesos.TASK_GONE_BY_OPERATOR: {runLost, reasonHostLost},
	mesos.TASK_UNKNOWN:          {runLost, reasonNotFound},
}

// reasons is what a reason makes of an end other than TASK_FINISHED: what the task did itself has failed and uses up a retry, what the
// cluster did to it is lost and does not. RunNone: the state says it all.
var reasons = map[mesos.TaskStatus_Reason]meaning{
	mesos.REASON_COMMAND_EXECUTOR_FAILED:          {runFailed, reasonLaunchFailed},
	mesos.REASON_CONTAINER_LAUNCH_FAILED:          {runFailed, reasonLaunchFailed},
	mesos.REASON_CONTAINER_LIMITATION:             {runFailed, reasonSignalled},
	mesos.REASON_CONTAINER_LIMITATION_DISK:        {runFailed, reasonSignalled},
	mesos.REASON_CONTAINER_LIMITATION_MEMORY:      {runFailed, reasonMemory},
	mesos.REASON_CONTAINER_PREEMPTED:              {runPreempted, reasonPreempted},
	mesos.REASON_CONTAINER_UPDATE_FAILED:          {runFailed, reasonLaunchFailed},
	mesos.REASON_MAX_COMPLETION_TIME_REACHED:      {runFailed, reasonDeadline},
	mesos.REASON_EXECUTOR_REGISTRATION_TIMEOUT:    {runFailed, reasonLaunchFailed},
	mesos.REASON_EXECUTOR_REREGISTRATION_TIMEOUT:  {runLost, reasonEmpty},
	mesos.REASON_EXECUTOR_TERMINATED:              {runFailed, reasonSignalled},
	mesos.REASON_EXECUTOR_UNREGISTERED:            {runFailed, reasonSignalled},
	mesos.REASON_FRAMEWORK_REMOVED:                {runLost, reasonNotFound},
	mesos.REASON_GC_ERROR:                         {runLost, reasonLaunchRefused},
	mesos.REASON_INVALID_FRAMEWORKID:              {runLost, reasonLaunchRefused},
	mesos.REASON_INVALID_OFFERS:                   {runLost, reasonLaunchRefused},
	mesos.REASON_IO_SWITCHBOARD_EXITED:            {runFailed, reasonLaunchFailed},
	mesos.REASON_MASTER_DISCONNECTED:              {runLost, reasonLaunchRefused},
	mesos.REASON_RECONCILIATION:                   {},
	mesos.REASON_RESOURCES_UNKNOWN:                {runLost, reasonLaunchRefused},
	mesos.REASON_AGENT_DISCONNECTED:               {runLost, reasonHostLost},
	mesos.REASON_AGENT_DRAINING:                   {runLost, reasonHostLost},
	mesos.REASON_AGENT_REMOVED:                    {runLost, reasonHostLost},
	mesos.REASON_AGENT_REMOVED_BY_OPERATOR:        {runLost, reasonHostLost},
	mesos.REASON_AGENT_REREGISTERED:               {},
	mesos.REASON_AGENT_RESTARTED:                  {runLost, reasonEmpty},
	mesos.REASON_AGENT_UNKNOWN:                    {runLost, reasonHostLost},
	mesos.REASON_TASK_KILLED_DURING_LAUNCH:        {runKilled, reasonNone},
	mesos.REASON_TASK_CHECK_STATUS_UPDATED:        {},
	mesos.REASON_TASK_HEALTH_CHECK_STATUS_UPDATED: {},
	mesos.REASON_TASK_GROUP_INVALID:               {runFailed, reasonLaunchFailed},
	mesos.REASON_TASK_GROUP_UNAUTHORIZED:          {runFailed, reasonLaunchFailed},
	mesos.REASON_TASK_INVALID:                     {runFailed, reasonLaunchFailed},
	mesos.REASON_TASK_UNAUTHORIZED:                {runFailed, reasonLaunchFailed},
	mesos.REASON_TASK_UNKNOWN:                     {runLost, reasonNotFound},
}

// Meaning is the one table from a Mesos state and reason to a run's. A nil reason is one that was not given: the zero value has a meaning
// of its own. States and reasons of a newer Mesos count as the nearest thing that is safe: a state as no end, a reason as none.
func Meaning(state mesos.TaskState, reason *mesos.TaskStatus_Reason) (workload.RunState, workload.Reason) {
	m, known := states[state]
	if !known {
		return runStarting, reasonNone
	}
	if reason != nil && m.state.Traits().Terminal && state != mesos.TASK_FINISHED {
		if by := reasons[*reason]; by.state != workload.RunNone {
			return by.state, by.reason
		}
	}
	return m.state, m.reason
}

// ending is what becomes of a run.
type ending struct {
	state    workload.RunState
	reason   workload.Reason
	exitCode int32
	signal   int32
	message  string
}

// How a master's executors tell the end of a command.
const (
	exitedWith     = "Command exited with status "
	terminatedWith = "Command terminated with signal "
	coreDumped     = " (core dumped)"
)

// endOf reads what a terminal status says. killed says that Paceline asked for the end.
func endOf(st *mesos.TaskStatus, killed bool) ending {
	state, reason := Meaning(st.GetState(), st.Reason)
	e := ending{state: state, reason: reason, message: cut(st.GetMessage())}
	if code, ok := strings.CutPrefix(e.message, exitedWith); ok {
		if n, err := strconv.ParseInt(code, 10, 32); err == nil {
			e.exitCode = int32(n)
		}
	}
	if name, ok := strings.CutPrefix(e.message, terminatedWith); ok {
		e.signal = signalNumber(strings.TrimSuffix(name, coreDumped))
		if e.state == runFailed && e.reason == reasonExited {
			e.reason = reasonSignalled
		}
	}
	if e.state == runKilled && !killed && st.Healthy != nil && !*st.Healthy {
		e.state, e.reason = runFailed, reasonUnhealthy
		e.message = cut("its health check failed too often: " + e.message)
	}
	return e
}

// signals are the names by which Linux describes signals (strsignal), in lower case.
var signals = map[string]int32{
	"hangup": 1, "interrupt": 2, "quit": 3, "illegal instruction": 4, "trace/breakpoint trap": 5, "aborted": 6, "bus error": 7,
	"floating point exception": 8, "killed": 9, "user defined signal 1": 10, "segmentation fault": 11, "user defined signal 2": 12,
	"broken pipe": 13, "alarm clock": 14, "terminated": 15, "stack fault": 16, "cpu time limit exceeded": 24, "file size limit exceeded": 25,
	"virtual timer expired": 26, "profiling timer expired": 27, "i/o possible": 29, "power failure": 30, "bad system call": 31,
}

// signalNumber returns a signal's number by its name; -1: it ended by one that is not known.
func signalNumber(name string) int32 {
	if n, ok := signals[strings.ToLower(name)]; ok {
		return n
	}
	return -1
}

// cut bounds a message without splitting a character.
func cut(message string) string {
	if len(message) <= driver.MaxMessage {
		return strings.ToValidUTF8(message, "?")
	}
	end := driver.MaxMessage
	for end > 0 && !utf8.RuneStart(message[end]) {
		end--
	}
	return strings.ToValidUTF8(message[:end], "?")
}

// timeOf is when a status was made; the machine's time, if it does not say.
func (m *Machine) timeOf(st *mesos.TaskStatus) time.Time {
	const first, last = 1e9, 4e9 // 2001 to 2096: anything else is not a time
	if at := st.GetTimestamp(); at > first && at < last {
		return time.Unix(0, int64(at*1e9)).UTC()
	}
	return time.Unix(0, m.now).UTC()
}
