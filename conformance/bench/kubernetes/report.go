package main

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/paceline-sched/paceline/conformance/controlplane"
)

// figures are what came of one run, or the medians of several.
type figures struct {
	way, what   string
	nodes, pods int
	played      bool
	took        time.Duration
	created     time.Duration      // what their creation took before
	rate        float64            // pods a second
	whole       float64            // the same from the beginning of their creation on
	bound       float64            // the same until all are bound, where a run goes on until they are running
	cpu         map[string]float64 // milliseconds of processor time a pod, by program
	machine     float64            // its pace before the run
	least, most float64            // of the rates from the beginning of their creation on
}

// median puts the medians of runs together, each figure's own, and the range of their rates.
func median(runs []*figures) *figures {
	of := func(figure func(*figures) float64) []float64 {
		var all []float64
		for _, f := range runs {
			all = append(all, figure(f))
		}
		slices.Sort(all)
		return all
	}
	middle := func(figure func(*figures) float64) float64 {
		all := of(figure)
		return (all[(len(all)-1)/2] + all[len(all)/2]) / 2
	}
	m := *runs[0]
	m.rate = middle(func(f *figures) float64 { return f.rate })
	m.whole = middle(func(f *figures) float64 { return f.whole })
	m.bound = middle(func(f *figures) float64 { return f.bound })
	m.machine = middle(func(f *figures) float64 { return f.machine })
	m.cpu = map[string]float64{}
	for name := range runs[0].cpu {
		m.cpu[name] = middle(func(f *figures) float64 { return f.cpu[name] })
	}
	rates := of(func(f *figures) float64 { return f.whole })
	m.least, m.most = rates[0], rates[len(rates)-1]
	return &m
}

func (f *figures) name() string {
	name := f.way + "/" + strconv.Itoa(f.nodes)
	if f.played {
		name += "/kwok"
	}
	return name
}

// cluster is what the API server and its store take.
func (f *figures) cluster() float64 { return f.cpu[controlplane.APIServer] + f.cpu[controlplane.Etcd] }

var columns = []string{controlplane.APIServer, controlplane.Etcd, controlplane.Kwok, controlplane.KubeScheduler, program}

// table writes runs on the same nodes.
func (s *settings) table(all []*figures) {
	goal := "bound"
	if all[0].played {
		goal = "running, kwok plays the kubelets"
	}
	rows := [][]string{append([]string{fmt.Sprintf("%s pods on %s nodes until all are %s", number(float64(s.pods), 0), number(float64(all[0].nodes), 0), goal), "pods/s", "end to end", "least to most", "bound", "machine"}, columns...)}
	for _, f := range all {
		row := []string{f.what, number(f.rate, 0), number(f.whole, 0), number(f.least, 0) + "-" + number(f.most, 0), number(f.bound, 0), number(f.machine, 0)}
		for _, name := range columns {
			if used, ok := f.cpu[name]; ok {
				row = append(row, number(used, 3))
			} else {
				row = append(row, "")
			}
		}
		rows = append(rows, row)
	}
	s.write(rows)
}

func (s *settings) viewTable(st *stage, own, foreign *viewed, before, after float64, restart time.Duration) {
	rows := [][]string{{fmt.Sprintf("%s pods on %s nodes", number(float64(st.pods), 0), number(float64(st.nodes), 0)), "heap, MiB", "resident, MiB", "at its peak", "until its view is whole, s"}}
	rows = append(rows,
		[]string{"server that started the pods", "", "", number(before, 0), ""},
		[]string{"the same after kill -9", "", "", number(after, 0), number(restart.Seconds(), 2)},
		own.row(fmt.Sprintf("driver alone, %s runs of its own", number(float64(own.Runs), 0))),
		foreign.row(fmt.Sprintf("driver alone, %s foreign pods", number(float64(foreign.Foreign), 0))),
	)
	s.write(rows)
}

func (v *viewed) row(what string) []string {
	return []string{what, number(v.HeapMiB-v.BaseHeapMiB, 1), number(v.RSSMiB, 0), number(v.PeakRSSMiB, 0), number(v.Seconds, 2)}
}

// The bars.
const (
	leastOverPeer  = 1.5 // times kube-scheduler's rate end to end, the better of its two
	mostOfCluster  = 0.5 // of the processor time of the API server and its store
	leastOverLimit = 0.9 // of the rate without any scheduler; stretched, so that it is no failure
)

// judge writes the bars, and fails when one is missed.
func (s *settings) judge(all []*figures) error {
	rows := [][]string{{"what", "measured", "bar", ""}}
	var missed error
	bar := func(what string, measured float64, asked string, met, must bool) {
		mark := "met"
		if !met {
			mark = "MISSED"
			if must {
				missed = errors.New("a bar was missed")
			}
		}
		rows = append(rows, []string{what, number(measured, 2), asked, mark})
	}
	for _, f := range all {
		if f.way != ourWay {
			continue
		}
		peer, limit := 0.0, 0.0
		for _, o := range all {
			switch {
			case o.nodes != f.nodes || o.played != f.played:
			case o.way == afterWay, o.way == whileWay:
				peer = max(peer, o.whole)
			case o.way == limitWay:
				limit = o.rate
			}
		}
		where := number(float64(f.nodes), 0) + " nodes"
		if f.played {
			where += ", kwok"
		}
		if peer > 0 {
			bar("pods/s end to end, times kube-scheduler's better rate, "+where, f.rate/peer, ">= 1.5", f.rate >= leastOverPeer*peer, true)
		}
		bar("Paceline's processor time, times the API server's and etcd's, "+where, f.cpu[program]/f.cluster(), "<= 0.5", f.cpu[program] <= mostOfCluster*f.cluster(), true)
		if limit > 0 {
			bar("stretched: pods/s, times those without any scheduler, "+where, f.rate/limit, ">= 0.9", f.rate >= leastOverLimit*limit, false)
		}
	}
	if len(rows) > 1 {
		s.write(rows)
	}
	return missed
}

// write writes rows as Markdown; the first is the head.
func (s *settings) write(rows [][]string) {
	widths := make([]int, len(rows[0]))
	for _, row := range rows {
		for n, cell := range row {
			widths[n] = max(widths[n], len(cell))
		}
	}
	var b strings.Builder
	for n, row := range rows {
		for c, cell := range row {
			if c == 0 {
				fmt.Fprintf(&b, "| %-*s ", widths[c], cell)
			} else {
				fmt.Fprintf(&b, "| %*s ", widths[c], cell)
			}
		}
		b.WriteString("|\n")
		if n == 0 {
			b.WriteString("| --- " + strings.Repeat("| ---: ", len(row)-1) + "|\n")
		}
	}
	fmt.Fprintln(s.out, b.String())
}

// number writes so many digits behind the point, and the thousands apart.
func number(v float64, digits int) string {
	text := strconv.FormatFloat(v, 'f', digits, 64)
	whole, rest, _ := strings.Cut(text, ".")
	for at := len(whole) - 3; at > 0 && whole[at-1] != '-'; at -= 3 {
		whole = whole[:at] + "," + whole[at:]
	}
	if rest == "" {
		return whole
	}
	return whole + "." + rest
}
