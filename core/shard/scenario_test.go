package shard_test

import (
	"bufio"
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/paceline-sched/paceline/core/driver"
	"github.com/paceline-sched/paceline/core/placement"
	"github.com/paceline-sched/paceline/core/shard"
	"github.com/paceline-sched/paceline/core/workload"
)

var update = flag.Bool("update", false, "record what the scenarios print")

// TestScenarios plays the files in testdata. A file is a list of blocks: commands, a line of dashes, what they print. The commands
// are the cases of scenario.do; `go test ./core/shard -run Scenarios -update` records anew.
func TestScenarios(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scenarios in testdata: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			recorded, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			played := newScenario(t, strings.Contains(file, "demand")).play(recorded)
			switch {
			case bytes.Equal(played, recorded):
			case *update:
				if err := os.WriteFile(file, played, 0o644); err != nil {
					t.Fatal(err)
				}
			default:
				t.Errorf("%s prints something else now; if that is right, record it with -update\n%s", file, firstDifference(recorded, played))
			}
		})
	}
}

func firstDifference(want, got []byte) string {
	w, g := strings.Split(string(want), "\n"), strings.Split(string(got), "\n")
	for i := range max(len(w), len(g)) {
		if i >= len(w) || i >= len(g) || w[i] != g[i] {
			return fmt.Sprintf("from line %d on\nrecorded:\n%s\nnow:\n%s", i+1, strings.Join(w[min(i, len(w)):min(i+6, len(w))], "\n"), strings.Join(g[min(i, len(g)):min(i+6, len(g))], "\n"))
		}
	}
	return ""
}

// scenario is one machine with names for everything in it.
type scenario struct {
	t       *testing.T
	machine *shard.Machine
	now     int64
	epoch   shard.Epoch
	hosts   map[string]driver.Host
	classes map[string]*placement.Class
	names   map[workload.HostID]string
	out     shard.Output
	printed bytes.Buffer
}

// newScenario makes a machine whose driver can be asked for the state of runs, and if demands is set wants to hear of demand.
func newScenario(t *testing.T, demands bool) *scenario {
	m, err := shard.New(shard.Config{
		ID: "c/0", Cluster: "c", Reconciles: true, Demands: demands,
		Placers: placers{string(workload.StrategyBestFit): firstFit{}, "overfill": overfill{}, "vandal": vandal{}},
	})
	if err != nil {
		t.Fatal(err)
	}
	return &scenario{
		t: t, machine: m, hosts: map[string]driver.Host{}, classes: map[string]*placement.Class{}, names: map[workload.HostID]string{},
	}
}

