package cli

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/paceline-sched/paceline/cmd/paceline/internal/output"
	pacelinev1 "github.com/paceline-sched/paceline/sdk/gen/paceline/v1"
)

func enumHelp(e protoreflect.Enum) string {
	return strings.Join(output.EnumNames(e.Descriptor()), ", ")
}

func number[N ~uint32 | ~uint64 | ~int32](n N) string { return fmt.Sprintf("%d", n) }

func jobColumns(now time.Time) output.Columns[*pacelinev1.JobSummary] {
	type job = *pacelinev1.JobSummary
	return output.Columns[job]{
		Name: job.GetId,
		Columns: []output.Column[job]{
			{Header: "JOB", Value: summaryPath},
			{Header: "KIND", Value: func(j job) string { return output.Enum(j.GetKind()) }},
			{Header: "STATE", Value: func(j job) string { return output.Enum(j.GetState()) }},
			{Header: "INSTANCES", Value: func(j job) string { return number(j.GetInstances()) }},
			{Header: "PENDING", Value: func(j job) string {
				return number(j.GetInstanceCounts().GetPending() + j.GetInstanceCounts().GetAdmitted() + j.GetInstanceCounts().GetBackingOff())
			}},
			{Header: "ACTIVE", Value: func(j job) string { return number(j.GetInstanceCounts().GetActive()) }},
			{Header: "DONE", Value: func(j job) string { return number(j.GetInstanceCounts().GetDone()) }},
			{Header: "FAILED", Value: func(j job) string { return number(j.GetInstanceCounts().GetFailed()) }},
			{Header: "AGE", Value: func(j job) string { return output.Age(now, j.GetCreateTime()) }},
			{Header: "HEALTHY", Wide: true, Value: func(j job) string { return number(j.GetHealthy()) }},
			{Header: "PRIORITY", Wide: true, Value: func(j job) string { return number(j.GetPriority()) }},
			{Header: "OWNER", Wide: true, Value: func(j job) string { return output.OrDash(j.GetOwner()) }},
			{Header: "REASON", Wide: true, Value: func(j job) string { return output.Enum(j.GetReason()) }},
			{Header: "VERSION", Wide: true, Value: func(j job) string { return number(j.GetVersion()) }},
			{Header: "LABELS", Wide: true, Value: func(j job) string { return output.Pairs(j.GetLabels()) }},
			{Header: "ID", Wide: true, Value: job.GetId},
		},
	}
}

func taskColumns(now time.Time) output.Columns[*pacelinev1.Task] {
	type task = *pacelinev1.Task
	return output.Columns[task]{
		Name: func(t task) string { return fmt.Sprintf("%s/%d", t.GetJobId(), t.GetInstance()) },
		Columns: []output.Column[task]{
			{Header: "INSTANCE", Value: func(t task) string { return number(t.GetInstance()) }},
			{Header: "STATE", Value: func(t task) string { return output.Enum(t.GetState()) }},
			{Header: "RUN", Value: func(t task) string { return output.Enum(t.GetRun().GetState()) }},
			{Header: "HOST", Value: func(t task) string { return hostPath(t.GetRun().GetCluster(), t.GetRun().GetHost()) }},
			{Header: "HEALTHY", Value: func(t task) string { return health(t.GetRun()) }},
			{Header: "EXIT", Value: func(t task) string { return exit(t.GetRun()) }},
			{Header: "REASON", Value: func(t task) string { return taskReason(t) }},
			{Header: "FAILURES", Value: func(t task) string { return number(t.GetFailures()) }},
			{Header: "SINCE", Value: func(t task) string { return output.Age(now, t.GetStateTime()) }},
			{Header: "PORTS", Wide: true, Value: func(t task) string { return ports(t.GetRun()) }},
			{Header: "DEVICES", Wide: true, Value: func(t task) string { return devices(t.GetRun()) }},
			{Header: "NEEDS", Wide: true, Value: func(t task) string { return quantities(t.GetNeeds()) }},
			{Header: "RUN-ID", Wide: true, Value: func(t task) string { return output.OrDash(t.GetRun().GetId()) }},
			{Header: "MESSAGE", Wide: true, Value: func(t task) string {
				return output.OrDash(first(t.GetMessage(), t.GetRun().GetMessage()))
			}},
		},
	}
}

