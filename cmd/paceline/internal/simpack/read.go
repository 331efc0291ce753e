package simpack

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/paceline-sched/paceline/core/host"
	"github.com/paceline-sched/paceline/core/resource"
)

// ReadHosts reads an inventory with the columns sn, cpu_milli, memory_mib, gpu and model; others are ignored. name is for messages.
func ReadHosts(in io.Reader, name string) ([]Host, error) {
	rows, err := open(in, name, []string{"sn", "cpu_milli", "memory_mib", "gpu", "model"}, nil)
	if err != nil {
		return nil, err
	}
	var hosts []Host
	seen := map[string]bool{}
	for rows.next() {
		h := Host{
			Name: rows.text("sn"), CPUMilli: rows.number("cpu_milli", resource.MaxQuantity), MemoryMiB: rows.number("memory_mib", resource.MaxQuantity),
			GPUs: int(rows.number("gpu", host.MaxDevices)), Model: rows.text("model"),
		}
		if seen[h.Name] {
			rows.fail("sn", "host %q appears twice", h.Name)
		}
		seen[h.Name] = true
		if len(hosts) == maxHosts {
			rows.fail("sn", "there are more than %d hosts", maxHosts)
		}
		hosts = append(hosts, h)
	}
	return hosts, rows.err
}

// ReadTasks reads a trace with the columns name, cpu_milli, memory_mib, num_gpu and gpu_milli, and gpu_spec where the file has it; others
// are ignored. name is for messages.
func ReadTasks(in io.Reader, name string) ([]Task, error) {
	rows, err := open(in, name, []string{"name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli"}, []string{"gpu_spec"})
	if err != nil {
		return nil, err
	}
	var tasks []Task
	for rows.next() {
		t := Task{
			Name: rows.text("name"), CPUMilli: rows.number("cpu_milli", resource.MaxQuantity), MemoryMiB: rows.number("memory_mib", resource.MaxQuantity),
			GPUs: int(rows.number("num_gpu", host.MaxDevices)), GPUMilli: rows.number("gpu_milli", host.DeviceMilli),
		}
		if spec := rows.text("gpu_spec"); spec != "" {
			t.Models = strings.Split(spec, "|")
		}
		switch {
		case t.GPUs == 0:
			t.GPUMilli = 0
		case t.GPUs == 1 && t.GPUMilli == 0:
			rows.fail("gpu_milli", "a task with a GPU must ask for 1 to %d thousandths of it", host.DeviceMilli)
		case t.GPUs > 1 && t.GPUMilli != host.DeviceMilli:
			rows.fail("gpu_milli", "a task with %d GPUs must ask for them whole: write %d", t.GPUs, host.DeviceMilli)
		}
		if len(tasks) == maxTasks {
			rows.fail("name", "there are more than %d tasks", maxTasks)
		}
		tasks = append(tasks, t)
	}
	return tasks, rows.err
}

// table is a CSV file with a header, read by column name. The first error ends it.
type table struct {
	name   string
	csv    *csv.Reader
	column map[string]int
	row    []string
	err    error
}

func open(in io.Reader, name string, required, optional []string) (*table, error) {
	t := &table{name: name, csv: csv.NewReader(in), column: map[string]int{}}
	t.csv.ReuseRecord = true
	header, err := t.csv.Read()
	if errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%s:1: the file is empty, its first line must name the columns %s", name, strings.Join(required, ", "))
	}
	if err != nil {
		return nil, fmt.Errorf("%s: read the header: %w", name, err)
	}
	for i, c := range header {
		if slices.Contains(required, c) || slices.Contains(optional, c) {
			t.column[c] = i
		}
	}
	for _, c := range required {
		if _, ok := t.column[c]; !ok {
			return nil, fmt.Errorf("%s:1: column %s is missing", name, c)
		}
	}
	return t, nil
}

func (t *table) next() bool {
	if t.err != nil {
		return false
	}
	row, err := t.csv.Read()
	switch {
	case errors.Is(err, io.EOF):
		return false
	case err != nil:
		t.err = fmt.Errorf("%s: %w", t.name, err)
		return false
	}
	t.row = row
	return true
}

func (t *table) text(column string) string {
	i, ok := t.column[column]
	if !ok {
		return ""
	}
	return t.row[i]
}

// number reads a whole number from 0 to most.
func (t *table) number(column string, most int64) int64 {
	text := t.text(column)
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 0 || n > most {
		t.fail(column, "%q must be a whole number from 0 to %d", text, most)
		return 0
	}
	return n
}

func (t *table) fail(column, format string, args ...any) {
	if t.err == nil {
		line, _ := t.csv.FieldPos(t.column[column])
		t.err = fmt.Errorf("%s:%d: column %s: %s", t.name, line, column, fmt.Sprintf(format, args...))
	}
}
