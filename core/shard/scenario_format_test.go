package shard_test

import (
	"fmt"
	"sort"
	"strings"
	"time"

	"github.com/paceline-sched/paceline/core/driver"
	"github.com/paceline-sched/paceline/core/placement"
	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/shard"
	"github.com/paceline-sched/paceline/core/workload"
)

// scenarioNames are the extended resources that classes of a scenario may ask for, in the core's order.
var scenarioNames = map[string]resource.Kind{
	"cpu": resource.CPU, "memory": resource.Memory, "disk": resource.Disk, "gpu": resource.GPU,
	"fpga": resource.FirstNamed, "tpu": resource.FirstNamed + 1,
}

func (s *scenario) defineHost(args []string) {
	h := driver.Host{Name: args[0], Ready: true, Attributes: map[string]string{}, Capacity: map[string]int64{}}
	for _, arg := range args[1:] {
		key, value, _ := strings.Cut(arg, "=")
		switch key {
		case "notready":
			h.Ready, h.Message = false, "kernel panic"
		case "gpus":
			for range s.number(value) {
				h.Devices = append(h.Devices, driver.Device{Model: "V100", Milli: 1000})
			}
		case "cpu":
			h.Capacity["cpu_milli"] = s.number(value)
		case "memory":
			h.Capacity["memory_mib"] = s.number(value)
		case "fpga", "tpu":
			h.Capacity[key] = s.number(value)
		default:
			h.Attributes[key] = value
		}
	}
	s.hosts[h.Name] = h
	s.names[shard.HostID("c", h.Name)] = h.Name
}

func (s *scenario) defineClass(args []string) {
	spec := &workload.JobSpec{Name: args[0], Kind: workload.Service}
	for _, arg := range args[1:] {
		key, value, _ := strings.Cut(arg, "=")
		switch where, isConstraint := strings.CutPrefix(key, "where:"); {
		case isConstraint:
			spec.Placement.Constraints = append(spec.Placement.Constraints, workload.Constraint{Key: where, Op: workload.OpIn, Values: []string{value}})
		case key == "policy":
			spec.Placement.Strategy = workload.Strategy(value)
		case key == "cluster":
			spec.Placement.Clusters = []string{value}
		default:
			spec.Template.Needs[scenarioNames[key]] = s.number(value)
		}
	}
	s.classes[args[0]] = placement.NewClass(workload.JobID{1}, spec, nil)
}

func (s *scenario) parseEpoch(word string) (e shard.Epoch) {
	_, err := fmt.Sscanf(word, "%d.%d", &e.Cell, &e.Shard)
	s.check(err)
	return e
}

func (s *scenario) hostID(name string) workload.HostID { return shard.HostID("c", name) }

// parseRun reads r7, the first run of instance 7.
func parseRun(word string) workload.RunID {
	var instance uint32
	if _, err := fmt.Sscanf(word, "r%d", &instance); err != nil {
		panic(fmt.Sprintf("run %q: %v", word, err))
	}
	return workload.RunID{Job: workload.JobID{1}, Instance: instance, Generation: 1, Run: 1}
}

func (s *scenario) parseReplay(args []string) shard.Replay {
	m := shard.Replay{Epoch: s.epoch}
	for _, arg := range args {
		if arg == "done" {
			m.Done = true
			continue
		}
		run, rest, _ := strings.Cut(arg, "@")
		host, class, _ := strings.Cut(rest, ":")
		m.Bound = append(m.Bound, shard.BoundRun{
			Run: parseRun(run), Host: s.hostID(host), Class: s.classes[class], Devices: devicesOf(s.classes[class]), State: workload.RunLaunching,
		})
	}
	return m
}

// devicesOf is the lowest devices that serve a class.
func devicesOf(c *placement.Class) placement.DeviceSet {
	return 1<<((c.Needs[resource.GPU]+999)/1000) - 1
}

func (s *scenario) parsePlace(args []string) shard.Place {
	m := shard.Place{Epoch: s.epoch, Batch: uint64(s.number(args[0]))}
	for _, arg := range args[1:] {
		var r shard.PlaceRequest
		arg, r.Gang = strings.CutPrefix(arg, "gang:")
		arg, r.DryRun = strings.CutPrefix(arg, "dry:")
		arg, host, pinned := strings.Cut(arg, "@")
		if pinned {
			r.Host = s.hostID(host)
		}
		class, count, _ := strings.Cut(arg, "*")
		r.Class, r.Count = s.classes[class], int(s.number(count))
		m.Requests = append(m.Requests, r)
	}
	return m
}

func (s *scenario) parseLaunch(args []string) shard.Launch {
	m := shard.Launch{Epoch: s.epoch}
	for _, arg := range args {
		run, rest, _ := strings.Cut(arg, "=")
		lease, host, _ := strings.Cut(rest, "@")
		m.Launches = append(m.Launches, shard.LaunchRun{
			Lease: shard.Lease(s.number(lease)), HostID: s.hostID(host), Launch: driver.Launch{Run: parseRun(run)},
		})
	}
	return m
}

func (s *scenario) parseStatus(arg string) driver.Status {
	run, rest, _ := strings.Cut(arg, ":")
	rest, token, _ := strings.Cut(rest, "#")
	state, host, _ := strings.Cut(rest, "@")
	status := driver.Status{Run: parseRun(run), Host: host}
	if token != "" {
		status.Token = driver.Token(s.number(token))
	}
	for i := range workload.NumRunStates {
		if workload.RunState(i).String() == state {
			status.State = workload.RunState(i)
		}
	}
	return status
}

