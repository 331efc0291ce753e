package record

import (
	"maps"

	"github.com/paceline-sched/paceline/core/execution"
	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/store/record/recordpb"
)

func executionToProto(e *execution.Spec) *recordpb.Execution {
	if e == nil {
		return nil
	}
	m := &recordpb.Execution{
		Main: containerToProto(&e.Main), Inits: containersToProto(e.Inits), Sidecars: containersToProto(e.Sidecars), User: e.User,
	}
	for _, a := range e.Artifacts {
		m.Artifacts = append(m.Artifacts, &recordpb.Artifact{
			Uri: a.URI, Path: a.Path, Extract: a.Extract, Executable: a.Executable, Cache: a.Cache,
		})
	}
	for i := range e.Volumes {
		v := &e.Volumes[i]
		m.Volumes = append(m.Volumes, &recordpb.Volume{
			Name: v.Name, HostPath: v.HostPath, Claim: v.Claim, ConfigMap: v.ConfigMap, Secret: v.Secret, Scratch: v.Scratch,
		})
	}
	if e.Mesos != nil {
		m.Mesos = &recordpb.MesosPart{Docker: e.Mesos.Docker}
	}
	if k := e.Kubernetes; k != nil {
		m.Kubernetes = &recordpb.KubernetesPart{
			Namespace: k.Namespace, ServiceAccount: k.ServiceAccount, PullSecrets: k.PullSecrets, RunAsUser: k.RunAsUser,
			RunAsNonRoot: k.RunAsNonRoot, Patch: k.Patch,
		}
	}
	return m
}

func containersToProto(in []execution.Container) []*recordpb.Container {
	var out []*recordpb.Container
	for i := range in {
		out = append(out, containerToProto(&in[i]))
	}
	return out
}

func containerToProto(c *execution.Container) *recordpb.Container {
	m := &recordpb.Container{
		Name: c.Name, Image: c.Image, Pull: uint32(c.Pull), Command: c.Command, Env: c.Env, Needs: c.Needs, WorkDir: c.WorkDir,
		Privileged: c.Privileged, ReadOnly: c.ReadOnly,
	}
	for _, v := range c.Mounts {
		m.Mounts = append(m.Mounts, &recordpb.Mount{Volume: v.Volume, Path: v.Path, SubPath: v.SubPath, ReadOnly: v.ReadOnly})
	}
	return m
}

func (d *decoder) execution(m *recordpb.Execution) *execution.Spec {
	if m == nil {
		return nil
	}
	e := &execution.Spec{
		Main: d.container(m.GetMain()), Inits: d.containers(m.GetInits()), Sidecars: d.containers(m.GetSidecars()), User: m.GetUser(),
	}
	for _, a := range m.GetArtifacts() {
		e.Artifacts = append(e.Artifacts, execution.Artifact{
			URI: a.GetUri(), Path: a.GetPath(), Extract: a.GetExtract(), Executable: a.GetExecutable(), Cache: a.GetCache(),
		})
	}
	for _, v := range m.GetVolumes() {
		e.Volumes = append(e.Volumes, execution.Volume{
			Name: v.GetName(), HostPath: v.GetHostPath(), Claim: v.GetClaim(), ConfigMap: v.GetConfigMap(), Secret: v.GetSecret(), Scratch: v.GetScratch(),
		})
	}
	if m.GetMesos() != nil {
		e.Mesos = &execution.Mesos{Docker: m.GetMesos().GetDocker()}
	}
	if k := m.GetKubernetes(); k != nil {
		e.Kubernetes = &execution.Kubernetes{
			Namespace: k.GetNamespace(), ServiceAccount: k.GetServiceAccount(), PullSecrets: list(k.GetPullSecrets()), RunAsUser: k.RunAsUser,
			RunAsNonRoot: k.GetRunAsNonRoot(),
		}
		if len(k.GetPatch()) > 0 {
			e.Kubernetes.Patch = k.GetPatch()
		}
	}
	return e
}

func (d *decoder) containers(in []*recordpb.Container) []execution.Container {
	var out []execution.Container
	for _, m := range in {
		out = append(out, d.container(m))
	}
	return out
}

func (d *decoder) container(m *recordpb.Container) execution.Container {
	c := execution.Container{
		Name: m.GetName(), Image: m.GetImage(), Pull: enum(d, m.GetPull(), execution.PullIfMissing, execution.PullNever, "way of fetching images"),
		Command: list(m.GetCommand()), Env: table(m.GetEnv()), WorkDir: m.GetWorkDir(), Privileged: m.GetPrivileged(), ReadOnly: m.GetReadOnly(),
	}
	if len(m.GetNeeds()) > 0 {
		c.Needs = maps.Clone(m.GetNeeds())
	}
	for name, q := range c.Needs {
		if q < 0 || q > resource.MaxQuantity {
			d.fail("a need of %d of resource %.80q is out of range", q, name)
			break
		}
	}
	for _, v := range m.GetMounts() {
		c.Mounts = append(c.Mounts, execution.Mount{Volume: v.GetVolume(), Path: v.GetPath(), SubPath: v.GetSubPath(), ReadOnly: v.GetReadOnly()})
	}
	return c
}
