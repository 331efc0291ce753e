package api

import (
	"context"
	"errors"
	"slices"
	"strings"

	"connectrpc.com/connect"

	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/scheduler"
	pacelinev1 "github.com/paceline-sched/paceline/sdk/gen/paceline/v1"
	"github.com/paceline-sched/paceline/sdk/gen/paceline/v1/pacelinev1connect"
)

const (
	// hostChunk is how many hosts one look at the table takes.
	hostChunk = 1000
	// maxHostsScanned bounds the hosts that one filtered page looks at.
	maxHostsScanned = 20_000
)

type hostService struct{ cell *cell }

var _ pacelinev1connect.HostServiceHandler = (*hostService)(nil)

func (s *hostService) ListHosts(ctx context.Context, request *connect.Request[pacelinev1.ListHostsRequest]) (*connect.Response[pacelinev1.ListHostsResponse], error) {
	in := request.Msg
	filters := filterHash(in, "page_size", "page_token")
	position, err := decodePage(in.GetPageToken(), filters)
	if err != nil {
		return nil, err
	}
	cluster, name, _ := strings.Cut(string(position), "/")
	if position == nil {
		cluster = in.GetCluster()
	}
	scan := hostScan{request: in, cluster: cluster, name: name, size: pageSize(in.GetPageSize(), defaultPageSize)}
	revision := s.cell.engine.Revision()
	var names *resource.Names
	if err := s.cell.engine.Read(ctx, func(r scheduler.Reader) {
		names = r.Names()
		scan.run(r)
	}); err != nil {
		return nil, err
	}
	out := &pacelinev1.ListHostsResponse{WatchCursor: s.cell.cursor(revision).String()}
	for i := range scan.found {
		out.Hosts = append(out.Hosts, hostToWire(&scan.found[i], names))
	}
	if scan.more {
		out.NextPageToken = encodePage(filters, []byte(scan.cluster+"/"+scan.name))
	}
	return connect.NewResponse(out), nil
}

// hostScan looks for the hosts of one page, from behind cluster and name on, and leaves these where it stopped.
type hostScan struct {
	request       *pacelinev1.ListHostsRequest
	cluster, name string
	size          int
	found         []scheduler.HostView
	more          bool
}

func (s *hostScan) run(r scheduler.Reader) {
	for scanned := 0; ; {
		chunk, more := r.Hosts(s.cluster, s.name, hostChunk)
		for i := range chunk {
			h := &chunk[i]
			if s.request.GetCluster() != "" && h.Cluster != s.request.GetCluster() {
				return // hosts are in order of their cluster
			}
			if len(s.found) == s.size || scanned == maxHostsScanned {
				s.more = true
				return
			}
			scanned++
			s.cluster, s.name = h.Cluster, h.Name
			if s.matches(h) {
				s.found = append(s.found, *h)
			}
		}
		if !more {
			return
		}
	}
}

func (s *hostScan) matches(h *scheduler.HostView) bool {
	switch {
	case h.Past && len(s.request.GetStates()) == 0,
		s.request.GetHostPool() != "" && h.Summary.HostPool != s.request.GetHostPool(),
		len(s.request.GetStates()) > 0 && !slices.Contains(s.request.GetStates(), hostState(h)):
		return false
	}
	for key, value := range s.request.GetAttributes() {
		if v, ok := h.Summary.Attributes[key]; !ok || v != value {
			return false
		}
	}
	return true
}

func (s *hostService) find(ctx context.Context, ref string) (host scheduler.HostView, names *resource.Names, err error) {
	var missing error
	err = s.cell.engine.Read(ctx, func(r scheduler.Reader) {
		var ok bool
		if host, ok = findHost(r, ref); !ok {
			missing = missingHost(ref)
		}
		names = r.Names()
	})
	return host, names, errors.Join(err, missing)
}

func (s *hostService) GetHost(ctx context.Context, request *connect.Request[pacelinev1.GetHostRequest]) (*connect.Response[pacelinev1.GetHostResponse], error) {
	host, names, err := s.find(ctx, request.Msg.GetHost())
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&pacelinev1.GetHostResponse{Host: hostToWire(&host, names)}), nil
}

func (s *hostService) DrainHost(ctx context.Context, request *connect.Request[pacelinev1.DrainHostRequest]) (*connect.Response[pacelinev1.DrainHostResponse], error) {
	host, err := s.drain(ctx, request.Msg.GetHost(), true)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&pacelinev1.DrainHostResponse{Host: host}), nil
}

func (s *hostService) UndrainHost(ctx context.Context, request *connect.Request[pacelinev1.UndrainHostRequest]) (*connect.Response[pacelinev1.UndrainHostResponse], error) {
	host, err := s.drain(ctx, request.Msg.GetHost(), false)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&pacelinev1.UndrainHostResponse{Host: host}), nil
}

func (s *hostService) drain(ctx context.Context, ref string, draining bool) (*pacelinev1.Host, error) {
	host, names, err := s.find(ctx, ref)
	if err != nil {
		return nil, err
	}
	answer, err := s.cell.do(ctx, scheduler.DrainHost{Host: host.ID, Draining: draining})
	if err != nil {
		return nil, err
	}
	return hostToWire(&answer.Host, names), nil
}