func (s *scenario) print(out *shard.Output) {
	for _, reply := range out.Replies {
		fmt.Fprintf(&s.printed, "-> core %d.%d: %s\n", out.Epoch.Cell, out.Epoch.Shard, s.reply(reply))
	}
	for _, call := range out.Calls {
		fmt.Fprintf(&s.printed, "-> driver: %s\n", s.call(call))
	}
	if out.Demand != nil {
		fmt.Fprintf(&s.printed, "-> driver: %s\n", map[bool]string{true: "work waits", false: "no work waits"}[*out.Demand])
	}
	if out.NextWake != 0 {
		fmt.Fprintf(&s.printed, "wake in %v\n", time.Duration(out.NextWake-s.now))
	}
}

func (s *scenario) reply(reply shard.Reply) string {
	switch r := reply.(type) {
	case shard.Ready:
		return "ready"
	case shard.NotReady:
		return "not ready: " + r.Reason
	case shard.Hosts:
		return s.hostsReply(r)
	case shard.Placed:
		return s.placedReply(r)
	case shard.RunStatus:
		return "status " + statusText(r.Status)
	case shard.RunsMissing:
		return "missing" + runsText(r.Runs)
	case shard.Foreign:
		text := "foreign"
		for _, status := range r.Statuses {
			text += " " + statusText(status)
		}
		return text
	case shard.LaunchRefused:
		return fmt.Sprintf("%v%s: %s", r.Reason, runsText(r.Runs), r.Message)
	case shard.Matches:
		return fmt.Sprintf("matches of %d%s +%v -%v", r.Job[0], completeText(r.Complete), s.hostNames(r.Added), s.hostNames(r.Removed))
	}
	return fmt.Sprintf("%#v", reply)
}

func completeText(complete bool) string {
	if complete {
		return " (all)"
	}
	return ""
}

func (s *scenario) hostsReply(r shard.Hosts) string {
	text := "hosts" + completeText(r.Complete)
	for _, h := range r.Changed {
		text += fmt.Sprintf("\n     %s", h.Name)
		for _, name := range []string{"cpu", "memory", "gpu", "fpga", "tpu"} {
			if q := h.Capacity[scenarioNames[name]]; q != 0 {
				text += fmt.Sprintf(" %s=%d", name, q)
			}
		}
		unnamed := make([]string, 0, len(h.Unnamed))
		for name, q := range h.Unnamed {
			unnamed = append(unnamed, fmt.Sprintf(" unnamed:%s=%d", name, q))
		}
		sort.Strings(unnamed)
		text += strings.Join(unnamed, "")
		if !h.Ready {
			text += " notready"
		}
		if h.Draining {
			text += " draining"
		}
		if h.Message != "" {
			text += fmt.Sprintf(" (%s)", h.Message)
		}
	}
	for _, id := range r.Removed {
		text += "\n     removed " + s.names[id]
	}
	return text
}

func (s *scenario) placedReply(r shard.Placed) string {
	text := fmt.Sprintf("placed batch %d", r.Batch)
	for _, result := range r.Results {
		text += "\n    "
		for _, a := range result.Assignments {
			text += fmt.Sprintf(" %d@%s", a.Lease, s.names[a.Host])
			if a.Devices != 0 {
				text += fmt.Sprintf("/gpus:%b", a.Devices)
			}
		}
		if result.Refused > 0 {
			text += fmt.Sprintf(" refused %d", result.Refused)
		}
	}
	return text
}

func (s *scenario) call(call shard.Call) string {
	switch c := call.(type) {
	case shard.LaunchCall:
		text := "launch"
		for _, l := range c.Launches {
			text += fmt.Sprintf(" r%d on %s", l.Run.Instance, l.Host)
		}
		return text
	case shard.KillCall:
		text := "kill"
		for _, k := range c.Kills {
			text += fmt.Sprintf(" r%d", k.Run.Instance)
		}
		return text
	case shard.AckCall:
		return fmt.Sprintf("acknowledge %d", c.Tokens)
	case shard.ReconcileCall:
		return "reconcile" + runsText(c.Runs)
	}
	return fmt.Sprintf("%#v", call)
}

func statusText(s driver.Status) string {
	text := fmt.Sprintf("r%d:%v@%s#%d", s.Run.Instance, s.State, s.Host, s.Token)
	if s.Reason != workload.ReasonNone {
		text += "(" + s.Reason.String() + ")"
	}
	return text
}

func runsText(runs []workload.RunID) string {
	text := ""
	for _, id := range runs {
		text += fmt.Sprintf(" r%d", id.Instance)
	}
	return text
}

func (s *scenario) hostNames(ids []workload.HostID) []string {
	var names []string
	for _, id := range ids {
		names = append(names, s.names[id])
	}
	return names
}

func (s *scenario) printFree(names []string) {
	table := s.machine.Table()
	for _, name := range names {
		row, ok := table.Lookup(s.hostID(name))
		if !ok {
			fmt.Fprintf(&s.printed, "%s: not in the table\n", name)
			continue
		}
		free := table.Free(row)
		fmt.Fprintf(&s.printed, "%s: cpu=%d memory=%d gpu=%d fpga=%d, %d tasks\n", name, free[resource.CPU], free[resource.Memory],
			free[resource.GPU], free[resource.FirstNamed], table.Tasks(row))
	}
}
