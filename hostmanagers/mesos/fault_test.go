package mesos_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	mesosapi "github.com/mesos/mesos-go/api/v1/lib"

	"github.com/paceline-sched/paceline/core/driver"
	"github.com/paceline-sched/paceline/core/workload"
	"github.com/paceline-sched/paceline/hostmanagers/mesos"
	"github.com/paceline-sched/paceline/hostmanagers/mesos/emulator"
	"github.com/paceline-sched/paceline/hostmanagers/mesos/emulator/cluster"
)

// smallCore is what a core is to a driver: it has instances, of which each wants one run that ends well, acknowledges what it hears, launches the next
// run of an instance whose last one came to nothing, and ends what it does not know.
type smallCore struct {
	driver *mesos.Driver

	mu        sync.Mutex
	connected bool
	hosts     map[string]bool
	instances []instance
	problems  []string
	done      int
}

type instance struct {
	run      uint32 // the number of the present run; 0: none yet
	live, ok bool
}

func (c *smallCore) id(n int) workload.RunID {
	return workload.RunID{Job: workload.JobID{3}, Instance: uint32(n), Generation: 1, Run: c.instances[n].run} //nolint:gosec // not negative
}

func (c *smallCore) Inventory(i driver.Inventory) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.connected = true
	clear(c.hosts)
	c.putHosts(i.Hosts)
	known := map[workload.RunID]bool{}
	for n := range i.Runs {
		known[i.Runs[n].Run] = true
		c.note(&i.Runs[n])
	}
	var unknown []workload.RunID
	for n := range c.instances {
		if id := c.id(n); c.instances[n].live && !known[id] {
			unknown = append(unknown, id)
		}
	}
	if len(unknown) > 0 {
		_ = c.driver.Reconcile(context.Background(), unknown) // out of contact again: the next inventory will tell
	}
}

func (c *smallCore) putHosts(hosts []driver.Host) {
	for n := range hosts {
		c.hosts[hosts[n].Name] = hosts[n].Ready && hosts[n].Capacity["cpu_milli"] >= 500
	}
}

func (c *smallCore) HostsChanged(changed []driver.Host, removed []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.putHosts(changed)
	for _, name := range removed {
		delete(c.hosts, name)
	}
}

func (c *smallCore) Disconnected(error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.connected = false
}

func (c *smallCore) Statuses(statuses []driver.Status) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for n := range statuses {
		c.note(&statuses[n])
	}
}

// note takes in a status. c.mu is held.
func (c *smallCore) note(s *driver.Status) {
	_ = c.driver.Acknowledge(context.Background(), []driver.Token{s.Token}) // fails at the end only
	i := &c.instances[s.Run.Instance]
	switch {
	case s.Run.Run != i.run || !i.live:
		if !s.State.Traits().Terminal {
			_ = c.driver.Kill(context.Background(), []driver.Kill{{Run: s.Run}}) // it will be heard of again
		}
	case s.State == workload.RunSucceeded:
		i.live, i.ok = false, true
		c.done++
	case s.State.Traits().Terminal:
		i.live = false
		if s.State != workload.RunLost && s.State != workload.RunKilled {
			c.problems = append(c.problems, fmt.Sprintf("run %s ended as %s %s: %s", s.Run, s.State, s.Reason, s.Message))
		}
	}
}

// launch starts a run of every instance that needs one, on any host that looks able, and returns how many are done.
func (c *smallCore) launch(dice *rand.Rand) int {
	c.mu.Lock()
	var hosts []string
	for name, able := range c.hosts {
		if able {
			hosts = append(hosts, name)
		}
	}
	slices.Sort(hosts)
	var list []driver.Launch
	for n := range c.instances {
		if i := &c.instances[n]; !i.live && !i.ok && len(hosts) > 0 && c.connected && len(list) < 50 {
			i.run++
			i.live = true
			list = append(list, driver.Launch{
				Run: c.id(n), Host: hosts[dice.IntN(len(hosts))], Command: []string{"exit", "0"}, KillGrace: time.Second,
				Needs: map[string]int64{"cpu_milli": 200, "memory_mib": 64},
			})
		}
	}
	done := c.done
	c.mu.Unlock()
	if len(list) > 0 {
		if err := c.driver.Launch(context.Background(), list); err != nil {
			c.mu.Lock()
			for n := range list { // nothing of it happened
				c.instances[list[n].Run.Instance].live = false
			}
			c.mu.Unlock()
		}
	}
	return done
}