// play runs the commands of a file and returns the file with what they print.
func (s *scenario) play(file []byte) []byte {
	var result bytes.Buffer
	inOutput := false
	lines := bufio.NewScanner(bytes.NewReader(file))
	for lines.Scan() {
		line := lines.Text()
		switch {
		case line == "----":
			inOutput = true
			result.WriteString("----\n")
			result.Write(s.printed.Bytes())
			s.printed.Reset()
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

func (s *scenario) do(words []string) {
	command, args := words[0], words[1:]
	switch command {
	case "host": // host NAME [QUANTITY=N | ATTRIBUTE=VALUE | notready | gpus=N | port=FIRST-LAST]...
		s.defineHost(args)
	case "class": // class NAME [QUANTITY=N | where:KEY=VALUE | policy=NAME]...
		s.defineClass(args)
	case "after": // after DURATION
		d, err := time.ParseDuration(args[0])
		s.check(err)
		s.now += int64(d)
	case "assign": // assign CELL.SHARD [NAME]...
		epoch := s.parseEpoch(args[0])
		s.handle(shard.Assign{Epoch: epoch, Named: args[1:]})
		if s.epoch.Less(epoch) {
			s.epoch = epoch
		}
	case "under": // under CELL.SHARD COMMAND...: a message of another core
		current := s.epoch
		s.epoch = s.parseEpoch(args[0])
		s.do(args[1:])
		s.epoch = current
	case "names":
		s.handle(shard.Names{Epoch: s.epoch, Named: args})
	case "replay": // replay [RUN@HOST:CLASS]... [done]
		s.handle(s.parseReplay(args))
	case "place": // place BATCH [gang:|dry:]CLASS*COUNT[@HOST]...
		s.handle(s.parsePlace(args))
	case "launch": // launch RUN=LEASE@HOST...
		s.handle(s.parseLaunch(args))
	case "kill": // kill RUN...
		m := shard.Kill{Epoch: s.epoch}
		for _, run := range args {
			m.Kills = append(m.Kills, driver.Kill{Run: parseRun(run)})
		}
		s.handle(m)
	case "release": // release LEASE...
		m := shard.Release{Epoch: s.epoch}
		for _, lease := range args {
			m.Leases = append(m.Leases, shard.Lease(s.number(lease)))
		}
		s.handle(m)
	case "ack": // ack TOKEN...
		m := shard.Acknowledge{Epoch: s.epoch}
		for _, token := range args {
			m.Tokens = append(m.Tokens, driver.Token(s.number(token)))
		}
		s.handle(m)
	case "watch": // watch INSTANCE:CLASS...
		m := shard.Watch{Epoch: s.epoch}
		for _, arg := range args {
			job, class, _ := strings.Cut(arg, ":")
			m.Selectors = append(m.Selectors, shard.Selector{Job: workload.JobID{byte(s.number(job))}, Class: s.classes[class]})
		}
		s.handle(m)
	case "drain", "undrain": // drain HOST...
		m := shard.SetDraining{Epoch: s.epoch, Draining: command == "drain"}
		for _, name := range args {
			m.Hosts = append(m.Hosts, s.hostID(name))
		}
		s.handle(m)
	default:
		s.doDriver(command, args)
	}
}

// doDriver plays the driver's and the runtime's part.
func (s *scenario) doDriver(command string, args []string) {
	switch command {
	case "inventory": // inventory [HOST]... [RUN:STATE@HOST#TOKEN]...
		var inventory driver.Inventory
		for _, arg := range args {
			if strings.Contains(arg, ":") {
				inventory.Runs = append(inventory.Runs, s.parseStatus(arg))
			} else {
				inventory.Hosts = append(inventory.Hosts, s.hosts[arg])
			}
		}
		s.handle(shard.InventoryArrived{Inventory: inventory})
	case "hosts": // hosts [HOST | -HOST]...
		var m shard.HostsUpdated
		for _, arg := range args {
			if name, removed := strings.CutPrefix(arg, "-"); removed {
				m.Removed = append(m.Removed, name)
			} else {
				m.Changed = append(m.Changed, s.hosts[arg])
			}
		}
		s.handle(m)
	case "statuses": // statuses RUN:STATE@HOST#TOKEN...
		var m shard.StatusesArrived
		for _, arg := range args {
			m.Statuses = append(m.Statuses, s.parseStatus(arg))
		}
		s.handle(m)
	case "lost":
		s.handle(shard.DriverLost{Reason: strings.Join(args, " ")})
	case "launch-failed": // launch-failed RUN...
		m := shard.LaunchFailed{Reason: "no such image"}
		for _, run := range args {
			m.Runs = append(m.Runs, parseRun(run))
		}
		s.handle(m)
	case "wake":
		s.handle(shard.Wake{})
	case "stats":
		fmt.Fprintf(&s.printed, "%+v\n", s.machine.Stats())
	case "free": // free HOST...: what the table has left
		s.printFree(args)
	default:
		s.t.Fatalf("unknown command %q", command)
	}
}

func (s *scenario) check(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

func (s *scenario) number(word string) int64 {
	s.t.Helper()
	n, err := strconv.ParseInt(word, 10, 64)
	s.check(err)
	return n
}

func (s *scenario) handle(m shard.Message) {
	s.machine.Handle(s.now, m, &s.out)
	s.print(&s.out)
}
