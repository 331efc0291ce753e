package cluster_test

import (
	"errors"
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

func TestValidate(t *testing.T) {
	good := map[string]func(*cluster.Spec){
		"everything":         nil,
		"one master":         func(s *cluster.Spec) { s.Mesos = &cluster.Mesos{Masters: []string{"http://127.0.0.1:5050"}} },
		"an ensemble":        func(s *cluster.Spec) { s.Mesos.Masters = []string{"zk://a:2181,b:2181/mesos"} },
		"a secret variable":  func(s *cluster.Spec) { s.Mesos.Secret = cluster.Secret{Env: "PACELINE_SECRET_EAST"} },
		"the shortest name":  func(s *cluster.Spec) { s.Name = "e" },
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
}
