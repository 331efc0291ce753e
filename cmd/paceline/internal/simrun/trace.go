package simrun

import (
	"io"
	"math"
	"strings"

	"github.com/paceline-sched/paceline/cmd/paceline/internal/tracefile"
	"github.com/paceline-sched/paceline/core/workload"
	"github.com/paceline-sched/paceline/hostmanagers/simulated"
)

// Bounds of a trace.
const (
	maxTasks      = 2 << 20
	maxHostEvents = 1 << 20
	maxMicros     = int64(1) << 52 // 142 years
	maxPriority   = 11
	maxIndex      = 1 << 31
	maxUserName   = 63 // it becomes the name of a pool
)

// never stands for a time that the trace leaves blank.
const never = int64(-1)

// Host is one machine; its size is relative to the largest of the inventory.
type Host struct {
	Name        string
	Platform    string
	CPU, Memory float64
}

// Task is one task of the trace. Times are microseconds on the trace's clock; 0 is before its start, never is blank.
type Task struct {
	Job         string
	User        string
	Priority    int
	CPU, Memory float64 // of the largest host
	Different   bool    // not on a machine with another task of its job
	Submit      int64
	Scheduled   int64 // for the first time
	End         int64
	Failed      bool
}

// HostEvent is a machine that comes, goes or changes.
type HostEvent struct {
	At   int64
	Kind HostEventKind
	Host Host
}

// HostEventKind says which.
type HostEventKind uint8

// The kinds, as the trace numbers them.
const (
	HostAdded HostEventKind = iota
	HostRemoved
	HostUpdated
)

// interner keeps one copy of each of the few texts that a trace repeats: a field shares memory with its whole row.
type interner map[string]string

func (in interner) keep(text string) string {
	kept, ok := in[text]
	if !ok {
		kept = strings.Clone(text)
		in[kept] = kept
	}
	return kept
}

// ReadHosts reads an inventory with the columns machine_id, platform, cpus and memory. name is for messages.
func ReadHosts(in io.Reader, name string) ([]Host, error) {
	rows, err := tracefile.Open(in, name, []string{"machine_id", "platform", "cpus", "memory"}, nil)
	if err != nil {
		return nil, err
	}
	texts := interner{}
	var hosts []Host
	seen := map[string]bool{}
	for rows.Next() {
		h := Host{
			Name: hostName(rows.Text("machine_id")), Platform: texts.keep(rows.Text("platform")),
			CPU: rows.Fraction("cpus"), Memory: rows.Fraction("memory"),
		}
		switch {
		case h.Name == "" || len(h.Name) > 253:
			rows.Fail("machine_id", "a machine's id must have 1 to 245 characters")
		case seen[h.Name]:
			rows.Fail("machine_id", "%q appears twice", rows.Text("machine_id"))
		case len(hosts) == simulated.MaxHosts:
			rows.Fail("machine_id", "there are more than %d hosts", simulated.MaxHosts)
		}
		seen[h.Name] = true
		hosts = append(hosts, h)
	}
	return hosts, rows.Err()
}

// hostName is a copy; "" for an id that is none.
func hostName(id string) string {
	if id == "" {
		return ""
	}
	return "machine-" + id
}

var taskColumns = []string{
	"job_id", "task_index", "user", "priority", "cpu_request", "memory_request", "different_machines", "submit_us", "first_schedule_us", "end_us",
	"end_event",
}

// ReadTasks reads tasks with the columns of taskColumns; others are ignored. name is for messages.
func ReadTasks(in io.Reader, name string) ([]Task, error) {
	rows, err := tracefile.Open(in, name, taskColumns, nil)
	if err != nil {
		return nil, err
	}
	texts := interner{}
	var tasks []Task
	for rows.Next() {
		_ = rows.Number("task_index", maxIndex)
		t := Task{
			Job: texts.keep(rows.Text("job_id")), User: texts.keep(rows.Text("user")), Priority: int(rows.Number("priority", maxPriority)),
			CPU: request(rows, "cpu_request"), Memory: request(rows, "memory_request"), Different: rows.Number("different_machines", 1) == 1,
			Submit: rows.Number("submit_us", maxMicros), Scheduled: moment(rows, "first_schedule_us"), End: moment(rows, "end_us"),
			Failed: rows.Text("end_event") == "FAIL",
		}
		checkTask(rows, &t)
		if len(tasks) == maxTasks {
			rows.Fail("job_id", "there are more than %d tasks", maxTasks)
		}
		tasks = append(tasks, t)
	}
	return tasks, rows.Err()
}

