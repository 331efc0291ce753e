// Package freeport finds ports for tests whose listener has to come, or to come back, where its clients know it.
//
// It owns the choice alone: it holds no port, so whoever asks has to listen himself. It never gives a port that the kernel may give to
// others: one of those may be the near end of anybody's connection by the time that a server comes back to it.
//
// Concurrency: Find may be called from any goroutine. Two callers may be given the same port, with the odds of chance.
package freeport

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
)

const (
	// first is above what services of a machine use, and below what this repository's tests name themselves.
	first = 10_000
	// last is below the ports that local hosts have in tests.
	last     = 20_000
	attempts = 100
)

// Find returns a port of 127.0.0.1 on which nobody listens, and which the kernel gives nobody who asks for any port.
func Find() (int, error) {
	least, err := ephemeral("/proc/sys/net/ipv4/ip_local_port_range")
	if err != nil {
		return 0, err
	}
	if least <= first {
		return 0, fmt.Errorf("find a free port: the kernel gives away all from %d on; raise net.ipv4.ip_local_port_range above %d", least, last)
	}
	var taken error
	for range attempts {
		port := first + rand.IntN(min(last, least)-first)
		l, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		if err == nil {
			return port, l.Close()
		}
		taken = errors.Join(taken, err)
	}
	return 0, fmt.Errorf("find a free port: %w", taken)
}

// ephemeral reads the least port that the kernel gives away; where a kernel does not say, it takes that of Linux.
func ephemeral(file string) (int, error) {
	raw, err := os.ReadFile(file)
	if err != nil {
		return 32768, nil //nolint:nilerr // the range is another's there
	}
	var from, to int
	if _, err := fmt.Sscan(string(raw), &from, &to); err != nil {
		return 0, fmt.Errorf("read %s: %w", file, err)
	}
	return from, nil
}
