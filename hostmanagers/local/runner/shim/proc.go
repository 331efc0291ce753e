package shim

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// BootID returns the kernel's name for the time since the machine started.
func BootID() (string, error) {
	raw, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("read the boot id (is /proc mounted?): %w", err)
	}
	return strings.TrimSpace(string(raw)), nil
}

// Identify returns the identity of the process that has pid now, and its parent.
func Identify(pid int) (Process, int, error) {
	raw, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return Process{}, 0, err
	}
	parent, ticks, err := parseStat(raw)
	if err != nil {
		return Process{}, 0, fmt.Errorf("read /proc/%d/stat: %w", pid, err)
	}
	return Process{PID: pid, Ticks: ticks}, parent, nil
}

// parseStat reads the parent (field 4) and the start time (field 22) of a /proc/<pid>/stat line. The second field, the command's
// name in parentheses, may itself hold spaces and parentheses, so fields count from the last one.
func parseStat(raw []byte) (parent int, ticks uint64, err error) {
	end := bytes.LastIndexByte(raw, ')')
	if end < 0 {
		return 0, 0, errors.New("no command name")
	}
	fields := bytes.Fields(raw[end+1:]) // fields[0] is field 3
	if len(fields) < 20 {
		return 0, 0, fmt.Errorf("%d fields, too few", len(fields)+2)
	}
	if parent, err = strconv.Atoi(string(fields[1])); err != nil {
		return 0, 0, fmt.Errorf("parent: %w", err)
	}
	if ticks, err = strconv.ParseUint(string(fields[19]), 10, 64); err != nil {
		return 0, 0, fmt.Errorf("start time: %w", err)
	}
	return parent, ticks, nil
}

// children returns the living and dead children of pid.
func children(pid int) ([]int, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	var found []int
	for _, e := range entries {
		child, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		// A process that ended meanwhile is no child any more.
		if _, parent, err := Identify(child); err == nil && parent == pid {
			found = append(found, child)
		}
	}
	return found, nil
}
