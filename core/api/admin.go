package api

import (
	"context"
	"runtime"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/paceline-sched/paceline/core/api/spec"
	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/scheduler"
	pacelinev1 "github.com/paceline-sched/paceline/sdk/gen/paceline/v1"
	"github.com/paceline-sched/paceline/sdk/gen/paceline/v1/pacelinev1connect"
)

type adminService struct {
	cell    *cell
	build   Build
	roles   []string
	started time.Time
}

var _ pacelinev1connect.AdminServiceHandler = (*adminService)(nil)

func (s *adminService) GetInfo(ctx context.Context, _ *connect.Request[pacelinev1.GetInfoRequest]) (*connect.Response[pacelinev1.GetInfoResponse], error) {
	var view scheduler.CellView
	var names *resource.Names
	if err := s.cell.engine.Read(ctx, func(r scheduler.Reader) { view, names = r.Cell(), r.Names() }); err != nil {
		return nil, err
	}
	p := accessOf(ctx).principal
	out := &pacelinev1.GetInfoResponse{
		Version: s.build.Version, Commit: s.build.Commit, GoVersion: runtime.Version(), Cell: s.cell.name, Roles: s.roles,
		StartTime: timestamppb.New(s.started), Revision: view.Sequence, Clusters: clustersToWire(view.Shards),
		Principal: p.Name, Tenant: p.Tenant, Capacity: spec.FromVector(view.Capacity, names), Used: spec.FromVector(view.Used, names),
		Hosts: count(view.Hosts), ReadyHosts: count(view.Ready), Jobs: count(view.Jobs), LiveRuns: count(view.LiveRuns),
		PendingInstances: count(view.Pending),
	}
	for _, b := range p.Bindings {
		out.Bindings = append(out.Bindings, &pacelinev1.RoleBinding{Role: roleToWire(b.Role), Pool: b.Pool})
	}
	return connect.NewResponse(out), nil
}

// clustersToWire joins the shards of each cluster, which stand in order: it is ready when all of them are.
func clustersToWire(shards []scheduler.ShardView) []*pacelinev1.ClusterInfo {
	var out []*pacelinev1.ClusterInfo
	for _, sh := range shards {
		if len(out) == 0 || out[len(out)-1].GetName() != sh.Cluster {
			out = append(out, &pacelinev1.ClusterInfo{Name: sh.Cluster, Ready: true})
		}
		c := out[len(out)-1]
		c.Hosts += count(sh.Hosts)
		if !sh.Ready {
			c.Ready = false
			if c.Message == "" {
				c.Message = sh.Message
			}
		}
	}
	return out
}

func (s *adminService) Backup(ctx context.Context, _ *connect.Request[pacelinev1.BackupRequest], stream *connect.ServerStream[pacelinev1.BackupResponse]) error {
	return s.cell.engine.Backup(ctx, pieces{stream})
}

// pieces cuts a backup into messages.
type pieces struct {
	stream *connect.ServerStream[pacelinev1.BackupResponse]
}

func (p pieces) Write(b []byte) (int, error) {
	written := 0
	for written < len(b) {
		n := min(len(b)-written, pieceBytes)
		if err := p.stream.Send(&pacelinev1.BackupResponse{Data: b[written : written+n]}); err != nil {
			return written, err
		}
		written += n
	}
	return written, nil
}
