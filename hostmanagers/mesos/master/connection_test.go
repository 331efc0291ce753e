package master_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mesos/mesos-go/api/v1/lib/scheduler"

	"github.com/paceline-sched/paceline/hostmanagers/mesos/emulator"
	"github.com/paceline-sched/paceline/hostmanagers/mesos/emulator/cluster"
	"github.com/paceline-sched/paceline/hostmanagers/mesos/master"
)

// TestSubscribesAndCalls subscribes to an emulated master, hears an offer, and declines it.
func TestSubscribesAndCalls(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		e, _ := serve(t, emulator.Config{}, n.listen("master:5050"))
		e.Do(func(c *cluster.Cluster) {
			c.AddAgent(cluster.Agent{Hostname: "agent", Resources: cluster.Plain(4, 4096, 1000, 0, 0)})
		})
		f := start(t, master.Config{Masters: []string{"master"}, Dial: n.dial})
		synctest.Wait()
		if f.id == "" || f.saves != 1 || len(f.ids) != 1 || f.ids[0] != f.id {
			t.Fatalf("saved id %q %d times, subscribed as %q", f.id, f.saves, f.ids)
		}
		if got := f.heard(scheduler.Event_OFFERS); got != 1 {
			t.Fatalf("heard %d events with offers, want 1", got)
		}
		if s := f.Status(); !s.Subscribed || s.Framework != f.id || f.Leader() != "http://master:5050" || s.Err != nil {
			t.Fatalf("status is %+v", s)
		}
		offer := f.events[0].Offers.Offers[0].ID
		if err := f.Call(t.Context(), &scheduler.Call{Type: scheduler.Call_DECLINE, Decline: &scheduler.Call_Decline{OfferIDs: offerIDs(offer)}}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(7 * time.Second) // the filter of a declined offer lasts 5
		synctest.Wait()
		if got := f.heard(scheduler.Event_OFFERS); got != 2 {
			t.Fatalf("heard %d events with offers after declining, want 2", got)
		}
		f.cancel()
		if err := <-f.ended; !errors.Is(err, context.Canceled) {
			t.Fatalf("Run returned %v", err)
		}
		if err := f.Call(t.Context(), &scheduler.Call{Type: scheduler.Call_REVIVE}); !errors.Is(err, master.ErrNotSubscribed) {
			t.Fatalf("a call after the end returned %v", err)
		}
	})
}
