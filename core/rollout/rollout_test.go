package rollout_test

import (
	"bytes"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"pgregory.net/rapid"

	"github.com/paceline-sched/paceline/core/rollout"
)

func version(n byte) rollout.Version {
	return rollout.Version{Digest: rollout.Digest{n}, Archives: []rollout.Digest{{n, 1}}, Size: 7, Calls: "p 1"}
}

// story is a book with the time.
type story struct {
	t    *testing.T
	book rollout.Book
	now  int64
}

func (s *story) do(e rollout.Event) []rollout.Moved {
	s.t.Helper()
	s.now++
	book, moves, err := rollout.Step(s.book, s.now, "ann", e)
	if err != nil {
		s.t.Fatal(err)
	}
	s.book = book
	return moves
}

func (s *story) stages(name string) string {
	var out []string
	for _, v := range s.book.Find(name).Versions {
		out = append(out, fmt.Sprintf("%x=%s", v.Digest[0], v.Stage))
	}
	return strings.Join(out, " ")
}

// A version goes all the way, the next one takes its place, breaks a gate, and the first one is active again.
func TestRollOut(t *testing.T) {
	s := &story{t: t}
	want := func(stages string) {
		t.Helper()
		if got := s.stages("tight"); got != stages {
			t.Fatalf("got %s, want %s", got, stages)
		}
	}
	s.do(rollout.Push{Policy: "tight", Kind: "place", Version: version(1)})
	want("1=uploaded")
	s.do(rollout.Move{Policy: "tight", Digest: rollout.Digest{1}, To: rollout.Shadow})
	want("1=shadow")
	s.do(rollout.Move{Policy: "tight", Digest: rollout.Digest{1}, To: rollout.Canary, Scope: rollout.Scope{Percent: 5}})
	want("1=canary")
	s.do(rollout.Move{Policy: "tight", Digest: rollout.Digest{1}, To: rollout.Active})
	want("1=active")
	s.do(rollout.Push{Policy: "tight", Kind: "place", Version: version(2)})
	s.do(rollout.Move{Policy: "tight", Digest: rollout.Digest{2}, To: rollout.Canary, Scope: rollout.Scope{Pool: "/dev"}})
	want("1=active 2=canary")
	s.do(rollout.Move{Policy: "tight", Digest: rollout.Digest{2}, To: rollout.Active})
	want("1=retired 2=active")

	tally := rollout.Tally{}
	for range 2 {
		tally.Strike(rollout.Fault{At: s.now, Kind: "trap", Text: "unreachable"})
	}
	if moves := s.do(rollout.Observe{Policy: "tight", Digest: rollout.Digest{2}, Tally: tally}); len(moves) > 0 {
		t.Fatalf("two strikes moved %v", moves)
	}
	tally.Strike(rollout.Fault{At: s.now, Kind: "trap", Text: "unreachable"})
	moves := s.do(rollout.Observe{Policy: "tight", Digest: rollout.Digest{2}, Tally: tally})
	want("1=active 2=rolled-back")
	if len(moves) != 2 || moves[0].By != "" || !strings.Contains(moves[0].Why, "3 faults") || !strings.Contains(moves[0].Why, "unreachable") {
		t.Fatalf("the moves are %+v", moves)
	}
	s.do(rollout.SetDefault{JobKind: "batch", Policy: "tight"})
	if got := s.book.Default("batch") + s.book.Default("daemon"); got != "tightbest-fit" {
		t.Fatalf("the defaults are %s", got)
	}
	s.do(rollout.Rollback{Policy: "tight", Why: "by hand"})
	want("1=rolled-back 2=rolled-back")
	s.do(rollout.Retire{Policy: "tight"})
	if s.book.Default("batch") != rollout.BestFit {
		t.Fatal("a retired policy is a default")
	}
}

func TestGates(t *testing.T) {
	now := int64(time.Hour)
	old := rollout.Tally{}
	for range 5 {
		old.Strike(rollout.Fault{At: now - int64(rollout.StrikeWindow)})
	}
	for _, c := range []struct {
		name  string
		gates rollout.Gates
		tally rollout.Tally
		want  string
	}{
		{"nothing", rollout.Gates{}, rollout.Tally{}, ""},
		{"old faults", rollout.Gates{}, old, ""},
		{"slow", rollout.Gates{}, rollout.Tally{Calls: 1000, Slow: 101}, "101 of 1000 calls"},
		{"slow, few calls", rollout.Gates{}, rollout.Tally{Calls: 100, Slow: 100}, ""},
		{"slow, gate open", rollout.Gates{SlowShare: -1}, rollout.Tally{Calls: 1000, Slow: 1000}, ""},
		{"unplaced", rollout.Gates{}, rollout.Tally{Reference: 1000, Placed: 970}, "left 30 of 1000"},
		{"hardly unplaced", rollout.Gates{}, rollout.Tally{Reference: 1000, Placed: 980}, ""},
		{"placed more", rollout.Gates{}, rollout.Tally{Reference: 1000, Placed: 1100}, ""},
		{"diverging, no gate", rollout.Gates{}, rollout.Tally{Compared: 1000, Elsewhere: 1000}, ""},
		{"diverging", rollout.Gates{Divergence: 100}, rollout.Tally{Compared: 1000, Elsewhere: 101}, "101 of 1000 tasks elsewhere"},
	} {
		if got := c.gates.Broken(now, &c.tally); !strings.Contains(got, c.want) || (c.want == "") != (got == "") {
			t.Errorf("%s: got %q, want %q", c.name, got, c.want)
		}
	}
}

