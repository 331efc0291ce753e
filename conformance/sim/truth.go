package sim

import (
	"fmt"
	"slices"

	"github.com/paceline-sched/paceline/core/driver"
	"github.com/paceline-sched/paceline/core/scheduler"
	"github.com/paceline-sched/paceline/core/workload"
	"github.com/paceline-sched/paceline/hostmanagers/simulated"
)

// truth holds what the clusters really run against what users were promised.
type truth struct {
	w        *world
	launches map[workload.RunID]*driver.Launch // what the clusters were asked to run
	living   [][]simulated.Living              // by cluster, as last seen
	scratch  []simulated.Living
	seen     map[workload.RunID]bool // ever lived
	gone     map[workload.RunID]bool // lived and does not any more
}

func newTruth(w *world) *truth {
	return &truth{
		w: w, launches: map[workload.RunID]*driver.Launch{}, living: make([][]simulated.Living, w.opts.Clusters),
		seen: map[workload.RunID]bool{}, gone: map[workload.RunID]bool{},
	}
}

func (t *truth) launched(launches []driver.Launch) {
	for n := range launches {
		if t.launches[launches[n].Run] == nil {
			t.w.report.Runs++
		}
		t.launches[launches[n].Run] = &launches[n]
	}
}

// look checks a cluster after anything may have changed there.
func (t *truth) look(c *cluster) {
	at := slices.Index(t.w.clusters, c)
	t.scratch = c.world.Living(t.scratch[:0])
	if slices.Equal(t.scratch, t.living[at]) {
		return
	}
	t.follow(t.living[at], t.scratch)
	t.living[at] = append(t.living[at][:0], t.scratch...)
	t.checkHosts(c, t.living[at])
	t.checkInstances()
}

// follow notes which runs came and went. A run lives once.
func (t *truth) follow(before, after []simulated.Living) {
	now := make(map[workload.RunID]bool, len(after))
	for _, l := range after {
		now[l.Run] = true
		if t.gone[l.Run] {
			t.w.fail(CheckRuns, "run %s lives a second time, on %s", l.Run, l.Host)
		}
		t.seen[l.Run] = true
	}
	for _, l := range before {
		if !now[l.Run] {
			t.gone[l.Run] = true
		}
	}
}

// holding is what the runs on one host hold together.
type holding struct {
	needs   map[string]int64
	devices map[int]int64
	ports   map[uint16]workload.RunID
}

// checkHosts adds up what runs on each host.
func (t *truth) checkHosts(c *cluster, living []simulated.Living) {
	for from := 0; from < len(living); {
		to := from
		h := holding{needs: map[string]int64{}, devices: map[int]int64{}, ports: map[uint16]workload.RunID{}}
		for ; to < len(living) && living[to].Host == living[from].Host; to++ {
			t.hold(c, &h, living[to])
		}
		host := c.hosts[slices.IndexFunc(c.hosts, func(h driver.Host) bool { return h.Name == living[from].Host })]
		for name, sum := range h.needs {
			if sum > host.Capacity[name] {
				t.w.fail(CheckHosts, "host %s/%s runs %d %s and has %d", c.name, host.Name, sum, name, host.Capacity[name])
			}
		}
		for device, sum := range h.devices {
			if device >= len(host.Devices) || sum > host.Devices[device].Milli {
				t.w.fail(CheckHosts, "device %d of host %s/%s serves %d thousandths", device, c.name, host.Name, sum)
			}
		}
		for port, run := range h.ports {
			if !slices.ContainsFunc(host.Ports, func(r driver.PortRange) bool { return r.First <= port && port <= r.Last }) {
				t.w.fail(CheckHosts, "run %s has port %d, which host %s/%s does not give out", run, port, c.name, host.Name)
			}
		}
		from = to
	}
}

func (t *truth) hold(c *cluster, h *holding, living simulated.Living) {
	l := t.launches[living.Run]
	if l == nil {
		t.w.fail(CheckRuns, "run %s lives on %s/%s and was never launched", living.Run, c.name, living.Host)
	}
	for name, n := range l.Needs {
		h.needs[name] += n
	}
	for _, device := range l.Devices {
		h.devices[device] += l.DeviceMilli
	}
	for _, p := range l.Ports {
		if other, taken := h.ports[p.Number]; taken {
			t.w.fail(CheckHosts, "runs %s and %s share port %d of host %s/%s", living.Run, other, p.Number, c.name, living.Host)
		}
		h.ports[p.Number] = living.Run
	}
}

// checkInstances looks over all clusters: an instance lives once, a gang in one generation, a job within its window.
func (t *truth) checkInstances() {
	type instance struct {
		job workload.JobID
		n   uint32
	}
	instances := map[instance]workload.RunID{}
	counts := map[workload.JobID]uint32{}
	type life struct {
		job  workload.JobID
		gang string
	}
	generations := map[life]uint32{}
	for _, living := range t.living {
		for _, l := range living {
			key := instance{l.Run.Job, l.Run.Instance}
			if other, twice := instances[key]; twice {
				t.w.fail(CheckRuns, "instance %d of job %s lives twice: %s and %s", key.n, key.job, l.Run, other)
			}
			instances[key] = l.Run
			spec := t.w.users.spec(l.Run.Job)
			counts[l.Run.Job]++
			if spec.MaxRunning > 0 && counts[l.Run.Job] > spec.MaxRunning {
				t.w.fail(CheckRuns, "job %s has more than max_running, %d, runs", spec.Name, spec.MaxRunning)
			}
			if gang := gangOf(spec, l.Run.Instance); gang != nil {
				of := life{l.Run.Job, gang.Name}
				if g := generations[of]; g != 0 && g != l.Run.Generation {
					t.w.fail(CheckGangs, "gang %s of job %s lives in generations %d and %d", gang.Name, spec.Name, g, l.Run.Generation)
				}
				generations[of] = l.Run.Generation
			}
		}
	}
}

// gangOf finds the gang that an instance is in; nil: none.
func gangOf(spec *workload.JobSpec, instance uint32) *workload.Gang {
	for _, g := range spec.Gangs() {
		if _, member := g.Rank(instance); member {
			return &g
		}
	}
	return nil
}

// disagrees compares what lives on the clusters with what the cell says of it, for work that only ends when it is told to: the rest comes
// and goes.
func (t *truth) disagrees() string {
	lives := map[workload.RunID]string{}
	for n, living := range t.living {
		for _, l := range living {
			if t.launches[l.Run].Simulation.Duration == 0 {
				lives[l.Run] = t.w.clusters[n].name + "/" + l.Host
			}
		}
	}
	reader := t.w.cell.state.Reader()
	jobs, _ := reader.Jobs(0, 1<<20, scheduler.JobFilter{})
	for n := range jobs {
		j := &jobs[n]
		if j.Spec.Template.Simulation.Duration != 0 {
			continue
		}
		tasks, _ := reader.Tasks(j.ID, 0, 1<<20, scheduler.TaskFilter{RunStates: []workload.RunState{workload.RunRunning}})
		for i := range tasks {
			task := &tasks[i]
			id := workload.RunID{Job: j.ID, Instance: task.Instance, Generation: task.Generation, Run: task.Run}
			if at := lives[id]; at != task.Cluster+"/"+task.HostName {
				return fmt.Sprintf("run %s runs on %s/%s by its record, and lives on %q", id, task.Cluster, task.HostName, at)
			}
			delete(lives, id)
		}
	}
	for id, at := range lives {
		return fmt.Sprintf("run %s lives on %s, and the cell does not say that it runs", id, at)
	}
	return ""
}
