package cluster_test

import (
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/paceline-sched/paceline/core/cluster"
)

func spec(change func(*cluster.Spec)) *cluster.Spec {
	s := &cluster.Spec{
		Name: "east", Labels: map[string]string{"region": "eu"}, Shards: 2,
		Mesos: &cluster.Mesos{
			Masters: []string{"http://10.0.0.1:5050", "https://m2.example.com:5050/"}, Roles: []string{"batch", "eng/dev", "*"}, Principal: "paceline",
			Secret: cluster.Secret{File: "east.secret"}, CAFile: "/etc/ca.pem", Failover: time.Hour, User: "nobody", Framework: "paceline-east",
		},
	}
	if change != nil {
		change(s)
	}
	return s
}

// west is a Kubernetes cluster with every setting.
func west(change func(*cluster.Kubernetes)) func(*cluster.Spec) {
	return func(s *cluster.Spec) {
		s.Mesos = nil
		s.Kubernetes = &cluster.Kubernetes{
			Kubeconfig: "west.yaml", Context: "prod", Namespace: "batch", DefaultImage: "registry.example.com:5000/base@sha256:00", PoolLabel: "example.com/pool",
			Tolerated: []string{"example.com/gpu", "dedicated"}, GPUs: []string{"nvidia.com/gpu"}, HostPaths: true, Privileged: true, FirstPort: 20000, LastPort: 20000,
			KeepEnded: new(cluster.MaxKeepEnded), KeepEndedPods: new(cluster.MaxKeepEndedPods),
			StartGrace: cluster.MinGrace, UnreachableGrace: cluster.MaxGrace,
		}
		if change != nil {
			change(s.Kubernetes)
		}
	}
}

