package master_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	mesos "github.com/mesos/mesos-go/api/v1/lib"
	"github.com/mesos/mesos-go/api/v1/lib/scheduler"

	"github.com/paceline-sched/paceline/hostmanagers/mesos/emulator"
	"github.com/paceline-sched/paceline/hostmanagers/mesos/emulator/cluster"
	"github.com/paceline-sched/paceline/hostmanagers/mesos/master"
)

// virtual runs a test in virtual time, beside others.
func virtual(t *testing.T, f func(*testing.T)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, f)
}

// pass lets virtual time go by.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func addAgent(c *cluster.Cluster) {
	c.AddAgent(cluster.Agent{Hostname: "agent", Resources: cluster.Plain(4, 4096, 1000, 0, 0)})
}

// TestSubscribesAndCalls subscribes to an emulated master, hears an offer, and declines it.
func TestSubscribesAndCalls(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := newNetwork()
		e, _ := serve(t, emulator.Config{}, n.listen("master:5050"))
		e.Do(addAgent)
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
		decline := &scheduler.Call{Type: scheduler.Call_DECLINE, Decline: &scheduler.Call_Decline{OfferIDs: []mesos.OfferID{offer}}}
		if err := f.Call(t.Context(), decline); err != nil {
			t.Fatal(err)
		}
		if decline.FrameworkID != nil {
			t.Error("a call of the caller's was changed")
		}
		pass(7 * time.Second) // the filter of a declined offer lasts 5
		if got := f.heard(scheduler.Event_OFFERS); got != 2 {
			t.Fatalf("heard %d events with offers after declining, want 2", got)
		}
		f.cancel()
		if err := <-f.ended; !errors.Is(err, context.Canceled) {
			t.Fatalf("Run returned %v", err)
		}
		if begun, over := f.subscriptions(); begun != 1 || over != 1 {
			t.Fatalf("%d subscriptions began and %d ended", begun, over)
		}
		if err := f.Call(t.Context(), revive()); !errors.Is(err, master.ErrNotSubscribed) {
			t.Fatalf("a call after the end returned %v", err)
		}
	})
}

// TestARestartedProcessIsTheSameFramework runs a connection, ends it, and starts another with what was kept.
func TestARestartedProcessIsTheSameFramework(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := newNetwork()
		serve(t, emulator.Config{}, n.listen("master:5050"))
		cfg := master.Config{Masters: []string{"http://master:5050"}, Dial: n.dial}
		f := start(t, cfg)
		synctest.Wait()
		f.cancel()
		<-f.ended
		pass(10 * time.Second)
		f.start(t, cfg)
		synctest.Wait()
		if len(f.ids) != 2 || f.ids[0] != f.ids[1] || f.saves != 1 {
			t.Fatalf("subscribed as %q, saved %d times", f.ids, f.saves)
		}
	})
}

// TestFollowsTheLeader moves leadership from one master to the other and back. Both are always there, and redirect.
func TestFollowsTheLeader(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := newNetwork()
		a, _ := serve(t, emulator.Config{}, n.listen("a:5050"))
		b, _ := serve(t, emulator.Config{Cluster: cluster.Config{MasterID: "second"}}, n.listen("b:5050"))
		b.Follow("a:5050")
		f := start(t, master.Config{Masters: []string{"b:5050", "a:5050"}, Dial: n.dial})
		synctest.Wait()
		if leader := f.Leader(); leader != "http://a:5050/master" {
			t.Fatalf("the leader is %q", leader)
		}
		for _, step := range []struct {
			to, from *emulator.Emulator
			at       string
		}{{b, a, "b:5050"}, {a, b, "a:5050"}} {
			step.to.Lead()
			step.from.Follow(step.at)
			step.from.Cut()
			pass(5 * time.Second)
			if s := f.Status(); !s.Subscribed || !strings.Contains(s.Master, step.at) {
				t.Fatalf("after %s took over: %+v", step.at, s)
			}
			if err := f.Call(t.Context(), revive()); err != nil {
				t.Fatalf("a call to %s: %v", step.at, err)
			}
		}
		if f.saves != 1 {
			t.Fatalf("the framework changed its id: saved %d times", f.saves)
		}
	})
}

