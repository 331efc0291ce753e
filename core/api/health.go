package api

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"time"

	"connectrpc.com/connect"
	"connectrpc.com/grpchealth"

	"github.com/paceline-sched/paceline/core/engine"
	"github.com/paceline-sched/paceline/core/scheduler"
)

// health says whether the cell answers.
type health struct{ engine *engine.Engine }

func (h *health) Check(ctx context.Context, request *grpchealth.CheckRequest) (*grpchealth.CheckResponse, error) {
	known := request.Service == ""
	for _, name := range serviceNames {
		known = known || name == request.Service
	}
	if !known {
		return nil, connect.NewError(connect.CodeNotFound, fmt.Errorf("service %q is unknown", clip(request.Service, 128)))
	}
	if err := h.ask(ctx); err != nil {
		return &grpchealth.CheckResponse{Status: grpchealth.StatusNotServing}, nil //nolint:nilerr // that is the answer
	}
	return &grpchealth.CheckResponse{Status: grpchealth.StatusServing}, nil
}

// ask has the engine's loop answer something, in bounded time.
func (h *health) ask(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, healthTimeout)
	defer cancel()
	return h.engine.Read(ctx, func(scheduler.Reader) {})
}

// healthFor is how long an answer of pulse holds.
const healthFor = time.Second

// pulse answers plain probes, such as a kubelet's, by the status alone: 200 or 503. It stands outside the gate, since a server that refuses calls for being
// busy is well and must not be ended for it. So it asks the engine at most once a second, however many probe: that is all that a stranger can make it do.
type pulse struct {
	ask func(context.Context) error
	now func() time.Time

	mu    sync.Mutex
	at    time.Time
	serve bool
}

func (p *pulse) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	if now := p.now(); p.at.IsZero() || now.Sub(p.at) >= healthFor {
		// Not the caller's context: one that hangs up must not make the cell look ill to the next.
		p.serve, p.at = p.ask(context.WithoutCancel(r.Context())) == nil, p.now()
	}
	serve := p.serve
	p.mu.Unlock()
	if !serve {
		http.Error(w, "the cell does not answer", http.StatusServiceUnavailable)
		return
	}
	w.WriteHeader(http.StatusOK)
	fmt.Fprintln(w, "ok")
}
