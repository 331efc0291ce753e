package spec

import (
	"encoding/json"
	"maps"
	"reflect"
	"slices"
	"strings"

	"google.golang.org/protobuf/types/known/structpb"

	"github.com/paceline-sched/paceline/core/execution"
	"github.com/paceline-sched/paceline/core/resource"
	pacelinev1 "github.com/paceline-sched/paceline/sdk/gen/paceline/v1"
)

// The bounds of what runs a task.
const (
	// MaxSideContainers bounds the inits of a task, and its sidecars.
	MaxSideContainers = 16
	// MaxArtifacts bounds what a task fetches.
	MaxArtifacts = 64
	// MaxVolumes bounds the volumes of a task.
	MaxVolumes = 32
	// MaxMounts bounds the mounts of a container.
	MaxMounts = 32
	// MaxPatchBytes bounds a patch of a pod, as JSON.
	MaxPatchBytes = 64 << 10
	// maxPathBytes bounds a path, an address of an artifact, and whatever else names something.
	maxPathBytes = 4096
)

// mainContainer is the name of the container of a task's command.
const mainContainer = "main"

// toExecution reads how a task's processes run; nil when the command is all.
func toExecution(c *checker, in *pacelinev1.TaskSpec, scope Scope) *execution.Spec {
	field := scope.Field + ".task"
	out := &execution.Spec{User: in.GetUser(), Mesos: toMesos(c, in.GetMesos(), field+".mesos")}
	out.Volumes = toVolumes(c, in.GetVolumes(), field+".volumes")
	out.Main = toContainer(c, in.GetContainer(), out.Volumes, field+".container")
	out.Inits = toSideContainers(c, in.GetInits(), out.Volumes, field+".inits", scope.Names)
	out.Sidecars = toSideContainers(c, in.GetSidecars(), out.Volumes, field+".sidecars", scope.Names)
	checkNames(c, in, field)
	out.Artifacts = toArtifacts(c, in.GetArtifacts(), field+".artifacts")
	out.Kubernetes = toKubernetes(c, in.GetKubernetes(), field+".kubernetes")
	checkWord(c, field+".user", out.User)
	if reflect.DeepEqual(out, &execution.Spec{}) {
		return nil
	}
	checkKind(c, out, field)
	return out
}

// checkKind refuses what no cluster of the kind that is asked for could run.
func checkKind(c *checker, e *execution.Spec, field string) {
	if e.Kubernetes == nil || e.Mesos != nil {
		return
	}
	if e.Main.Image == "" {
		c.refuse(field+".container.image", "is required: Kubernetes clusters run images only")
	}
	for n := range e.Inits {
		if e.Inits[n].Image == "" {
			c.refuse(index(field+".inits", n)+".image", "is required: Kubernetes clusters run images only")
		}
	}
	for n := range e.Sidecars {
		if e.Sidecars[n].Image == "" {
			c.refuse(index(field+".sidecars", n)+".image", "is required: Kubernetes clusters run images only")
		}
	}
	if e.User != "" {
		c.refuse(field+".user", "names a user, and Kubernetes clusters know users by number: set kubernetes.run_as_user")
	}
}

// checkWord refuses what no cluster could take as a name, an address or a path.
func checkWord(c *checker, field, s string) {
	switch {
	case len(s) > maxPathBytes:
		c.refuse(field, "is %d bytes long, at most %d are accepted", len(s), maxPathBytes)
	case strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r == 0x7f }):
		c.refuse(field, "must not contain control characters")
	}
}

// checkCount reports whether a list is within its bound.
func checkCount(c *checker, field string, n, most int) bool {
	if n > most {
		c.refuse(field, "has %d entries, at most %d are accepted", n, most)
	}
	return n <= most
}

// settings is what the two messages of containers have in common.
type settings interface {
	GetImage() string
	GetPull() string
	GetPrivileged() bool
	GetReadOnly() bool
	GetWorkDir() string
	GetMounts() []*pacelinev1.MountSpec
}

