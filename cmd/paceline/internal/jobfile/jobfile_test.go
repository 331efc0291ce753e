package jobfile_test

import (
	"fmt"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/paceline-sched/paceline/cmd/paceline/internal/jobfile"
	pacelinev1 "github.com/paceline-sched/paceline/sdk/gen/paceline/v1"
)

func jobs(file, data string) ([]jobfile.Document[*pacelinev1.JobSpec], error) {
	return jobfile.Parse(file, []byte(data), func() *pacelinev1.JobSpec { return &pacelinev1.JobSpec{} })
}

const sound = `# a batch job
name: crunch
pool: /prod/ads
batch:
  max_retries: 2
  maxRunning: 10   # both spellings are read
  deadline: 1h30m
instances: 500
task:
  command: [sh, -c, "echo $PACELINE_RUN_ID"]
  env: {MODE: fast}
  resources: {cpu_milli: 100, memory_mib: 64}
overrides:
  - instances: 0-3,7
    env: {MODE: slow}
`

func TestParse(t *testing.T) {
	t.Parallel()
	docs, err := jobs("two.yaml", sound+"---\nname: web\nservice: {}\ntask: {command: [serve]}\n---\n# nothing more\n")
	if err != nil {
		t.Fatal(err)
	}
	if len(docs) != 2 || docs[0].Message.GetName() != "crunch" || docs[1].Message.GetName() != "web" {
		t.Fatalf("got %d documents: %v", len(docs), docs)
	}
	job := docs[0].Message
	if job.GetBatch().GetMaxRunning() != 10 || job.GetBatch().GetDeadline().AsDuration().Minutes() != 90 || job.GetInstances() != 500 {
		t.Errorf("misread: %v", job)
	}
	if docs[1].Message.GetService() == nil {
		t.Errorf("service: {} was not read: %v", docs[1].Message)
	}
	for field, line := range map[string]int{
		"batch.max_running": 6, "task.resources.cpu_milli": 12, "overrides[0].instances": 14, "overrides[0].command": 14, "task": 9,
		"placement.strategy": 2, `task.env["MODE"]`: 11,
	} {
		if got := docs[0].Locate(field); got != line {
			t.Errorf("%s is on line %d, not %d", field, got, line)
		}
	}
	if got := docs[1].Locate("task.command[0]"); got != 19 {
		t.Errorf("the second document's command is on line %d, not 19", got)
	}
}

