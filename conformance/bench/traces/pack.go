package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

const (
	leastPacked = 92.7  // best-fit of other simulators, % of GPUs
	lead        = 1.5   // of fgd before best-fit, points
	publishedAt = 95.39 // FGD, % of GPUs of the first workload at 130 % demand
)

// packing is one variant of the openb trace.
type packing struct {
	pods      string
	published float64 // FGD (ATC'23), % of GPUs at 100 % demand
	short     float64 // points that fgd may stay below that
}

var packings = []packing{
	{"default.csv", 95.23, 0.25},
	{"cpu200.csv.gz", 94.82, 0.25},
	{"gpushare40.csv.gz", 93.96, 0.25},
	{"multigpu20.csv.gz", 95.53, 0.25},
	{"gpuspec10.csv.gz", 94.66, 0.8},
}

// pack is how full policies pack a fleet of GPUs. On the first workload those that look ahead run as modules of the plain Go toolchain, on the others natively, where they answer alike.
func pack(r *runner) error {
	folder, err := os.MkdirTemp("", "paceline-traces")
	if err != nil {
		return err
	}
	defer os.RemoveAll(folder) //nolint:errcheck // what is left is in the folder for what may go
	names := []string{"fgd", "least-residue"}
	modules := make([]string, len(names))
	for n, name := range names {
		modules[n] = filepath.Join(folder, name+".wasm")
		if _, err := r.call("policy", "build", "policies/builtin/guests/"+name, "--out", modules[n]); err != nil {
			return fmt.Errorf("paceline policy build of %s: %w", name, err)
		}
	}
	plain, err := r.packed(&packings[0], "best-fit")
	if err != nil {
		return err
	}
	rows := [][]string{barHead, bar("pack, GPUs allocated at 100 % demand, %, best-fit", plain[0], 2, ">= 92.7", plain[0] >= leastPacked)}
	for i := range packings {
		p, policies := &packings[i], names
		if i == 0 {
			policies = modules
		}
		fgd, err := r.packed(p, policies[0])
		if err != nil {
			return err
		}
		residue, err := r.packed(p, policies[1])
		if err != nil {
			return err
		}
		name, _, _ := strings.Cut(p.pods, ".")
		rows = append(rows, bar("fgd, "+name, fgd[0], 2, ">= "+number(p.published-p.short, 2), fgd[0] >= p.published-p.short),
			bar("least-residue, "+name, residue[0], 2, "> "+number(p.published, 2), residue[0] > p.published))
		if i == 0 {
			rows = append(rows, bar("fgd before best-fit, points", fgd[0]-plain[0], 2, ">= 1.5", fgd[0]-plain[0] >= lead),
				bar("least-residue at 130 % demand", residue[1], 2, "> 95.39", residue[1] > publishedAt))
		}
	}
	return r.table(rows)
}

// packed runs the protocol and returns what is allocated, in percent of all GPUs, at 100 and 130 % demand.
func (r *runner) packed(p *packing, policy string) (at [2]float64, err error) {
	var found struct {
		Allocation map[string]struct {
			Mean float64 `json:"mean"`
		} `json:"gpu_allocation_percent"`
	}
	err = r.into(&found, "pack", "--hosts", r.file("inventory/openb_nodes.csv"), "--pods", r.file("tasks/openb_pods_"+p.pods),
		"--policy", policy, "--seeds", "42-51", "--demand", "1.3")
	return [2]float64{found.Allocation["100"].Mean, found.Allocation["130"].Mean}, err
}