func toContainer(c *checker, in settings, volumes []execution.Volume, field string) execution.Container {
	out := execution.Container{
		Image: in.GetImage(), Privileged: in.GetPrivileged(), ReadOnly: in.GetReadOnly(), WorkDir: in.GetWorkDir(),
		Mounts: toMounts(c, in.GetMounts(), volumes, field+".mounts"),
	}
	checkWord(c, field+".image", out.Image)
	checkWord(c, field+".work_dir", out.WorkDir)
	switch in.GetPull() {
	case "", "missing":
		out.Pull = execution.PullIfMissing
	case "always":
		out.Pull = execution.PullAlways
	case "never":
		out.Pull = execution.PullNever
	default:
		c.refuse(field+".pull", "%q is unknown: use missing, always or never", clip(in.GetPull()))
	}
	if out.Image == "" && (in.GetPull() != "" || out.Privileged || out.ReadOnly || out.WorkDir != "") {
		c.refuse(field, "pull, privileged, read_only and work_dir need an image")
	}
	return out
}

func toMounts(c *checker, in []*pacelinev1.MountSpec, volumes []execution.Volume, field string) []execution.Mount {
	if !checkCount(c, field, len(in), MaxMounts) {
		return nil
	}
	var out []execution.Mount
	for n, m := range in {
		at := index(field, n)
		if !slices.ContainsFunc(volumes, func(v execution.Volume) bool { return v.Name == m.GetVolume() }) {
			c.refuse(at+".volume", "%q is not among the volumes in task.volumes", clip(m.GetVolume()))
		}
		checkWord(c, at+".path", m.GetPath())
		checkWord(c, at+".sub_path", m.GetSubPath())
		out = append(out, execution.Mount{Volume: m.GetVolume(), Path: m.GetPath(), SubPath: m.GetSubPath(), ReadOnly: m.GetReadOnly()})
	}
	return out
}

func toSideContainers(c *checker, in []*pacelinev1.SideContainerSpec, volumes []execution.Volume, field string, names *resource.Names) []execution.Container {
	if !checkCount(c, field, len(in), MaxSideContainers) {
		return nil
	}
	var out []execution.Container
	for n, s := range in {
		at := index(field, n)
		side := toContainer(c, s, volumes, at)
		side.Name, side.Command, side.Env = s.GetName(), list(s.GetCommand()), table(s.GetEnv())
		checkCommand(c, at+".command", side.Command)
		checkEnv(c, at+".env", side.Env)
		if side.Image == "" && len(side.Command) == 0 {
			c.refuse(at+".command", "is required unless there is an image, whose entry point runs then")
		}
		amountsOf(s.GetResources()).each(c, at+".resources", names, func(k resource.Kind, q int64) {
			switch {
			case k > resource.Disk:
				c.refuse(at+".resources", "%s goes to the task's command: leave it out", names.Name(k))
			case q > 0:
				if side.Needs == nil {
					side.Needs = map[string]int64{}
				}
				side.Needs[names.Name(k)] = q
			}
		})
		out = append(out, side)
	}
	return out
}

// checkNames wants every container of a task to have a name of its own.
func checkNames(c *checker, in *pacelinev1.TaskSpec, field string) {
	taken := map[string]string{mainContainer: "the container of the task's command"}
	check := func(at, name string) {
		if other, is := taken[name]; is {
			c.refuse(at+".name", "%q is the name of %s too", clip(name), other)
			return
		}
		taken[name] = at
	}
	for n, s := range in.GetInits() {
		check(index(field+".inits", n), s.GetName())
	}
	for n, s := range in.GetSidecars() {
		check(index(field+".sidecars", n), s.GetName())
	}
}

// checkParts wants the parts of a task's containers to be within what the task needs. Inits run alone, sidecars beside the command.
func checkParts(c *checker, e *execution.Spec, needs resource.Vector, field string, names *resource.Names) {
	if e == nil {
		return
	}
	for k := resource.CPU; k <= resource.Disk; k++ {
		name, together := names.Name(k), int64(0)
		for n := range e.Sidecars {
			together += e.Sidecars[n].Needs[name] // at most MaxSideContainers of at most resource.MaxQuantity
		}
		if together > needs[k] {
			c.refuse(field, "the sidecars have %d of %s, more than the %d of the whole task: raise the task's, which includes them", together, name, needs[k])
		}
		for n := range e.Inits {
			if q := e.Inits[n].Needs[name]; q > needs[k] {
				c.refuse(field, "the init %s has %d of %s, more than the %d of the whole task: raise the task's, which includes it", clip(e.Inits[n].Name), q, name, needs[k])
			}
		}
	}
}

func toArtifacts(c *checker, in []*pacelinev1.ArtifactSpec, field string) []execution.Artifact {
	if !checkCount(c, field, len(in), MaxArtifacts) {
		return nil
	}
	var out []execution.Artifact
	for n, a := range in {
		checkWord(c, index(field, n)+".uri", a.GetUri())
		checkWord(c, index(field, n)+".path", a.GetPath())
		out = append(out, execution.Artifact{
			URI: a.GetUri(), Path: a.GetPath(), Extract: a.GetExtract(), Executable: a.GetExecutable(), Cache: a.GetCache(),
		})
	}
	return out
}

