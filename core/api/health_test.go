package api

import (
	"context"
	"errors"
	"net/http/httptest"
	"testing"
	"time"
)

// Probes ask the engine once a second at most, and hear of a cell that does not answer.
func TestPulse(t *testing.T) {
	t.Parallel()
	now, asked := time.Unix(1, 0), 0
	var ill error
	p := &pulse{now: func() time.Time { return now }, ask: func(ctx context.Context) error {
		asked++
		return errors.Join(ill, ctx.Err())
	}}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	probe := func(ctx context.Context) int {
		w := httptest.NewRecorder()
		p.ServeHTTP(w, httptest.NewRequestWithContext(ctx, "GET", "/healthz", nil))
		return w.Code
	}
	for _, step := range []struct {
		pass       time.Duration
		ill        error
		ctx        context.Context
		code, asks int
	}{
		{0, nil, gone, 200, 1}, // who hangs up makes nobody look ill
		{0, errors.New("stuck"), t.Context(), 200, 1},
		{healthFor - 1, errors.New("stuck"), t.Context(), 200, 1},
		{1, errors.New("stuck"), t.Context(), 503, 2},
		{0, nil, t.Context(), 503, 2},
		{healthFor, nil, t.Context(), 200, 3},
	} {
		now, ill = now.Add(step.pass), step.ill
		if code := probe(step.ctx); code != step.code || asked != step.asks {
			t.Errorf("%+v: status %d after %d questions", step, code, asked)
		}
	}
}
