package kubernetes_test

import (
	"net/http"
	"net/url"
	"sync/atomic"
	"testing"

	"github.com/paceline-sched/paceline/core/workload"
	"github.com/paceline-sched/paceline/hostmanagers/kubernetes/emulator"
	"github.com/paceline-sched/paceline/hostmanagers/kubernetes/emulator/cluster"
)

// A server that comes back with less than it had, as from a backup, is listed anew: what it does not have any more is lost.
func TestAServerThatIsSetBack(t *testing.T) {
	t.Parallel()
	first, api := emulated(t, emulator.Config{Cluster: cluster.Config{Behave: behave}})
	_, again := emulated(t, emulator.Config{Cluster: cluster.Config{Behave: behave}})
	there, err := url.Parse(again.Host)
	if err != nil {
		t.Fatal(err)
	}
	var other atomic.Bool
	l := connect(t, api, func(r *http.Request, next http.RoundTripper) (*http.Response, error) {
		if other.Load() {
			r = r.Clone(r.Context())
			r.URL.Host, r.Host = there.Host, there.Host
		}
		return next.RoundTrip(r)
	}, "sleep")
	until(t, "a run", func() bool {
		state, _ := l.state()
		return state == workload.RunRunning
	})
	other.Store(true)
	first.Close()
	until(t, "the loss of the run", func() bool {
		state, _ := l.state() // which an inventory may tell again before it is acknowledged
		return state == workload.RunLost
	})
}
