package main

import (
	"crypto/sha256"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// pace is what the machine does just now, in MiB of SHA-256 a second on all its cores together: shared machines change theirs.
func pace() float64 {
	const block, patience = 1 << 20, time.Second
	var done atomic.Int64
	var all sync.WaitGroup
	begun := time.Now()
	for range runtime.GOMAXPROCS(0) {
		all.Go(func() {
			for data := make([]byte, block); time.Since(begun) < patience; done.Add(1) {
				sha256.Sum256(data)
			}
		})
	}
	all.Wait()
	return float64(done.Load()) / time.Since(begun).Seconds()
}

// tick is the unit of times in /proc: USER_HZ is 100 on every Linux that Go runs on.
const tick = 10 * time.Millisecond

// The places of a process's times behind the name of its program in /proc/PID/stat.
const (
	userField   = 11
	systemField = 12
)

// processorTimes are what programs have used so far.
func processorTimes(programs map[string]int) (map[string]time.Duration, error) {
	used := map[string]time.Duration{}
	for name, pid := range programs {
		raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			return nil, fmt.Errorf("measure %s: %w", name, err)
		}
		if used[name], err = readStat(string(raw)); err != nil {
			return nil, fmt.Errorf("measure %s: %w", name, err)
		}
	}
	return used, nil
}

func readStat(line string) (time.Duration, error) {
	fields := strings.Fields(line[strings.LastIndexByte(line, ')')+1:])
	if len(fields) <= systemField {
		return 0, fmt.Errorf("the kernel's line %q has no times", line)
	}
	var sum time.Duration
	for _, at := range []int{userField, systemField} {
		n, err := strconv.ParseInt(fields[at], 10, 64)
		if err != nil {
			return 0, fmt.Errorf("the kernel's line %q: %w", line, err)
		}
		sum += time.Duration(n) * tick
	}
	return sum, nil
}

// resident is the memory of a process, in MiB: now, or at its peak.
func resident(pid int, peak bool) (float64, error) {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, fmt.Errorf("measure memory: %w", err)
	}
	return readStatus(string(raw), peak)
}

func readStatus(text string, peak bool) (float64, error) {
	key := "VmRSS:"
	if peak {
		key = "VmHWM:"
	}
	for line := range strings.Lines(text) {
		if rest, ok := strings.CutPrefix(line, key); ok {
			kib, err := strconv.ParseFloat(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 64)
			if err != nil {
				return 0, fmt.Errorf("the kernel's line %q: %w", line, err)
			}
			return kib / 1024, nil
		}
	}
	return 0, fmt.Errorf("the kernel does not say %s", key)
}
