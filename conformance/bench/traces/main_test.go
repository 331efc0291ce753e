package main

import (
	"errors"
	"strings"
	"testing"
)

// fake answers runs by the first of its keys that their arguments contain.
func fake(t *testing.T, reports ...[2]string) (*runner, *strings.Builder) {
	t.Helper()
	var out strings.Builder
	return &runner{folder: "data", out: &out, call: func(args ...string) ([]byte, error) {
		line := strings.Join(args, " ")
		for _, r := range reports {
			if strings.Contains(line, r[0]) {
				return []byte(r[1]), nil
			}
		}
		return nil, errors.New("no such run: " + line)
	}}, &out
}

func contains(t *testing.T, out *strings.Builder, rows ...string) {
	t.Helper()
	text := out.String()
	for strings.Contains(text, "  ") {
		text = strings.ReplaceAll(text, "  ", " ")
	}
	for _, row := range rows {
		if !strings.Contains(text, row) {
			t.Errorf("no %q in\n%s", row, text)
		}
	}
}

func TestSWF(t *testing.T) {
	t.Parallel()
	r, out := fake(t, [2]string{"--order express", `{"mean_bounded_slowdown": 34.4}`}, [2]string{"--candidates", `{"mean_bounded_slowdown": 140.81}`},
		[2]string{"--swf data/hpc/lublin_256.swf.gz --processors 256 --backfill easy --sequences published --order smallest-first", `{"mean_bounded_slowdown": 34.38}`},
		[2]string{"--order priority-fifo", `{"mean_bounded_slowdown": 1271.4}`})
	if err := swf(r); err != nil {
		t.Fatal(err)
	}
	contains(t, out, "priority-fifo | 1,271.40 | 271.40 +- 0.5 | MISSED |", "shortest-first | 140.81 | <= 141 | met |", "smallest-first | 34.38 | <= 34.4 | met |",
		"express | 34.40 | < 34.4 | MISSED |")
}

func TestPack(t *testing.T) {
	t.Parallel()
	found := func(at100, at130 string) string {
		return `{"gpu_allocation_percent": {"95": {"mean": 1}, "100": {"mean": ` + at100 + `}, "130": {"mean": ` + at130 + `}}}`
	}
	r, out := fake(t, [2]string{"policy build policies/builtin/guests/", ""}, [2]string{"--policy best-fit", found("93.84", "94")}, [2]string{"/fgd.wasm", found("95.34", "95.5")},
		[2]string{"openb_pods_cpu200.csv.gz --policy", found("94.82", "95")}, [2]string{"least-residue", found("95.80", "95.39")}, [2]string{"--policy fgd", found("93", "94")})
	if err := pack(r); err != nil {
		t.Fatal(err)
	}
	contains(t, out, "best-fit | 93.84 | >= 92.7 | met |", "fgd before best-fit, points | 1.50 | >= 1.5 | met |", "fgd, default | 95.34 | >= 94.98 | met |", "at 130 % demand | 95.39 | > 95.39 | MISSED |",
		"fgd, multigpu20 | 93.00 | >= 95.28 | MISSED |", "least-residue, cpu200 | 94.82 | > 94.82 | MISSED |")
}

func googleText(production, evictions, perTask string) string {
	tier := `{"at_start": {"tasks": 5, "placed": 5}, "arrivals": {"tasks": 2, "placed": 2, "p99_seconds": ` + production + `}, "wasted_cpu_hours": 500}`
	return `{"tasks": 21, "evictions": ` + evictions + `, "evictions_per_placed_task": ` + perTask + `, "tiers": [` + tier + "," + tier + "," + tier + "]}"
}

