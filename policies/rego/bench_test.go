package rego_test

import (
	"syscall"
	"testing"
	"time"

	"github.com/paceline-sched/paceline/policies/rego"
)

const benchRules = `
required := {"team", "cost-center"}

deny contains sprintf("label %s is missing", [name]) if {
	some name in required
	not input.job.labels[name]
}

deny contains "the priority is above the pool's cap" if input.job.priority > object.get(data.caps, input.pool.path, 100)

mutate contains {"priority_cap": 1000}
`

// BenchmarkJudge is a whole judgement of a job by one bundle: of two that differ in what the rules look at, of one that came before, and the
// evaluation alone, with its input made.
func BenchmarkJudge(b *testing.B) {
	bundle := rules(benchRules)
	bundle["data.json"] = `{"caps": {"/ads/web": 50}}`
	r := request(b, plainJob)
	r.Job.Labels["cost-center"] = "7"
	run := func(name string, forget bool) {
		b.Run(name, func(b *testing.B) {
			j := newJudge(b, stored(b, "a", bundle))
			if forget {
				j.Forget()
			}
			b.ReportAllocs()
			began := computed(b)
			for b.Loop() {
				if v, err := j.Judge(b.Context(), r); err != nil || len(v.Denials) > 0 {
					b.Fatal(v, err)
				}
			}
			perOp(b, computed(b)-began)
		})
	}
	run("asked", true)
	run("remembered", false)
	j := newJudge(b, stored(b, "a", bundle))
	b.Run("evaluation", func(b *testing.B) {
		ask := j.Evaluation(r)
		b.ReportAllocs()
		for b.Loop() {
			ask()
		}
	})
	b.Run("beside-plain", func(b *testing.B) {
		plain, err := rego.Plain(pack(b, bundle))
		if err != nil {
			b.Fatal(err)
		}
		besidePlain(b, j.Evaluation(r), plain(r))
	})
	b.Run("memo", func(b *testing.B) {
		find := j.Remembered(b.Context(), r)
		b.ReportAllocs()
		began := computed(b)
		for b.Loop() {
			if !find() {
				b.Fatal("it was forgotten")
			}
		}
		perOp(b, computed(b)-began)
	})
}

func perOp(b *testing.B, computed time.Duration) {
	b.ReportMetric(computed.Seconds()*1e6/float64(b.N), "cpu-us/op")
}

// besidePlain measures an evaluation and that of the engine's prepared query with a parsed input, in turns, by processor time: what else runs on
// the machine moves neither much, and their ratio less.
func besidePlain(b *testing.B, ours func(), plain func() (any, error)) {
	const turn = 200
	var took [2]time.Duration
	for b.Loop() {
		began := computed(b)
		for range turn {
			ours()
		}
		between := computed(b)
		for range turn {
			if _, err := plain(); err != nil {
				b.Fatal(err)
			}
		}
		took[0] += between - began
		took[1] += computed(b) - between
	}
	each := float64(turn * b.N)
	b.ReportMetric(took[0].Seconds()*1e6/each, "cpu-us/eval")
	b.ReportMetric(took[1].Seconds()*1e6/each, "cpu-us/plain")
	b.ReportMetric(took[0].Seconds()/took[1].Seconds(), "x-plain")
	b.ReportMetric(0, "ns/op")
}

// computed is how long this process has computed, its collector included.
func computed(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
