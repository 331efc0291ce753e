package workload

import (
	"testing"

	"pgregory.net/rapid"
)

// TestGangs reads gangs off specs.
func TestGangs(t *testing.T) {
	spec := &JobSpec{Name: "ring", Instances: 10}
	if got := spec.Gangs(); got != nil {
		t.Errorf("a job without gangs has %v", got)
	}
	spec.Gang = &GangSpec{}
	if got := spec.Gangs(); len(got) != 1 || got[0].Name != "ring" || got[0].Size != 10 || got[0].Min != 10 || got[0].Elastic() {
		t.Errorf("a job that is one gang has %+v", got)
	}
	spec.Gang.MinSize = 4
	if got := spec.Gangs(); got[0].Min != 4 || !got[0].Elastic() {
		t.Errorf("an elastic one has %+v", got)
	}
	spec.Gang = &GangSpec{Groups: []GangGroup{
		{Name: "left", Instances: []InstanceRange{{0, 1}, {8, 8}}, MinSize: 2}, {Name: "right", Instances: []InstanceRange{{2, 7}}, MinSize: 9},
	}}
	got := spec.Gangs()
	if len(got) != 2 || got[0].Name != "left" || got[0].Size != 3 || got[0].Min != 2 || got[1].Size != 6 || got[1].Min != 6 {
		t.Errorf("two groups are %+v", got)
	}
}

// TestRanks: All and Rank agree, and know members from others.
func TestRanks(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var members []InstanceRange
		next := uint32(0)
		for range rapid.IntRange(1, 4).Draw(t, "ranges") {
			first := next + rapid.Uint32Range(0, 3).Draw(t, "gap")
			last := first + rapid.Uint32Range(0, 4).Draw(t, "length")
			members = append(members, InstanceRange{first, last})
			next = last + 2
		}
		g := newGang("g", members, 0)
		in := map[uint32]uint32{}
		for rank, i := range g.All() {
			if int(rank) != len(in) {
				t.Fatalf("rank %d comes as number %d", rank, len(in))
			}
			in[i] = rank
		}
		if len(in) != int(g.Size) {
			t.Fatalf("%d members of %d", len(in), g.Size)
		}
		for i := range next + 3 {
			rank, member := g.Rank(i)
			if want, there := in[i]; member != there || rank != want {
				t.Fatalf("instance %d has rank %d, %v; want %d, %v", i, rank, member, want, there)
			}
		}
	})
}