// TestARedirectedCallEndsTheSubscription changes the leader without breaking the stream: a call finds out.
func TestARedirectedCallEndsTheSubscription(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := newNetwork()
		a, _ := serve(t, emulator.Config{}, n.listen("a:5050"))
		serve(t, emulator.Config{Cluster: cluster.Config{MasterID: "second"}}, n.listen("b:5050"))
		f := start(t, master.Config{Masters: []string{"a:5050"}, Dial: n.dial})
		synctest.Wait()
		a.Follow("b:5050")
		if err := f.Call(t.Context(), revive()); !errors.Is(err, master.ErrNotSubscribed) {
			t.Fatalf("a call to a master that does not lead any more returned %v", err)
		}
		pass(time.Second)
		if err := f.Call(t.Context(), revive()); err != nil || !strings.Contains(f.Leader(), "b:5050") {
			t.Fatalf("a call to the new leader (%s) returned %v", f.Leader(), err)
		}
	})
}

// TestMastersThatPointAtOneAnother must not be followed for ever, nor asked all the time.
func TestMastersThatPointAtOneAnother(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := newNetwork()
		a, _ := serve(t, emulator.Config{}, n.listen("a:5050"))
		b, _ := serve(t, emulator.Config{}, n.listen("b:5050"))
		a.Follow("b:5050")
		b.Follow("a:5050")
		f := start(t, master.Config{Masters: []string{"a", "b"}, Dial: n.dial, Random: func() float64 { return 0.999 }})
		pass(10 * time.Minute)
		if err := f.Status().Err; err == nil || !strings.Contains(err.Error(), "redirect to one another") {
			t.Fatalf("status tells %v", err)
		}
		if dials := n.dials(); dials > 10*(600/15+10) {
			t.Fatalf("%d connections in ten minutes", dials)
		}
	})
}

// TestNoLeaderIsWaitedFor tells why nothing goes on, and goes on when there is a leader.
func TestNoLeaderIsWaitedFor(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := newNetwork()
		e, _ := serve(t, emulator.Config{}, n.listen("a:5050"))
		e.Follow("")
		f := start(t, master.Config{Masters: []string{"a", "nobody"}, Dial: n.dial})
		pass(time.Minute)
		err := f.Status().Err
		var refused *master.RefusedError
		if !errors.As(err, &refused) || refused.Code != 503 || !strings.Contains(err.Error(), "nobody:5050: connection refused") {
			t.Fatalf("status tells %v", err)
		}
		e.Lead()
		pass(16 * time.Second)
		if !f.Status().Subscribed {
			t.Fatalf("status is %+v", f.Status())
		}
	})
}

// TestAMasterThatStaysAway is told of in the status, attempt by attempt, and in the log ever more seldom.
func TestAMasterThatStaysAway(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := newNetwork()
		l := n.listen("master:5050")
		_, stop := serve(t, emulator.Config{}, l)
		var log bytes.Buffer
		f := start(t, master.Config{
			Masters: []string{"master"}, Dial: n.dial, Logger: slog.New(slog.NewTextHandler(&log, nil)), Random: func() float64 { return 0.9 },
			FirstWait: time.Second, LongestWait: 10 * time.Second,
		})
		synctest.Wait()
		if s := f.Status(); !s.Subscribed || s.Attempts != 0 || !s.Next.IsZero() {
			t.Fatalf("subscribed, status is %+v", s)
		}
		stop()
		synctest.Wait()
		lost := time.Now()
		if s := f.Status(); s.Subscribed || s.Attempts != 0 || s.Next != lost.Add(900*time.Millisecond) || s.ErrAt != lost || s.Err == nil {
			t.Fatalf("as the subscription ends, status is %+v", s)
		}
		pass(time.Second)
		if s := f.Status(); s.Attempts != 1 || s.Next != lost.Add(2700*time.Millisecond) || s.Since != lost || s.ErrAt != lost.Add(900*time.Millisecond) {
			t.Fatalf("after an attempt, status is %+v", s)
		}
		pass(24 * time.Hour)
		if s := f.Status(); s.Attempts < 9000 || s.Attempts > 10_000 || time.Until(s.Next) <= 0 {
			t.Fatalf("after a day, status is %+v", s)
		}
		if got := strings.Count(log.String(), "level=WARN"); got != 15 { // the end, and attempts 1, 2, 4 to 8192
			t.Errorf("a day's absence is told of %d times:\n%s", got, log.String())
		}
		serve(t, emulator.Config{}, n.listen("master:5050"))
		pass(time.Minute)
		if s := f.Status(); !s.Subscribed || s.Attempts != 0 || !s.Next.IsZero() || s.Err != nil {
			t.Errorf("subscribed again, status is %+v", s)
		}
		if got := strings.Count(log.String(), "subscribed to a Mesos master"); got != 2 {
			t.Errorf("it is told %d times that it is subscribed, of 2", got)
		}
	})
}