func TestValidate(t *testing.T) {
	good := map[string]func(*cluster.Spec){
		"everything":        nil,
		"one master":        func(s *cluster.Spec) { s.Mesos = &cluster.Mesos{Masters: []string{"http://127.0.0.1:5050"}} },
		"an ensemble":       func(s *cluster.Spec) { s.Mesos.Masters = []string{"zk://a:2181,b:2181/mesos"} },
		"a secret variable": func(s *cluster.Spec) { s.Mesos.Secret = cluster.Secret{Env: "PACELINE_SECRET_EAST"} },
		"the shortest name": func(s *cluster.Spec) { s.Name = "e" },
		"Kubernetes":        west(nil),
		"one per pool": west(func(k *cluster.Kubernetes) {
			k.Namespace, k.NamespacePerPool, k.CreateNamespaces = "", "a-{pool}-b", true
		}),
		"nothing kept":       west(func(k *cluster.Kubernetes) { *k.KeepEnded, *k.KeepEndedPods = 0, 0 }),
		"a pod of it":        func(s *cluster.Spec) { s.Mesos, s.Kubernetes = nil, &cluster.Kubernetes{InCluster: true} },
		"an address of IPv6": func(s *cluster.Spec) { s.Mesos.Masters = []string{"http://[::1]:5050"} },
	}
	for name, change := range good {
		if err := spec(change).Validate(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	bad := map[string]struct {
		field  string
		change func(*cluster.Spec)
	}{
		"a name with a slash":         {"name", func(s *cluster.Spec) { s.Name = "a/b" }},
		"an empty name":               {"name", func(s *cluster.Spec) { s.Name = "" }},
		"a long name":                 {"name", func(s *cluster.Spec) { s.Name = strings.Repeat("a", 64) }},
		"too many shards":             {"shards", func(s *cluster.Spec) { s.Shards = cluster.MaxShards + 1 }},
		"no kind":                     {"settings", func(s *cluster.Spec) { s.Mesos = nil }},
		"a label with a line break":   {"labels", func(s *cluster.Spec) { s.Labels["a"] = "b\nc" }},
		"no master":                   {"mesos.masters", func(s *cluster.Spec) { s.Mesos.Masters = nil }},
		"a master without a scheme":   {"mesos.masters", func(s *cluster.Spec) { s.Mesos.Masters = []string{"10.0.0.1:5050"} }},
		"a master with a path":        {"mesos.masters", func(s *cluster.Spec) { s.Mesos.Masters = []string{"http://a:5050/api/v1"} }},
		"a master with a secret":      {"mesos.masters", func(s *cluster.Spec) { s.Mesos.Masters = []string{"http://me:pass@a:5050"} }},
		"an ensemble and a master":    {"mesos.masters", func(s *cluster.Spec) { s.Mesos.Masters = []string{"zk://a:2181/mesos", "http://a:5050"} }},
		"a role twice":                {"mesos.roles", func(s *cluster.Spec) { s.Mesos.Roles = []string{"a", "a"} }},
		"a role with a blank":         {"mesos.roles", func(s *cluster.Spec) { s.Mesos.Roles = []string{"a b"} }},
		"a secret of nobody":          {"mesos.principal", func(s *cluster.Spec) { s.Mesos.Principal = "" }},
		"a principal without secret":  {"mesos.secret", func(s *cluster.Spec) { s.Mesos.Secret = cluster.Secret{} }},
		"two secrets":                 {"mesos.secret_file", func(s *cluster.Spec) { s.Mesos.Secret.Env = "PACELINE_SECRET_A" }},
		"a secret out of others' env": {"mesos.secret_env", func(s *cluster.Spec) { s.Mesos.Secret = cluster.Secret{Env: "AWS_SECRET"} }},
		"a CA file from nowhere":      {"mesos.ca_file", func(s *cluster.Spec) { s.Mesos.CAFile = "ca.pem" }},
		"a long CA file":              {"mesos.ca_file", func(s *cluster.Spec) { s.Mesos.CAFile = "/" + strings.Repeat("a", 64<<10) }},
		"two wrong texts":             {"mesos.user", func(s *cluster.Spec) { s.Mesos.User, s.Mesos.Framework = "\n", "\n" }},
		"a failover time-out below 0": {"mesos.failover_timeout", func(s *cluster.Spec) { s.Mesos.Failover = -1 }},
		"a user with a control char":  {"mesos.user", func(s *cluster.Spec) { s.Mesos.User = "a\x00" }},

		"two kinds":                     {"settings", func(s *cluster.Spec) { s.Kubernetes = &cluster.Kubernetes{InCluster: true} }},
		"no way to the API server":      {"kubernetes.kubeconfig", west(func(k *cluster.Kubernetes) { k.Kubeconfig = "" })},
		"two ways to it":                {"kubernetes.in_cluster", west(func(k *cluster.Kubernetes) { k.InCluster = true })},
		"a context of no file":          {"kubernetes.context", west(func(k *cluster.Kubernetes) { k.Kubeconfig, k.InCluster = "", true })},
		"a directory as kubeconfig":     {"kubernetes.kubeconfig", west(func(k *cluster.Kubernetes) { k.Kubeconfig = "./" })},
		"a kubeconfig of control chars": {"kubernetes.kubeconfig", west(func(k *cluster.Kubernetes) { k.Kubeconfig = "a\x00" })},
		"a long context":                {"kubernetes.context", west(func(k *cluster.Kubernetes) { k.Context = strings.Repeat("a", 254) })},
		"a namespace of capitals":       {"kubernetes.namespace", west(func(k *cluster.Kubernetes) { k.Namespace = "Batch" })},
		"a long namespace":              {"kubernetes.namespace", west(func(k *cluster.Kubernetes) { k.Namespace = strings.Repeat("a", 64) })},
		"a namespace twice":             {"kubernetes.namespace_per_pool", west(func(k *cluster.Kubernetes) { k.NamespacePerPool = "{pool}" })},
		"one namespace for all pools":   {"kubernetes.namespace_per_pool", west(func(k *cluster.Kubernetes) { k.Namespace, k.NamespacePerPool = "", "batch" })},
		"a pool twice":                  {"kubernetes.namespace_per_pool", west(func(k *cluster.Kubernetes) { k.Namespace, k.NamespacePerPool = "", "{pool}-{pool}" })},
		"a long one per pool":           {"kubernetes.namespace_per_pool", west(func(k *cluster.Kubernetes) { k.Namespace, k.NamespacePerPool = "", strings.Repeat("a", 31)+"{pool}" })},
		"an image with a blank":         {"kubernetes.default_image", west(func(k *cluster.Kubernetes) { k.DefaultImage = "a b" })},
		"a label with two slashes":      {"kubernetes.pool_label", west(func(k *cluster.Kubernetes) { k.PoolLabel = "a/b/c" })},
		"a label with a long name":      {"kubernetes.pool_label", west(func(k *cluster.Kubernetes) { k.PoolLabel = "a/" + strings.Repeat("b", 64) })},
		"a taint with its value":        {"kubernetes.tolerated_taints", west(func(k *cluster.Kubernetes) { k.Tolerated = []string{"a=b"} })},
		"a taint twice":                 {"kubernetes.tolerated_taints", west(func(k *cluster.Kubernetes) { k.Tolerated = []string{"a", "a"} })},
		"too many taints":               {"kubernetes.tolerated_taints", west(func(k *cluster.Kubernetes) { k.Tolerated = make([]string, cluster.MaxTolerated+1) })},
		"GPUs of no maker":              {"kubernetes.gpu_resources", west(func(k *cluster.Kubernetes) { k.GPUs = []string{"gpu"} })},
		"GPUs twice":                    {"kubernetes.gpu_resources", west(func(k *cluster.Kubernetes) { k.GPUs = []string{"a.b/c", "a.b/c"} })},
		"too many GPUs":                 {"kubernetes.gpu_resources", west(func(k *cluster.Kubernetes) { k.GPUs = make([]string, cluster.MaxGPUResources+1) })},
		"ports that run back":           {"kubernetes.first_port", west(func(k *cluster.Kubernetes) { k.FirstPort++ })},
		"ended pods kept below 0":       {"kubernetes.keep_ended", west(func(k *cluster.Kubernetes) { *k.KeepEnded = -1 })},
		"ended pods kept for ever":      {"kubernetes.keep_ended", west(func(k *cluster.Kubernetes) { *k.KeepEnded++ })},
		"ended pods below 0":            {"kubernetes.keep_ended_pods", west(func(k *cluster.Kubernetes) { *k.KeepEndedPods = -1 })},
		"too many ended pods":           {"kubernetes.keep_ended_pods", west(func(k *cluster.Kubernetes) { *k.KeepEndedPods++ })},
		"a grace for starts below 1 s":  {"kubernetes.start_grace", west(func(k *cluster.Kubernetes) { k.StartGrace-- })},
		"a grace for hosts for ever":    {"kubernetes.unreachable_grace", west(func(k *cluster.Kubernetes) { k.UnreachableGrace++ })},
		"ports without an end":          {"kubernetes.first_port", west(func(k *cluster.Kubernetes) { k.LastPort = 0 })},
	}
	for name, c := range bad {
		err := spec(c.change).Validate()
		var field *cluster.FieldError
		if !errors.As(err, &field) || field.Field != c.field || field.Hint == "" {
			t.Errorf("%s: %v, want an error about %s with a hint", name, err, c.field)
		}
		if err != nil && strings.Contains(err.Error(), "pass@") {
			t.Errorf("%s: the error tells the secret: %v", name, err)
		}
	}
}

func TestEqualSeesEveryField(t *testing.T) {
	if !spec(nil).Equal(spec(nil)) {
		t.Fatal("a spec differs from itself")
	}
	changes := []func(*cluster.Spec){
		func(s *cluster.Spec) { s.Name = "west" },
		func(s *cluster.Spec) { s.Shards++ },
		func(s *cluster.Spec) { s.Labels["region"] = "us" },
		func(s *cluster.Spec) { s.Mesos = nil },
		func(s *cluster.Spec) { s.Mesos.Masters = s.Mesos.Masters[:1] },
		func(s *cluster.Spec) { s.Mesos.Roles = nil },
		func(s *cluster.Spec) { s.Mesos.Principal = "other" },
		func(s *cluster.Spec) { s.Mesos.Secret.File = "other" },
		func(s *cluster.Spec) { s.Mesos.CAFile = "/other" },
		func(s *cluster.Spec) { s.Mesos.Failover++ },
		func(s *cluster.Spec) { s.Mesos.User = "root" },
		func(s *cluster.Spec) { s.Mesos.Framework = "other" },
	}
	for n, change := range changes {
		if spec(change).Equal(spec(nil)) || spec(nil).Equal(spec(change)) {
			t.Errorf("change %d is not seen", n)
		}
	}
	same := spec(west(nil))
	if !same.Equal(spec(west(nil))) || same.Equal(spec(nil)) || same.Kind() != cluster.KindKubernetes {
		t.Error("a Kubernetes cluster is not what it is")
	}
	settings := reflect.TypeFor[cluster.Kubernetes]()
	for n := range settings.NumField() {
		other := spec(west(nil))
		field := reflect.ValueOf(other.Kubernetes).Elem().Field(n)
		switch {
		case !field.IsZero():
			field.SetZero()
		case field.Kind() == reflect.Bool:
			field.SetBool(true)
		default:
			field.SetString("other")
		}
		if other.Equal(same) || same.Equal(other) {
			t.Errorf("a change of %s is not seen", settings.Field(n).Name)
		}
	}
}
