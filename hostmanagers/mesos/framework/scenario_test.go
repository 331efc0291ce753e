package framework_test

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	mesos "github.com/mesos/mesos-go/api/v1/lib"
	"github.com/mesos/mesos-go/api/v1/lib/maintenance"

	"github.com/paceline-sched/paceline/core/driver"
	"github.com/paceline-sched/paceline/core/execution"
	"github.com/paceline-sched/paceline/core/workload"
	"github.com/paceline-sched/paceline/hostmanagers/mesos/emulator/cluster"
	"github.com/paceline-sched/paceline/hostmanagers/mesos/framework"
)

var update = flag.Bool("update", false, "record what the scenarios print")

// TestScenarios plays the files in testdata. A file is a list of blocks: commands, a line of dashes, what passes between the machine, the master
// and the shard. The commands are the cases of scenario.do; `go test ./hostmanagers/mesos/framework -run Scenarios -update` records anew.
func TestScenarios(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scenarios in testdata: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			t.Parallel()
			recorded, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			played := newScenario(t).play(recorded)
			switch {
			case bytes.Equal(played, recorded):
			case *update:
				if err := os.WriteFile(file, played, 0o644); err != nil {
					t.Fatal(err)
				}
			default:
				t.Errorf("%s prints something else now; if that is right, record it with -update\n%s", file, played)
			}
		})
	}
}

// scenario is a world with short names for what is in it.
type scenario struct {
	*world
	test   *testing.T
	agents map[string]string // ids by host name
	runs   map[string]workload.RunID
}

func newScenario(t *testing.T) *scenario {
	w := newWorld(t, cluster.Config{MasterID: "M", Seed: 1, PingTimeout: time.Second, MaxPings: 3}, framework.Config{})
	return &scenario{world: w, test: t, agents: map[string]string{}, runs: map[string]workload.RunID{}}
}

func (s *scenario) play(file []byte) []byte {
	var result bytes.Buffer
	inOutput := false
	for line := range strings.Lines(string(file)) {
		line = strings.TrimSuffix(line, "\n")
		switch {
		case line == "----":
			inOutput = true
			result.WriteString("----\n")
			for _, heard := range s.heard {
				result.WriteString(s.shorten(heard) + "\n")
			}
			s.heard = nil
		case line == "":
			inOutput = false
			result.WriteString("\n")
		case inOutput:
		default:
			result.WriteString(line + "\n")
			if !strings.HasPrefix(line, "#") {
				s.do(strings.Fields(line))
			}
		}
	}
	return result.Bytes()
}

// shorten puts names in place of ids.
func (s *scenario) shorten(line string) string {
	for name, id := range s.runs {
		line = strings.ReplaceAll(line, id.String(), name)
	}
	return line
}

func (s *scenario) do(words []string) {
	command, args := words[0], words[1:]
	switch command {
	case "agent": // agent NAME [RESOURCE:AMOUNT[@ROLE|~]]...
		s.agents[args[0]] = s.addNamed(args[0], args[1:])
	case "subscribe": // subscribe [hang]: what the framework calls is under way still
		s.subscribe()
		if len(args) == 0 {
			s.settle()
		}
	case "restart": // another process, under the id of the framework
		s.lose()
		s.restart()
	case "new-master": // new-master DURATION: it knows nothing, and agents register with it after a while
		d, err := time.ParseDuration(args[0])
		if err != nil {
			s.test.Fatal(err)
		}
		s.lose()
		s.master(func(c *cluster.Cluster) { c.Succeed(d) })
	case "no-operator-api":
		s.noOperator = true
	case "after": // after DURATION: everything is delivered meanwhile
		d, err := time.ParseDuration(args[0])
		if err != nil {
			s.test.Fatal(err)
		}
		s.pass(d)
	case "hang": // hang DURATION: the master takes no question what tasks there are, and does not say so
		d, err := time.ParseDuration(args[0])
		if err != nil {
			s.test.Fatal(err)
		}
		s.hang(d)
	case "settle":
		s.settle()
	case "demand": // demand yes|no
		s.input(func(now int64, out *framework.Output) { s.machine.Demand(now, args[0] == "yes", out) })
	case "launch": // launch NAME HOST [RESOURCE=AMOUNT | port=N | for=DURATION | sidecar=CPU | revocable]...
		s.launchNamed(args)
	case "kill": // kill NAME GRACE
		d, err := time.ParseDuration(args[1])
		if err != nil {
			s.test.Fatal(err)
		}
		s.killRun(s.run(args[0]), d)
	case "reconcile": // reconcile NAME...
		var ids []workload.RunID
		for _, name := range args {
			ids = append(ids, s.run(name))
		}
		s.input(func(now int64, out *framework.Output) {
			if err := s.machine.Reconcile(now, ids, out); err != nil {
				s.test.Fatal(err)
			}
		})
	case "acknowledge":
		s.acknowledge()
		s.settle()
	case "cut":
		s.lose()
	case "host": // host NAME: prints it
		h, known := s.hosts[args[0]]
		s.heard = append(s.heard, fmt.Sprintf("%v %s %v %v %t %s", known, h.ID, h.Capacity, h.Ports, h.Ready, h.Message))
	case "window": // window HOST IN DURATION: it will be unavailable
		s.announce(args)
	case "details": // details HOST: prints what people see
		s.heard = append(s.heard, fmt.Sprint(s.hosts[args[0]].Details))
	case "lost", "back", "removed", "drained", "gone":
		s.master(func(c *cluster.Cluster) {
			id := s.agents[args[0]]
			map[string]func(){
				"lost": func() { c.LoseAgent(id) }, "back": func() { c.ReturnAgent(id) }, "removed": func() { c.RemoveAgent(id, "removed") },
				"drained": func() { c.Drain(id) }, "gone": func() { c.MarkGone(id) },
			}[command]()
		})
	default:
		s.test.Fatalf("no such command: %v", words)
	}
}

