package spec_test

import (
	"errors"
	"strings"
	"testing"

	"buf.build/go/protovalidate"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	validate "buf.build/gen/go/bufbuild/protovalidate/protocolbuffers/go/buf/validate"
	pacelinev1 "github.com/paceline-sched/paceline/sdk/gen/paceline/v1"
)

// TestNoErrorShowsAPattern: a rule of a pattern tells a user nothing but the pattern. Fields have rules with words instead.
func TestNoErrorShowsAPattern(t *testing.T) {
	fields := 0
	protoregistry.GlobalFiles.RangeFilesByPackage("paceline.v1", func(f protoreflect.FileDescriptor) bool {
		for n := range f.Messages().Len() {
			m := f.Messages().Get(n)
			for k := range m.Fields().Len() {
				fields++
				rules, err := protovalidate.ResolveFieldRules(m.Fields().Get(k))
				if err != nil {
					t.Fatal(err)
				}
				checkWords(t, m.Fields().Get(k).FullName(), rules)
			}
		}
		return true
	})
	if fields < 100 {
		t.Fatalf("%d fields were looked at", fields)
	}
	in := parseJob(t, "name: A\npool: x\nbatch: {}\nlabels: {'-': a}\ntask: {command: [x], env: {1A: b}, resources: {ports: [{name: 9}], extended: {A: 1}}}\noverrides: [{instances: all}]")
	var invalid *protovalidate.ValidationError
	if err := protovalidate.Validate(in); !errors.As(err, &invalid) || len(invalid.Violations) != 7 {
		t.Fatalf("got %v, want seven violations", err)
	}
	for _, v := range invalid.Violations {
		if says := v.Proto.GetMessage(); strings.ContainsAny(says, "^$*") || !strings.HasPrefix(says, "must be ") {
			t.Errorf("%s: %s", protovalidate.FieldPathString(v.Proto.GetField()), says)
		}
	}
	_ = pacelinev1.File_paceline_v1_job_spec_proto
}

func checkWords(t *testing.T, name protoreflect.FullName, rules *validate.FieldRules) {
	t.Helper()
	if rules == nil {
		return
	}
	if rules.GetString().HasPattern() {
		t.Errorf("%s has a pattern that a user would be shown: write a rule in CEL with a message", name)
	}
	for _, rule := range rules.GetCel() {
		if rule.GetMessage() == "" || strings.ContainsAny(rule.GetMessage(), "^$*") {
			t.Errorf("%s: the rule %s has the message %q", name, rule.GetId(), rule.GetMessage())
		}
	}
	checkWords(t, name, rules.GetRepeated().GetItems())
	checkWords(t, name, rules.GetMap().GetKeys())
	checkWords(t, name, rules.GetMap().GetValues())
}