func runColumns(now time.Time) output.Columns[*pacelinev1.Run] {
	type run = *pacelinev1.Run
	return output.Columns[run]{
		Name: run.GetId,
		Columns: []output.Column[run]{
			{Header: "RUN", Value: func(r run) string { return fmt.Sprintf("%d.%d", r.GetGeneration(), r.GetRun()) }},
			{Header: "STATE", Value: func(r run) string { return output.Enum(r.GetState()) }},
			{Header: "HOST", Value: func(r run) string { return hostPath(r.GetCluster(), r.GetHost()) }},
			{Header: "EXIT", Value: exit},
			{Header: "REASON", Value: func(r run) string { return output.Enum(r.GetReason()) }},
			{Header: "PLACED", Value: func(r run) string { return output.Clock(now, r.GetPlaceTime()) }},
			{Header: "STARTED", Value: func(r run) string { return output.Clock(now, r.GetStartTime()) }},
			{Header: "ENDED", Value: func(r run) string { return output.Clock(now, r.GetEndTime()) }},
			{Header: "MESSAGE", Value: func(r run) string { return output.OrDash(r.GetMessage()) }},
		},
	}
}

func hostColumns(now time.Time) output.Columns[*pacelinev1.Host] {
	type host = *pacelinev1.Host
	share := func(h host, name string) string {
		capacity := amount(h.GetCapacity(), name)
		if capacity == 0 {
			return output.Dash
		}
		return output.Quantity(name, amount(h.GetUsed(), name)+amount(h.GetForeign(), name)) + "/" + output.Quantity(name, capacity)
	}
	return output.Columns[host]{
		Name: func(h host) string { return hostPath(h.GetCluster(), h.GetName()) },
		Columns: []output.Column[host]{
			{Header: "HOST", Value: func(h host) string { return hostPath(h.GetCluster(), h.GetName()) }},
			{Header: "STATE", Value: func(h host) string { return output.Enum(h.GetState()) }},
			{Header: "RUNS", Value: func(h host) string { return number(h.GetRuns()) }},
			{Header: "CPU", Value: func(h host) string { return share(h, "cpu_milli") }},
			{Header: "MEMORY", Value: func(h host) string { return share(h, "memory_mib") }},
			{Header: "GPU", Value: func(h host) string { return share(h, "gpu_milli") }},
			{Header: "POOL", Value: func(h host) string { return output.OrDash(h.GetHostPool()) }},
			{Header: "DISK", Wide: true, Value: func(h host) string { return share(h, "disk_mib") }},
			{Header: "BY OTHERS", Wide: true, Value: func(h host) string { return load(h.GetForeign()) }},
			{Header: "CHANGED", Wide: true, Value: func(h host) string { return output.Age(now, h.GetChangeTime()) }},
			{Header: "ATTRIBUTES", Wide: true, Value: func(h host) string { return output.Pairs(attributes(h)) }},
			{Header: "ID", Wide: true, Value: host.GetId},
			{Header: "CLUSTER-ID", Wide: true, Value: func(h host) string { return output.OrDash(h.GetClusterId()) }},
			{Header: "MESSAGE", Wide: true, Value: func(h host) string { return output.OrDash(h.GetMessage()) }},
		},
	}
}

// load lists what is used, such as "cpu 1.5, memory 2Gi".
func load(used *pacelinev1.Quantities) string {
	var parts []string
	for _, name := range resources(used) {
		if n := amount(used, name); n > 0 {
			parts = append(parts, resourceTitle(name)+" "+output.Quantity(name, n))
		}
	}
	return output.OrDash(strings.Join(parts, ", "))
}