func (s *scenario) run(name string) workload.RunID {
	id, ok := s.runs[name]
	if !ok {
		id = workload.RunID{Job: workload.JobID{9}, Instance: uint32(len(s.runs)), Generation: 1, Run: 1} //nolint:gosec // a few
		s.runs[name] = id
	}
	return id
}

func (s *scenario) addNamed(name string, words []string) (id string) {
	resources := []mesos.Resource{scalar("cpus", 4), scalar("mem", 4096)}
	if len(words) > 0 {
		resources = nil
	}
	for _, word := range words {
		key, amount, _ := strings.Cut(word, ":")
		amount, role, reserved := strings.Cut(amount, "@")
		amount, revocable := strings.CutSuffix(amount, "~")
		r := mesos.Resource{Name: key}
		if first, last, ok := strings.Cut(amount, "-"); ok {
			r.Type, r.Ranges = mesos.RANGES.Enum(), &mesos.Value_Ranges{Range: []mesos.Value_Range{{Begin: uint64(s.number(first)), End: uint64(s.number(last))}}}
		} else {
			r = scalar(key, float64(s.number(amount)))
		}
		if reserved {
			r.Reservations = []mesos.Resource_ReservationInfo{{Type: mesos.Resource_ReservationInfo_STATIC.Enum(), Role: &role}}
		}
		if revocable {
			r.Revocable = &mesos.Resource_RevocableInfo{}
		}
		resources = append(resources, r)
	}
	s.master(func(c *cluster.Cluster) { id = c.AddAgent(cluster.Agent{Hostname: name, Resources: resources}) })
	return id
}

func (s *scenario) announce(args []string) {
	in, err := time.ParseDuration(args[1])
	if err != nil {
		s.test.Fatal(err)
	}
	lasts, err := time.ParseDuration(args[2])
	if err != nil {
		s.test.Fatal(err)
	}
	ip := "127.0.0.1"
	s.master(func(c *cluster.Cluster) {
		refused := c.SetSchedule(&maintenance.Schedule{Windows: []maintenance.Window{{
			MachineIDs: []mesos.MachineID{{Hostname: &args[0], IP: &ip}},
			Unavailability: mesos.Unavailability{
				Start: mesos.TimeInfo{Nanoseconds: s.now.Add(in).UnixNano()}, Duration: &mesos.DurationInfo{Nanoseconds: int64(lasts)},
			},
		}}})
		if refused != nil {
			s.test.Fatal(refused.Text)
		}
	})
}

func (s *scenario) number(text string) int64 {
	n, err := strconv.ParseInt(text, 10, 32)
	if err != nil {
		s.test.Fatal(err)
	}
	return n
}

func (s *scenario) launchNamed(args []string) {
	s.launch(args[1], func(l *driver.Launch) {
		l.Run = s.run(args[0])
		l.Command = []string{"for", "1000h"}
		for _, word := range args[2:] {
			key, value, _ := strings.Cut(word, "=")
			switch key {
			case "revocable":
				l.Revocable = true
			case "for":
				l.Command = []string{"for", value}
			case "port":
				l.Ports = append(l.Ports, driver.AssignedPort{Name: "web", Number: uint16(s.number(value))}) //nolint:gosec // a port
			case "sidecar":
				l.Execution = &execution.Spec{Sidecars: []execution.Container{
					{Name: "proxy", Command: []string{"for", "1000h"}, Needs: map[string]int64{"cpu_milli": s.number(value), "memory_mib": 64}},
				}}
			default:
				l.Needs[key] = s.number(value)
			}
		}
	})
}
