package health_test

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/paceline-sched/paceline/core/workload"
	"github.com/paceline-sched/paceline/hostmanagers/local/runner/health"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// script answers probes with '+' (healthy), '-' (not) and '.' (no answer in time), and ends the watch after the last.
func TestWatch(t *testing.T) {
	cases := map[string]struct {
		script    string
		healthyAt time.Duration // -1: never
		failedAt  time.Duration // -1: never
	}{
		"at once":          {"+++", 5 * time.Second, -1},
		"later":            {"--+++", 25 * time.Second, -1},
		"never":            {"---", -1, 25 * time.Second},
		"success forgives": {"+--+--+---", 5 * time.Second, 95 * time.Second},
		"time-outs count":  {"...", -1, 31 * time.Second}, // each takes 2 s, the interval starts after it
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				start := time.Now()
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				asked, healthyAt := 0, time.Duration(-1)
				probe := func(ctx context.Context) error {
					if asked == len(c.script) {
						cancel()
						return nil
					}
					asked++
					switch c.script[asked-1] {
					case '+':
						return nil
					case '.':
						<-ctx.Done()
						return ctx.Err()
					}
					return errors.New("broken")
				}
				check := &workload.HealthCheck{InitialDelay: 5 * time.Second, Timeout: 2 * time.Second}
				err := health.Watch(ctx, check, health.NewGate(1), probe, func() {
					if healthyAt >= 0 {
						t.Error("told twice that it is healthy")
					}
					healthyAt = time.Since(start)
				})
				if healthyAt != c.healthyAt {
					t.Errorf("healthy after %s, want %s", healthyAt, c.healthyAt)
				}
				if failed := err != nil; failed != (c.failedAt >= 0) || (failed && time.Since(start) != c.failedAt) {
					t.Errorf("ended after %s with %v, want a failure after %s", time.Since(start), err, c.failedAt)
				}
			})
		})
	}
}

func TestTheGateBoundsProbes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		gate, now, most := health.NewGate(2), make(chan int, 1), 0
		now <- 0
		add := func(d int) {
			n := <-now + d
			most = max(most, n)
			now <- n
		}
		probe := func(context.Context) error {
			add(1)
			defer add(-1)
			time.Sleep(time.Second) // bubble time
			return nil
		}
		done := make(chan error)
		for range 10 {
			go func() {
				done <- health.Watch(ctx, &workload.HealthCheck{Timeout: 2 * time.Second}, gate, probe, nil)
			}()
		}
		time.Sleep(time.Minute) // bubble time
		cancel()
		for range 10 {
			if err := <-done; err != nil {
				t.Error(err) // waiting at the gate must not count as a time-out
			}
		}
		if most != 2 {
			t.Errorf("%d probes were under way at once", most)
		}
	})
}

func TestProbes(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/moved":
			http.Redirect(w, r, "/gone", http.StatusFound)
		case "/gone":
			w.WriteHeader(http.StatusGone)
		}
	}))
	port := uint16(server.Listener.Addr().(*net.TCPAddr).Port)
	for path, healthy := range map[string]bool{"/": true, "/moved": true, "/gone": false} {
		if err := health.HTTP(port, path)(t.Context()); (err == nil) != healthy {
			t.Errorf("GET %s: %v", path, err)
		} else if err != nil && !strings.Contains(err.Error(), "410") {
			t.Errorf("GET %s does not say what was answered: %v", path, err)
		}
	}
	if err := health.TCP(port)(t.Context()); err != nil {
		t.Error(err)
	}
	server.Close()
	if health.TCP(port)(t.Context()) == nil || health.HTTP(port, "/")(t.Context()) == nil {
		t.Error("a closed port is healthy")
	}
}
