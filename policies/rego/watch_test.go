package rego_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"testing/synctest"
	"time"

	"github.com/paceline-sched/paceline/core/api/admit"
	"github.com/paceline-sched/paceline/policies/rego"
)

// statusOf is what is told of the bundles, without digests and times.
func statusOf(j *rego.Judge) string {
	_, list, _ := j.Report(0)
	var out []string
	for _, s := range list {
		text := s.Name
		if s.Shadow {
			text += " shadow"
		}
		text += fmt.Sprintf(" %d/%d/%d/%d/%d", s.Evaluated, s.Denied, s.Warned, s.Mutated, s.Failed)
		if s.Error != "" {
			text += " broken"
		}
		out = append(out, text)
	}
	return strings.Join(out, ", ")
}

// A shadow bundle decides nothing and is reported in full.
func TestShadow(t *testing.T) {
	shadow := stored(t, "b", rules("deny contains \"no\" if input.job.name == \"crunch\"\n\nmutate contains {\"labels\": {\"x\": \"y\"}}"))
	shadow.Shadow = true
	j := newJudge(t, stored(t, "a", rules(`warn contains "careful"`)), shadow)
	if got := said(judge(t, j, request(t, plainJob))); got != "warn a: careful" {
		t.Fatalf("got %s", got)
	}
	judge(t, j, request(t, strings.Replace(plainJob, "crunch", "other", 1)))
	j.Drain()
	if got := statusOf(j); got != "a 2/0/2/0/0, b shadow 2/1/0/2/0" {
		t.Fatalf("got %s", got)
	}
	_, _, log := j.Report(10)
	var got []string
	for _, d := range log {
		got = append(got, fmt.Sprint(d.Job, " ", d.Outcome, " ", d.Shadow, " ", len(d.Changes)))
	}
	if want := "other would-allow b 1, crunch would-deny b 0, other allow  0, crunch allow  0"; strings.Join(got, ", ") != want {
		t.Fatalf("got %s", strings.Join(got, ", "))
	}
}

// What a decision tells others has no values of the environment in it, wherever a rule puts them.
func TestDecisionsKeepSecrets(t *testing.T) {
	var out bytes.Buffer
	j, err := rego.New(rego.Config{Limit: patience, Log: slog.New(slog.NewTextHandler(&out, nil))})
	if err != nil {
		t.Fatal(err)
	}
	b := stored(t, "a", rules("deny contains sprintf(\"%v\", [input.job.task.env])"))
	if err := j.Load(1, []admit.Bundle{b}); err != nil {
		t.Fatal(err)
	}
	v := judge(t, j, request(t, plainJob))
	if got := said(v); got != `deny a: {"PASSWORD": "***"}` { // it goes into the log of calls
		t.Fatalf("got %s", got)
	}
	_, _, log := j.Report(1)
	if shown := fmt.Sprintf("%+v %s", log, &out); strings.Contains(shown, "tr0ub4dor") || !strings.Contains(shown, `"env":{"PASSWORD":"***"}`) || !strings.Contains(out.String(), "outcome=deny") {
		t.Fatalf("got %s", shown)
	}
}