// hasty is a driver's configuration for clusters where seconds are milliseconds.
func hasty(c *mesos.Config) {
	const ms = time.Millisecond
	c.Limits.UnreachableGrace, c.Limits.ReregisterGrace, c.Limits.OfferWait = 200*ms, 100*ms, 300*ms
	c.Limits.SilenceAfter, c.Limits.DoubtAfter, c.Limits.KillResend, c.Limits.ReconcilePause = 300*ms, 100*ms, 100*ms, 10*ms
	c.Limits.ReviveEvery, c.Limits.LooseFor, c.Limits.HostsWait, c.Limits.HearsayFor = 20*ms, 300*ms, 200*ms, 400*ms
	c.Limits.ProbeEvery = 300 * ms
}

// TestFaults breaks connections, delays and repeats what the master says, leaves the cluster without a leader, and takes agents away and brings them
// back, while tasks run: each instance ends well once, no run is started twice, and in the end the master has no task and no offer of the framework.
func TestFaults(t *testing.T) {
	t.Parallel()
	const instances, rounds = 300, 40
	dice := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // a test's
	var mu sync.Mutex
	begun := map[string]int{}
	duplicates := 0
	w := newWorld(t, emulator.Config{
		Cluster: cluster.Config{
			PingTimeout: 30 * time.Millisecond, MaxPings: 2, AllocationInterval: 20 * time.Millisecond,
			Behave: func(t *mesosapi.TaskInfo) cluster.Behaviour {
				mu.Lock()
				defer mu.Unlock()
				begun[t.TaskID.Value]++
				return behave(t)
			},
		},
		Faults: emulator.Faults{Delay: time.Millisecond, Duplicate: func() bool { duplicates++; return duplicates%7 == 0 }},
	})
	hasty(&w.config)
	d, err := mesos.New(w.config)
	if err != nil {
		t.Fatal(err)
	}
	core := &smallCore{driver: d, hosts: map[string]bool{}, instances: make([]instance, instances)}
	ctx, cancel := context.WithCancel(t.Context())
	if err := d.Start(ctx, core); err != nil {
		t.Fatal(err)
	}
	defer d.Wait()
	defer cancel()
	d.Demand(true)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(drivertestPatience)
	for n := 0; ; n++ {
		if n < 4*rounds {
			w.harm(n, dice)
		}
		if core.launch(dice) == instances && n >= 4*rounds {
			break
		}
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("%d of %d instances have ended well; the driver has %+v, and problems were %v", core.done, instances, d.Stats(), core.problems)
		}
	}
	d.Demand(false)
	for !w.clean(d) {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("the driver has %+v, and the master %v", d.Stats(), w.left())
		}
	}
	mu.Lock()
	defer mu.Unlock()
	for task, times := range begun {
		if times > 1 {
			t.Errorf("task %s was begun %d times", task, times)
		}
	}
	for _, problem := range core.problems {
		t.Error(problem)
	}
}

// drivertestPatience bounds the whole test.
const drivertestPatience = 2 * time.Minute

// harm does something bad to the cluster now and then, and mends what was done before.
func (w *world) harm(n int, dice *rand.Rand) {
	agent := w.agents["agent-"+strconv.Itoa(dice.IntN(2))+".local"]
	switch n % 16 {
	case 3:
		w.emulator.Cut()
	case 7:
		w.emulator.Follow("")
		w.emulator.Cut()
	case 9:
		w.emulator.Lead()
	case 11:
		w.emulator.Do(func(c *cluster.Cluster) { c.LoseAgent(agent) })
	case 15:
		w.emulator.Do(func(c *cluster.Cluster) {
			for _, id := range w.agents {
				c.ReturnAgent(id)
			}
		})
	}
}

// clean reports whether neither side has anything left.
func (w *world) clean(d *mesos.Driver) bool {
	s := d.Stats()
	return s.Runs == 0 && s.Offers == 0 && s.Unacked == 0 && len(w.left()) == 0
}

// left lists the framework's tasks and offers at the master.
func (w *world) left() (list []string) {
	w.emulator.Do(func(c *cluster.Cluster) {
		for _, t := range c.Tasks() {
			list = append(list, t.TaskID.Value+" "+t.GetState().String())
		}
		for _, f := range c.Frameworks() {
			for _, o := range f.Offers {
				list = append(list, o.ID.Value)
			}
		}
	})
	return list
}
