package api

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/paceline-sched/paceline/core/api/spec"
	"github.com/paceline-sched/paceline/core/cluster"
	"github.com/paceline-sched/paceline/core/driver"
	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/scheduler"
	pacelinev1 "github.com/paceline-sched/paceline/sdk/gen/paceline/v1"
	"github.com/paceline-sched/paceline/sdk/gen/paceline/v1/pacelinev1connect"
)

// Clusters connects to clusters and takes leave of them. All of it may be called concurrently.
type Clusters interface {
	// Add keeps a cluster and begins to connect; existed says that it was there with the same settings.
	Add(ctx context.Context, by scheduler.Caller, s cluster.Spec) (existed bool, err error)
	// Update replaces the settings of a cluster and has them in force. version 0 expects any.
	Update(ctx context.Context, by scheduler.Caller, s cluster.Spec, version uint64) error
	// Remove takes leave of a cluster and forgets it. It returns how many live runs it declared lost, and what the cluster could not be told.
	Remove(ctx context.Context, by scheduler.Caller, name string, version uint64, force bool) (lost int, warnings []string, err error)
	// Connections tells of all connections, by name of the cluster.
	Connections() map[string]Connection
}

// Connection is how the connection to a cluster fares.
type Connection struct {
	Kind     cluster.Kind
	ByFlags  bool
	Attempts int       // that ended since it was last in contact
	Next     time.Time // of the next attempt; zero: one is under way, or the connection is up
	Error    string    // the last one; "": there was none
	ErrorAt  time.Time
	// Capabilities and Details are the driver's, as it is now.
	Capabilities *driver.Capabilities // nil: there was no driver yet
	Details      map[string]string
	Notes        []string // what an operator should know, such as hosts for which there is no shard
}

type clusterService struct{ cell *cell }

var _ pacelinev1connect.ClusterServiceHandler = (*clusterService)(nil)

var errNoClusters = refuse(connect.CodeUnimplemented, "ask a server that runs them", "this server cannot connect to clusters")

func (s *clusterService) AddCluster(ctx context.Context, request *connect.Request[pacelinev1.AddClusterRequest]) (*connect.Response[pacelinev1.AddClusterResponse], error) {
	if s.cell.clusters == nil {
		return nil, errNoClusters
	}
	wanted := clusterFromWire(request.Msg.GetSpec())
	existed, err := s.cell.clusters.Add(ctx, callerOf(ctx), wanted)
	if err != nil {
		return nil, err
	}
	c, err := s.one(ctx, wanted.Name)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&pacelinev1.AddClusterResponse{Cluster: c, Existed: existed}), nil
}

func (s *clusterService) UpdateCluster(ctx context.Context, request *connect.Request[pacelinev1.UpdateClusterRequest]) (*connect.Response[pacelinev1.UpdateClusterResponse], error) {
	if s.cell.clusters == nil {
		return nil, errNoClusters
	}
	wanted := clusterFromWire(request.Msg.GetSpec())
	if err := s.cell.clusters.Update(ctx, callerOf(ctx), wanted, request.Msg.GetExpectedVersion()); err != nil {
		return nil, err
	}
	c, err := s.one(ctx, wanted.Name)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&pacelinev1.UpdateClusterResponse{Cluster: c}), nil
}

func (s *clusterService) RemoveCluster(ctx context.Context, request *connect.Request[pacelinev1.RemoveClusterRequest]) (*connect.Response[pacelinev1.RemoveClusterResponse], error) {
	if s.cell.clusters == nil {
		return nil, errNoClusters
	}
	in := request.Msg
	lost, warnings, err := s.cell.clusters.Remove(ctx, callerOf(ctx), in.GetName(), in.GetExpectedVersion(), in.GetForce())
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&pacelinev1.RemoveClusterResponse{LostRuns: count(lost), Warnings: warnings}), nil
}

func (s *clusterService) ListClusters(ctx context.Context, request *connect.Request[pacelinev1.ListClustersRequest]) (*connect.Response[pacelinev1.ListClustersResponse], error) {
	revision := s.cell.engine.Revision()
	all, err := s.all(ctx)
	if err != nil {
		return nil, err
	}
	out := &pacelinev1.ListClustersResponse{WatchCursor: s.cell.cursor(revision).String()}
	for _, c := range all {
		matches := true
		for key, value := range request.Msg.GetLabels() {
			v, ok := c.GetSpec().GetLabels()[key]
			matches = matches && ok && v == value
		}
		if matches {
			out.Clusters = append(out.Clusters, c)
		}
	}
	return connect.NewResponse(out), nil
}