func toVolumes(c *checker, in []*pacelinev1.VolumeSpec, field string) []execution.Volume {
	if !checkCount(c, field, len(in), MaxVolumes) {
		return nil
	}
	var out []execution.Volume
	names := map[string]bool{}
	for n, v := range in {
		at := index(field, n)
		if names[v.GetName()] || v.GetName() == "" {
			c.refuse(at+".name", "%q must be set, and not be another volume's name", clip(v.GetName()))
		}
		names[v.GetName()] = true
		volume := execution.Volume{
			Name: v.GetName(), HostPath: v.GetHostPath(), Claim: v.GetClaim(), ConfigMap: v.GetConfigMap(), Secret: v.GetSecret(),
			Scratch: v.GetScratch() != nil,
		}
		for _, s := range []string{volume.HostPath, volume.Claim, volume.ConfigMap, volume.Secret} {
			checkWord(c, at, s)
		}
		if !volume.Scratch && volume.HostPath+volume.Claim+volume.ConfigMap+volume.Secret == "" {
			c.refuse(at, "one of host_path, claim, config_map, secret and scratch must be set, for example scratch: {}")
		}
		out = append(out, volume)
	}
	return out
}

func toMesos(c *checker, in *pacelinev1.MesosSpec, field string) *execution.Mesos {
	if in == nil {
		return nil
	}
	switch in.GetContainerizer() {
	case "", "mesos":
		return &execution.Mesos{}
	case "docker":
		return &execution.Mesos{Docker: true}
	}
	c.refuse(field+".containerizer", "%q is unknown: use mesos or docker", clip(in.GetContainerizer()))
	return nil
}

func toKubernetes(c *checker, in *pacelinev1.KubernetesSpec, field string) *execution.Kubernetes {
	if in == nil {
		return nil
	}
	out := &execution.Kubernetes{
		Namespace: in.GetNamespace(), ServiceAccount: in.GetServiceAccount(), PullSecrets: list(in.GetPullSecrets()),
		RunAsNonRoot: in.GetRunAsNonRoot(), Patch: toPatch(c, in.GetPodPatch(), field+".pod_patch"),
	}
	for _, s := range append([]string{out.Namespace, out.ServiceAccount}, out.PullSecrets...) {
		checkWord(c, field, s)
	}
	if in.RunAsUser != nil {
		user := in.GetRunAsUser()
		out.RunAsUser = &user
		if user == 0 && out.RunAsNonRoot {
			c.refuse(field+".run_as_user", "is 0, which run_as_non_root forbids: set another user, or leave run_as_non_root out")
		}
	}
	return out
}

// ownOfPods are the fields of a pod that are the scheduler's, below metadata and spec.
var ownOfPods = map[string][]string{
	"metadata": {"name", "generateName", "namespace", "uid", "ownerReferences", "finalizers"},
	"spec":     {"nodeName", "schedulerName", "restartPolicy", "priority", "priorityClassName"},
}

// ofWhole are the directives of a strategic merge patch that replace or delete all of metadata or spec.
var ofWhole = []string{"$patch", "$retainKeys"}

// toPatch writes a patch as JSON with sorted keys, so that equal patches are equal bytes.
func toPatch(c *checker, in *structpb.Struct, field string) []byte {
	if len(in.GetFields()) == 0 {
		return nil
	}
	for _, part := range slices.Sorted(maps.Keys(in.GetFields())) {
		own, known := ownOfPods[part]
		if !known {
			c.refuse(field, "has %q, a pod has metadata and spec to patch", clip(part))
			continue
		}
		inner, isStruct := in.GetFields()[part].GetKind().(*structpb.Value_StructValue)
		if !isStruct { // null would delete all of it
			c.refuse(field+"."+part, "must be an object with the fields to patch")
			continue
		}
		for _, name := range own {
			if inner.StructValue.GetFields()[name] != nil {
				c.refuse(field+"."+part+"."+name, "is the scheduler's to say: leave it out")
			}
		}
		for _, name := range ofWhole {
			if inner.StructValue.GetFields()[name] != nil {
				c.refuse(field+"."+part+"."+name, "would take away what the scheduler says: patch single fields")
			}
		}
	}
	raw, err := json.Marshal(in.AsMap())
	switch {
	case err != nil:
		c.refuse(field, "cannot be written as JSON: %v", err)
	case len(raw) > MaxPatchBytes:
		c.refuse(field, "is %d bytes long as JSON, at most %d are accepted", len(raw), MaxPatchBytes)
	}
	return raw
}