func checkTask(rows *tracefile.Table, t *Task) {
	switch {
	case t.Job == "" || len(t.Job) > maxUserName:
		rows.Fail("job_id", "a job's id must have 1 to %d characters", maxUserName)
	case !userName(t.User):
		rows.Fail("user", "%.80q names a pool, so it must be 1 to %d letters, digits, '.', '_' or '-', with a letter or digit at both ends",
			t.User, maxUserName)
	case t.End != never && t.End < max(t.Submit, t.Scheduled):
		rows.Fail("end_us", "%d is before the task was submitted or scheduled", t.End)
	}
}

func userName(name string) bool {
	if name == "" || len(name) > maxUserName {
		return false
	}
	for i, c := range []byte(name) {
		alphanumeric := c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
		inner := i > 0 && i < len(name)-1 && strings.IndexByte("._-", c) >= 0
		if !alphanumeric && !inner {
			return false
		}
	}
	return true
}

// request reads what a task asks for; the trace leaves out a few, which count as nothing.
func request(rows *tracefile.Table, column string) float64 {
	if rows.Text(column) == "" {
		return 0
	}
	return rows.Fraction(column)
}

func moment(rows *tracefile.Table, column string) int64 {
	if rows.Text(column) == "" {
		return never
	}
	return rows.Number(column, maxMicros)
}

// ReadHostEvents reads machine events with the columns time_us, machine_id, event_type, cpus and memory, and platform_id where the file has
// it. Those at time 0 say what the inventory says and are left out. name is for messages.
func ReadHostEvents(in io.Reader, name string) ([]HostEvent, error) {
	rows, err := tracefile.Open(in, name, []string{"time_us", "machine_id", "event_type", "cpus", "memory"}, []string{"platform_id"})
	if err != nil {
		return nil, err
	}
	texts := interner{}
	var events []HostEvent
	for rows.Next() {
		e := HostEvent{At: rows.Number("time_us", maxMicros), Kind: HostEventKind(rows.Number("event_type", int64(HostUpdated)))}
		if e.At == 0 {
			continue
		}
		e.Host = Host{
			Name: hostName(rows.Text("machine_id")), Platform: texts.keep(rows.Text("platform_id")),
			CPU: request(rows, "cpus"), Memory: request(rows, "memory"),
		}
		switch {
		case e.Host.Name == "":
			rows.Fail("machine_id", "a machine's id must not be empty")
		case len(events) > 0 && events[len(events)-1].At > e.At:
			rows.Fail("time_us", "events must be in the order of their time")
		case len(events) == maxHostEvents:
			rows.Fail("time_us", "there are more than %d events", maxHostEvents)
		}
		events = append(events, e)
	}
	return events, rows.Err()
}

// milli turns a fraction of the largest host into a quantity, rounded up: a need must not come out too small.
func milli(fraction float64, largest int64) int64 {
	const noise = 1e-6 // of the product: 0.3 x 10 must stay 3
	return int64(math.Ceil(fraction*float64(largest) - noise))
}

// tier is a level of the pool tree, by priority.
type tier uint8

const (
	production tier = iota
	middle
	free
	numTiers
)

var tierNames = [numTiers]string{"production", "middle", "free"}

func (t tier) String() string { return tierNames[t] }

// tierOf follows the trace's documentation: 0 and 1 are the free band, 9 and above production.
func tierOf(priority int) tier {
	switch {
	case priority >= 9:
		return production
	case priority >= 2:
		return middle
	}
	return free
}

// strategies that hosts may be chosen by.
var strategies = []workload.Strategy{workload.StrategyBestFit, workload.StrategyPack, workload.StrategySpread}