func (s *clusterService) GetCluster(ctx context.Context, request *connect.Request[pacelinev1.GetClusterRequest]) (*connect.Response[pacelinev1.GetClusterResponse], error) {
	c, err := s.one(ctx, request.Msg.GetName())
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&pacelinev1.GetClusterResponse{Cluster: c}), nil
}

func (s *clusterService) one(ctx context.Context, name string) (*pacelinev1.Cluster, error) {
	all, err := s.all(ctx)
	if err != nil {
		return nil, err
	}
	for _, c := range all {
		if c.GetSpec().GetName() == name {
			return c, nil
		}
	}
	return nil, refuse(connect.CodeNotFound, "list the clusters and choose one", "there is no cluster %q", clip(name, 63))
}

// all joins what the cell knows of clusters with how their connections fare.
func (s *clusterService) all(ctx context.Context) ([]*pacelinev1.Cluster, error) {
	var connections map[string]Connection
	if s.cell.clusters != nil {
		connections = s.cell.clusters.Connections()
	}
	var views []scheduler.ClusterView
	var names *resource.Names
	if err := s.cell.engine.Read(ctx, func(r scheduler.Reader) { views, names = r.Clusters(), r.Names() }); err != nil {
		return nil, err
	}
	for name := range connections {
		if !slices.ContainsFunc(views, func(v scheduler.ClusterView) bool { return v.Name == name }) {
			views = append(views, scheduler.ClusterView{Name: name}) // it has not come to a shard yet
		}
	}
	slices.SortFunc(views, func(a, b scheduler.ClusterView) int { return strings.Compare(a.Name, b.Name) })
	out := make([]*pacelinev1.Cluster, 0, len(views))
	for i := range views {
		c, known := connections[views[i].Name]
		out = append(out, clusterToWire(&views[i], &c, known, names))
	}
	return out, nil
}

func clusterToWire(v *scheduler.ClusterView, c *Connection, known bool, names *resource.Names) *pacelinev1.Cluster {
	out := &pacelinev1.Cluster{
		Spec: &pacelinev1.ClusterSpec{Name: v.Name}, Kind: string(c.Kind), ByFlags: c.ByFlags, Attempts: count(c.Attempts),
		LastError: c.Error, Hosts: count(v.Hosts), ReadyHosts: count(v.Ready), Runs: count(v.Runs),
		Capacity: spec.FromVector(v.Capacity, names), Used: spec.FromVector(v.Used, names), Details: c.Details,
	}
	if c.Capabilities != nil {
		out.Capabilities = capabilities(c.Capabilities)
	}
	if !c.Next.IsZero() {
		out.NextAttemptTime = timeToWire(c.Next.UnixNano())
	}
	if !c.ErrorAt.IsZero() {
		out.LastErrorTime = timeToWire(c.ErrorAt.UnixNano())
	}
	if r := v.Record; r != nil {
		out.Spec, out.Kind, out.Version, out.UpdatedBy = clusterSpecToWire(&r.Spec), string(r.Spec.Kind()), r.Version, r.By
		out.CreateTime, out.UpdateTime, out.Identity = timeToWire(r.Created), timeToWire(r.Updated), r.Identity
	}
	tellState(out, v, c, known)
	return out
}

// tellState says whether the cluster can be given work, and why not.
func tellState(out *pacelinev1.Cluster, v *scheduler.ClusterView, c *Connection, known bool) {
	var since int64
	ready := len(v.Shards) > 0
	for i := range v.Shards {
		sh := &v.Shards[i]
		since = max(since, sh.Since)
		ready = ready && sh.Ready
		out.Shards = append(out.Shards, &pacelinev1.ClusterShard{Id: sh.ID, Ready: sh.Ready, Message: sh.Message, Hosts: count(sh.Hosts)})
		if !sh.Ready && out.Message == "" {
			out.Message = sh.Message
		}
	}
	out.StateTime = timeToWire(since)
	switch {
	case ready:
		out.Attempts, out.NextAttemptTime = 0, nil
		out.State = pacelinev1.ClusterState_CLUSTER_STATE_CONNECTED
	case !known:
		out.State, out.Message = pacelinev1.ClusterState_CLUSTER_STATE_ABANDONED, "no server connects to it; remove it, or name it by the server's flags as before"
	case c.Error != "" || v.Hosts > 0:
		out.State = pacelinev1.ClusterState_CLUSTER_STATE_DISCONNECTED
		if c.Error != "" {
			out.Message = c.Error
		}
	default:
		out.State = pacelinev1.ClusterState_CLUSTER_STATE_CONNECTING
	}
	for _, note := range c.Notes {
		if out.Message != "" {
			out.Message += "; "
		}
		out.Message += note
	}
}