// TestACutStreamIsBegunAgain breaks the first connection after every number of bytes that can matter.
func TestACutStreamIsBegunAgain(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := newNetwork()
		e, _ := serve(t, emulator.Config{}, n.listen("master:5050"))
		e.Do(addAgent)
		for bytes := 0; bytes < 1200; bytes += 7 {
			var conns atomic.Int64
			n.fault = func(conn net.Conn) net.Conn {
				if conns.Add(1) == 1 {
					return &short{Conn: conn, left: bytes}
				}
				return conn
			}
			f := start(t, master.Config{Masters: []string{"master"}, Dial: n.dial})
			pass(3 * time.Second)
			if begun, over := f.subscriptions(); !f.Status().Subscribed || begun != over+1 || begun > 2 {
				t.Fatalf("cut after %d bytes: %d subscriptions began and %d ended; %+v", bytes, begun, over, f.Status())
			}
			if got := f.heard(scheduler.Event_OFFERS); got == 0 {
				t.Fatalf("cut after %d bytes: no offer came", bytes)
			}
			if begun, _ := f.subscriptions(); begun == 2 && !strings.Contains(f.lastLost().Error(), "connection") {
				t.Fatalf("cut after %d bytes: lost for %v", bytes, f.lastLost())
			}
			if err := f.Call(t.Context(), &scheduler.Call{Type: scheduler.Call_TEARDOWN}); err != nil {
				t.Fatal(err)
			}
			f.cancel()
			<-f.ended
			synctest.Wait()
		}
	})
}

// TestSilenceEndsASubscription lets a connection die without a word: three heartbeats are waited for.
func TestSilenceEndsASubscription(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := newNetwork()
		serve(t, emulator.Config{}, n.listen("master:5050"))
		var mute atomic.Bool
		n.fault = func(conn net.Conn) net.Conn { return newDeaf(conn, &mute) }
		f := start(t, master.Config{Masters: []string{"master"}, Dial: n.dial})
		pass(10 * time.Minute)
		if begun, _ := f.subscriptions(); begun != 1 {
			t.Fatalf("%d subscriptions with heartbeats", begun)
		}
		mute.Store(true)
		pass(40 * time.Second)
		if _, over := f.subscriptions(); over != 0 {
			t.Fatalf("given up too soon: %v", f.lastLost())
		}
		pass(25 * time.Second)
		if _, over := f.subscriptions(); over != 1 || !strings.Contains(f.lastLost().Error(), "silent") {
			t.Fatalf("%d subscriptions ended; %v", over, f.lastLost())
		}
		mute.Store(false)
		pass(30 * time.Second)
		if !f.Status().Subscribed || f.Status().Framework != f.ids[0] {
			t.Fatalf("status is %+v", f.Status())
		}
	})
}

// TestACallFindsOutThatTheSubscriptionIsOver holds for each of the answers by which a master says so, while the stream looks well.
func TestACallFindsOutThatTheSubscriptionIsOver(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		begins string
		happen func(t *testing.T, n *network, e *emulator.Emulator, stop func(), f *framework)
	}{
		"not subscribed": {"Framework is not subscribed", func(_ *testing.T, _ *network, e *emulator.Emulator, _ func(), _ *framework) { e.Cut() }},
		"unknown framework": {"Framework cannot be found", func(t *testing.T, n *network, _ *emulator.Emulator, stop func(), _ *framework) {
			t.Helper()
			stop()
			serve(t, emulator.Config{Cluster: cluster.Config{MasterID: "another"}}, n.listen("master:5050"))
		}},
		"another stream": {"The stream ID", func(t *testing.T, n *network, _ *emulator.Emulator, _ func(), f *framework) {
			t.Helper()
			other := &framework{id: f.id}
			other.start(t, master.Config{Masters: []string{"master"}, Dial: n.dial})
		}},
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T) {
				n := newNetwork()
				e, stop := serve(t, emulator.Config{}, n.listen("master:5050"))
				var mute atomic.Bool
				first := true
				n.fault = func(conn net.Conn) net.Conn {
					if !first {
						return conn
					}
					first = false
					return newDeaf(conn, &mute)
				}
				f := start(t, master.Config{Masters: []string{"master"}, Dial: n.dial})
				synctest.Wait()
				mute.Store(true)
				test.happen(t, n, e, stop, f)
				pass(time.Second)
				err := f.Call(t.Context(), revive())
				var refused *master.RefusedError
				if !errors.Is(err, master.ErrNotSubscribed) || errors.Is(err, master.ErrUnanswered) || !errors.As(err, &refused) || !strings.HasPrefix(refused.Text, test.begins) {
					t.Fatalf("the call returned %v", err)
				}
				pass(2 * time.Second)
				if begun, over := f.subscriptions(); begun != 2 || over != 1 {
					t.Fatalf("%d subscriptions began and %d ended", begun, over)
				}
				if err := f.Call(t.Context(), revive()); err != nil {
					t.Fatalf("the next call returned %v", err)
				}
			})
		})
	}
}

