package record

import (
	"bytes"
	"crypto/sha256"
	"time"

	"github.com/paceline-sched/paceline/core/cluster"
	"github.com/paceline-sched/paceline/core/scheduler"
	"github.com/paceline-sched/paceline/core/store/record/recordpb"
)

func clusterToProto(r *scheduler.ClusterRecord) *recordpb.Cluster {
	s := &r.Spec
	m := &recordpb.Cluster{
		Version: r.Version, Created: r.Created, Updated: r.Updated, By: r.By, Identity: r.Identity,
		Name: s.Name, Labels: s.Labels, Shards: uint32(max(s.Shards, 0)), //nolint:gosec // at most cluster.MaxShards
	}
	if c := s.Mesos; c != nil {
		m.Mesos = &recordpb.MesosCluster{
			Masters: c.Masters, Roles: c.Roles, Principal: c.Principal, SecretFile: c.Secret.File, SecretEnv: c.Secret.Env, CaFile: c.CAFile,
			Failover: int64(c.Failover), User: c.User, Framework: c.Framework,
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
		Version: m.GetVersion(), Created: m.GetCreated(), Updated: m.GetUpdated(), By: m.GetBy(), Identity: m.GetIdentity(),
		Spec: cluster.Spec{Name: m.GetName(), Labels: table(m.GetLabels()), Shards: int(m.GetShards())},
	}
	if c := m.GetMesos(); c != nil {
		r.Spec.Mesos = &cluster.Mesos{
			Masters: list(c.GetMasters()), Roles: list(c.GetRoles()), Principal: c.GetPrincipal(),
			Secret: cluster.Secret{File: c.GetSecretFile(), Env: c.GetSecretEnv()}, CAFile: c.GetCaFile(), Failover: time.Duration(c.GetFailover()),
			User: c.GetUser(), Framework: c.GetFramework(),
		}
	}
	return r
}
