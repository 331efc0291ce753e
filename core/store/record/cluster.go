package record

import (
	"bytes"
	"crypto/sha256"
	"math"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/paceline-sched/paceline/core/cluster"
	"github.com/paceline-sched/paceline/core/scheduler"
	"github.com/paceline-sched/paceline/core/store/record/recordpb"
)

func clusterToProto(r *scheduler.ClusterRecord) *recordpb.Cluster {
	s := &r.Spec
	m := &recordpb.Cluster{
		Version: r.Version, Created: r.Created, Updated: r.Updated, By: r.By, Identity: r.Identity, Uid: r.UID,
		Name: s.Name, Labels: s.Labels, Shards: uint32(max(s.Shards, 0)), //nolint:gosec // at most cluster.MaxShards
	}
	if c := s.Mesos; c != nil {
		m.Mesos = &recordpb.MesosCluster{
			Masters: c.Masters, Roles: c.Roles, Principal: c.Principal, SecretFile: c.Secret.File, SecretEnv: c.Secret.Env, CaFile: c.CAFile,
			Failover: int64(c.Failover), User: c.User, Framework: c.Framework,
		}
	}
	if k := s.Kubernetes; k != nil {
		m.Kubernetes = &recordpb.KubernetesCluster{
			Kubeconfig: k.Kubeconfig, Context: k.Context, InCluster: k.InCluster, Namespace: k.Namespace, DefaultImage: k.DefaultImage, PoolLabel: k.PoolLabel,
			Tolerated: k.Tolerated, Gpus: k.GPUs, HostPaths: k.HostPaths, Privileged: k.Privileged, FirstPort: uint32(k.FirstPort), LastPort: uint32(k.LastPort),
			NamespacePerPool: k.NamespacePerPool, CreateNamespaces: k.CreateNamespaces,
			StartGrace: int64(k.StartGrace), UnreachableGrace: int64(k.UnreachableGrace),
		}
		if t := k.KeepEnded; t != nil {
			m.Kubernetes.KeepEnded = proto.Int64(int64(*t))
		}
		if n := k.KeepEndedPods; n != nil {
			m.Kubernetes.KeepEndedPods = proto.Uint32(uint32(*n)) //nolint:gosec // at most cluster.MaxKeepEndedPods
		}
	}
	return m
}

func (d *decoder) cluster() scheduler.Record {
	var m recordpb.Cluster
	d.unmarshal(&m)
	if !bytes.Equal(d.key, d.keys.Cluster(sha256.Sum256([]byte(m.GetName())))) {
		d.fail("the cluster %.80q lies under another's key", m.GetName())
	}
	if m.GetShards() > cluster.MaxShards {
		d.fail("a cluster of %d shards", m.GetShards())
	}
	r := scheduler.ClusterRecord{
		Version: m.GetVersion(), Created: m.GetCreated(), Updated: m.GetUpdated(), By: m.GetBy(), Identity: m.GetIdentity(), UID: m.GetUid(),
		Spec: cluster.Spec{Name: m.GetName(), Labels: table(m.GetLabels()), Shards: int(m.GetShards())},
	}
	if c := m.GetMesos(); c != nil {
		r.Spec.Mesos = &cluster.Mesos{
			Masters: list(c.GetMasters()), Roles: list(c.GetRoles()), Principal: c.GetPrincipal(),
			Secret: cluster.Secret{File: c.GetSecretFile(), Env: c.GetSecretEnv()}, CAFile: c.GetCaFile(), Failover: time.Duration(c.GetFailover()),
			User: c.GetUser(), Framework: c.GetFramework(),
		}
	}
	if k := m.GetKubernetes(); k != nil {
		if k.GetFirstPort() > math.MaxUint16 || k.GetLastPort() > math.MaxUint16 {
			d.fail("a cluster with ports from %d to %d", k.GetFirstPort(), k.GetLastPort())
		}
		r.Spec.Kubernetes = &cluster.Kubernetes{
			Kubeconfig: k.GetKubeconfig(), Context: k.GetContext(), InCluster: k.GetInCluster(), Namespace: k.GetNamespace(), DefaultImage: k.GetDefaultImage(),
			PoolLabel: k.GetPoolLabel(), Tolerated: list(k.GetTolerated()), GPUs: list(k.GetGpus()), HostPaths: k.GetHostPaths(), Privileged: k.GetPrivileged(),
			NamespacePerPool: k.GetNamespacePerPool(), CreateNamespaces: k.GetCreateNamespaces(),
			StartGrace: time.Duration(k.GetStartGrace()), UnreachableGrace: time.Duration(k.GetUnreachableGrace()),
			FirstPort: uint16(k.GetFirstPort()), LastPort: uint16(k.GetLastPort()), //nolint:gosec // checked above
		}
		if k.KeepEnded != nil {
			t := time.Duration(k.GetKeepEnded())
			r.Spec.Kubernetes.KeepEnded = &t
		}
		if k.KeepEndedPods != nil {
			n := int(k.GetKeepEndedPods())
			r.Spec.Kubernetes.KeepEndedPods = &n
		}
	}
	return r
}