// What a retire ended no rollback brings back: not the version that was active then, nor one from before.
func TestRetireIsForGood(t *testing.T) {
	s := &story{t: t}
	for n := byte(1); n <= 3; n++ {
		s.do(rollout.Push{Policy: "tight", Kind: "place", Version: version(n)})
		if n == 3 {
			s.do(rollout.Retire{Policy: "tight"})
		}
		s.do(rollout.Move{Policy: "tight", Digest: rollout.Digest{n}, To: rollout.Active})
	}
	s.do(rollout.Rollback{Policy: "tight"})
	if got := s.stages("tight"); got != "1=retired 2=retired 3=rolled-back" {
		t.Errorf("got %s", got)
	}
}

// Words are cut between letters: a message could not hold half of one.
func TestLongWordsAreCut(t *testing.T) {
	var tally rollout.Tally
	tally.Strike(rollout.Fault{Text: "x" + strings.Repeat("é", 1000)})
	if text := tally.Faults[0].Text; !utf8.ValidString(text) || len(text) < 1000 || len(text) > 1024 {
		t.Errorf("%d bytes are kept: %q", len(text), text)
	}
}

func TestScope(t *testing.T) {
	prod := rollout.Scope{Pool: "/prod"}
	for pool, want := range map[string]bool{"/prod": true, "/prod/ads": true, "/production": false, "/": false, "": false} {
		if prod.Holds(pool, 1) != want {
			t.Errorf("the canary of /prod holds %q: %v", pool, !want)
		}
	}
	held := 0
	for class := range uint64(10_000) {
		small, large := rollout.Scope{Percent: 5}.Holds("/", class), rollout.Scope{Percent: 30}.Holds("/", class)
		if small && !large {
			t.Fatalf("class %d is in 5 %% and not in 30 %%", class)
		}
		if small {
			held++
		}
	}
	if held < 400 || held > 600 {
		t.Errorf("5 %% of 10,000 classes are %d", held)
	}
}

func draw(t *rapid.T) rollout.Event {
	name := fmt.Sprint("p", rapid.IntRange(0, rollout.MaxPolicies+3).Draw(t, "policy")%rapid.SampledFrom([]int{2, rollout.MaxPolicies + 4}).Draw(t, "among"))
	digest := rollout.Digest{byte(rapid.IntRange(0, 12).Draw(t, "digest"))}
	switch rapid.IntRange(0, 9).Draw(t, "event") {
	case 0, 1, 2:
		return rollout.Push{Policy: name, Kind: rapid.SampledFrom(rollout.Kinds).Draw(t, "kind"), Version: version(digest[0])}
	case 3, 4, 5:
		return rollout.Move{
			Policy: name, Digest: digest, To: rapid.SampledFrom([]rollout.Stage{rollout.Shadow, rollout.Canary, rollout.Active, rollout.Retired}).Draw(t, "to"),
			Scope: rollout.Scope{Percent: rapid.IntRange(0, 101).Draw(t, "percent")},
		}
	case 6:
		return rollout.Rollback{Policy: name}
	case 7:
		return rollout.Retire{Policy: name}
	case 8:
		return rollout.SetDefault{JobKind: rapid.SampledFrom(rollout.JobKinds).Draw(t, "job kind"), Policy: name}
	}
	e := rollout.Observe{Policy: name, Digest: digest}
	for range 3 {
		e.Tally.Strike(rollout.Fault{At: 1, Text: "trap"})
	}
	return e
}

