package members_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/paceline-sched/paceline/cmd/paceline/internal/members"
	"github.com/paceline-sched/paceline/core/cluster"
	"github.com/paceline-sched/paceline/core/driver"
	"github.com/paceline-sched/paceline/core/engine"
	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/respool"
	"github.com/paceline-sched/paceline/core/scheduler"
	"github.com/paceline-sched/paceline/core/shard"
	"github.com/paceline-sched/paceline/core/store"
	"github.com/paceline-sched/paceline/core/store/memstore"
	"github.com/paceline-sched/paceline/core/workload"
	"github.com/paceline-sched/paceline/hostmanagers/simulated"

	shardruntime "github.com/paceline-sched/paceline/hostmanagers/shard"
)

func TestMain(m *testing.M) {
	// The compressor keeps channels. Made in a bubble, they would be of no use in the next.
	frame, err := store.AppendFrame(nil, make([]byte, 2*store.CompressFrom))
	if err == nil {
		_, err = store.OpenFrame(frame)
	}
	if err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m)
}

var user = scheduler.Caller{Principal: "ada"}

// place is a cluster somewhere: a simulated one, whose drivers can be told to fail and to leave.
type place struct {
	world *simulated.Cluster

	mu       sync.Mutex
	down     error // connections fail with it
	left     int   // times that a driver took leave
	leaving  func()
	deaf     error // what leaving ends with
	starts   int   // of drivers
	identity *members.Identity
	sink     driver.Sink // of the last driver that started
}

// link is one connection to a place. It is a framework that makes a name of its own at the first connection.
type link struct {
	*simulated.Driver
	to *place
}

func (l link) Start(ctx context.Context, sink driver.Sink) error {
	l.to.mu.Lock()
	down, id := l.to.down, l.to.identity
	l.to.sink = sink
	l.to.starts++
	l.to.mu.Unlock()
	if down != nil {
		return down
	}
	if id != nil {
		name, err := id.Load()
		if err == nil && name == "" {
			err = id.Save(fmt.Sprintf("framework-%d", time.Now().UnixNano()))
		}
		if err != nil {
			return err
		}
	}
	return l.Driver.Start(ctx, sink)
}

func (l link) Leave(ctx context.Context) error {
	l.to.mu.Lock()
	defer l.to.mu.Unlock()
	l.to.left++
	if l.to.leaving != nil {
		l.to.leaving()
	}
	return errors.Join(l.to.deaf, ctx.Err())
}

func (l link) Describe() driver.Description {
	return driver.Description{Details: map[string]string{"leader": "m1"}}
}

func newPlace(t *testing.T, name string, hosts int) *place {
	t.Helper()
	var list []driver.Host
	for n := range hosts {
		list = append(list, driver.Host{
			Name: fmt.Sprintf("%s-%02d", name, n), Ready: true, Capacity: map[string]int64{"cpu_milli": 1000, "memory_mib": 1000},
			Attributes: map[string]string{"rack": fmt.Sprintf("%s-r%d", name, n/2)},
		})
	}
	world, err := simulated.New(simulated.Config{Hosts: list})
	if err != nil {
		t.Fatal(err)
	}
	return &place{world: world}
}

func (p *place) set(change func(*place)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change(p)
}

// scene is a cell with its clusters, on a disk that outlives it.
type scene struct {
	t      *testing.T
	cell   *engine.Engine
	store  store.Store
	m      *members.Manager
	stop   context.CancelFunc
	ended  chan struct{}
	places map[string]*place
}