// fromExecution writes how a task's processes run into its message.
func fromExecution(e *execution.Spec, out *pacelinev1.TaskSpec, names *resource.Names) {
	if e == nil {
		return
	}
	if !reflect.DeepEqual(e.Main, execution.Container{}) {
		m := &e.Main
		out.Container = &pacelinev1.ContainerSpec{
			Image: m.Image, Pull: fromPull(m), Privileged: m.Privileged, ReadOnly: m.ReadOnly, WorkDir: m.WorkDir, Mounts: fromMounts(m.Mounts),
		}
	}
	out.Inits, out.Sidecars = fromSideContainers(e.Inits, names), fromSideContainers(e.Sidecars, names)
	for _, a := range e.Artifacts {
		out.Artifacts = append(out.Artifacts, &pacelinev1.ArtifactSpec{
			Uri: a.URI, Path: a.Path, Extract: a.Extract, Executable: a.Executable, Cache: a.Cache,
		})
	}
	for n := range e.Volumes {
		out.Volumes = append(out.Volumes, fromVolume(&e.Volumes[n]))
	}
	out.User = e.User
	if e.Mesos != nil {
		out.Mesos = &pacelinev1.MesosSpec{Containerizer: "mesos"}
		if e.Mesos.Docker {
			out.Mesos.Containerizer = "docker"
		}
	}
	if k := e.Kubernetes; k != nil {
		out.Kubernetes = &pacelinev1.KubernetesSpec{
			Namespace: k.Namespace, ServiceAccount: k.ServiceAccount, PullSecrets: k.PullSecrets, RunAsUser: k.RunAsUser, RunAsNonRoot: k.RunAsNonRoot,
			PodPatch: fromPatch(k.Patch),
		}
	}
}

func fromPull(c *execution.Container) string {
	if c.Image == "" {
		return ""
	}
	return c.Pull.String()
}

func fromMounts(in []execution.Mount) []*pacelinev1.MountSpec {
	var out []*pacelinev1.MountSpec
	for _, m := range in {
		out = append(out, &pacelinev1.MountSpec{Volume: m.Volume, Path: m.Path, SubPath: m.SubPath, ReadOnly: m.ReadOnly})
	}
	return out
}

func fromSideContainers(in []execution.Container, names *resource.Names) []*pacelinev1.SideContainerSpec {
	var out []*pacelinev1.SideContainerSpec
	for n := range in {
		s := &in[n]
		side := &pacelinev1.SideContainerSpec{
			Name: s.Name, Image: s.Image, Pull: fromPull(s), Privileged: s.Privileged, ReadOnly: s.ReadOnly, WorkDir: s.WorkDir,
			Mounts: fromMounts(s.Mounts), Command: s.Command, Env: s.Env,
		}
		if len(s.Needs) > 0 {
			side.Resources = fromKinds(names, func(k resource.Kind) (int64, bool) {
				q, is := s.Needs[names.Name(k)]
				return q, is
			})
		}
		out = append(out, side)
	}
	return out
}

func fromVolume(v *execution.Volume) *pacelinev1.VolumeSpec {
	out := &pacelinev1.VolumeSpec{Name: v.Name}
	switch {
	case v.HostPath != "":
		out.Source = &pacelinev1.VolumeSpec_HostPath{HostPath: v.HostPath}
	case v.Claim != "":
		out.Source = &pacelinev1.VolumeSpec_Claim{Claim: v.Claim}
	case v.ConfigMap != "":
		out.Source = &pacelinev1.VolumeSpec_ConfigMap{ConfigMap: v.ConfigMap}
	case v.Secret != "":
		out.Source = &pacelinev1.VolumeSpec_Secret{Secret: v.Secret}
	default:
		out.Source = &pacelinev1.VolumeSpec_Scratch{Scratch: &pacelinev1.ScratchSpec{}}
	}
	return out
}

// fromPatch reads what toPatch wrote.
func fromPatch(raw []byte) *structpb.Struct {
	var fields map[string]any
	if len(raw) == 0 || json.Unmarshal(raw, &fields) != nil {
		return nil
	}
	out, err := structpb.NewStruct(fields)
	if err != nil {
		return nil
	}
	return out
}
