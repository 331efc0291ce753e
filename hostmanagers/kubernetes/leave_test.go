package kubernetes_test

import (
	"context"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	typed "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"

	"github.com/paceline-sched/paceline/conformance/drivertest"
	"github.com/paceline-sched/paceline/core/driver"
	"github.com/paceline-sched/paceline/core/workload"
	"github.com/paceline-sched/paceline/hostmanagers/kubernetes"
	"github.com/paceline-sched/paceline/hostmanagers/kubernetes/emulator"
	"github.com/paceline-sched/paceline/hostmanagers/kubernetes/emulator/cluster"
)

// ears note what a driver says.
type ears struct {
	statuses     chan driver.Status
	disconnected chan error
}

func newEars() *ears {
	return &ears{statuses: make(chan driver.Status, 1000), disconnected: make(chan error, 10)}
}

func (e *ears) Inventory(driver.Inventory)           {}
func (e *ears) HostsChanged([]driver.Host, []string) {}
func (e *ears) Disconnected(reason error)            { e.disconnected <- reason }
func (e *ears) Statuses(list []driver.Status) {
	for i := range list {
		e.statuses <- list[i]
	}
}

// TestLeave: after Leave none of the cell's pods is there, those of others are, nothing can be asked any more, and the sink heard of no end.
func TestLeave(t *testing.T) {
	t.Parallel()
	_, api := emulated(t, emulator.Config{Cluster: cluster.Config{Behave: behave}})
	client := clientOf(t, api)
	mine, others := connected(t, api, "mine"), connected(t, api, "others")
	launches := func(owner uint64, n int) (list []driver.Launch) {
		for i := range n {
			list = append(list, driver.Launch{
				Run: workload.RunID{Job: workload.JobID{byte(owner)}, Instance: uint32(i), Run: 1}, Host: "a", Command: []string{"sleep"},
				Needs: map[string]int64{"cpu_milli": 1}, KillGrace: time.Hour,
			})
		}
		return list
	}
	if err := mine.Launch(t.Context(), launches(1, 20)); err != nil {
		t.Fatal(err)
	}
	if err := others.Launch(t.Context(), launches(2, 3)); err != nil {
		t.Fatal(err)
	}
	until(t, "all pods", func() bool { return len(podsOf(t, client)) == 23 })
	if err := mine.Launch(t.Context(), launches(3, 20)); err != nil { // some of which are under way
		t.Fatal(err)
	}
	if err := mine.Leave(t.Context()); err != nil {
		t.Fatal(err)
	}
	pods := podsOf(t, client)
	if len(pods) != 3 {
		t.Errorf("%d pods are left, and 3 are others'", len(pods))
	}
	if err := mine.Launch(t.Context(), launches(4, 1)); err == nil || !strings.Contains(err.Error(), "taken leave") {
		t.Errorf("a launch after the leave: %v", err)
	}
	select {
	case reason := <-mine.heard.disconnected:
		if !strings.Contains(reason.Error(), "taken leave") {
			t.Errorf("the contact is lost: %v", reason)
		}
	case <-time.After(patience):
		t.Error("the sink was not told that there is no contact any more")
	}
	for len(mine.heard.statuses) > 0 {
		if s := <-mine.heard.statuses; s.State.Traits().Terminal {
			t.Errorf("it was told: %v", s)
		}
	}
}

// TestLeaveInVain: what cannot be told is an error that says what to do.
func TestLeaveInVain(t *testing.T) {
	t.Parallel()
	_, api := emulated(t, emulator.Config{Cluster: cluster.Config{Behave: behave}})
	d := connected(t, api, "mine")
	d.network.Cut()
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // at once: it is not about how long
	if err := d.Leave(ctx); err == nil || !strings.Contains(err.Error(), "paceline.io/owner=mine") {
		t.Errorf("leaving without a network: %v", err)
	}
}

// listened is a driver with what it says.
type listened struct {
	*kubernetes.Driver
	heard   *ears
	network *drivertest.Network
}

// connected starts a driver, which ends with the test.
func connected(t *testing.T, api *rest.Config, owner string) listened {
	t.Helper()
	n := &drivertest.Network{}
	d, err := kubernetes.New(config(api, n, owner, "default"))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	heard := newEars()
	if err := d.Start(ctx, heard); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		d.Wait()
	})
	return listened{d, heard, n}
}

func clientOf(t *testing.T, api *rest.Config) *typed.CoreV1Client {
	t.Helper()
	connection, err := rest.HTTPClientFor(api)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(connection.CloseIdleConnections)
	client, err := typed.NewForConfigAndClient(api, connection)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

func podsOf(t *testing.T, client *typed.CoreV1Client) []corev1.Pod {
	t.Helper()
	list, err := client.Pods("default").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return list.Items
}
