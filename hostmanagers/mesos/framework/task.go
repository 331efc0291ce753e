package framework

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	mesos "github.com/mesos/mesos-go/api/v1/lib"
	"github.com/mesos/mesos-go/api/v1/lib/scheduler"

	"github.com/paceline-sched/paceline/core/driver"
	"github.com/paceline-sched/paceline/core/execution"
	"github.com/paceline-sched/paceline/core/workload"
)

// What the default executor of a task group needs at least. It comes out of what the main container asked for: placement knows no more.
const (
	executorCPUMilli = 10
	executorMemMilli = 32000
)

// prepare checks a launch and turns it into what offers have to give. Its error is for the user.
func (m *Machine) prepare(r *run, l *driver.Launch) error {
	launch := *l
	r.launch, r.needs, r.revocable = &launch, needsOf(l.Needs), l.Revocable
	for _, p := range l.Ports {
		r.ports = append(r.ports, p.Number)
	}
	if len(r.needs) == 0 {
		return errors.New("a Mesos task needs some resource: ask for CPU or memory")
	}
	if l.Needs[nameGPU]%1000 != 0 {
		return fmt.Errorf("Mesos gives out whole GPUs only, not %d thousandths of one", l.Needs[nameGPU]) //nolint:staticcheck // a name
	}
	e := l.Execution
	if len(l.Command) == 0 && (e == nil || e.Main.Image == "") {
		return errors.New("a task without a container image needs a command")
	}
	if l.Health != nil {
		if _, err := healthCheck(l.Health, l.Ports); err != nil {
			return err
		}
	}
	if e == nil {
		return nil
	}
	if err := supported(e); err != nil {
		return err
	}
	if len(e.Sidecars) > 0 {
		return r.plan(l)
	}
	return nil
}

// supported reports what of an execution no Mesos task can do.
func supported(e *execution.Spec) error {
	docker := e.Mesos != nil && e.Mesos.Docker
	switch {
	case e.Kubernetes != nil && e.Mesos == nil:
		return errors.New("the job asks for what only Kubernetes has: leave that out, or give it settings for Mesos as well")
	case len(e.Inits) > 0:
		return errors.New("Mesos runs no init containers: let the command do their work") //nolint:staticcheck // a name
	case docker && len(e.Sidecars) > 0:
		return errors.New("the Docker containerizer runs one container a task: use the Mesos containerizer for several")
	case docker && e.Main.Image == "":
		return errors.New("the Docker containerizer needs an image")
	}
	for _, v := range e.Volumes {
		if v.Claim != "" || v.ConfigMap != "" || v.Secret != "" {
			return fmt.Errorf("volume %q is a claim, config map or secret, which Mesos does not have", v.Name)
		}
	}
	for _, c := range append([]execution.Container{e.Main}, e.Sidecars...) {
		switch {
		case c.Privileged && !docker:
			return fmt.Errorf("container %q is privileged: on Mesos only the Docker containerizer does that", c.Name)
		case c.ReadOnly:
			return fmt.Errorf("container %q wants a read-only root, which Mesos does not have", c.Name)
		case c.WorkDir != "" && !docker:
			return fmt.Errorf("container %q sets a working directory: on Mesos only the Docker containerizer does that", c.Name)
		case docker && c.Pull == execution.PullNever:
			return fmt.Errorf("container %q must not be pulled: the Docker containerizer of Mesos pulls what is missing", c.Name)
		}
		for _, mount := range c.Mounts {
			if !slices.ContainsFunc(e.Volumes, func(v execution.Volume) bool { return v.Name == mount.Volume }) {
				return fmt.Errorf("container %q mounts volume %q, which the task does not have", c.Name, mount.Volume)
			}
		}
	}
	return nil
}

// command is a run of one container as a task of its own.
func (m *Machine) command(r *run) mesos.TaskInfo {
	l := r.launch
	t := mesos.TaskInfo{
		Name: r.task, TaskID: mesos.TaskID{Value: r.task}, AgentID: mesos.AgentID{Value: r.agent.id}, Resources: r.taken.write(r.role),
		Command: m.commandInfo(r, l.Command, nil), KillPolicy: killPolicy(l.KillGrace), Labels: labels(l.Labels),
	}
	if l.Health != nil {
		t.HealthCheck, _ = healthCheck(l.Health, l.Ports) // prepare has seen that it can be
	}
	if l.Execution != nil {
		t.Container = containerInfo(l.Execution, &l.Execution.Main, false)
	}
	return t
}

