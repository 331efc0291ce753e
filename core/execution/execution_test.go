package execution_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/paceline-sched/paceline/core/execution"
)

// TestAsks is the table of what makes a task ask its host for something.
func TestAsks(t *testing.T) {
	t.Parallel()
	image := execution.Container{Image: "app"}
	for _, c := range []struct {
		spec *execution.Spec
		want string
	}{
		{nil, ""},
		{&execution.Spec{}, "command"},
		{&execution.Spec{Main: image}, "image"},
		{&execution.Spec{Main: image, Inits: []execution.Container{image}}, "image containers"},
		{&execution.Spec{Main: image, Sidecars: []execution.Container{{Name: "s", Command: []string{"x"}}}}, "command image containers"},
		{&execution.Spec{Main: image, Sidecars: []execution.Container{{Image: "x", Privileged: true}}}, "image containers privileged"},
		{&execution.Spec{Main: execution.Container{Image: "app", Privileged: true}, Mesos: &execution.Mesos{}}, "image privileged mesos"},
		{&execution.Spec{Main: execution.Container{Image: "app", Privileged: true}, Mesos: &execution.Mesos{Docker: true}}, "image mesos"},
		{&execution.Spec{Artifacts: []execution.Artifact{{URI: "x"}}}, "command artifact"},
		{&execution.Spec{Volumes: []execution.Volume{{HostPath: "/x"}, {Scratch: true}}}, "command volume"},
		{&execution.Spec{Main: image, Volumes: []execution.Volume{{Scratch: true}, {Claim: "c"}}}, "image volume claim"},
		{&execution.Spec{Main: image, Volumes: []execution.Volume{{Secret: "s"}, {ConfigMap: "c"}}}, "image claim"},
		{&execution.Spec{User: "ada"}, "command user"},
		{&execution.Spec{Main: image, Kubernetes: &execution.Kubernetes{}}, "image kubernetes"},
		{&execution.Spec{Main: image, Mesos: &execution.Mesos{}}, "image mesos"},
		{&execution.Spec{Main: image, Mesos: &execution.Mesos{}, Kubernetes: &execution.Kubernetes{}}, "image"},
	} {
		var got []string
		for _, f := range c.spec.Asks() {
			got = append(got, strings.TrimPrefix(string(f), "can/"))
		}
		for _, f := range c.spec.Asks() {
			if less := c.spec.Without(f).Asks(); slices.Contains(less, f) != (f == execution.FeatureCommand) {
				t.Errorf("%+v without %s asks for %v", c.spec, f, less)
			}
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%+v asks for %v, want %s", c.spec, got, c.want)
		}
	}
}

// TestWithFeatures: the map that is given stays as it was, every feature has words, and a host that runs no commands says so.
func TestWithFeatures(t *testing.T) {
	t.Parallel()
	given := map[string]string{"rack": "a"}
	got := execution.WithFeatures(given, execution.FeatureImage)
	if len(given) != 1 || fmt.Sprint(got) != "map[can/command:no can/image:yes rack:a]" {
		t.Errorf("%v became %v", given, got)
	}
	claims := map[string]string{"rack": "a", "can/privileged": "yes", "can/command": "yes"} // an agent's own, say
	if got := execution.WithFeatures(claims, execution.FeatureImage); len(claims) != 3 || fmt.Sprint(got) != "map[can/command:no can/image:yes rack:a]" {
		t.Errorf("%v became %v", claims, got)
	}
	if got := execution.WithFeatures(nil, execution.Features()...); len(got) != len(execution.Features()) || got["can/command"] != "yes" {
		t.Errorf("all features: %v", got)
	}
	for _, f := range execution.Features() {
		if len(f.Noun()) < 5 || len(f.Verb()) < 9 || !execution.IsFeature(string(f)) {
			t.Errorf("%s has the words %q", f, f.Verb())
		}
	}
}