// The same of what stands in a patch of a pod.
func TestDecisionsKeepSecretsOfPatches(t *testing.T) {
	const job = `{"name": "x", "batch": {}, "task": {"container": {"image": "a"}, "kubernetes": {"pod_patch": {
		"metadata": {"annotations": {"vault": "noted-secret", "scrape": "true"}, "labels": {"env": "production", "options": "label-kept"}}, "spec": {
		"nodeSelector": {"env": "selector-kept"}, "volumes": [
			{"name": "c", "csi": {"driver": "driver-kept", "volumeAttributes": {"user": "attribute-secret"}}},
			{"name": "f", "flexVolume": {"driver": "x", "options": {"password": "option-secret", "deep": {"deeper": ["deep-secret"]}}}}],
		"securityContext": {"windowsOptions": {"gmsaCredentialSpec": "gmsa-secret"}},
		"containers": [{"name": "main", "image": "shown", "livenessProbe": {"httpGet": {"path": "/kept-path", "httpHeaders": [{"name": "Authorization", "value": "header-secret"}]}}, "env": [{"name": "PASSWORD", "value": "tr0ub4dor"}, {"name": "FROM", "valueFrom": {"fieldRef": {"fieldPath": "shown.path"}}}]}],
		"initContainers": [{"name": "i", "env": [{"name": "NUMBER", "value": 4711.5}, "loose-secret"]}],
		"ephemeralContainers": [{"name": "e", "env": {"TABLE": "table-secret"}}, {"name": "f", "env": "bare-secret"}]}}}}}`
	var out bytes.Buffer
	j, err := rego.New(rego.Config{Limit: patience, Log: slog.New(slog.NewTextHandler(&out, nil))})
	if err != nil {
		t.Fatal(err)
	}
	b := stored(t, "a", rules("warn contains sprintf(\"%v\", [v]) if { walk(input.job.task.kubernetes, [_, v]); is_string(v) }"))
	if err := j.Load(1, []admit.Bundle{b}); err != nil {
		t.Fatal(err)
	}
	r := request(t, job)
	patch := r.Spec.GetTask().GetKubernetes().GetPodPatch().String()
	warned := said(judge(t, j, r))
	_, _, log := j.Report(1)
	shown := fmt.Sprintf("%+v %s %s", log, &out, warned)
	for _, secret := range []string{
		"tr0ub4dor", "4711.5", "loose-secret", "table-secret", "bare-secret", "noted-secret", "attribute-secret",
		"option-secret", "deep-secret", "gmsa-secret", "header-secret",
	} {
		if strings.Contains(shown, secret) {
			t.Errorf("%q is told in %s", secret, shown)
		}
	}
	for _, kept := range []string{
		`{"name":"PASSWORD","value":"***"}`, `"image":"shown"`, "shown.path", `"env":{"TABLE":"***"}`, `"env":"***"`, "warn a: ***", "production",
		"label-kept", "selector-kept", "driver-kept", "/kept-path", "warn a: true",
	} {
		if !strings.Contains(shown, kept) {
			t.Errorf("%q is not told in %s", kept, shown)
		}
	}
	if r.Spec.GetTask().GetKubernetes().GetPodPatch().String() != patch {
		t.Fatal("the job itself was masked")
	}
}

func TestDecisionsAreBounded(t *testing.T) {
	j := newJudge(t, stored(t, "a", rules(`warn contains "x"`)))
	for n := range 300 {
		r := request(t, plainJob)
		r.Job.Name = fmt.Sprint(n)
		judge(t, j, r)
	}
	_, _, log := j.Report(1000)
	if len(log) != 256 || log[0].Job != "299" || log[255].Job != "44" {
		t.Fatalf("%d decisions, the newest is of %s, the oldest of %s", len(log), log[0].Job, log[len(log)-1].Job)
	}
}