// TestTwoProcessesWithOneID ends the one that was there first.
func TestTwoProcessesWithOneID(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := newNetwork()
		serve(t, emulator.Config{}, n.listen("master:5050"))
		cfg := master.Config{Masters: []string{"master"}, Dial: n.dial}
		f := start(t, cfg)
		synctest.Wait()
		other := &framework{id: f.id}
		other.start(t, cfg)
		synctest.Wait()
		if err := <-f.ended; !errors.Is(err, master.ErrReplaced) {
			t.Fatalf("the first process's Run returned %v", err)
		}
		if !other.Status().Subscribed || !errors.Is(f.lastLost(), master.ErrReplaced) {
			t.Fatalf("the first lost its subscription for %v; the second: %+v", f.lastLost(), other.Status())
		}
	})
}

// TestTwoProcessesThatBothWantTheID take it from one another ever more rarely.
func TestTwoProcessesThatBothWantTheID(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := newNetwork()
		serve(t, emulator.Config{}, n.listen("master:5050"))
		cfg := master.Config{Masters: []string{"master"}, Dial: n.dial, Retake: time.Minute}
		f := start(t, cfg)
		synctest.Wait()
		other := &framework{id: f.id}
		other.start(t, cfg)
		pass(10 * time.Minute)
		soon, _ := f.subscriptions()
		pass(3 * time.Hour)
		begun, _ := f.subscriptions()
		if soon < 2 || begun-soon > 8 {
			t.Fatalf("%d subscriptions in ten minutes, %d in three hours", soon, begun)
		}
	})
}

// TestARefusedFrameworkIsToldOnce does not ask again what a master refuses.
func TestARefusedFrameworkIsToldOnce(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := newNetwork()
		serve(t, emulator.Config{}, n.listen("master:5050"))
		bad := info()
		bad.Roles = []string{"not/../good"}
		f := start(t, master.Config{Masters: []string{"master"}, Dial: n.dial, Framework: bad})
		err := <-f.ended
		var refused *master.RefusedError
		if !errors.As(err, &refused) || refused.Code != 0 || !strings.Contains(err.Error(), "not/../good") || n.dials() != 1 {
			t.Fatalf("Run returned %v after %d connections", err, n.dials())
		}
	})
}

// TestARemovedFramework ends, or goes on as a new one, as the Config says.
func TestARemovedFramework(t *testing.T) {
	t.Parallel()
	for name, renew := range map[string]bool{"end": false, "renew": true} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T) {
				n := newNetwork()
				serve(t, emulator.Config{}, n.listen("master:5050"))
				cfg := master.Config{Masters: []string{"master"}, Dial: n.dial, Renew: renew}
				f := start(t, cfg)
				synctest.Wait()
				f.cancel()
				<-f.ended
				pass(2 * time.Minute) // the failover timeout is one
				f.start(t, cfg)
				if !renew {
					if err := <-f.ended; !errors.Is(err, master.ErrRemoved) {
						t.Fatalf("Run returned %v", err)
					}
					return
				}
				pass(time.Second)
				if len(f.ids) != 2 || f.ids[0] == f.ids[1] || f.id != f.ids[1] || f.saves != 2 {
					t.Fatalf("subscribed as %q, saved %q", f.ids, f.id)
				}
			})
		})
	}
}

