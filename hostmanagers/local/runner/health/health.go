// Package health watches whether one run is healthy: it asks a probe again and again and counts the answers.
//
// It owns the rhythm and the counting, never the asking (a Probe does that) nor the consequences (the caller's). It starts no goroutine:
// Watch works in the caller's, one per watched run, and a Gate bounds how many probes are under way at once.
package health

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/paceline-sched/paceline/core/workload"
)

// The defaults of a check, and the most output of an HTTP check that is read.
const (
	DefaultInterval  = 10 * time.Second
	DefaultTimeout   = time.Second
	DefaultThreshold = 3
	maxBody          = 4 << 10
)

// Probe asks once. It must return when ctx ends. nil: healthy.
type Probe func(ctx context.Context) error

// Gate bounds the probes under way at once.
type Gate chan struct{}

// NewGate lets n probes through at a time.
func NewGate(n int) Gate { return make(Gate, n) }

// Watch probes until ctx ends or the run is unhealthy, and returns why it is unhealthy; nil: ctx ended. It calls healthy once,
// at the first success. A probe's time-out starts when the gate let it through: a busy server makes nobody unhealthy.
func Watch(ctx context.Context, check *workload.HealthCheck, gate Gate, probe Probe, healthy func()) error {
	interval, timeout, threshold := check.Interval, check.Timeout, check.FailureThreshold
	if interval <= 0 {
		interval = DefaultInterval
	}
	if timeout <= 0 {
		timeout = DefaultTimeout
	}
	if threshold == 0 {
		threshold = DefaultThreshold
	}
	timer := time.NewTimer(check.InitialDelay)
	defer timer.Stop()
	var failures uint32
	for {
		select {
		case <-timer.C:
		case <-ctx.Done():
			return nil
		}
		err := ask(ctx, gate, probe, timeout)
		switch {
		case ctx.Err() != nil:
			return nil
		case err == nil:
			failures = 0
			if healthy != nil {
				healthy()
				healthy = nil
			}
		default:
			if failures++; failures >= threshold {
				return fmt.Errorf("%d health checks in a row failed, the last one with: %w", failures, err)
			}
		}
		timer.Reset(interval)
	}
}

func ask(ctx context.Context, gate Gate, probe Probe, timeout time.Duration) error {
	select {
	case gate <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-gate }()
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return probe(ctx)
}

// TCP is healthy when the port on this machine accepts a connection.
func TCP(port uint16) Probe {
	return func(ctx context.Context) error {
		connection, err := (&net.Dialer{}).DialContext(ctx, "tcp", loopback(port))
		if err != nil {
			return err
		}
		return connection.Close()
	}
}

// HTTP is healthy on a status from 200 to 399 to a GET of path. Redirects are not followed: they are an answer.
func HTTP(port uint16, path string) Probe {
	client := &http.Client{
		Transport:     &http.Transport{DisableKeepAlives: true, Proxy: nil},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return func(ctx context.Context) error {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+loopback(port)+path, http.NoBody)
		if err != nil {
			return err
		}
		response, err := client.Do(request)
		if err != nil {
			return err
		}
		defer func() { _ = response.Body.Close() }()
		// Reading a little lets a decent server end in peace; what it says does not matter.
		_, _ = io.CopyN(io.Discard, response.Body, maxBody)
		if response.StatusCode < 200 || response.StatusCode > 399 {
			return fmt.Errorf("GET %s answered %s", path, response.Status)
		}
		return nil
	}
}

func loopback(port uint16) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(int(port))) }
