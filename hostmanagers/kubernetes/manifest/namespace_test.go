package manifest_test

import (
	"regexp"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/paceline-sched/paceline/core/driver"
	"github.com/paceline-sched/paceline/core/execution"
	"github.com/paceline-sched/paceline/hostmanagers/kubernetes/manifest"
)

// TestNamespaceOfPool goes through paths and what they become.
func TestNamespaceOfPool(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ rule, path, want string }{
		{"{pool}", "/eng", "eng"},
		{"{pool}", "/eng/batch/2", "eng-batch-2"},
		{"p-{pool}-x", "/eng/batch", "p-eng-batch-x"},
		{"{pool}", "/eng-batch", "eng-batch--"},
		{"{pool}", "/Eng", "eng--"},
		{"{pool}", "/eng/a..b__c", "eng-a-b-c--"},
		{"{pool}", "/kube/system", "kube-system--"},
		{"p-{pool}", "/kube/system", "p-kube-system"},
		{"{pool}", "/default", "default--"},
		{"{pool}", "/", "x--"},
		{"{pool}", "/" + strings.Repeat("a", 63), strings.Repeat("a", 63)},
		{"p{pool}", "/" + strings.Repeat("a", 63), "p" + strings.Repeat("a", 48) + "--"},
	} {
		cfg := manifest.Config{NamespacePerPool: c.rule}
		if err := cfg.Validate(); err != nil {
			t.Error(err)
		}
		got := cfg.NamespaceOfPool(c.path)
		if got != c.want && (!strings.HasSuffix(c.want, "--") || !strings.HasPrefix(got, c.want) || len(got) != len(c.want)+12) {
			t.Errorf("%s by %s is in %q, want %q", c.path, c.rule, got, c.want)
		}
	}
}

// TestNamespacesAreApart: no two pools share a namespace, and each is one that Kubernetes takes.
func TestNamespacesAreApart(t *testing.T) {
	t.Parallel()
	label := regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`)
	name := rapid.OneOf(rapid.StringMatching(`[ab]([-.a]{0,2}[ab])?`), rapid.StringMatching(`[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?`))
	path := rapid.Custom(func(r *rapid.T) string { return "/" + strings.Join(rapid.SliceOfN(name, 1, 8).Draw(r, "names"), "/") })
	rapid.Check(t, func(r *rapid.T) {
		cfg := manifest.Config{NamespacePerPool: rapid.SampledFrom([]string{"{pool}", "cell-a-{pool}", "{pool}--b", strings.Repeat("q", 30) + "{pool}"}).Draw(r, "rule")}
		if err := cfg.Validate(); err != nil {
			r.Fatal(err)
		}
		a, b := path.Draw(r, "a"), path.Draw(r, "b")
		x, y := cfg.NamespaceOfPool(a), cfg.NamespaceOfPool(b)
		if !label.MatchString(x) || len(x) > 63 {
			r.Fatalf("%s is in %q", a, x)
		}
		if (a == b) != (x == y) {
			r.Fatalf("%s is in %s, and %s in %s", a, x, b, y)
		}
	})
}

// TestNamespaceOfAPod: the pool's rule holds for jobs that name a namespace as well.
func TestNamespaceOfAPod(t *testing.T) {
	t.Parallel()
	of := func(pool, own string) *driver.Launch {
		l := launch()
		l.Pool, l.Execution = pool, &execution.Spec{Kubernetes: &execution.Kubernetes{Namespace: own}}
		l.Health = nil
		return l
	}
	fixed, each := config, config
	each.NamespacePerPool = "p-{pool}"
	for _, c := range []struct {
		config    manifest.Config
		pool, own string
		want      string
		refused   string
	}{
		{fixed, "/eng", "", "space", ""},
		{fixed, "/eng", "mine", "mine", ""},
		{each, "/eng", "", "p-eng", ""},
		{each, "/eng", "p-eng", "p-eng", ""},
		{each, "/eng", "kube-system", "", "leave the namespace out"},
		{each, "", "", "", "names none"},
	} {
		p, err := c.config.Pod(of(c.pool, c.own), "nvidia.com/gpu")
		switch {
		case c.refused != "":
			if err == nil || !strings.Contains(err.Error(), c.refused) {
				t.Errorf("%s with %s: %v", c.pool, c.own, err)
			}
		case err != nil || p.Namespace != c.want || c.config.NamespaceOf(of(c.pool, c.own)) != c.want:
			t.Errorf("%s with %s is in %v: %v", c.pool, c.own, p, err)
		}
	}
}

func TestRulesForNamespaces(t *testing.T) {
	t.Parallel()
	for _, rule := range []string{"pool", "{pool}{pool}", "-{pool}", "{pool}-", "A{pool}", "a.{pool}", strings.Repeat("a", 31) + "{pool}"} {
		cfg := manifest.Config{Namespace: "default", NamespacePerPool: rule}
		if err := cfg.Validate(); err == nil || !strings.Contains(err.Error(), rule) {
			t.Errorf("%s: %v", rule, err)
		}
	}
	for _, name := range []string{"", "-a", "A", "a.b", strings.Repeat("a", 64)} {
		cfg := manifest.Config{Namespace: name}
		if err := cfg.Validate(); err == nil {
			t.Errorf("namespace %q is taken", name)
		}
	}
}
