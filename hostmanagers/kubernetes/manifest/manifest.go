// Package manifest writes the pod of a run: what a launch asks for, in the words of Kubernetes.
//
// It owns the translation and what of a launch a pod cannot have. It never looks at a cluster, keeps no state, and its functions may be called
// from any goroutine.
package manifest

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/strategicpatch"

	"github.com/paceline-sched/paceline/core/driver"
	"github.com/paceline-sched/paceline/core/execution"
	"github.com/paceline-sched/paceline/hostmanagers/kubernetes/mirror"
)

// Config is what all pods of a cluster have in common.
type Config struct {
	// Owner and Epoch label the pods.
	Owner string
	Epoch uint64
	// Namespace is that of pods whose job names none, unless NamespacePerPool is set.
	Namespace string
	// NamespacePerPool gives each pool a namespace of its own: PoolMark in it is replaced by what NamespaceOfPool makes of the pool's path. A job
	// cannot leave the one of its pool. "": Namespace holds for all pools.
	NamespacePerPool string
	// DefaultImage runs commands of tasks without an image; "": there is none, and such a task fails.
	DefaultImage string
	// HostPaths and Privileged allow what gives a task its node.
	HostPaths, Privileged bool
	// Tolerated are the keys of taints that pods tolerate.
	Tolerated []string
}

// Pod writes the pod of a launch. gpu is the resource that GPUs of its node are. The error is for the user.
func (c *Config) Pod(l *driver.Launch, gpu string) (*corev1.Pod, error) {
	e := l.Execution
	if e == nil {
		e = &execution.Spec{}
	}
	if err := c.checkNamespace(l); err != nil {
		return nil, err
	}
	if err := c.check(l, e, gpu); err != nil {
		return nil, err
	}
	grace := seconds(l.KillGrace, 0)
	no := false
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: l.Run.String(), Namespace: c.NamespaceOf(l)},
		Spec: corev1.PodSpec{
			NodeName: l.Host, RestartPolicy: corev1.RestartPolicyNever, TerminationGracePeriodSeconds: &grace,
			EnableServiceLinks: &no, AutomountServiceAccountToken: &no, Tolerations: c.tolerations(),
		},
	}
	c.containers(pod, l, e, gpu)
	for i := range e.Volumes {
		pod.Spec.Volumes = append(pod.Spec.Volumes, volume(&e.Volumes[i]))
	}
	c.label(pod, l)
	k := e.Kubernetes
	if k == nil {
		return pod, nil
	}
	if k.ServiceAccount != "" {
		pod.Spec.ServiceAccountName, pod.Spec.AutomountServiceAccountToken = k.ServiceAccount, nil
	}
	for _, name := range k.PullSecrets {
		pod.Spec.ImagePullSecrets = append(pod.Spec.ImagePullSecrets, corev1.LocalObjectReference{Name: name})
	}
	if k.RunAsUser != nil || k.RunAsNonRoot {
		pod.Spec.SecurityContext = &corev1.PodSecurityContext{RunAsUser: k.RunAsUser}
		if k.RunAsNonRoot {
			pod.Spec.SecurityContext.RunAsNonRoot = &k.RunAsNonRoot
		}
	}
	if len(k.Patch) == 0 {
		return pod, nil
	}
	return c.patched(pod, k.Patch)
}

// check reports what of a launch no pod of this cluster can have.
func (c *Config) check(l *driver.Launch, e *execution.Spec, gpu string) error {
	switch {
	case l.Needs["gpu_milli"]%1000 != 0:
		return fmt.Errorf("Kubernetes gives out whole GPUs only, not %d thousandths of one", l.Needs["gpu_milli"]) //nolint:staticcheck // a name
	case l.Needs["gpu_milli"] > 0 && gpu == "":
		return errors.New("its node has no GPUs any more")
	case len(e.Artifacts) > 0:
		return errors.New("Kubernetes fetches no artifacts: put them into the image, or fetch them in an init container") //nolint:staticcheck // a name
	case e.User != "":
		return fmt.Errorf("user %q is a name: on Kubernetes set run_as_user, which is a number", e.User)
	case e.Mesos != nil && e.Kubernetes == nil:
		return errors.New("the job asks for what only Mesos has: restrict it to Mesos clusters, or leave that out")
	}
	names := map[string]bool{mirror.MainContainer: true}
	for container := range e.Containers() {
		main := container == &e.Main
		switch {
		case container.Image == "" && c.DefaultImage == "":
			return errors.New("a task without a container image cannot run on this Kubernetes cluster: name an image")
		case container.Image == "" && main && len(l.Command) == 0:
			return errors.New("a task without a container image needs a command")
		case container.Privileged && !c.Privileged:
			return errors.New("privileged containers are not allowed on this cluster")
		case !main && names[container.Name]:
			return fmt.Errorf("two containers are called %q, of which one may be the command's own", container.Name)
		}
		if !main {
			names[container.Name] = true
		}
		for _, m := range container.Mounts {
			if !slices.ContainsFunc(e.Volumes, func(v execution.Volume) bool { return v.Name == m.Volume }) {
				return fmt.Errorf("a container mounts volume %q, which the task does not have", m.Volume)
			}
		}
	}
	for i := range e.Volumes {
		if e.Volumes[i].HostPath != "" && !c.HostPaths {
			return fmt.Errorf("volume %q is a path of the host, which is not allowed on this cluster", e.Volumes[i].Name)
		}
	}
	if l.Health != nil {
		if _, err := probe(l); err != nil {
			return err
		}
	}
	return nil
}