// commandInfo is what a container runs. env is what it has beyond the task's.
func (m *Machine) commandInfo(r *run, argv []string, env map[string]string) *mesos.CommandInfo {
	l := r.launch
	shell := false
	c := &mesos.CommandInfo{Shell: &shell, Environment: environment(r, env)}
	if len(argv) > 0 {
		c.Value, c.Arguments = &argv[0], argv
	}
	if l.Execution == nil {
		return c
	}
	if l.Execution.User != "" {
		c.User = &l.Execution.User
	}
	for _, a := range l.Execution.Artifacts {
		uri := mesos.CommandInfo_URI{Value: a.URI, Extract: &a.Extract, Executable: &a.Executable, Cache: &a.Cache}
		if a.Path != "" {
			uri.OutputFile = &a.Path
		}
		c.URIs = append(c.URIs, uri)
	}
	return c
}

// environment is what a task finds beside what its agent gives to every one: what Paceline tells it, and over that what the job sets. Only
// the run's id is not the job's to change.
func environment(r *run, more map[string]string) *mesos.Environment {
	l := r.launch
	env := make(map[string]string, len(l.Env)+len(more)+len(l.Ports)+2)
	env["PACELINE_HOST"] = l.Host
	for _, p := range l.Ports {
		env["PACELINE_PORT_"+variable(p.Name)] = strconv.Itoa(int(p.Number))
	}
	maps.Copy(env, l.Env)
	maps.Copy(env, more)
	env["PACELINE_RUN_ID"] = r.task
	list := make([]mesos.Environment_Variable, 0, len(env))
	for _, name := range slices.Sorted(maps.Keys(env)) {
		value := env[name]
		list = append(list, mesos.Environment_Variable{Name: name, Value: &value})
	}
	return &mesos.Environment{Variables: list}
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

func labels(of map[string]string) *mesos.Labels {
	if len(of) == 0 {
		return nil
	}
	l := &mesos.Labels{}
	for _, key := range slices.Sorted(maps.Keys(of)) {
		value := of[key]
		l.Labels = append(l.Labels, mesos.Label{Key: key, Value: &value})
	}
	return l
}

// The defaults of a health check, as the workload's documentation has them.
const (
	defaultInterval  = 10.0
	defaultTimeout   = 1.0
	defaultThreshold = 3
)

// healthCheck has the executor ask about a task's health, and end it when it fails too often.
func healthCheck(h *workload.HealthCheck, assigned []driver.AssignedPort) (*mesos.HealthCheck, error) {
	delay, interval, timeout, grace := h.InitialDelay.Seconds(), h.Interval.Seconds(), h.Timeout.Seconds(), 0.0
	if interval <= 0 {
		interval = defaultInterval
	}
	if timeout <= 0 {
		timeout = defaultTimeout
	}
	failures := h.FailureThreshold
	if failures == 0 {
		failures = defaultThreshold
	}
	c := &mesos.HealthCheck{
		DelaySeconds: &delay, IntervalSeconds: &interval, TimeoutSeconds: &timeout, GracePeriodSeconds: &grace, ConsecutiveFailures: &failures,
	}
	port := func(name string) (uint32, error) {
		for _, p := range assigned {
			if p.Name == name {
				return uint32(p.Number), nil
			}
		}
		return 0, fmt.Errorf("its health check names the port %.80q, which the task does not have", name)
	}
	var err error
	switch {
	case h.HTTP != nil:
		scheme := "http"
		c.Type, c.HTTP = mesos.HealthCheck_HTTP, &mesos.HealthCheck_HTTPCheckInfo{Scheme: &scheme, Path: &h.HTTP.Path}
		c.HTTP.Port, err = port(h.HTTP.Port)
	case h.TCP != nil:
		c.Type, c.TCP = mesos.HealthCheck_TCP, &mesos.HealthCheck_TCPCheckInfo{}
		c.TCP.Port, err = port(h.TCP.Port)
	case len(h.Exec) > 0:
		shell := false
		c.Type, c.Command = mesos.HealthCheck_COMMAND, &mesos.CommandInfo{Shell: &shell, Value: &h.Exec[0], Arguments: h.Exec}
	default:
		err = errors.New("its health check asks nothing")
	}
	return c, err
}

// containerInfo is what a container is made of; nil: it is a process on the host's file system.
func containerInfo(e *execution.Spec, c *execution.Container, grouped bool) *mesos.ContainerInfo {
	if c.Image == "" && len(c.Mounts) == 0 {
		return nil
	}
	info := &mesos.ContainerInfo{Type: mesos.ContainerInfo_MESOS.Enum()}
	for _, mount := range c.Mounts {
		info.Volumes = append(info.Volumes, volume(e, mount, grouped))
	}
	if c.Image == "" {
		return info
	}
	if e.Mesos != nil && e.Mesos.Docker {
		force := c.Pull == execution.PullAlways
		info.Type = mesos.ContainerInfo_DOCKER.Enum()
		info.Docker = &mesos.ContainerInfo_DockerInfo{
			Image: c.Image, Network: mesos.ContainerInfo_DockerInfo_HOST.Enum(), Privileged: &c.Privileged, ForcePullImage: &force,
		}
		if c.WorkDir != "" {
			info.Docker.Parameters = []mesos.Parameter{{Key: "workdir", Value: c.WorkDir}}
		}
		return info
	}
	cached := c.Pull != execution.PullAlways
	info.Mesos = &mesos.ContainerInfo_MesosInfo{Image: &mesos.Image{
		Type: mesos.Image_DOCKER.Enum(), Docker: &mesos.Image_Docker{Name: c.Image}, Cached: &cached,
	}}
	return info
}

// volume is one mount. A scratch volume lies in the sandbox: the task's own, or for several containers that of their executor.
func volume(e *execution.Spec, mount execution.Mount, grouped bool) mesos.Volume {
	mode := mesos.RW
	if mount.ReadOnly {
		mode = mesos.RO
	}
	v := mesos.Volume{Mode: mode.Enum(), ContainerPath: mount.Path}
	source := e.Volumes[slices.IndexFunc(e.Volumes, func(v execution.Volume) bool { return v.Name == mount.Volume })]
	if source.HostPath != "" {
		path := source.HostPath
		if mount.SubPath != "" {
			path = strings.TrimSuffix(path, "/") + "/" + mount.SubPath
		}
		v.HostPath = &path
		return v
	}
	path := source.Name
	if mount.SubPath != "" {
		path += "/" + mount.SubPath
	}
	within := mesos.Volume_Source_SandboxPath_SELF
	if grouped {
		within = mesos.Volume_Source_SandboxPath_PARENT
	}
	v.Source = &mesos.Volume_Source{
		Type: mesos.Volume_Source_SANDBOX_PATH, SandboxPath: &mesos.Volume_Source_SandboxPath{Type: within, Path: path},
	}
	return v
}

// memberMark stands between a run's id and a container's name in a task id.
const memberMark = "."

// group is a run of several containers: tasks of one executor. The main one has the run's id and is its truth; when it ends the others go.
type group struct {
	members []*member
	failed  string // what a member's failure was; "": none
}

// member is one container beside the main one.
type member struct {
	name  string
	parts []need
	over  bool
}

// plan divides what a run needs among its containers: each has what it asks for, the main one the rest, and of that the executor a little.
func (r *run) plan(l *driver.Launch) error {
	rest := map[string]int64{}
	for _, n := range r.needs {
		rest[n.name] = n.milli
	}
	g := &group{}
	for i := range l.Execution.Sidecars {
		c := &l.Execution.Sidecars[i]
		own := needsOf(c.Needs)
		if len(own) == 0 {
			own = []need{{cpus, executorCPUMilli}, {mem, executorMemMilli}}
		}
		for _, n := range own {
			rest[n.name] -= n.milli
		}
		g.members = append(g.members, &member{name: c.Name, parts: own})
	}
	rest[cpus] -= executorCPUMilli
	rest[mem] -= executorMemMilli
	if rest[cpus] < executorCPUMilli || rest[mem] < 1000 {
		return fmt.Errorf("what the task asks for leaves its main container %g CPUs and %g MiB, after its %d other containers and %g CPUs and %g MiB of the executor: ask for more",
			float64(max(rest[cpus], 0))/1000, float64(max(rest[mem], 0))/1000, len(g.members), executorCPUMilli/1000.0, executorMemMilli/1000.0)
	}
	for _, name := range slices.Sorted(maps.Keys(rest)) {
		if rest[name] < 0 {
			return fmt.Errorf("the containers ask for more %s than the task", name)
		}
	}
	r.group = g
	return nil
}

// executor is the id of what runs a run's tasks.
func (r *run) executor() string { return r.task }

// launchGroup is a run of several containers. What was taken for it is divided among them.
func (m *Machine) launchGroup(r *run) *mesos.Offer_Operation_LaunchGroup {
	l, left := r.launch, r.taken
	share := func(needs []need) []mesos.Resource {
		parts, ok := left.take(needs, nil, r.revocable)
		if !ok { // plan has added it up; thousandths of mixed flavors may still not divide
			parts, _ = left.take(nil, nil, false)
		}
		left = left.minus(parts)
		return parts.write(r.role)
	}
	name := r.executor()
	op := &mesos.Offer_Operation_LaunchGroup{Executor: mesos.ExecutorInfo{
		Type: mesos.ExecutorInfo_DEFAULT, ExecutorID: mesos.ExecutorID{Value: name}, Name: &name,
		Resources: share([]need{{cpus, executorCPUMilli}, {mem, executorMemMilli}}),
	}}
	tasks := []mesos.TaskInfo{{}}
	for i, mb := range r.group.members {
		c := &l.Execution.Sidecars[i]
		tasks = append(tasks, mesos.TaskInfo{
			Name: c.Name, TaskID: mesos.TaskID{Value: r.task + memberMark + c.Name}, AgentID: mesos.AgentID{Value: r.agent.id},
			Resources: share(mb.parts), Command: m.commandInfo(r, c.Command, c.Env), Container: containerInfo(l.Execution, c, true),
			KillPolicy: killPolicy(l.KillGrace), Labels: labels(l.Labels),
		})
	}
	main := m.command(r)
	main.Container = containerInfo(l.Execution, &l.Execution.Main, true)
	main.Resources = left.write(r.role)
	tasks[0] = main
	op.TaskGroup.Tasks = tasks
	return op
}

// memberUpdate takes in a status of a container beside the main one. The core does not know these, so nothing waits for it.
func (m *Machine) memberUpdate(r *run, name string, st *mesos.TaskStatus) {
	if len(st.UUID) > 0 {
		m.acknowledge(r, st.TaskID.Value, st.UUID)
	}
	if r.group == nil {
		r.group = &group{}
	}
	i := slices.IndexFunc(r.group.members, func(mb *member) bool { return mb.name == name })
	if i < 0 {
		if len(r.group.members) >= math.MaxUint8 {
			return
		}
		i = len(r.group.members)
		r.group.members = append(r.group.members, &member{name: name})
	}
	mb := r.group.members[i]
	state, _ := Meaning(st.GetState(), st.Reason)
	switch {
	case state.Traits().Terminal:
		mb.over = true
		if state == runFailed && r.group.failed == "" && r.phase == sent {
			r.group.failed = cut(fmt.Sprintf("container %q failed: %s", name, st.GetMessage()))
		}
	case r.phase == ended && (state == runStarting || state == runRunning):
		m.killMember(r, name)
	}
}

// endGroup ends what runs beside a main container that is over. If it was killed because another failed, that is what became of the run.
func (m *Machine) endGroup(r *run, e *ending) {
	if e.state == runKilled && r.kill == nil && r.group.failed != "" {
		*e = ending{state: runFailed, reason: reasonExited, message: r.group.failed}
	}
	for _, mb := range r.group.members {
		if !mb.over {
			m.killMember(r, mb.name)
		}
	}
}

func (m *Machine) killMember(r *run, name string) {
	if m.subscribed {
		m.call(&scheduler.Call{Type: scheduler.Call_KILL, Kill: &scheduler.Call_Kill{
			TaskID: mesos.TaskID{Value: r.task + memberMark + name}, AgentID: &mesos.AgentID{Value: r.agent.id}, KillPolicy: killPolicy(r.grace),
		}})
	}
}