// TestAnIDThatCannotBeKept is not used, and does not make one framework after another.
func TestAnIDThatCannotBeKept(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := newNetwork()
		e, _ := serve(t, emulator.Config{}, n.listen("master:5050"))
		f := &framework{failing: errors.New("the disk is full")}
		f.start(t, master.Config{Masters: []string{"master"}, Dial: n.dial})
		pass(time.Minute)
		if begun, _ := f.subscriptions(); begun != 0 || !errors.Is(f.Status().Err, f.failing) {
			t.Fatalf("%d subscriptions; %v", begun, f.Status().Err)
		}
		f.mu.Lock()
		f.failing = nil
		f.mu.Unlock()
		pass(20 * time.Second)
		frameworks := 0
		e.Do(func(c *cluster.Cluster) { frameworks = len(c.Frameworks()) })
		if f.saves != 1 || !f.Status().Subscribed || frameworks != 1 {
			t.Fatalf("saved %d times, %d frameworks; %+v", f.saves, frameworks, f.Status())
		}
	})
}

// TestAMasterThatDiesAllTheTime is replaced every five seconds by one that knows nothing; the framework keeps its id and is soon back.
func TestAMasterThatDiesAllTheTime(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := newNetwork()
		_, stop := serve(t, emulator.Config{}, n.listen("master:5050"))
		f := start(t, master.Config{Masters: []string{"master"}, Dial: n.dial})
		for range 100 {
			pass(5 * time.Second)
			if !f.Status().Subscribed {
				t.Fatalf("not subscribed after five seconds: %v", f.Status().Err)
			}
			stop()
			_, stop = serve(t, emulator.Config{}, n.listen("master:5050"))
		}
		synctest.Wait()
		if f.saves != 1 {
			t.Fatalf("the id was saved %d times", f.saves)
		}
	})
}

// TestAgents lists what is registered.
func TestAgents(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := newNetwork()
		e, _ := serve(t, emulator.Config{}, n.listen("master:5050"))
		e.Do(addAgent)
		f := start(t, master.Config{Masters: []string{"master"}, Dial: n.dial})
		synctest.Wait()
		agents, err := f.Agents(t.Context())
		if err != nil || len(agents) != 1 || agents[0].AgentInfo.Hostname != "agent" || len(agents[0].TotalResources) < 3 {
			t.Fatalf("agents are %+v (%v)", agents, err)
		}
		e.Follow("")
		if _, err := f.Agents(t.Context()); err == nil || !strings.Contains(err.Error(), "No leader elected") {
			t.Fatalf("without a leader: %v", err)
		}
		f.cancel()
		<-f.ended
		if _, err := f.Agents(t.Context()); !errors.Is(err, master.ErrNotSubscribed) {
			t.Fatalf("without a subscription: %v", err)
		}
	})
}

// TestConfigIsJudged names what is wrong, and never prints a password.
func TestConfigIsJudged(t *testing.T) {
	t.Parallel()
	good := func() master.Config {
		return master.Config{Framework: info(), Identity: &framework{}, Masters: []string{"http://[::1]:5050/mesos/"}}
	}
	if _, err := master.New(good()); err != nil {
		t.Fatal(err)
	}
	secret := func() (string, error) { return "", nil }
	for want, spoil := range map[string]func(*master.Config){
		"set Framework":      func(c *master.Config) { c.Framework = nil },
		"set Identity":       func(c *master.Config) { c.Identity = nil },
		"give an address":    func(c *master.Config) { c.Masters = nil },
		"both or neither":    func(c *master.Config) { c.Principal = "me" },
		"both or":            func(c *master.Config) { c.Secret = secret },
		"calls in flight":    func(c *master.Config) { c.InFlight = 1 << 20 },
		"not be negative":    func(c *master.Config) { c.Timeout = -1 },
		"of at most 64":      func(c *master.Config) { c.Masters = make([]string, 65) },
		"is not one such as": func(c *master.Config) { c.Masters = []string{"ftp://host"} },
		"is not a URL":       func(c *master.Config) { c.Masters = []string{"http://me:hunter2@ho st"} },
		"name or password":   func(c *master.Config) { c.Masters = []string{"http://me:hunter2@host"} },
	} {
		cfg := good()
		spoil(&cfg)
		_, err := master.New(cfg)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("New returned %v, want %q", err, want)
		}
	}
}