// tolerations: what becomes of runs on a node that is out of contact the cell decides, not the cluster after five minutes.
func (c *Config) tolerations() []corev1.Toleration {
	list := []corev1.Toleration{
		{Key: corev1.TaintNodeNotReady, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute},
		{Key: corev1.TaintNodeUnreachable, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute},
	}
	for _, key := range c.Tolerated {
		list = append(list, corev1.Toleration{Key: key, Operator: corev1.TolerationOpExists})
	}
	return list
}

// containers writes the containers. Sidecars are init containers that stay: their kubelet ends them when the main one has ended.
func (c *Config) containers(pod *corev1.Pod, l *driver.Launch, e *execution.Spec, gpu string) {
	rest := maps.Clone(l.Needs)
	for i := range e.Sidecars {
		for name, n := range e.Sidecars[i].Needs {
			rest[name] = max(0, rest[name]-n)
		}
	}
	always := corev1.ContainerRestartPolicyAlways
	base := environment(l)
	for i := range e.Inits {
		needs := e.Inits[i].Needs
		if needs == nil {
			needs = rest
		}
		pod.Spec.InitContainers = append(pod.Spec.InitContainers, c.container(&e.Inits[i], base, resources(needs, gpu, l.Revocable)))
	}
	for i := range e.Sidecars {
		sidecar := c.container(&e.Sidecars[i], base, resources(e.Sidecars[i].Needs, gpu, l.Revocable))
		sidecar.RestartPolicy = &always
		pod.Spec.InitContainers = append(pod.Spec.InitContainers, sidecar)
	}
	main := c.container(&e.Main, base, resources(rest, gpu, l.Revocable))
	main.Name, main.Command = mirror.MainContainer, literal(l.Command)
	for _, p := range l.Ports {
		main.Ports = append(main.Ports, corev1.ContainerPort{ContainerPort: int32(p.Number), HostPort: int32(p.Number), Protocol: corev1.ProtocolTCP})
	}
	if l.Health != nil {
		ready, _ := probe(l) // check has seen that it can be
		main.LivenessProbe, main.ReadinessProbe = ready, ready.DeepCopy()
		main.ReadinessProbe.TerminationGracePeriodSeconds = nil
	}
	pod.Spec.Containers = []corev1.Container{main}
}

var pulls = map[execution.PullPolicy]corev1.PullPolicy{
	execution.PullIfMissing: corev1.PullIfNotPresent, execution.PullAlways: corev1.PullAlways, execution.PullNever: corev1.PullNever,
}

func (c *Config) container(from *execution.Container, base map[string]string, r corev1.ResourceRequirements) corev1.Container {
	out := corev1.Container{
		Name: from.Name, Image: from.Image, ImagePullPolicy: pulls[from.Pull], Command: literal(from.Command), WorkingDir: from.WorkDir, Resources: r,
		Env: variables(base, from.Env), TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
	}
	if out.Image == "" {
		out.Image = c.DefaultImage
	}
	for _, m := range from.Mounts {
		out.VolumeMounts = append(out.VolumeMounts, corev1.VolumeMount{Name: m.Volume, MountPath: m.Path, SubPath: m.SubPath, ReadOnly: m.ReadOnly})
	}
	if from.Privileged || from.ReadOnly {
		out.SecurityContext = &corev1.SecurityContext{}
		if from.Privileged {
			out.SecurityContext.Privileged = &from.Privileged
		}
		if from.ReadOnly {
			out.SecurityContext.ReadOnlyRootFilesystem = &from.ReadOnly
		}
	}
	return out
}

