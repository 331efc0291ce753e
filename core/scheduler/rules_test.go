package scheduler_test

import (
	"crypto/sha256"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/paceline-sched/paceline/core/scheduler"
)

// rulesStore is what a store holds of rules, kept by the groups alone.
type rulesStore struct {
	image    *scheduler.Image
	archives map[[32]byte][]byte
}

func (s *rulesStore) take(t *rapid.T, groups []scheduler.Group) {
	for _, g := range groups {
		s.image.ApplyGroup(g)
		for _, w := range g.Writes {
			switch r, ok := w.Record.(scheduler.ArchiveRecord); {
			case !ok:
			case w.Delete:
				if s.archives[r.Digest] == nil {
					t.Fatal("an archive is deleted that is not there")
				}
				delete(s.archives, r.Digest)
			default:
				s.archives[r.Digest] = r.Archive
			}
		}
	}
}

// After any edits the store holds exactly the versions that bundles have, a version in use among them always, within the bounds; and a
// start from it has the same bundles.
func TestRulesKeepTheirVersions(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		state, groups, err := scheduler.Start(scheduler.Config{}, scheduler.NewImage(), 1, 1)
		if err != nil {
			rt.Fatal(err)
		}
		kept := &rulesStore{image: scheduler.NewImage(), archives: map[[32]byte][]byte{}}
		kept.take(rt, groups)
		now, refusals := int64(1), 0
		for range rapid.IntRange(1, 60).Draw(rt, "edits") {
			now++
			archive := []byte(fmt.Sprint("rules ", rapid.IntRange(0, 24).Draw(rt, "archive")))
			edit := scheduler.EditRules{
				Name: fmt.Sprint("b", rapid.IntRange(0, scheduler.MaxRules+1).Draw(rt, "bundle")%rapid.SampledFrom([]int{2, scheduler.MaxRules + 2}).Draw(rt, "among")),
				Use:  scheduler.RulesUse(rapid.Uint8Range(0, 3).Draw(rt, "use")), Digest: sha256.Sum256(archive),
			}
			if rapid.Bool().Draw(rt, "push") && edit.Use != scheduler.RulesRemove {
				edit.Archive = archive
			}
			if edit.Use == scheduler.RulesRemove && rapid.Bool().Draw(rt, "whole") {
				edit.Digest = [32]byte{}
			}
			out := state.Step(now, []scheduler.Event{scheduler.Call{Token: 1, Caller: scheduler.Caller{Principal: "ann"}, Command: edit}})
			kept.take(rt, out.Groups)
			if answerOf(rt, out) != nil {
				refusals++
			}
			checkRules(rt, state, kept)
		}
		again, _, err := scheduler.Start(scheduler.Config{}, kept.image, 2, now)
		if err != nil {
			rt.Fatal(err)
		}
		if _, a := again.Reader().Rules(); !reflect.DeepEqual(a, rulesIn(state)) {
			rt.Fatalf("a new start has %+v, not %+v", a, rulesIn(state))
		}
	})
}

func answerOf(t *rapid.T, out scheduler.Output) *scheduler.Error {
	for _, e := range out.External {
		if r, ok := e.(scheduler.Reply); ok {
			return r.Answer.Err
		}
	}
	t.Fatal("no answer")
	return nil
}

func rulesIn(s *scheduler.State) []scheduler.RulesRecord {
	_, list := s.Reader().Rules()
	return list
}

func checkRules(t *rapid.T, state *scheduler.State, kept *rulesStore) {
	list := rulesIn(state)
	if len(list) > scheduler.MaxRules {
		t.Fatalf("%d bundles", len(list))
	}
	wanted := map[[32]byte]bool{}
	for _, r := range list {
		if len(r.Kept) > scheduler.MaxRulesKept {
			t.Fatalf("bundle %s has %d versions", r.Name, len(r.Kept))
		}
		has := map[[32]byte]bool{}
		for _, v := range r.Kept {
			has[v.Digest], wanted[v.Digest] = true, true
		}
		for _, used := range [][32]byte{r.Active, r.Shadow} {
			if used != ([32]byte{}) && !has[used] {
				t.Fatalf("bundle %s uses a version that it does not have", r.Name)
			}
		}
		if r.Active == r.Shadow && r.Active != ([32]byte{}) {
			t.Fatalf("bundle %s has one version in two uses", r.Name)
		}
		if !reflect.DeepEqual(kept.image.Rules[r.Name], r) {
			t.Fatalf("stored %+v, the cell has %+v", kept.image.Rules[r.Name], r)
		}
	}
	if len(kept.image.Rules) != len(list) {
		t.Fatalf("%d bundles are stored, the cell has %d", len(kept.image.Rules), len(list))
	}
	for digest := range wanted {
		if kept.archives[digest] == nil {
			t.Fatal("a version lacks its archive")
		}
	}
	if len(kept.archives) != len(wanted) {
		t.Fatalf("%d archives for %d versions: %v", len(kept.archives), len(wanted), slices.Collect(maps.Keys(kept.archives)))
	}
}