// open starts a cell. Clusters are found by the name that stands in for a master.
func open(t *testing.T, disk *memstore.Disk, places map[string]*place, flags ...members.Member) *scene {
	t.Helper()
	db, err := memstore.Open(t.Context(), disk, memstore.Config{Cell: "test"})
	if err != nil {
		t.Fatal(err)
	}
	keys, err := store.NewKeyspace("test")
	if err != nil {
		t.Fatal(err)
	}
	cell, err := engine.Open(t.Context(), engine.Config{Cell: scheduler.Config{Cell: "test", Seed: 1}, Store: db, Keys: keys})
	if err != nil {
		t.Fatal(err)
	}
	s := &scene{t: t, cell: cell, store: db, ended: make(chan struct{}), places: places}
	s.m = members.New(members.Config{Cell: cell, Flags: flags, Prepare: s.prepare, Serve: s.serve, Log: slog.New(slog.DiscardHandler)})
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	s.stop = cancel
	go func() {
		defer close(s.ended)
		if err := cell.Run(ctx); err != nil {
			t.Error(err)
		}
	}()
	if err := s.m.Open(t.Context()); err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *scene) prepare(spec *cluster.Spec, id *members.Identity) (func() (driver.Driver, error), error) {
	var p *place
	if spec.Kubernetes != nil {
		p = s.places[spec.Kubernetes.Kubeconfig]
	} else {
		p = s.places[spec.Mesos.Masters[0]]
	}
	if p == nil {
		return nil, errors.New("there is no such master")
	}
	return func() (driver.Driver, error) {
		p.set(func(p *place) { p.identity = id })
		return link{Driver: p.world.Driver(), to: p}, nil
	}, nil
}

func (s *scene) serve(ctx context.Context, m members.Shard) error {
	r, err := shardruntime.New(shardruntime.Config{
		Machine: shard.Config{ID: m.ID, Cluster: m.Cluster}, Driver: m.Driver, Core: s.cell, Parts: m.Parts,
	})
	if err != nil {
		return err
	}
	if err := s.cell.Attach(ctx, r); err != nil {
		return err
	}
	return r.Run(ctx)
}

func (s *scene) close() {
	s.stop()
	<-s.ended
	s.m.Close()
	if err := s.store.Close(); err != nil {
		s.t.Error(err)
	}
}

func east(shards int) cluster.Spec {
	return cluster.Spec{Name: "east", Shards: shards, Mesos: &cluster.Mesos{Masters: []string{"http://east:5050"}}}
}

func (s *scene) add(spec cluster.Spec) {
	s.t.Helper()
	if _, err := s.m.Add(s.t.Context(), user, spec); err != nil {
		s.t.Fatal(err)
	}
	settle()
}

func (s *scene) view(name string) (v scheduler.ClusterView) {
	s.t.Helper()
	if err := s.cell.Read(s.t.Context(), func(r scheduler.Reader) {
		for _, one := range r.Clusters() {
			if one.Name == name {
				v = one
			}
		}
	}); err != nil {
		s.t.Fatal(err)
	}
	return v
}

// submit has instances run until they are killed, each of a host's half.
func (s *scene) submit(id byte, instances uint32) workload.JobID {
	s.t.Helper()
	spec := &workload.JobSpec{
		Name: fmt.Sprintf("job-%d", id), Pool: respool.DefaultID, Owner: "ada", Kind: workload.Service, Instances: instances,
		Template: workload.TaskTemplate{Needs: resource.Vector{resource.CPU: 500, resource.Memory: 64}},
	}
	a, err := s.cell.Do(s.t.Context(), user, scheduler.SubmitJob{ID: workload.JobID{id}, Spec: spec, SpecBytes: 200})
	if err != nil || a.Err != nil {
		s.t.Fatal(err, a.Err)
	}
	settle()
	return workload.JobID{id}
}

// tasks returns the live runs of a job by instance, with their numbers.
func (s *scene) tasks(id workload.JobID) (running int, restarted []uint32) {
	s.t.Helper()
	if err := s.cell.Read(s.t.Context(), func(r scheduler.Reader) {
		page, _ := r.Tasks(id, 0, 1000, scheduler.TaskFilter{})
		for _, task := range page {
			if task.RunState == workload.RunRunning {
				running++
			}
			if task.Run > 1 {
				restarted = append(restarted, task.Instance)
			}
		}
	}); err != nil {
		s.t.Fatal(err)
	}
	return running, restarted
}

func settle() {
	time.Sleep(time.Second) // of the bubble's clock
	synctest.Wait()
}

func TestAnAddedClusterOutlivesItsServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk, places := &memstore.Disk{}, map[string]*place{"http://east:5050": newPlace(t, "e", 4)}
		s := open(t, disk, places)
		s.add(east(1))
		v := s.view("east")
		if v.Hosts != 4 || v.Ready != 4 || v.Record == nil || !strings.HasPrefix(v.Record.Identity, "framework-") || v.Record.By != "ada" {
			t.Fatalf("the added cluster is %+v, record %+v", v, v.Record)
		}
		if c := s.m.Connections()["east"]; c.Kind != cluster.KindMesos || c.ByFlags || c.Error != "" || c.Details["leader"] != "m1" || c.Capabilities == nil {
			t.Errorf("its connection is %+v", c)
		}
		if existed, err := s.m.Add(t.Context(), user, east(1)); !existed || err != nil {
			t.Errorf("added twice: existed %v, %v", existed, err)
		}
		job := s.submit(1, 6)
		identity := v.Record.Identity
		s.close()

		s = open(t, disk, places)
		defer s.close()
		settle()
		if v := s.view("east"); v.Hosts != 4 || v.Record.Identity != identity || v.Runs != 6 {
			t.Errorf("after a restart the cluster has %d hosts and %d runs and knows the cell as %s, not %s", v.Hosts, v.Runs, v.Record.Identity, identity)
		}
		if running, restarted := s.tasks(job); running != 6 || restarted != nil {
			t.Errorf("after a restart %d of 6 run, and %v were started again", running, restarted)
		}
	})
}

func TestAClusterThatCannotBeReachedIsTriedAgainAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		there, away := newPlace(t, "l", 2), newPlace(t, "e", 2)
		away.down = errors.New("connection refused")
		flag := members.Member{Name: "local", Kind: cluster.KindLocal, Connect: func() (driver.Driver, error) { return there.world.Driver(), nil }}
		s := open(t, &memstore.Disk{}, map[string]*place{"http://east:5050": away}, flag)
		defer s.close()
		s.add(east(2))
		time.Sleep(10 * time.Second)
		c := s.m.Connections()["east"]
		if c.Attempts < 3 || c.Attempts > 5 || !strings.Contains(c.Error, "connection refused") || c.Next.Before(time.Now()) || c.ErrorAt.IsZero() {
			t.Errorf("after 11 s out of reach it is %+v", c)
		}
		if v := s.view("local"); v.Ready != 2 {
			t.Errorf("of the other cluster %d of 2 hosts are ready", v.Ready)
		}
		away.set(func(p *place) { p.down = nil })
		time.Sleep(2 * time.Minute)
		if v := s.view("east"); v.Ready != 2 || len(v.Shards) != 2 {
			t.Errorf("back again it has %d of 2 hosts ready in %d shards", v.Ready, len(v.Shards))
		}
	})
}

func TestRemoving(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		here, there := newPlace(t, "l", 5), newPlace(t, "e", 16)
		flag := members.Member{Name: "local", Kind: cluster.KindLocal, Connect: func() (driver.Driver, error) { return here.world.Driver(), nil }}
		disk, places := &memstore.Disk{}, map[string]*place{"http://east:5050": there}
		s := open(t, disk, places, flag)
		defer func() { s.close() }()
		s.add(east(2))
		job := s.submit(1, 8) // where there is more room
		before := s.view("east")
		if before.Runs == 0 {
			t.Fatal("nothing runs on the cluster")
		}
		_, _, err := s.m.Remove(t.Context(), user, "east", 0, false)
		var refusal *scheduler.Error
		if !errors.As(err, &refusal) || refusal.Kind != scheduler.FailedPrecondition || there.left != 0 {
			t.Fatalf("with live runs it is removed: %v, left %d times", err, there.left)
		}
		if _, _, err := s.m.Remove(t.Context(), user, "local", 0, true); !errors.As(err, &refusal) || refusal.Kind != scheduler.FailedPrecondition {
			t.Errorf("a cluster of the flags is removed: %v", err)
		}
		lost, warnings, err := s.m.Remove(t.Context(), user, "east", 0, true)
		if err != nil || lost != before.Runs || len(warnings) > 0 || there.left != 1 {
			t.Fatalf("removed by force: lost %d of %d, warnings %v, left %d times, %v", lost, before.Runs, warnings, there.left, err)
		}
		time.Sleep(time.Minute)
		if running, restarted := s.tasks(job); running != 8 || len(restarted) != before.Runs {
			t.Errorf("of 8 instances run %d, and %d of %d were started again", running, len(restarted), before.Runs)
		}
		if v := s.view("east"); v.Hosts != 0 || len(v.Shards) != 0 || v.Record != nil {
			t.Errorf("of the removed cluster is left %+v", v)
		}
		if v := s.view("local"); v.Runs != 8 {
			t.Errorf("on the other cluster run %d of 8", v.Runs)
		}
		s.add(east(1)) // under the same name as before
		if v := s.view("east"); v.Ready != 16 || v.Record.Version != 1 {
			t.Errorf("added again it has %d of 16 hosts ready", v.Ready)
		}
		if _, _, err := s.m.Remove(t.Context(), user, "east", 0, false); err != nil {
			t.Errorf("idle it is not removed: %v", err)
		}
		for host := range s.shardsOf() {
			if strings.HasPrefix(host, "e-") {
				t.Errorf("host %s of the removed cluster is still known", host)
			}
		}
		s.close()
		s = open(t, disk, places, flag)
		settle()
		if _, there := s.m.Connections()["east"]; there {
			t.Error("a removed cluster is connected to after a restart")
		}
	})
}

