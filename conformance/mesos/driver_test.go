package mesos_test

import (
	"strconv"
	"testing"
	"time"

	"github.com/paceline-sched/paceline/conformance/drivertest"
	"github.com/paceline-sched/paceline/core/driver"
	"github.com/paceline-sched/paceline/core/workload"
	"github.com/paceline-sched/paceline/hostmanagers/mesos"
)

// role is the one in which the tests take offers.
const role = "conformance"

func says(words ...string) func(*driver.Launch) {
	return func(l *driver.Launch) { l.Command = words }
}

func checked(check string, words ...string) func(*driver.Launch) {
	return func(l *driver.Launch) {
		l.Command = words
		l.Health = &workload.HealthCheck{Exec: []string{"sh", "-c", check}, Interval: time.Second, Timeout: time.Minute, FailureThreshold: 2}
	}
}

// TestDriver runs the kit of all drivers on the cluster, with tasks that are processes.
func TestDriver(t *testing.T) {
	t.Parallel()
	for _, check := range drivertest.Checks() {
		t.Run(check.Name, func(t *testing.T) {
			t.Parallel()
			w := theCluster(t)
			if check.Name == "AfterTheEndNothingIsTaken" {
				t.Skip("it counts goroutines, of which other checks start and end some meanwhile")
			}
			check.Run(t, kit(t, w))
		})
	}
}

func kit(t testing.TB, w world) drivertest.Cluster {
	id, n := &identity{}, &drivertest.Network{}
	t.Cleanup(func() { teardown(t, w.url, id) })
	cfg := mesos.Config{Masters: []string{w.url}, Identity: id, FrameworkName: "conformance", Roles: []string{role}, FailoverTimeout: time.Minute}
	cfg.Drain = time.Minute // what was acknowledged is forgotten, however slow the machine is
	cfg.Connection.Dial, cfg.Connection.FirstWait, cfg.Connection.LongestWait = n.Dial, 10*time.Millisecond, 100*time.Millisecond
	c := drivertest.Cluster{
		Connect: func() (driver.Driver, error) { return mesos.New(cfg) },
		Cut:     n.Cut, Mend: n.Mend,
		Patience: 2 * time.Minute,
		Work: drivertest.Work{
			Exit:    func(l *driver.Launch, code int32) { says("sh", "-c", "exit "+strconv.Itoa(int(code)))(l) },
			Forever: says("sleep", "1000"),
			Bad: func(l *driver.Launch) {
				says("true")(l)
				l.Needs = map[string]int64{"gpu_milli": 500}
			},
		},
	}
	if w.real {
		c.Work.Healthy, c.Work.Sick = checked("true", "sleep", "1000"), checked("false", "sleep", "1000")
		c.Work.Deaf = checked("true", "sh", "-c", "trap '' TERM; while :; do sleep 1; done")
	}
	return c
}
