package local

import (
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/paceline-sched/paceline/core/driver"
	"github.com/paceline-sched/paceline/core/execution"
	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/workload"
	"github.com/paceline-sched/paceline/hostmanagers/local/runner"
	"github.com/paceline-sched/paceline/hostmanagers/local/runner/shim"
)

// owner is what the driver wants to find again of a launch after a restart. It is kept in the run's spec.
type owner struct {
	Host      string                `json:"host"`
	Ports     []driver.AssignedPort `json:"ports,omitempty"`
	Health    *workload.HealthCheck `json:"health,omitempty"`
	KillGrace time.Duration         `json:"kill_grace"`
	// Cannot names what the run asks for and this cluster does not do. "": nothing.
	Cannot string `json:"cannot,omitempty"`
}

func ownerOf(spec *shim.Spec) (owner, error) {
	var o owner
	if err := json.Unmarshal(spec.Owner, &o); err != nil {
		return owner{}, fmt.Errorf("run %s was launched by another program: %w", spec.ID, err)
	}
	return o, nil
}

// basePath is where a task finds its programs, unless it brings a PATH.
const basePath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// spec translates a launch into a process.
func (d *Driver) spec(l *driver.Launch) (runner.Spec, error) {
	raw, err := json.Marshal(owner{Host: l.Host, Ports: l.Ports, Health: l.Health, KillGrace: l.KillGrace, Cannot: cannot(l.Execution)})
	if err != nil {
		return runner.Spec{}, fmt.Errorf("launch run %s: %w", l.Run, err)
	}
	names, command := new(resource.Names), l.Command
	if len(command) == 0 && l.Execution.HasImage() { // it is refused before it starts
		command = []string{l.Execution.Main.Image}
	}
	return runner.Spec{
		ID: l.Run.String(), Command: command, Env: d.environment(l), Owner: raw,
		Limits: runner.Limits{
			MemoryBytes: l.Needs[names.Name(resource.Memory)] << 20,
			CPUMilli:    l.Needs[names.Name(resource.CPU)],
		},
	}, nil
}

// cannot names what a run asks for beyond a command. Placement sends no such run here; whoever does is told.
func cannot(e *execution.Spec) string {
	var names []string
	for _, f := range e.Asks() {
		if f != execution.FeatureCommand {
			names = append(names, string(f))
		}
	}
	return strings.Join(names, ", ")
}

// environment is the whole environment of a task: a plain base, what Paceline tells it, and over both what the job sets. Only the
// run's id is not the job's to change.
func (d *Driver) environment(l *driver.Launch) []string {
	env := map[string]string{
		"PATH": basePath, "LANG": "C.UTF-8", "HOME": d.runner.Sandbox(l.Run.String()), "PACELINE_HOST": l.Host,
	}
	for _, p := range l.Ports {
		env["PACELINE_PORT_"+variable(p.Name)] = strconv.Itoa(int(p.Number))
	}
	if len(l.Devices) > 0 {
		env["CUDA_VISIBLE_DEVICES"] = d.visibleDevices(l)
	}
	maps.Copy(env, l.Env)
	env["PACELINE_RUN_ID"] = l.Run.String()
	list := make([]string, 0, len(env))
	for _, name := range slices.Sorted(maps.Keys(env)) {
		list = append(list, name+"="+env[name])
	}
	return list
}

// visibleDevices numbers a run's devices as the machine does: host after host.
func (d *Driver) visibleDevices(l *driver.Launch) string {
	first := d.hostIndex[l.Host] * len(d.cfg.Devices)
	numbers := make([]string, len(l.Devices))
	for i, device := range l.Devices {
		numbers[i] = strconv.Itoa(first + device)
	}
	return strings.Join(numbers, ",")
}

// variable turns a port's name into a part of a variable's.
func variable(name string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z':
			return r - 'a' + 'A'
		case r >= 'A' && r <= 'Z', r >= '0' && r <= '9':
			return r
		}
		return '_'
	}, name)
}

// portTaken begins the refusal of a run whose port is in foreign hands. Refusals are stored as text, so the text is what tells.
const portTaken = "port taken: "

// admit is asked right before a run's start.
func (d *Driver) admit(spec *shim.Spec) error {
	o, err := ownerOf(spec)
	if err != nil {
		return err
	}
	if o.Cannot != "" {
		return fmt.Errorf("local hosts run commands only, and it asks for %s", o.Cannot)
	}
	if _, ok := d.hostIndex[o.Host]; !ok {
		return fmt.Errorf("there is no host %.80q: it was configured away, or is another cluster's", o.Host)
	}
	for _, p := range o.Ports {
		listener, err := new(net.ListenConfig).Listen(d.ctx, "tcp", ":"+strconv.Itoa(int(p.Number)))
		if err != nil {
			return fmt.Errorf("%s%d (%s) is in use by a process that Paceline did not give it to: %w", portTaken, p.Number, p.Name, err)
		}
		_ = listener.Close() // nobody connected
	}
	return nil
}
