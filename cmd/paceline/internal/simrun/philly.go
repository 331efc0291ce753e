package simrun

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/paceline-sched/paceline/cmd/paceline/internal/tracefile"
	"github.com/paceline-sched/paceline/core/driver"
	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/respool"
	"github.com/paceline-sched/paceline/core/workload"
)

// Bounds of a trace of GPU jobs.
const (
	maxPhillyJobs    = 1 << 20
	maxPhillySeconds = int64(10 * 365 * 24 * 3600)
	maxPhillyGPUs    = 1 << 12
	maxPhillyHosts   = 1 << 14
	maxHostGPUs      = 16 // as many as placement tells apart
)

// PhillyJob is one job of a trace of GPU jobs.
type PhillyJob struct {
	Arrival time.Duration // on the trace's clock
	Run     time.Duration // at least a second
	GPUs    int
	Pool    string // virtual cluster; "" where the trace does not say
}

// PhillyPool is a virtual cluster and the hosts that it was given.
type PhillyPool struct {
	Name  string
	Hosts int
	GPUs  int // of each host
}

// ReadPhillyJobs reads jobs with the columns arrival_s, num_gpus, duration_s and vc; others are ignored. name is for messages.
func ReadPhillyJobs(in io.Reader, name string) ([]PhillyJob, error) {
	rows, err := tracefile.Open(in, name, []string{"arrival_s", "num_gpus", "duration_s", "vc"}, nil)
	if err != nil {
		return nil, err
	}
	texts := interner{}
	var jobs []PhillyJob
	for rows.Next() {
		j := PhillyJob{
			Arrival: time.Duration(rows.Number("arrival_s", maxPhillySeconds)) * time.Second,
			Run:     time.Duration(max(1, rows.Number("duration_s", maxPhillySeconds))) * time.Second,
			GPUs:    int(rows.Number("num_gpus", maxPhillyGPUs)), Pool: texts.keep(rows.Text("vc")),
		}
		switch {
		case j.GPUs == 0:
			rows.Fail("num_gpus", "a job has at least one GPU")
		case j.Pool != "" && !userName(j.Pool):
			rows.Fail("vc", "%.80q names a pool, so it must be 1 to %d letters, digits, '.', '_' or '-', with a letter or digit at both ends", j.Pool, maxUserName)
		case len(jobs) > 0 && j.Arrival < jobs[len(jobs)-1].Arrival:
			rows.Fail("arrival_s", "jobs must be in the order of their arrival")
		case len(jobs) == maxPhillyJobs:
			rows.Fail("arrival_s", "there are more than %d jobs", maxPhillyJobs)
		}
		jobs = append(jobs, j)
	}
	return jobs, rows.Err()
}

// ReadPhillyPools reads virtual clusters with the columns vc, nodes and gpus_per_node. name is for messages.
func ReadPhillyPools(in io.Reader, name string) ([]PhillyPool, error) {
	rows, err := tracefile.Open(in, name, []string{"vc", "nodes", "gpus_per_node"}, nil)
	if err != nil {
		return nil, err
	}
	var pools []PhillyPool
	seen := map[string]bool{}
	hosts := 0
	for rows.Next() {
		p := PhillyPool{
			Name: strings.Clone(rows.Text("vc")), Hosts: int(rows.Number("nodes", maxPhillyHosts)),
			GPUs: int(rows.Number("gpus_per_node", maxHostGPUs)),
		}
		hosts += p.Hosts
		switch {
		case !userName(p.Name):
			rows.Fail("vc", "%.80q names a pool, so it must be 1 to %d letters, digits, '.', '_' or '-', with a letter or digit at both ends", p.Name, maxUserName)
		case seen[p.Name]:
			rows.Fail("vc", "%s appears twice", p.Name)
		case p.Hosts == 0 || hosts > maxPhillyHosts:
			rows.Fail("nodes", "a virtual cluster has at least one host, and all of them at most %d", maxPhillyHosts)
		case p.GPUs == 0 || len(pools) > 0 && p.GPUs != pools[0].GPUs:
			rows.Fail("gpus_per_node", "hosts have at least one GPU, and all of them as many")
		}
		seen[p.Name] = true
		pools = append(pools, p)
	}
	return pools, rows.Err()
}

// gpuMilli is one whole GPU.
const gpuMilli = 1000

func (p *PhillyPool) gpus() int { return p.Hosts * p.GPUs }

func (p *PhillyPool) path() string { return "/" + p.Name }

// pool is the virtual cluster as a pool: what its hosts have is its reservation.
func (p *PhillyPool) pool(kind respool.Kind, queue respool.QueuePolicy) respool.Pool {
	pool := respool.Pool{Kind: kind, Share: int64(p.gpus()), Queue: queue}
	pool.Reservation[resource.GPU] = int64(p.gpus()) * gpuMilli
	return pool
}

// hosts of all virtual clusters together: a quota is a number of GPUs, not these or those hosts.
func phillyHosts(pools []PhillyPool) []driver.Host {
	var hosts []driver.Host
	for i := range pools {
		for range pools[i].Hosts {
			h := driver.Host{Name: fmt.Sprintf("host-%d", len(hosts)), Ready: true, Capacity: map[string]int64{}}
			for range pools[i].GPUs {
				h.Devices = append(h.Devices, driver.Device{Model: "gpu", Milli: gpuMilli})
			}
			h.Capacity["gpu_milli"] = int64(pools[i].GPUs) * gpuMilli
			hosts = append(hosts, h)
		}
	}
	return hosts
}

// tasks is what a job is made of: one task if it fits a host, else whole hosts.
func (j *PhillyJob) tasks(perHost int) (count, gpus int) {
	if j.GPUs <= perHost {
		return 1, j.GPUs
	}
	return (j.GPUs + perHost - 1) / perHost, perHost
}

// spec is the job as a gang that starts, and starts anew, as a whole.
func (j *PhillyJob) spec(name string, perHost int, estimates bool) *workload.JobSpec {
	count, gpus := j.tasks(perHost)
	spec := &workload.JobSpec{
		Name: name, Pool: poolID("/" + j.Pool), Kind: workload.Batch, Instances: uint32(count), Preemptible: true,
		Placement: workload.Placement{Strategy: workload.StrategyBestFit},
	}
	if count > 1 {
		spec.Gang = &workload.GangSpec{}
	}
	if estimates {
		spec.RunTime = j.Run
	}
	spec.Template.Needs[resource.GPU] = int64(gpus) * gpuMilli
	spec.Template.Simulation.Duration = j.Run
	return spec
}
