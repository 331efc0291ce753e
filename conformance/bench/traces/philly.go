package main

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// phillyReport is what is read of a run.
type phillyReport struct {
	Hosts       int         `json:"hosts"`
	Queueing    queueing    `json:"queueing"`
	Jain        float64     `json:"jain_index"`
	Preemptions int         `json:"preemptions"`
	Wasted      float64     `json:"wasted_gpu_hours"`
	Clusters    []phillyOne `json:"virtual_clusters"`
}

type queueing struct {
	Mean float64 `json:"mean_seconds"`
	P99  float64 `json:"p99_seconds"`
}

type phillyOne struct {
	Name     string   `json:"virtual_cluster"`
	GPUs     int      `json:"gpus"`
	Queueing queueing `json:"queueing"`
}

type phillyComparison struct {
	Static  phillyReport `json:"static"`
	Elastic phillyReport `json:"elastic"`
	Ratio   float64      `json:"elastic_over_static"`
	Longer  []struct {
		Name    string  `json:"virtual_cluster"`
		Static  float64 `json:"static_mean_seconds"`
		Elastic float64 `json:"elastic_mean_seconds"`
		Why     string  `json:"why"`
	} `json:"longer_under_elastic"`
}

// load is one comparison of static with elastic pools.
type load struct {
	percent int
	order   string
	found   phillyComparison
	lent    *phillyReport // elastic pools of which none takes back what it lends; nil: not run
}

func (l *load) name() string { return fmt.Sprintf("%d %% of hosts, %s", l.percent, l.order) }

// philly is what lending is worth to virtual clusters.
func philly(r *runner) error {
	loads := []*load{
		{percent: 100, order: "priority-fifo"},
		{percent: 100, order: "shortest-first"},
		{percent: 59, order: "priority-fifo"},
		{percent: 59, order: "shortest-first"},
	}
	for _, l := range loads {
		backfill := "easy"
		if l.order == "priority-fifo" {
			backfill = "none"
		}
		args := []string{
			"run", "--philly", r.file("tasks/philly_jobs.csv.gz"), "--philly-pools", r.file("tasks/philly_vc_nodes.csv"),
			"--host-percent", strconv.Itoa(l.percent), "--order", l.order, "--backfill", backfill,
		}
		if err := r.into(&l.found, append(slices.Clone(args), "--pools", "compare")...); err != nil {
			return err
		}
		if len(l.found.Static.Clusters) == 0 || len(l.found.Static.Clusters) != len(l.found.Elastic.Clusters) {
			return errors.New("the report has not as many virtual clusters for static as for elastic pools")
		}
		if l.found.Elastic.Preemptions == 0 {
			continue
		}
		l.lent = &phillyReport{}
		if err := r.into(l.lent, append(slices.Clone(args), "--pools", "elastic", "--victims", "nobody")...); err != nil {
			return err
		}
	}
	for _, rows := range [][][]string{phillyBars(loads), phillySums(loads), phillyClusters(loads)} {
		if err := r.table(rows); err != nil {
			return err
		}
	}
	_, err := fmt.Fprint(r.out, phillyLonger(loads))
	return err
}

func phillyBars(loads []*load) [][]string {
	rows := [][]string{barHead}
	for _, l := range loads {
		rows = append(rows, bar("Philly, "+l.name()+", mean queueing, elastic over static", l.found.Ratio, 3, "< 1", l.found.Ratio < 1))
	}
	return rows
}

var phillyKinds = [...]string{"static", "elastic", "elastic, nobody makes room"}

func phillySums(loads []*load) [][]string {
	rows := [][]string{{"hosts", "order", "pools", "mean", "p99", "Jain's index", "preemptions", "wasted GPU-hours"}}
	for _, l := range loads {
		for n, p := range []*phillyReport{&l.found.Static, &l.found.Elastic, l.lent} {
			if p == nil {
				continue
			}
			row := []string{"", "", phillyKinds[n]}
			if n == 0 {
				row = []string{fmt.Sprintf("%d %%: %d", l.percent, p.Hosts), l.order, phillyKinds[n]}
			}
			rows = append(rows, append(row, number(p.Queueing.Mean, 0), number(p.Queueing.P99, 0), number(p.Jain, 3), number(float64(p.Preemptions), 0), number(p.Wasted, 0)))
		}
	}
	return rows
}

// phillyClusters is the p99 of each virtual cluster, under static and then elastic pools.
func phillyClusters(loads []*load) [][]string {
	head := []string{"queueing at p99, s", "GPUs"}
	for _, l := range loads {
		head = append(head, l.name())
	}
	rows := [][]string{head}
	for i, c := range loads[0].found.Static.Clusters {
		row := []string{c.Name, strconv.Itoa(c.GPUs)}
		for _, l := range loads {
			row = append(row, number(l.found.Static.Clusters[i].Queueing.P99, 0)+" to "+number(l.found.Elastic.Clusters[i].Queueing.P99, 0))
		}
		rows = append(rows, row)
	}
	return rows
}

// phillyLonger names who waits over 5 % longer where pools lend.
func phillyLonger(loads []*load) string {
	var b strings.Builder
	for _, l := range loads {
		if len(l.found.Longer) == 0 {
			fmt.Fprintf(&b, "%s: no virtual cluster queues over 5 %% longer under elastic pools.\n", l.name())
		}
		for _, x := range l.found.Longer {
			fmt.Fprintf(&b, "%s: %s queues %s s instead of %s s: %s.\n", l.name(), x.Name, number(x.Elastic, 0), number(x.Static, 0), x.Why)
		}
	}
	return b.String()
}