// TestRemovingAKubernetesClusterInVain: pods stay until somebody deletes them, so he hears whose they are. One where no pod ever was has nobody to be told.
func TestRemovingAKubernetesClusterInVain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		there, never := newPlace(t, "w", 2), newPlace(t, "n", 2)
		never.down = errors.New("connection refused")
		s := open(t, &memstore.Disk{}, map[string]*place{"west": there, "never": never})
		defer s.close()
		s.add(cluster.Spec{Name: "west", Kubernetes: &cluster.Kubernetes{Kubeconfig: "west"}})
		s.add(cluster.Spec{Name: "never", Kubernetes: &cluster.Kubernetes{Kubeconfig: "never"}})
		there.set(func(p *place) { p.deaf = errors.New("the API server is not there") })
		owner := s.view("west").Record.Identity
		_, warnings, err := s.m.Remove(t.Context(), user, "west", 0, true)
		if err != nil || len(warnings) != 1 || !strings.Contains(warnings[0], "pods of owner "+owner) || !strings.Contains(warnings[0], "not there") {
			t.Errorf("in vain it warns of %q and fails with %v", warnings, err)
		}
		if _, warnings, err := s.m.Remove(t.Context(), user, "never", 0, false); err != nil || warnings != nil || never.left != 0 {
			t.Errorf("never reached it warns of %q, was left %d times and fails with %v", warnings, never.left, err)
		}
	})
}

// TestCuttingAnew has a full cluster cut into more shards and fewer, and its server restarted with that: no run is lost, and no room is given twice.
func TestARemovalThatWasBegunIsCarriedThrough(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		there := newPlace(t, "e", 2)
		s := open(t, &memstore.Disk{}, map[string]*place{"http://east:5050": there})
		defer s.close()
		s.add(east(1))
		ctx, goAway := context.WithCancel(t.Context())
		there.set(func(p *place) { p.leaving = goAway })
		if _, warnings, err := s.m.Remove(ctx, user, "east", 0, false); err != nil || warnings != nil {
			t.Errorf("with nobody left to answer it warns of %q and fails with %v", warnings, err)
		}
		if v := s.view("east"); v.Record != nil || len(s.m.Connections()) > 0 || there.left != 1 {
			t.Errorf("the cluster is %+v, its connection %+v, left %d times", v, s.m.Connections(), there.left)
		}
	})
}

func TestAnUpdateThatWasKeptAndNotAnsweredComesIntoForce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		there := newPlace(t, "e", 4)
		s := open(t, &memstore.Disk{}, map[string]*place{"http://east:5050": there})
		defer s.close()
		s.add(east(1))
		if a, err := s.cell.Do(t.Context(), user, scheduler.UpdateCluster{Spec: east(2)}); err != nil || a.Err != nil {
			t.Fatal(err, a.Err)
		}
		update := func(spec cluster.Spec) {
			t.Helper()
			if err := s.m.Update(t.Context(), user, spec, 0); err != nil {
				t.Fatal(err)
			}
			settle()
		}
		update(east(2))
		if v := s.view("east"); len(v.Shards) != 2 || v.Ready != 4 || there.starts != 2 {
			t.Errorf("said again it is %d shards with %d of 4 hosts ready, after %d connections", len(v.Shards), v.Ready, there.starts)
		}
		labelled := east(2)
		labelled.Labels = map[string]string{"region": "eu"}
		update(labelled)
		if v := s.view("east"); v.Record.Spec.Labels["region"] != "eu" || there.starts != 2 {
			t.Errorf("its labels are %v, after %d connections", v.Record.Spec.Labels, there.starts)
		}
	})
}

func TestCuttingAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk, places := &memstore.Disk{}, map[string]*place{"http://east:5050": newPlace(t, "e", 12)}
		s := open(t, disk, places)
		defer func() { s.close() }()
		s.add(east(1))
		job := s.submit(1, 24) // all there is
		waits := s.submit(2, 4)
		for _, shards := range []int{3, 5, 2, 1, 4} {
			if err := s.m.Update(t.Context(), user, east(shards), 0); err != nil {
				t.Fatal(err)
			}
			settle()
			s.checkFull(job, waits, shards)
		}
		s.close()
		s = open(t, disk, places)
		settle()
		s.checkFull(job, waits, 4)
	})
}

func (s *scene) checkFull(job, waits workload.JobID, shards int) {
	s.t.Helper()
	time.Sleep(30 * time.Second)
	if v := s.view("east"); len(v.Shards) != shards || v.Ready != 12 || v.Used[resource.CPU] != v.Capacity[resource.CPU] {
		s.t.Fatalf("cut into %d shards it is %+v", shards, v)
	}
	if running, restarted := s.tasks(job); running != 24 || restarted != nil {
		s.t.Fatalf("cut into %d shards %d of 24 run, and %v were started again", shards, running, restarted)
	}
	if running, _ := s.tasks(waits); running != 0 {
		s.t.Fatalf("cut into %d shards %d run for which there is no room", shards, running)
	}
}

// TestAHostThatChangesItsDomainChangesItsShard moves every host of a full cluster through domains, some with a drained host, while statuses go on.
func TestAHostThatChangesItsDomainChangesItsShard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlace(t, "e", 6)
		s := open(t, &memstore.Disk{}, map[string]*place{"http://east:5050": p})
		defer s.close()
		s.add(east(3))
		job := s.submit(1, 12) // all there is
		waits := s.submit(2, 2)
		shards := s.shardsOf()
		drained := shard.HostID("east", "e-00")
		if a, err := s.cell.Do(t.Context(), user, scheduler.DrainHost{Host: drained, Draining: true}); err != nil || a.Err != nil {
			t.Fatal(err, a.Err)
		}
		moves := 0
		for round := range 4 {
			for n := range 6 {
				h := driver.Host{
					Name: fmt.Sprintf("e-%02d", n), Ready: true, Capacity: map[string]int64{"cpu_milli": 1000, "memory_mib": 1000},
					Attributes: map[string]string{"rack": fmt.Sprintf("e-r%d", (n*(round+1)+round+n/2)%3)},
				}
				p.sink.HostsChanged([]driver.Host{h}, nil)
				settle()
				now := s.shardsOf()
				if now[h.Name] != shards[h.Name] {
					moves++
				}
				shards = now
			}
			if v := s.view("east"); v.Hosts != 6 || v.Ready != 5 || v.Runs != 12 {
				t.Fatalf("after round %d the cluster is %+v", round, v)
			}
			if running, restarted := s.tasks(job); running != 12 || restarted != nil {
				t.Fatalf("after round %d run %d of 12, and %v were started again", round, running, restarted)
			}
			if running, _ := s.tasks(waits); running != 0 {
				t.Fatalf("after round %d %d run for which there is no room", round, running)
			}
		}
		if moves == 0 {
			t.Error("no host changed its shard")
		}
		if _, err := s.cell.Do(t.Context(), user, scheduler.StopJob{Job: job}); err != nil {
			t.Fatal(err)
		}
		settle()
		if running, _ := s.tasks(waits); running != 2 {
			t.Errorf("once there is room, %d of 2 run", running)
		}
		if v := s.view("east"); v.Runs != 2 {
			t.Errorf("%d of 2 runs are left", v.Runs)
		}
	})
}

// shardsOf returns the shard of each host.
func (s *scene) shardsOf() map[string]string {
	s.t.Helper()
	out := map[string]string{}
	if err := s.cell.Read(s.t.Context(), func(r scheduler.Reader) {
		page, _ := r.Hosts("", "", 1000)
		for _, h := range page {
			out[h.Name] = h.Shard
		}
	}); err != nil {
		s.t.Fatal(err)
	}
	return out
}