func TestDirectory(t *testing.T) {
	now := time.Unix(1000, 0)
	file := func(text string) *fstest.MapFile {
		now = now.Add(time.Second)
		return &fstest.MapFile{Data: []byte(text), ModTime: now}
	}
	rule := func(text string) *fstest.MapFile {
		return file("package paceline.admission\n\nwarn contains \"" + text + "\"\n")
	}
	var mu sync.Mutex
	dir := fstest.MapFS{"a/rules.rego": rule("one"), "b.shadow/rules.rego": rule("watched"), ".next/rules.rego": file("not yet"), "README.md": file("no bundle")}
	j, err := rego.New(rego.Config{Limit: patience, Directory: lockedFS{&mu, dir}, DirectoryName: "/etc/rules"})
	if err != nil {
		t.Fatal(err)
	}
	expect := func(verdict, status string) {
		t.Helper()
		if got := said(judge(t, j, request(t, plainJob))); got != verdict {
			t.Fatalf("got %q, want %q", got, verdict)
		}
		if _, list, _ := j.Report(0); len(list) == 0 {
			t.Fatal("no status")
		}
		if got := statusOf(j); !strings.Contains(got, status) {
			t.Fatalf("got status %q, want %q in it", got, status)
		}
	}
	expect("warn a: one", "b shadow")
	dir["a/rules.rego"] = rule("two")
	j.Look()
	expect("warn a: one", "a 2/") // it may be half written
	j.Look()
	expect("warn a: two", "a 1/")
	dir["a/rules.rego"] = file("package paceline.admission\n\nwarn contains")
	j.Look()
	j.Look()
	expect("warn a: two", "a 2/0/2/0/0 broken")
	dir["a/rules.rego"] = rule("three")
	dir["c/rules.rego"] = file("nothing")
	j.Look()
	j.Look()
	expect("warn a: three", "c 0/0/0/0/0 broken")
	delete(dir, "a/rules.rego")
	delete(dir, "c/rules.rego")
	j.Look()
	expect("", "b shadow")
	archive, err := rego.Pack(rules(`warn contains "packed"`).fs())
	if err != nil {
		t.Fatal(err)
	}
	dir["d.tar.gz"] = file(string(archive))
	j.Look()
	j.Look()
	expect("warn d: packed", "d 1/")
	if _, err := rego.New(rego.Config{Directory: fstest.MapFS{"a/x.rego": file("x")}, DirectoryName: "/etc/rules"}); err == nil || !strings.Contains(err.Error(), "bundle a in /etc/rules") {
		t.Fatalf("a start with a broken bundle: %v", err)
	}
}

// Run looks by itself, and ends.
func TestRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := fstest.MapFS{"a/rules.rego": {Data: []byte("package paceline.admission\nwarn contains \"x\""), ModTime: time.Unix(1, 0)}}
		var mu sync.Mutex
		j, err := rego.New(rego.Config{Limit: patience, Directory: lockedFS{&mu, dir}, DirectoryName: "d"})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { j.Run(ctx); close(done) }()
		mu.Lock()
		dir["a/rules.rego"] = &fstest.MapFile{Data: []byte("package paceline.admission\nwarn contains \"y\""), ModTime: time.Unix(2, 0)}
		mu.Unlock()
		time.Sleep(5 * time.Second)
		synctest.Wait()
		if got := said(judge(t, j, request(t, plainJob))); got != "warn a: y" {
			t.Fatalf("got %s", got)
		}
		cancel()
		<-done
	})
}

func TestSuite(t *testing.T) {
	dir := files{
		"rules.rego":      "package paceline.admission\n\ndeny contains \"no\" if input.job.priority > data.cap\n",
		"data.json":       `{"cap": 5}`,
		"rules_test.rego": "package paceline.admission_test\n\nimport data.paceline.admission\n\ntest_high if admission.deny == {\"no\"} with input.job.priority as 6\n\ntest_wrong if {\n\tprint(\"seen\", admission.deny)\n\tcount(admission.deny) == 1 with input.job.priority as 5\n}\n",
	}
	results, err := rego.Test(t.Context(), dir.fs())
	if err != nil || len(results) != 2 {
		t.Fatalf("got %+v, %v", results, err)
	}
	if r := results[0]; !r.Passed || r.Name != "paceline.admission_test.test_high" || r.At != "rules_test.rego:5" {
		t.Errorf("got %+v", r)
	}
	if r := results[1]; r.Passed || !strings.Contains(r.Output, "seen") {
		t.Errorf("got %+v", r)
	}
	delete(dir, "rules_test.rego")
	if _, err := rego.Test(t.Context(), dir.fs()); err == nil || !strings.Contains(err.Error(), "there is no test") {
		t.Errorf("got %v", err)
	}
	dir["a_test.rego"] = "package paceline.x_test\n\ntest_net if http.send({}).x"
	if _, err := rego.Test(t.Context(), dir.fs()); err == nil || !strings.Contains(err.Error(), "http.send") {
		t.Errorf("got %v", err)
	}
}