func TestGoogle(t *testing.T) {
	t.Parallel()
	r, out := fake(t, [2]string{"--free-tier share", googleText("0.113", "0", "0")}, [2]string{"--victims youngest-first", googleText("2", "50000", "0.25")},
		[2]string{"--overcommit-cpu 1.3 --overcommit-memory 1.25 --free-tier revocable --victims default", googleText("0.5", "20000", "0.11")})
	if err := google(r); err != nil {
		t.Fatal(err)
	}
	contains(t, out, "tasks placed | 21 | 21 | met |", "p99, s | 0.113 | <= 1 | met |", "tight cell, s | 0.500 | <= 1 | met |", "| 0.1100 | 0.0241 (in the trace) | |",
		"of youngest-first | 0.40 | <= 0.5 | met |", "| 1.3, 1.25 | revocable | youngest-first | 21 | 2.00 | 2.00 | 2.00 | 50,000 | 0.2500 | 1,500 |")
	r, _ = fake(t, [2]string{"sim", `{"tiers": []}`})
	if err := google(r); err == nil || !strings.Contains(err.Error(), "0 tiers") {
		t.Error(err)
	}
}

func TestPhilly(t *testing.T) {
	t.Parallel()
	one := func(mean, p99 string) string {
		return `{"hosts": 352, "queueing": {"mean_seconds": ` + mean + `, "p99_seconds": ` + p99 + `}, "jain_index": 0.98, "preemptions": 1662, "wasted_gpu_hours": 74490.4,
			"virtual_clusters": [{"virtual_cluster": "a", "gpus": 8, "queueing": {"p99_seconds": ` + p99 + `}}]}`
	}
	text := func(ratio, longer string) string {
		return `{"static": ` + one("2060", "62992") + `, "elastic": ` + one("0", "7") + `, "elastic_over_static": ` + ratio + `, "longer_under_elastic": [` + longer + `]}`
	}
	r, out := fake(t, [2]string{"--backfill easy --pools elastic --victims nobody", one("44", "7")}, [2]string{"--pools elastic --victims nobody", one("33", "7")},
		[2]string{"--host-percent 59 --order shortest-first --backfill easy", text("1.2", `{"virtual_cluster": "a", "static_mean_seconds": 1, "elastic_mean_seconds": 2000, "why": "because"}`)},
		[2]string{"--host-percent", text("0.5", "")})
	if err := philly(r); err != nil {
		t.Fatal(err)
	}
	contains(t, out, "100 % of hosts, priority-fifo, mean queueing, elastic over static | 0.500 | < 1 | met |", "59 % of hosts, shortest-first, mean queueing, elastic over static | 1.200 | < 1 | MISSED |",
		"| 100 %: 352 | priority-fifo | static | 2,060 | 62,992 | 0.980 | 1,662 | 74,490 |", "| a | 8 | 62,992 to 7 |", "| | | elastic, nobody makes room | 33 | 7 |", "| | | elastic, nobody makes room | 44 | 7 |", "shortest-first: a queues 2,000 s instead of 1 s: because.",
		"59 % of hosts, priority-fifo: no virtual cluster queues over 5 % longer")
	r, _ = fake(t, [2]string{"sim", "{}"})
	if err := philly(r); err == nil || !strings.Contains(err.Error(), "virtual clusters") {
		t.Error(err)
	}
}

func TestRunFails(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	for _, c := range []struct{ args, want string }{
		{"", "-traces names no folder"},
		{"-traces x -only (", "-only"},
		{"-traces x -only swf -paceline ./nowhere", "swf: paceline sim run --swf x/hpc/lublin_256.swf.gz"},
		{"-unknown", "not defined"},
	} {
		if err := run(t.Context(), strings.Fields(c.args), &out); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: %v, want %q", c.args, err, c.want)
		}
	}
	r, _ := fake(t, [2]string{"policy build", ""}, [2]string{"sim", "no JSON"})
	if err := pack(r); err == nil || !strings.Contains(err.Error(), "the report of paceline sim pack") {
		t.Error(err)
	}
}

func TestNumber(t *testing.T) {
	t.Parallel()
	for want, got := range map[string]string{"1,234,567": number(1234567, 0), "-1,234.50": number(-1234.5, 2), "-123": number(-123, 0), "0.0241": number(0.0241, 4), "999": number(999, 0)} {
		if got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}
