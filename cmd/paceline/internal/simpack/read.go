package simpack

import (
	"io"
	"strings"

	"github.com/paceline-sched/paceline/cmd/paceline/internal/tracefile"
	"github.com/paceline-sched/paceline/core/host"
	"github.com/paceline-sched/paceline/core/resource"
)

// ReadHosts reads an inventory with the columns sn, cpu_milli, memory_mib, gpu and model; others are ignored. name is for messages.
func ReadHosts(in io.Reader, name string) ([]Host, error) {
	rows, err := tracefile.Open(in, name, []string{"sn", "cpu_milli", "memory_mib", "gpu", "model"}, nil)
	if err != nil {
		return nil, err
	}
	var hosts []Host
	seen := map[string]bool{}
	for rows.Next() {
		h := Host{
			Name: rows.Text("sn"), CPUMilli: rows.Number("cpu_milli", resource.MaxQuantity), MemoryMiB: rows.Number("memory_mib", resource.MaxQuantity),
			GPUs: int(rows.Number("gpu", host.MaxDevices)), Model: rows.Text("model"),
		}
		if seen[h.Name] {
			rows.Fail("sn", "host %q appears twice", h.Name)
		}
		seen[h.Name] = true
		if len(hosts) == maxHosts {
			rows.Fail("sn", "there are more than %d hosts", maxHosts)
		}
		hosts = append(hosts, h)
	}
	return hosts, rows.Err()
}

// ReadTasks reads a trace with the columns name, cpu_milli, memory_mib, num_gpu and gpu_milli, and gpu_spec where the file has it; others
// are ignored. name is for messages.
func ReadTasks(in io.Reader, name string) ([]Task, error) {
	rows, err := tracefile.Open(in, name, []string{"name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli"}, []string{"gpu_spec"})
	if err != nil {
		return nil, err
	}
	var tasks []Task
	for rows.Next() {
		t := Task{
			Name: rows.Text("name"), CPUMilli: rows.Number("cpu_milli", resource.MaxQuantity), MemoryMiB: rows.Number("memory_mib", resource.MaxQuantity),
			GPUs: int(rows.Number("num_gpu", host.MaxDevices)), GPUMilli: rows.Number("gpu_milli", host.DeviceMilli),
		}
		if spec := rows.Text("gpu_spec"); spec != "" {
			t.Models = strings.Split(spec, "|")
		}
		switch {
		case t.GPUs == 0:
			t.GPUMilli = 0
		case t.GPUs == 1 && t.GPUMilli == 0:
			rows.Fail("gpu_milli", "a task with a GPU must ask for 1 to %d thousandths of it", host.DeviceMilli)
		case t.GPUs > 1 && t.GPUMilli != host.DeviceMilli:
			rows.Fail("gpu_milli", "a task with %d GPUs must ask for them whole: write %d", t.GPUs, host.DeviceMilli)
		}
		if len(tasks) == maxTasks {
			rows.Fail("name", "there are more than %d tasks", maxTasks)
		}
		tasks = append(tasks, t)
	}
	return tasks, rows.Err()
}