// Whatever happens: a book is one that Decode takes, so at most one version of a policy is active and one is tried, and one policy of a kind that a cell has one of; the
// former book is as it was; a refusal changes nothing; each move starts where the version was; and what breaks a gate is out of force.
func TestBooksAreSound(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		book := rollout.Book{}
		for now := range int64(rapid.IntRange(1, 80).Draw(rt, "events")) {
			before, err := book.Encode()
			if err != nil {
				rt.Fatal(err)
			}
			e := draw(rt)
			next, moves, err := rollout.Step(book, now+2, "ann", e)
			if again, _ := book.Encode(); !bytes.Equal(before, again) {
				rt.Fatalf("%#v changed the book that it was given", e)
			}
			if after, _ := next.Encode(); err != nil && (!bytes.Equal(before, after) || len(moves) > 0) {
				rt.Fatalf("%#v was refused (%v), and changed the book", e, err)
			}
			checkMoves(rt, &book, &next, moves)
			if o, ok := e.(rollout.Observe); ok && next.Find(o.Policy) != nil {
				if v := next.Find(o.Policy).Version(o.Digest); v != nil && (v.Stage == rollout.Active || v.Stage.Candidate()) {
					rt.Fatalf("a version with three strikes is %s", v.Stage)
				}
			}
			book = next
			raw, err := book.Encode()
			if err != nil {
				rt.Fatal(err)
			}
			read, err := rollout.Decode(raw)
			if err != nil {
				rt.Fatalf("after %#v: %v", e, err)
			}
			if again, _ := read.Encode(); !bytes.Equal(raw, again) {
				rt.Fatalf("it is read as %s, not %s", again, raw)
			}
			singles := map[string]int{}
			for i := range book.Policies {
				if p := &book.Policies[i]; p.Kind != rollout.Place && p.Active() != nil {
					singles[p.Kind]++
				}
			}
			for kind, n := range singles {
				if n > 1 {
					rt.Fatalf("%d policies of kind %s are active", n, kind)
				}
			}
		}
	})
}

func checkMoves(t *rapid.T, before, after *rollout.Book, moves []rollout.Moved) {
	if len(moves) == 0 {
		if !reflect.DeepEqual(before.Policies, after.Policies) && len(before.Policies)+len(after.Policies) > 0 {
			t.Fatal("versions changed, and nobody was told")
		}
		return
	}
	for _, m := range moves {
		from := rollout.Stage("")
		if p := before.Find(m.Policy); p != nil {
			if v := p.Version(m.Digest); v != nil {
				from = v.Stage
			}
		}
		if from != m.From || after.Find(m.Policy).Version(m.Digest).Stage != m.To {
			t.Fatalf("%+v: it was %q", m, from)
		}
	}
}

func FuzzDecode(f *testing.F) {
	book, _, err := rollout.Step(rollout.Book{}, 1, "ann", rollout.Push{Policy: "p", Kind: "place", Version: version(1)})
	if err != nil {
		f.Fatal(err)
	}
	raw, err := book.Encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(raw)
	f.Add([]byte(`{"form":1,"policies":[{"name":"p","kind":"place","versions":[{"stage":"canary","size":1,"archives":["00"]}]}]}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		book, err := rollout.Decode(raw)
		if err != nil {
			return
		}
		again, err := book.Encode()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := rollout.Decode(again); err != nil {
			t.Fatalf("what it writes it does not read: %v", err)
		}
	})
}

// Versions of quota and preemption are watched in shadow, and have no canaries; one that comes into force leaves what others are watched for alone.
func TestShadowOfOtherKinds(t *testing.T) {
	digest := func(n byte) rollout.Digest { return rollout.Digest{n} }
	book := rollout.Book{}
	do := func(e rollout.Event) error {
		next, _, err := rollout.Step(book, 1, "ann", e)
		if err == nil {
			book = next
		}
		return err
	}
	for n, name := range []string{"old", "new"} {
		v := rollout.Version{Digest: digest(byte(n + 1)), Archives: []rollout.Digest{{9}}, Size: 1}
		if err := do(rollout.Push{Policy: name, Kind: "quota", Version: v}); err != nil {
			t.Fatal(err)
		}
	}
	if err := do(rollout.Move{Policy: "old", Digest: digest(1), To: rollout.Shadow}); err != nil {
		t.Fatal(err)
	}
	if err := do(rollout.Move{Policy: "new", Digest: digest(2), To: rollout.Canary, Scope: rollout.Scope{Percent: 5}}); err == nil {
		t.Fatal("a canary of quota is taken")
	}
	if err := do(rollout.Move{Policy: "new", Digest: digest(2), To: rollout.Active}); err != nil {
		t.Fatal(err)
	}
	if got := [2]rollout.Stage{book.Find("old").Versions[0].Stage, book.Find("new").Versions[0].Stage}; got != [2]rollout.Stage{rollout.Shadow, rollout.Active} {
		t.Fatal(got)
	}
	raw, err := book.Encode()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := rollout.Decode(raw); err != nil {
		t.Fatal(err)
	}
}
