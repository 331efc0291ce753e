package scheduler_test

import (
	"crypto/sha256"
	"fmt"
	"reflect"
	"testing"

	"pgregory.net/rapid"

	"github.com/paceline-sched/paceline/core/scheduler"
)

// After any edits of policies and of rules the store holds exactly the archives that either speaks of, and a new start knows the same.
func TestPoliciesKeepTheirArchives(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		state, groups, err := scheduler.Start(scheduler.Config{}, scheduler.NewImage(), 1, 1)
		if err != nil {
			rt.Fatal(err)
		}
		kept := &rulesStore{image: scheduler.NewImage(), archives: map[[32]byte][]byte{}}
		kept.take(rt, groups)
		now := int64(1)
		for range rapid.IntRange(1, 40).Draw(rt, "edits") {
			now++
			var command scheduler.Command
			archive := []byte(fmt.Sprint("archive ", rapid.IntRange(0, 9).Draw(rt, "archive")))
			if rapid.Bool().Draw(rt, "rules") {
				command = scheduler.EditRules{Name: "b", Digest: sha256.Sum256(archive), Archive: archive}
				if rapid.Bool().Draw(rt, "remove") {
					command = scheduler.EditRules{Name: "b", Use: scheduler.RulesRemove}
				}
			} else {
				command = policyEdit(rt, state)
			}
			before := state.Reader().Policies()
			out := state.Step(now, []scheduler.Event{scheduler.Call{Token: 1, Caller: scheduler.Caller{Principal: "ann"}, Command: command}})
			kept.take(rt, out.Groups)
			if refusal := answerOf(rt, out); refusal != nil && !reflect.DeepEqual(before, state.Reader().Policies()) {
				rt.Fatalf("refused (%v), and changed", refusal)
			}
			checkArchives(rt, state, kept)
		}
		again, _, err := scheduler.Start(scheduler.Config{}, kept.image, 2, now)
		if err != nil {
			rt.Fatal(err)
		}
		if a, b := again.Reader().Policies(), state.Reader().Policies(); !reflect.DeepEqual(a, b) {
			rt.Fatalf("a new start has %+v, not %+v", a, b)
		}
	})
}

// policyEdit draws an edit, of which some lack an archive and some are late.
func policyEdit(t *rapid.T, state *scheduler.State) scheduler.EditPolicies {
	edit := scheduler.EditPolicies{State: []byte("state"), ExpectedVersion: state.Reader().Policies().Version}
	if rapid.IntRange(0, 5).Draw(t, "late") == 0 {
		edit.ExpectedVersion++
	}
	for n := range 10 {
		archive := []byte(fmt.Sprint("archive ", n))
		digest := sha256.Sum256(archive)
		if rapid.Bool().Draw(t, "spoken of") {
			edit.Archives = append(edit.Archives, digest)
		}
		if rapid.IntRange(0, 5).Draw(t, "given") != 0 {
			edit.New = append(edit.New, scheduler.ArchiveRecord{Digest: digest, Archive: archive})
		}
	}
	return edit
}

func checkArchives(t *rapid.T, state *scheduler.State, kept *rulesStore) {
	wanted := map[[32]byte]bool{}
	for _, r := range rulesIn(state) {
		for _, v := range r.Kept {
			wanted[v.Digest] = true
		}
	}
	for _, digest := range state.Reader().Policies().Archives {
		wanted[digest] = true
	}
	for digest := range wanted {
		if kept.archives[digest] == nil {
			t.Fatal("an archive that is spoken of is not stored")
		}
	}
	if len(kept.archives) != len(wanted) {
		t.Fatalf("%d archives are stored, %d spoken of", len(kept.archives), len(wanted))
	}
}
