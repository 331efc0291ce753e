package framework

import mesos "github.com/mesos/mesos-go/api/v1/lib"

// Knows reports whether the table has a row for a reason.
func Knows(reason mesos.TaskStatus_Reason) bool {
	_, known := reasons[reason]
	return known
}
