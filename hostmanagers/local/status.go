package local

import (
	"strings"
	"unicode/utf8"

	"github.com/paceline-sched/paceline/core/driver"
	"github.com/paceline-sched/paceline/core/workload"
	"github.com/paceline-sched/paceline/hostmanagers/local/runner"
	"github.com/paceline-sched/paceline/hostmanagers/local/runner/shim"
)

// unhealthy begins the kill reason of a run whose health check failed.
const unhealthy = "unhealthy: "

// status says what a run's records mean. It has no token.
func status(id workload.RunID, run *runner.Run, o *owner) driver.Status {
	s := driver.Status{Run: id, Host: o.Host}
	switch run.Phase {
	case runner.Accepted:
		s.State, s.At = workload.RunStarting, run.Spec.Accepted
	case runner.Started:
		s.State, s.At = workload.RunRunning, run.Start.At
		s.Healthy = o.Health == nil || run.Marked
	default:
		ended(&s, run.Exit)
	}
	return s
}

func ended(s *driver.Status, exit *shim.Exit) {
	s.At = exit.Ended
	s.ExitCode, s.Signal = int32(exit.Code), int32(exit.Signal)
	s.Message = cut(exit.Message)
	switch exit.Verdict {
	case shim.Exited:
		exited(s, exit)
	case shim.Killed:
		s.State = workload.RunKilled
		if why, ok := strings.CutPrefix(exit.KillReason, unhealthy); ok {
			s.State, s.Reason, s.Message = workload.RunFailed, workload.ReasonUnhealthy, cut(why)
		}
	case shim.LaunchFailed:
		s.State, s.Reason = workload.RunFailed, workload.ReasonLaunchFailed
	case shim.Refused:
		s.State, s.Reason = workload.RunFailed, workload.ReasonLaunchFailed
		if strings.HasPrefix(exit.Message, portTaken) {
			s.Reason = workload.ReasonPortTaken
		}
	case shim.ShimDied:
		s.State, s.Reason = workload.RunLost, workload.ReasonSignalled
	case shim.Rebooted:
		s.State, s.Reason = workload.RunLost, workload.ReasonHostReturnedEmpty
	}
}

func exited(s *driver.Status, exit *shim.Exit) {
	s.State, s.Reason = workload.RunFailed, workload.ReasonExited
	switch {
	case exit.OutOfMem:
		s.Reason = workload.ReasonMemoryExceeded
	case exit.Signal != 0:
		s.Reason = workload.ReasonSignalled
	case exit.Code == 0:
		s.State = workload.RunSucceeded
	}
}

// cut bounds a message without splitting a character.
func cut(message string) string {
	if len(message) <= driver.MaxMessage {
		return message
	}
	end := driver.MaxMessage
	for end > 0 && !utf8.RuneStart(message[end]) {
		end--
	}
	return message[:end]
}
