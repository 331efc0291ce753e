package decision_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/paceline-sched/paceline/core/host"
	"github.com/paceline-sched/paceline/core/placement"
	"github.com/paceline-sched/paceline/policies/decision"
)

var update = flag.Bool("update", false, "write the segments of a version that has none, and what all of them are read as")

// goldens holds segments as the code of each version of the format wrote them, and what they are read as beside them. A segment is never written again.
const goldens = "testdata/golden"

// sandboxed is a placer that says that a policy in a sandbox answered, in two calls.
type sandboxed struct {
	placement.Placer
	mix  []placement.Share
	last int
}

func (s *sandboxed) Place(t *host.Table, requests []placement.Request) []placement.Result {
	s.last = len(requests)
	return s.Placer.Place(t, requests)
}

// Served implements placement.Witness.
func (s *sandboxed) Served() []placement.Served {
	return []placement.Served{
		{Requests: s.last, By: "mine", Digest: "sha256:12", Fuel: 345, Faults: 1, Calls: []placement.ServedCall{
			{Requests: 1, Tasks: 2, Seed: 9, Time: 77, Mix: s.mix}, {Requests: s.last - 1, Tasks: 3, Seed: 10, Time: 78},
		}},
	}
}

// writeGoldens records what the segments of this version hold: a busy shard, and questions of both kinds.
func writeGoldens(t *testing.T, dir string) (segments []string) {
	t.Helper()
	c := newClock()
	log := openLog(t, c, decision.Config{Dir: dir})
	all := classes()
	mix := []placement.Share{{Class: all[0], Weight: 0.75}, {Class: all[3], Weight: 0.25}}
	x := newCell(t, 11, c, log, native{&sandboxed{Placer: placement.NewNative(), mix: mix}}, 6)
	for range 40 {
		x.step()
	}
	x.recorder.Close()
	asked, err := log.RecordAsked()
	if err != nil {
		t.Fatal(err)
	}
	failed := aQuestion(c.now().Add(time.Minute), false)
	failed.Err, failed.Ranks = "it ran out of fuel", nil
	for _, q := range []*decision.Question{aQuestion(c.now(), true), aQuestion(c.now(), false), failed} {
		asked.Record(q)
	}
	asked.Close()
	for _, part := range []string{dir, decision.QuestionsDir(dir)} {
		list, err := decision.Segments(part)
		if err != nil || len(list) != 1 {
			t.Fatalf("%d segments in %s, %v", len(list), part, err)
		}
		segments = append(segments, list[0].Path)
	}
	return segments
}

// bare is a value as JSON knows it, without what is zero or empty, so that a field that did not exist then says nothing now.
func bare(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for name, field := range v {
			if v[name] = bare(field); v[name] == nil {
				delete(v, name)
			}
		}
		if len(v) == 0 {
			return nil
		}
	case []any:
		for i := range v {
			v[i] = bare(v[i])
		}
		for len(v) > 0 && v[len(v)-1] == nil {
			v = v[:len(v)-1]
		}
		if len(v) == 0 {
			return nil
		}
		return v
	case bool:
		if !v {
			return nil
		}
	case string:
		if v == "" {
			return nil
		}
	case json.Number:
		if v == "0" {
			return nil
		}
	}
	return v
}

// told is what a segment is read as: its events, one a line.
func told(t *testing.T, segment []byte) string {
	t.Helper()
	var b strings.Builder
	tail, err := decision.Read(bytes.NewReader(segment), func(e decision.Event) error {
		var labels []string // of whom the state or the change tells; JSON does not show them
		if e.State != nil {
			for i := range e.State.Rows {
				for _, r := range e.State.Rows[i].Residents {
					labels = append(labels, r.Labels.Canonical())
				}
			}
		}
		if e.Change != nil {
			labels = append(labels, e.Change.Occupant.Labels.Canonical())
		}
		text, err := json.Marshal(e)
		if err != nil {
			return err
		}
		var fields any
		numbers := json.NewDecoder(bytes.NewReader(text))
		numbers.UseNumber()
		if err := numbers.Decode(&fields); err != nil {
			return err
		}
		text, err = json.Marshal(bare(fields))
		fmt.Fprintf(&b, "%s %q\n", text, labels)
		return err
	})
	if err != nil || tail.Err != nil || !tail.Closed || tail.Good != int64(len(segment)) {
		t.Fatalf("%+v, %v", tail, err)
	}
	return b.String()
}

// TestGolden: segments of every version are read as they always were, and the version that is written now has its own.
func TestGolden(t *testing.T) {
	t.Parallel()
	for i, path := range writeGoldens(t, t.TempDir()) {
		segment, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		name := fmt.Sprintf("version-%d%s.decisions", segment[7], []string{"", "-questions"}[i])
		golden := filepath.Join(goldens, name)
		if _, err := os.Stat(golden); *update && err != nil {
			if err := os.WriteFile(golden, segment, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := os.Stat(golden); err != nil {
			t.Errorf("%s is missing; run this test with -update once the format of the new version is settled", name)
		}
		told(t, segment)
	}
	for _, path := range goldenSegments(t) {
		name := strings.TrimSuffix(path, ".decisions")
		segment, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if want := fmt.Sprintf("version-%d", segment[7]); !strings.HasPrefix(filepath.Base(name), want) {
			t.Errorf("%s is a segment of %s", path, want)
		}
		got := told(t, segment)
		if *update {
			if err := os.WriteFile(name+".txt", []byte(got), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(name + ".txt")
		if err != nil {
			t.Fatal(err)
		}
		sameLines(t, path, got, string(want))
	}
}

// goldenSegments lists the files, at least those of versions 1 to 3.
func goldenSegments(t testing.TB) []string {
	t.Helper()
	list, err := filepath.Glob(filepath.Join(goldens, "*.decisions"))
	if err != nil || len(list) < 4 {
		t.Fatalf("%q, %v", list, err)
	}
	return list
}

// TestGoldenReplays: what older versions recorded can be tried with the policies of today.
func TestGoldenReplays(t *testing.T) {
	t.Parallel()
	for _, path := range goldenSegments(t) {
		if strings.Contains(path, "questions") {
			continue // they replay by asking a policy, not on a table
		}
		segment, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		dir := t.TempDir()
		if err := os.MkdirAll(filepath.Join(dir, "c.0"), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "c.0", "0.decisions"), segment, 0o600); err != nil {
			t.Fatal(err)
		}
		report, err := decision.Replay(t.Context(), dir, decision.Options{Contenders: []decision.Contender{decision.Builtin("pack", "pack")}})
		if err != nil || report.Batches < 10 || report.Placed == 0 || report.Torn != 0 || report.Gaps != 0 || report.Policies[0].Same == 0 {
			t.Errorf("%s: %+v, %v", path, report, err)
		}
	}
}

// sameLines says which line is the first that differs.
func sameLines(t *testing.T, what, got, want string) {
	t.Helper()
	if got == want {
		return
	}
	a, b := strings.Split(got, "\n"), strings.Split(want, "\n")
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			t.Errorf("%s, event %d:\ngot  %s\nwant %s\na log that is kept must go on meaning what it meant; if it does, and more is read from it now, run this test with -update", what, i, a[i], b[i])
			return
		}
	}
	t.Errorf("%s: %d events, %d are wanted", what, len(a), len(b))
}
