package rego_test

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"sync"
	"testing"

	"pgregory.net/rapid"

	"github.com/paceline-sched/paceline/core/api/admit"
	"github.com/paceline-sched/paceline/policies/rego"
)

// oddRules answer in ways that are easily lost between a rule and its reader.
var oddRules = map[string]files{
	"null":               rules("deny := null\n\nwarn contains \"x\""),
	"false":              rules("deny := false"),
	"without an answer":  rules("deny := \"x\" if input.job.name == \"never\""),
	"a constant":         rules("warn := {\"c\", \"a\", \"b\"}\n\nmutate := [{\"priority_cap\": 2}, {\"priority_cap\": 1}]"),
	"sets within sets":   rules("deny contains {{3, 1, 2}, {\"b\", \"a\"}}\n\nmutate contains {\"labels\": {\"a\": {\"z\", \"y\"}}}"),
	"numbers":            rules("warn contains sprintf(\"%v %v\", [data.n, input.job.priority + data.n[0]])").with("data.json", `{"n": [1.50, 1e3, 12345678901234567890, -0]}`),
	"a built-in fails":   rules("warn contains \"x\"\n\ndeny contains \"y\" if to_number(input.job.name) > 1"),
	"the other fails":    rules("deny contains \"x\"\n\nwarn contains \"y\" if to_number(input.job.name) > 1"),
	"two values":         rules("deny := \"a\"\n\ndeny := \"b\" if input.job.priority < 2"),
	"named when asked":   rules("deny contains \"x\"").with("r.rego", "package paceline\n\nadmission[name] contains \"x\" if some name in [\"warn\", \"mutate\"]\n"),
	"named from above":   rules("deny contains \"x\"").with("r.rego", "package paceline\n\nadmission.warn contains \"y\"\n"),
	"an object":          rules("warn[name] := 1 if some name in [\"b\", \"a\"]\n\nmutate[n].priority_cap := 2 if some n in [1, 2]"),
	"a package below":    {"r.rego": "package paceline.admission.deny\n\nx := 1\n", "a.rego": "package paceline.admission\n\nwarn contains \"y\"\n"},
	"data in its place":  rules("deny contains \"x\"").with("paceline/admission/warn/data.json", `{"a": 1}`),
	"input is replaced":  rules("deny contains x if x := input.job.labels.team with input.job.labels as {\"team\": input.job.name}\n\nwarn contains y if y := f with input as {\"job\": {\"owner\": \"o\"}}\n\nf := input.job.owner"),
	"names when it runs": rules("warn contains sprintf(\"%v %v\", [k, input.job[k]]) if some k in [\"name\", \"labels\"]\n\nwarn contains k if some k, _ in input.pool"),
	"all there is":       rules("warn contains sprintf(\"%v\", [input])"),
}

func (f files) with(name, text string) files {
	f[name] = text
	return f
}

// pairOf asks a bundle in two ways: as a Judge does, and with the engine's library alone and everything as its input.
type pairOf struct {
	judge func(*admit.Request) string
	plain func(*admit.Request) func() (any, error)
}

func pairs(t *testing.T) map[string]pairOf {
	t.Helper()
	archives := map[string][]byte{}
	for name, f := range oddRules {
		archives[name] = pack(t, f)
	}
	for _, look := range looks {
		archives[look] = pack(t, rules(fmt.Sprintf("warn contains sprintf(\"%%v\", [%s])\n\nmutate contains {\"priority_cap\": 0} if %s == 1", look, look)))
	}
	examples, err := os.ReadDir(exampleRules)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range examples {
		if e.IsDir() {
			if archives[e.Name()], err = rego.Pack(os.DirFS(exampleRules + "/" + e.Name())); err != nil {
				t.Fatal(err)
			}
		}
	}
	out := map[string]pairOf{}
	for name, archive := range archives {
		var p pairOf
		var other error
		p.plain, err = rego.Plain(archive)
		p.judge, other = rego.Asker(archive)
		if (err == nil) != (other == nil) {
			t.Fatalf("%s: %v, %v", name, err, other)
		}
		if err == nil {
			out[name] = p
		}
	}
	return out
}

// What a Judge leaves out of the input, and how it asks, changes no answer.
func TestAnswersAsThePlainLibrary(t *testing.T) {
	t.Parallel()
	all := pairs(t)
	if len(all) < len(oddRules)+len(looks)+4 {
		t.Fatalf("only %d bundles compile", len(all))
	}
	names, said := slices.Sorted(maps.Keys(all)), map[string]bool{}
	rapid.Check(t, func(rt *rapid.T) {
		r := drawRequest(rt, t)
		for range 6 {
			name := rapid.SampledFrom(names).Draw(rt, "bundle")
			p := all[name]
			got, want := p.judge(r), rego.PlainAnswer(p.plain(r))
			if got != want {
				rt.Fatalf("%s: got %s\nwant %s\nof %s", name, got, want, rego.InputText(r))
			}
			said[got] = true
		}
	})
	if len(said) < len(all) {
		t.Fatalf("only %d answers of %d bundles", len(said), len(all))
	}
}

// One program answers many at once, also with values that stand in its rules.
func TestAnswersAtOnce(t *testing.T) {
	t.Parallel()
	r := request(t, plainJob)
	for name, f := range oddRules {
		ask, err := rego.Asker(pack(t, f))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		want := ask(r)
		again, err := rego.Asker(pack(t, f)) // nobody has asked this one yet
		if err != nil {
			t.Fatal(err)
		}
		var callers sync.WaitGroup
		for range 4 {
			callers.Go(func() {
				for range 20 {
					if got := again(r); got != want {
						t.Errorf("%s: got %s, want %s", name, got, want)
						return
					}
				}
			})
		}
		callers.Wait()
	}
}
