package local_test

import (
	"fmt"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/paceline-sched/paceline/conformance/drivertest"
	"github.com/paceline-sched/paceline/core/driver"
	"github.com/paceline-sched/paceline/core/workload"
	"github.com/paceline-sched/paceline/hostmanagers/local"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func shell(script string) func(*driver.Launch) {
	return func(l *driver.Launch) { l.Command = []string{"sh", "-c", script} }
}

func checked(script string, check workload.HealthCheck) func(*driver.Launch) {
	check.Interval, check.Timeout, check.FailureThreshold = 20*time.Millisecond, time.Minute, max(2, check.FailureThreshold)
	return func(l *driver.Launch) {
		shell(script)(l)
		l.Health = &check
	}
}

var work = drivertest.Work{
	Exit:    func(l *driver.Launch, code int32) { shell(fmt.Sprintf("exit %d", code))(l) },
	Forever: shell("exec sleep 1000"),
	Deaf:    checked("trap '' TERM; touch deaf; while :; do sleep 0.05; done", workload.HealthCheck{Exec: []string{"test", "-e", "deaf"}, FailureThreshold: 100_000}),
	Bad:     func(l *driver.Launch) { l.Command = []string{"no-such-command"} },
	Print:   func(l *driver.Launch, text string) { l.Command = []string{"printf", "%s", text} },
	Healthy: checked("sleep 0.1; touch ready; exec sleep 1000", workload.HealthCheck{Exec: []string{"test", "-e", "ready"}, FailureThreshold: 100_000}),
	Sick:    checked("exec sleep 1000", workload.HealthCheck{Exec: []string{"sh", "-c", "echo feverish; exit 1"}}),
}

func TestConformance(t *testing.T) {
	drivertest.Run(t, func(t testing.TB) drivertest.Cluster {
		root := t.TempDir()
		return drivertest.Cluster{
			Connect: func() (driver.Driver, error) { return local.New(local.Config{Root: root, Hosts: 2}) },
			Work:    work,
		}
	})
}