// resources are requests and limits. What is revocable requests nothing: a kubelet counts requests, and would refuse what its node has promised
// twice; its limits still hold.
func resources(needs map[string]int64, gpu string, revocable bool) corev1.ResourceRequirements {
	limits := corev1.ResourceList{}
	for name, n := range needs {
		switch {
		case n <= 0:
		case name == "cpu_milli":
			limits[corev1.ResourceCPU] = *resource.NewMilliQuantity(n, resource.DecimalSI)
		case name == "memory_mib":
			limits[corev1.ResourceMemory] = *resource.NewQuantity(mebibytes(n), resource.BinarySI)
		case name == "disk_mib":
			limits[corev1.ResourceEphemeralStorage] = *resource.NewQuantity(mebibytes(n), resource.BinarySI)
		case name == "gpu_milli":
			limits[corev1.ResourceName(gpu)] = *resource.NewQuantity(n/1000, resource.DecimalSI)
		default:
			limits[corev1.ResourceName(name)] = *resource.NewQuantity(n, resource.DecimalSI)
		}
	}
	requests := limits
	if revocable {
		requests = maps.Clone(limits)
		for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage} {
			if _, ok := limits[name]; ok {
				requests[name] = resource.Quantity{}
			}
		}
	}
	return corev1.ResourceRequirements{Limits: limits, Requests: requests}
}

func mebibytes(n int64) int64 { return min(n, math.MaxInt64>>20) << 20 }

// environment is what every container of a run finds: what Paceline tells it, and over that what the job sets. Only the run's id is not the
// job's to change.
func environment(l *driver.Launch) map[string]string {
	env := make(map[string]string, len(l.Env)+len(l.Ports)+2)
	env["PACELINE_HOST"] = l.Host
	for _, p := range l.Ports {
		env["PACELINE_PORT_"+variable(p.Name)] = strconv.Itoa(int(p.Number))
	}
	maps.Copy(env, l.Env)
	env["PACELINE_RUN_ID"] = l.Run.String()
	return env
}

func variables(base, own map[string]string) []corev1.EnvVar {
	env := base
	if len(own) > 0 {
		env = maps.Clone(base)
		maps.Copy(env, own)
		env["PACELINE_RUN_ID"] = base["PACELINE_RUN_ID"]
	}
	list := make([]corev1.EnvVar, 0, len(env))
	for _, name := range slices.Sorted(maps.Keys(env)) {
		list = append(list, corev1.EnvVar{Name: name, Value: escape(env[name])})
	}
	return list
}

// escape keeps a kubelet from putting variables in for $(NAME), and from taking $$ for one dollar: every string of a launch is final.
func escape(s string) string { return strings.ReplaceAll(s, "$", "$$") }

func literal(words []string) []string {
	if words == nil {
		return nil
	}
	out := make([]string, len(words))
	for i, word := range words {
		out[i] = escape(word)
	}
	return out
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

// The defaults of a health check, as the workload's documentation has them.
const (
	defaultInterval  = 10
	defaultTimeout   = 1
	defaultThreshold = 3
)

// seconds rounds a time up to what Kubernetes counts in.
func seconds(d time.Duration, otherwise int64) int64 {
	if d <= 0 {
		return otherwise
	}
	return min(int64((d-1)/time.Second)+1, math.MaxInt32)
}

func probe(l *driver.Launch) (*corev1.Probe, error) {
	h := l.Health
	p := &corev1.Probe{
		InitialDelaySeconds: int32(seconds(h.InitialDelay, 0)), PeriodSeconds: int32(seconds(h.Interval, defaultInterval)),
		TimeoutSeconds: int32(seconds(h.Timeout, defaultTimeout)), FailureThreshold: int32(min(h.FailureThreshold, math.MaxInt32)),
	}
	if p.FailureThreshold == 0 {
		p.FailureThreshold = defaultThreshold
	}
	var err error
	switch {
	case h.HTTP != nil:
		p.HTTPGet = &corev1.HTTPGetAction{Path: h.HTTP.Path}
		p.HTTPGet.Port.IntVal, err = port(l, h.HTTP.Port)
	case h.TCP != nil:
		p.TCPSocket = &corev1.TCPSocketAction{}
		p.TCPSocket.Port.IntVal, err = port(l, h.TCP.Port)
	case len(h.Exec) > 0:
		p.Exec = &corev1.ExecAction{Command: h.Exec}
	default:
		err = errors.New("its health check asks nothing")
	}
	return p, err
}

func port(l *driver.Launch, name string) (int32, error) {
	for _, p := range l.Ports {
		if p.Name == name {
			return int32(p.Number), nil
		}
	}
	return 0, fmt.Errorf("its health check names the port %.80q, which the task does not have", name)
}

func volume(v *execution.Volume) corev1.Volume {
	out := corev1.Volume{Name: v.Name}
	switch {
	case v.HostPath != "":
		out.HostPath = &corev1.HostPathVolumeSource{Path: v.HostPath}
	case v.Claim != "":
		out.PersistentVolumeClaim = &corev1.PersistentVolumeClaimVolumeSource{ClaimName: v.Claim}
	case v.ConfigMap != "":
		out.ConfigMap = &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: v.ConfigMap}}
	case v.Secret != "":
		out.Secret = &corev1.SecretVolumeSource{SecretName: v.Secret}
	default:
		out.EmptyDir = &corev1.EmptyDirVolumeSource{}
	}
	return out
}

