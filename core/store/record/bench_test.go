package record_test

import (
	"testing"

	"github.com/paceline-sched/paceline/core/scheduler"
	"github.com/paceline-sched/paceline/core/store/record"
)

// benchTasks is how many tasks with their runs and changes stand in one group.
const benchTasks = 48

func benchGroup() scheduler.Group {
	g := scheduler.Group{Sequence: 1 << 20}
	changes := make([]scheduler.Change, 0, benchTasks)
	for n := range uint32(benchTasks) {
		task, change := sampleTask(), sampleChange()
		task.Instance, task.Ports, task.Message, task.NotBefore = n, nil, "", 0
		change.Run.Instance, change.Message, change.Principal = n, "", ""
		g.Writes = append(g.Writes, scheduler.Write{Record: task})
		changes = append(changes, change)
	}
	g.Writes = append(g.Writes, scheduler.Write{Record: scheduler.ChangesRecord{Sequence: g.Sequence, Changes: changes}})
	return g
}

// BenchmarkEncodeGroup is the work of the committer: 48 tasks and their changes.
func BenchmarkEncodeGroup(b *testing.B) {
	c, g := record.NewCodec(keyspace(b)), benchGroup()
	b.ReportAllocs()
	for b.Loop() {
		if _, err := c.EncodeGroup(g); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*benchTasks*2), "ns/record")
}

// BenchmarkEncode is one record of each hot kind, with its key.
func BenchmarkEncode(b *testing.B) {
	for _, s := range samples() {
		b.Run(s.name, func(b *testing.B) {
			c, g := record.NewCodec(keyspace(b)), scheduler.Group{Writes: []scheduler.Write{{Record: s.record}}}
			b.ReportAllocs()
			for b.Loop() {
				if _, err := c.EncodeGroup(g); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkDecodeTask is what recovery does for each instance.
func BenchmarkDecodeTask(b *testing.B) {
	c := record.NewCodec(keyspace(b))
	op := encode(b, c, scheduler.Write{Record: sampleTask()})[0]
	b.ReportAllocs()
	for b.Loop() {
		if _, err := c.Decode(op.Key, op.Value); err != nil {
			b.Fatal(err)
		}
	}
}
