package rego_test

import (
	"testing"
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
			for b.Loop() {
				if v, err := j.Judge(b.Context(), r); err != nil || len(v.Denials) > 0 {
					b.Fatal(v, err)
				}
			}
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
	b.Run("memo", func(b *testing.B) {
		find := j.Remembered(b.Context(), r)
		b.ReportAllocs()
		for b.Loop() {
			if !find() {
				b.Fatal("it was forgotten")
			}
		}
	})
}