// label says whose the pod is. Labels of the job that Kubernetes does not take as such are annotations.
func (c *Config) label(pod *corev1.Pod, l *driver.Launch) {
	pod.Labels, pod.Annotations = map[string]string{}, nil
	for key, value := range l.Labels {
		if labelKey.MatchString(key) && labelValue.MatchString(value) && !strings.Contains(key, "kubernetes.io/") {
			pod.Labels[key] = value
		} else if labelKey.MatchString(key) {
			pod.Annotations = put(pod.Annotations, key, value)
		}
	}
	pod.Labels[LabelManager] = Manager
	pod.Labels[mirror.LabelOwner] = c.Owner
	if c.Epoch > 0 {
		pod.Labels[mirror.LabelEpoch] = strconv.FormatUint(c.Epoch, 10)
	}
	if len(l.Devices) > 0 {
		var list []string
		for _, d := range l.Devices {
			list = append(list, strconv.Itoa(d))
		}
		pod.Annotations = put(pod.Annotations, mirror.AnnotationDevices, strings.Join(list, ","))
	}
}

func put(m map[string]string, key, value string) map[string]string {
	if m == nil {
		m = map[string]string{}
	}
	m[key] = value
	return m
}

// patched applies a strategic merge patch. What makes the pod the run's is not the patch's to change.
func (c *Config) patched(pod *corev1.Pod, patch []byte) (*corev1.Pod, error) {
	before, err := json.Marshal(pod)
	if err != nil {
		return nil, fmt.Errorf("write the pod: %w", err)
	}
	after, err := strategicpatch.StrategicMergePatch(before, patch, corev1.Pod{})
	if err != nil {
		return nil, fmt.Errorf("apply the job's patch to its pod: %w", err)
	}
	out := &corev1.Pod{}
	if err := json.Unmarshal(after, out); err != nil {
		return nil, fmt.Errorf("apply the job's patch to its pod: %w", err)
	}
	fixed := func(p *corev1.Pod) [8]string {
		return [8]string{
			p.Name, p.Namespace, p.Spec.NodeName, string(p.Spec.RestartPolicy), p.Labels[mirror.LabelOwner], p.Labels[mirror.LabelEpoch],
			p.Annotations[mirror.AnnotationDevices], p.GenerateName,
		}
	}
	if fixed(pod) != fixed(out) || !slices.ContainsFunc(out.Spec.Containers, func(c corev1.Container) bool { return c.Name == mirror.MainContainer }) {
		return nil, fmt.Errorf("the job's patch changes the pod's name, namespace, node, restart policy or owner, or removes container %q: leave these alone", mirror.MainContainer)
	}
	if !c.Privileged && privileged(&out.Spec) {
		return nil, errors.New("the job's patch makes a container privileged, or shares namespaces of the host, which is not allowed on this cluster")
	}
	if !c.HostPaths && slices.ContainsFunc(out.Spec.Volumes, func(v corev1.Volume) bool { return v.HostPath != nil }) {
		return nil, errors.New("the job's patch mounts a path of the host, which is not allowed on this cluster")
	}
	return out, nil
}

// privileged reports whether a pod has its node in its hands.
func privileged(s *corev1.PodSpec) bool {
	if s.HostNetwork || s.HostPID || s.HostIPC || len(s.EphemeralContainers) > 0 {
		return true
	}
	for _, list := range [][]corev1.Container{s.Containers, s.InitContainers} {
		for i := range list {
			if c := list[i].SecurityContext; c != nil && (c.Privileged != nil && *c.Privileged || c.Capabilities != nil && len(c.Capabilities.Add) > 0) {
				return true
			}
		}
	}
	return false
}