// capabilities words what a cluster can do, and what there is to say of it.
func capabilities(c *driver.Capabilities) []string {
	var list []string
	for _, one := range []struct {
		can  bool
		what string
	}{{c.HealthChecks, "health checks"}, {c.Logs, "logs"}, {c.Isolation, "isolation of CPU and memory"}, {c.VirtualTime, "virtual time"}} {
		if one.can {
			list = append(list, one.what)
		}
	}
	return append(list, c.Notes...)
}

func clusterSpecToWire(s *cluster.Spec) *pacelinev1.ClusterSpec {
	out := &pacelinev1.ClusterSpec{Name: s.Name, Labels: maps.Clone(s.Labels), Shards: count(s.Shards)}
	if m := s.Mesos; m != nil {
		wire := &pacelinev1.MesosCluster{
			Masters: m.Masters, Roles: m.Roles, Principal: m.Principal, SecretFile: m.Secret.File, SecretEnv: m.Secret.Env, CaFile: m.CAFile,
			User: m.User, FrameworkName: m.Framework,
		}
		if m.Failover != 0 {
			wire.FailoverTimeout = durationpb.New(m.Failover)
		}
		out.Settings = &pacelinev1.ClusterSpec_Mesos{Mesos: wire}
	}
	if k := s.Kubernetes; k != nil {
		wire := &pacelinev1.KubernetesCluster{
			Kubeconfig: k.Kubeconfig, Context: k.Context, InCluster: k.InCluster, Namespace: k.Namespace, DefaultImage: k.DefaultImage, PoolLabel: k.PoolLabel,
			ToleratedTaints: k.Tolerated, GpuResources: k.GPUs, AllowHostPaths: k.HostPaths, AllowPrivileged: k.Privileged,
			FirstPort: uint32(k.FirstPort), LastPort: uint32(k.LastPort), NamespacePerPool: k.NamespacePerPool, CreateNamespaces: k.CreateNamespaces,
		}
		if k.StartGrace != 0 {
			wire.StartGrace = durationpb.New(k.StartGrace)
		}
		if k.UnreachableGrace != 0 {
			wire.UnreachableGrace = durationpb.New(k.UnreachableGrace)
		}
		if t := k.KeepEnded; t != nil {
			wire.KeepEnded = durationpb.New(*t)
		}
		if n := k.KeepEndedPods; n != nil {
			pods := count(*n)
			wire.KeepEndedPods = &pods
		}
		out.Settings = &pacelinev1.ClusterSpec_Kubernetes{Kubernetes: wire}
	}
	return out
}

// clusterFromWire keeps nothing of the message. What is wrong with the spec the cell says.
func clusterFromWire(s *pacelinev1.ClusterSpec) cluster.Spec {
	out := cluster.Spec{Name: s.GetName(), Labels: maps.Clone(s.GetLabels()), Shards: int(s.GetShards())}
	if len(out.Labels) == 0 {
		out.Labels = nil
	}
	if m := s.GetMesos(); m != nil {
		out.Mesos = &cluster.Mesos{
			Masters: slices.Clone(m.GetMasters()), Roles: slices.Clone(m.GetRoles()), Principal: m.GetPrincipal(),
			Secret: cluster.Secret{File: m.GetSecretFile(), Env: m.GetSecretEnv()}, CAFile: m.GetCaFile(),
			Failover: m.GetFailoverTimeout().AsDuration(), User: m.GetUser(), Framework: m.GetFrameworkName(),
		}
	}
	if k := s.GetKubernetes(); k != nil {
		out.Kubernetes = &cluster.Kubernetes{
			Kubeconfig: k.GetKubeconfig(), Context: k.GetContext(), InCluster: k.GetInCluster(), Namespace: k.GetNamespace(), DefaultImage: k.GetDefaultImage(),
			PoolLabel: k.GetPoolLabel(), Tolerated: slices.Clone(k.GetToleratedTaints()), GPUs: slices.Clone(k.GetGpuResources()),
			HostPaths: k.GetAllowHostPaths(), Privileged: k.GetAllowPrivileged(),
			NamespacePerPool: k.GetNamespacePerPool(), CreateNamespaces: k.GetCreateNamespaces(),
			StartGrace: k.GetStartGrace().AsDuration(), UnreachableGrace: k.GetUnreachableGrace().AsDuration(),
			FirstPort: uint16(k.GetFirstPort()), LastPort: uint16(k.GetLastPort()), //nolint:gosec // bounded by the message's rules
		}
		if k.GetKeepEnded() != nil {
			t := k.GetKeepEnded().AsDuration()
			out.Kubernetes.KeepEnded = &t
		}
		if k.KeepEndedPods != nil {
			n := int(k.GetKeepEndedPods())
			out.Kubernetes.KeepEndedPods = &n
		}
	}
	return out
}
