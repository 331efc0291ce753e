package main

import (
	"math"
	"os"
	"strings"
	"testing"

	"github.com/paceline-sched/paceline/conformance/controlplane"
)

// judged is what is printed of runs, and whether a bar was missed.
func judged(all ...*figures) (string, error) {
	var out strings.Builder
	s := &settings{pods: 10_000, out: &out}
	s.table(all)
	err := s.judge(all)
	return out.String(), err
}

func made(way string, rate float64, cpu map[string]float64) *figures {
	return &figures{way: way, what: way, nodes: 1_000, pods: 10_000, rate: rate, whole: rate, cpu: cpu}
}

func cost(server, store, ours float64) map[string]float64 {
	return map[string]float64{controlplane.APIServer: server, controlplane.Etcd: store, program: ours}
}

func TestBars(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		all  []*figures
		says []string
		met  bool
	}{
		"all met": {[]*figures{made(limitWay, 1_800, nil), made(afterWay, 600, nil), made(whileWay, 500, nil), made(ourWay, 1_650, cost(0.8, 0.2, 0.25))}, []string{
			"| pods/s end to end, times kube-scheduler's better rate, 1,000 nodes |     2.75 | >= 1.5 | met |",
			"1,000 nodes |     0.25 | <= 0.5 | met |", "without any scheduler, 1,000 nodes |     0.92 | >= 0.9 | met |", "| 1,650 | 1,650 |",
		}, true},
		"too slow":       {[]*figures{made(afterWay, 600, nil), made(whileWay, 1_000, nil), made(ourWay, 1_400, cost(0.8, 0.2, 0.25))}, []string{"1.40 | >= 1.5 | MISSED |"}, false},
		"too dear":       {[]*figures{made(ourWay, 1_400, cost(0.8, 0.2, 0.51))}, []string{"0.51 | <= 0.5 | MISSED |"}, false},
		"stretched only": {[]*figures{made(limitWay, 2_000, nil), made(ourWay, 1_400, cost(0.8, 0.2, 0.2))}, []string{"0.70 | >= 0.9 | MISSED |"}, true},
	} {
		out, err := judged(c.all...)
		if (err == nil) != c.met {
			t.Errorf("%s: the verdict is %v", name, err)
		}
		for _, text := range c.says {
			if !strings.Contains(strings.Join(strings.Fields(out), " "), strings.Join(strings.Fields(text), " ")) {
				t.Errorf("%s: %q is not in\n%s", name, text, out)
			}
		}
	}
}

// Runs with other nodes, or with kubelets, are no measure.
func TestBarsCompareLikeWithLike(t *testing.T) {
	t.Parallel()
	peer, played := made(whileWay, 1e6, nil), made(whileWay, 1e6, nil)
	peer.nodes, played.played = 5_000, true
	if out, err := judged(made(ourWay, 1_000, cost(1, 1, 0.1)), peer, played); err != nil || strings.Contains(out, "times kube-scheduler") {
		t.Errorf("%v:\n%s", err, out)
	}
}

func TestMeters(t *testing.T) {
	t.Parallel()
	line := "12 (a (strange) name) S 1 2 3 4 5 6 7 8 9 10 250 50 0 0 20"
	if used, err := readStat(line); err != nil || used.Seconds() != 3 {
		t.Errorf("the times of %q are %v, %v", line, used, err)
	}
	if _, err := readStat("12 (short) S 1"); err == nil {
		t.Error("a line without times has some")
	}
	mine := map[string]int{"me": os.Getpid()}
	before, err := processorTimes(mine)
	if err != nil {
		t.Fatal(err)
	}
	x := 1.0
	for after := before; after["me"] == before["me"]; { // it works until that is seen
		for range 1_000_000 {
			x = math.Sqrt(x + 1)
		}
		if after, err = processorTimes(mine); err != nil {
			t.Fatal(err)
		}
	}
	now, err := resident(os.Getpid(), false)
	peak, err2 := resident(os.Getpid(), true)
	if err != nil || err2 != nil || now <= 0 || peak < now/2 || x == 0 {
		t.Errorf("%g MiB, %g at the peak: %v, %v", now, peak, err, err2)
	}
	if _, err := readStatus("Name:\tx\n", true); err == nil {
		t.Error("a process without memory has some")
	}
}

func TestMistakes(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"-nodes", "many"}, {"-nodes", "0"}, {"-pods", "0"}, {"-view", "-1"}, {"-rounds", "0"}, {"-list", "watch"}, {"-only", "("}} {
		if err := run(t.Context(), args, &strings.Builder{}); err == nil {
			t.Errorf("%v was taken", args)
		}
	}
}

// Of several runs each figure's median counts, whichever run it is of.
func TestMedians(t *testing.T) {
	t.Parallel()
	runs := []*figures{made(ourWay, 900, cost(1, 3, 5)), made(ourWay, 100, cost(2, 1, 6)), made(ourWay, 200, cost(3, 2, 7))}
	m := median(runs)
	if m.rate != 200 || m.whole != 200 || m.least != 100 || m.most != 900 || m.cpu[controlplane.Etcd] != 2 || m.cpu[program] != 6 || m.way != ourWay {
		t.Errorf("of three: %+v", m)
	}
	if m := median(runs[:2]); m.rate != 500 || m.cpu[controlplane.APIServer] != 1.5 {
		t.Errorf("of two: %+v", m)
	}
}