func hostPath(cluster, name string) string {
	if name == "" {
		return output.Dash
	}
	return cluster + "/" + name
}

func health(r *pacelinev1.Run) string {
	switch {
	case r.GetState() != pacelinev1.RunState_RUN_STATE_RUNNING:
		return output.Dash
	case r.GetHealthy():
		return "yes"
	}
	return "no"
}

func exit(r *pacelinev1.Run) string {
	switch {
	case r.GetSignal() != 0:
		return "signal " + number(r.GetSignal())
	case r.GetExitCode() != 0 || r != nil && r.ExitCode != nil:
		return number(r.GetExitCode())
	}
	return output.Dash
}

// taskReason is why a task stands where it does: its own reason, its run's, or what it waits for.
func taskReason(t *pacelinev1.Task) string {
	if t.GetReason() != pacelinev1.Reason_REASON_UNSPECIFIED {
		return output.Enum(t.GetReason())
	}
	return output.Enum(t.GetRun().GetReason())
}

func ports(r *pacelinev1.Run) string {
	parts := make([]string, 0, len(r.GetPorts()))
	for _, p := range r.GetPorts() {
		parts = append(parts, fmt.Sprintf("%s=%d", p.GetName(), p.GetNumber()))
	}
	return output.OrDash(strings.Join(parts, ","))
}

func devices(r *pacelinev1.Run) string {
	parts := make([]string, 0, len(r.GetDevices()))
	for _, d := range r.GetDevices() {
		parts = append(parts, strconv.Itoa(int(d)))
	}
	return output.OrDash(strings.Join(parts, ","))
}

// builtin are the names of the resources that every cell has, in their order.
var builtin = []string{"cpu_milli", "memory_mib", "disk_mib", "gpu_milli"}

// amount returns how much of a resource q has; what is left out is 0.
func amount(q *pacelinev1.Quantities, name string) int64 {
	switch name {
	case "cpu_milli":
		return q.GetCpuMilli()
	case "memory_mib":
		return q.GetMemoryMib()
	case "disk_mib":
		return q.GetDiskMib()
	case "gpu_milli":
		return q.GetGpuMilli()
	}
	return q.GetExtended()[name]
}

// present reports whether q says anything of a resource, be it 0.
func present(q *pacelinev1.Quantities, name string) bool {
	switch name {
	case "cpu_milli":
		return q != nil && q.CpuMilli != nil
	case "memory_mib":
		return q != nil && q.MemoryMib != nil
	case "disk_mib":
		return q != nil && q.DiskMib != nil
	case "gpu_milli":
		return q != nil && q.GpuMilli != nil
	}
	_, ok := q.GetExtended()[name]
	return ok
}

// resources returns the names of everything that any of qs has, built-in ones first.
func resources(qs ...*pacelinev1.Quantities) []string {
	var names []string
	for _, name := range builtin {
		if slices.ContainsFunc(qs, func(q *pacelinev1.Quantities) bool { return amount(q, name) != 0 }) {
			names = append(names, name)
		}
	}
	extended := map[string]bool{}
	for _, q := range qs {
		for name := range q.GetExtended() {
			extended[name] = true
		}
	}
	return append(names, slices.Sorted(maps.Keys(extended))...)
}

// quantities lists what q has, scaled for people.
func quantities(q *pacelinev1.Quantities) string {
	var parts []string
	for _, name := range resources(q) {
		parts = append(parts, resourceTitle(name)+"="+output.Quantity(name, amount(q, name)))
	}
	return output.OrDash(strings.Join(parts, ","))
}

// resourceTitle drops the unit of a built-in resource, which output.Quantity writes.
func resourceTitle(name string) string {
	if slices.Contains(builtin, name) {
		name, _, _ = strings.Cut(name, "_")
	}
	return name
}