// TestRefusals states what is wrong where, for every way that a file is commonly wrong.
func TestRefusals(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ name, data, want, hint string }{
		{"unknown field", "name: a\nbatch: {}\ninstnces: 3\ntask: {command: [x]}", `j.yaml:3: instnces: JobSpec has no field "instnces"`, `did you mean "instances"?`},
		{"unknown nested field", "name: a\nbatch: {}\ntask:\n  command: [x]\n  resources:\n    cpu: 3", `j.yaml:6: task.resources.cpu: TaskResources has no field "cpu"`, `did you mean "cpu_milli"?`},
		{"abbreviated field", "name: a\nbatch: {}\nprio: 3\ntask: {command: [x]}", `j.yaml:3: prio: JobSpec has no field "prio"`, `did you mean "priority"?`},
		{"foreign field", "name: a\nbatch: {}\nimage: nginx", `j.yaml:3: image: JobSpec has no field "image"`, "the fields of JobSpec are name, pool"},
		{"wrong type", "name: a\nbatch: {}\ninstances: many\ntask: {command: [x]}", "j.yaml:3: instances: ", ""},
		{"negative", "name: a\nbatch: {}\ntask:\n  command: [x]\n  resources: {cpu_milli: -1}", "j.yaml:5: task.resources.cpu_milli: must be", ""},
		{"overflow", "name: a\nbatch: {}\ntask:\n  command: [x]\n  resources:\n    cpu_milli: 99999999999999999999", "j.yaml:6: task.resources.cpu_milli: ", ""},
		{"bad duration", "name: a\nbatch: {deadline: soon}\ntask: {command: [x]}", "j.yaml:2: batch.deadline: ", ""},
		{"twice", "name: a\nname: b\nbatch: {}\ntask: {command: [x]}", "j.yaml:2: name: is given twice, first on line 1", ""},
		{"two kinds", "name: a\nbatch: {}\nservice: {}\ntask: {command: [x]}", "j.yaml:3: service: ", ""},
		{"no kind", "name: a\ntask: {command: [x]}", "j.yaml:1: kind: exactly one field is required", ""},
		{"not a list", "name: a\nbatch: {}\ntask:\n  command: echo hello", "j.yaml:4: task.command: must be a list", "a list is written command: [a, b]"},
		{"no value", "name:\nbatch: {}\ntask: {command: [x]}", "j.yaml:1: name: has no value", ""},
		{"alias", "name: &n a\nowner: *n\nbatch: {}\ntask: {command: [x]}", "j.yaml:1: name: YAML anchors and aliases", ""},
		{"tab", "name: a\nbatch:\n\tmax_retries: 3", "j.yaml:3: ", "never with tabs"},
		{"not a mapping", "- name: a", "j.yaml:1: a document must hold the fields of a JobSpec", ""},
		{"empty", "# nothing\n---\n", "j.yaml: holds no document", ""},
		{"not text", "name: \xff", "j.yaml: is not UTF-8 text", ""},
		{"odd line break", "name: a\u2028b", "j.yaml:1: holds an odd line break", ""},
		{"second document", sound + "---\nname: A\nbatch: {}\ntask: {command: [x]}", "j.yaml:17: name: ", ""},
	} {
		t.Run(strings.ReplaceAll(tc.name, " ", "-"), func(t *testing.T) {
			t.Parallel()
			_, err := jobs("j.yaml", tc.data)
			problems, ok := jobfile.AsProblems(err)
			if !ok {
				t.Fatalf("want problems, got %v", err)
			}
			if !strings.HasPrefix(err.Error(), tc.want) {
				t.Errorf("want %q\n got %q", tc.want, err)
			}
			if !strings.Contains(problems.Hint(), tc.hint) {
				t.Errorf("want the hint %q, got %q", tc.hint, problems.Hint())
			}
		})
	}
}

func TestManyProblemsAreCut(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	for i := range 50 {
		fmt.Fprintf(&b, "bad%d: 1\n", i)
	}
	_, err := jobs("j.yaml", b.String())
	problems, _ := jobfile.AsProblems(err)
	if len(problems) != 21 || !strings.HasSuffix(err.Error(), "and 30 more problems") {
		t.Errorf("got %d problems ending in %q", len(problems), problems[len(problems)-1].Message)
	}
}

// FuzzParse looks for panics, for messages that do not survive a second reading, and for problems outside the file.
func FuzzParse(f *testing.F) {
	for _, seed := range []string{
		sound, "name: a\n---\nname: b", "a: [1, {b: c}]", "- &x {a: *x}", "? [a]\n: b", "\ufeffname: x", "--- {name: a}", "name: |\n  a\n  ---\n",
		"%YAML 1.2\n---\nname: a", "!!binary name: a", "{{{{", "<<: {name: b}", "task: {resources: {extended: {a: 1}}}", "name: \"\\u2028\"",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, data string) {
		docs, err := jobs("f.yaml", data)
		lines := 1 + strings.Count(data, "\n")
		if problems, ok := jobfile.AsProblems(err); ok {
			for _, p := range problems {
				if p.Line < 0 || p.Line > lines+1 {
					t.Errorf("line %d of a file with %d: %v", p.Line, lines, p)
				}
			}
			return
		}
		if err != nil {
			t.Fatalf("not a Problems: %v", err)
		}
		again, err := jobs("f.yaml", data)
		if err != nil || len(again) != len(docs) {
			t.Fatalf("a second reading differs: %v", err)
		}
		for i := range docs {
			if !proto.Equal(docs[i].Message, again[i].Message) {
				t.Errorf("document %d differs on a second reading", i)
			}
		}
	})
}
