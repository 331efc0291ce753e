// Package cluster says what a cell must know of a cluster to connect to it: its name, its kind and the settings of that kind.
//
// It owns their meaning and their bounds, and makes no connection. Secrets are references: what is kept and shown says where a secret
// lies, never what it is. Specs are values without a writer; they may be read anywhere.
package cluster

import (
	"fmt"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// The bounds of a spec.
const (
	// MaxShards bounds the parts of one cluster. Each has a table and a placer of its own.
	MaxShards = 64
	// MaxLabels bounds the labels of a cluster.
	MaxLabels = 32
	// MaxMasters bounds the addresses of a Mesos cluster.
	MaxMasters = 16
	// MaxRoles bounds the roles under which a framework takes offers.
	MaxRoles = 16
	// MaxFailover bounds the time for which a master keeps the tasks of a framework that is gone.
	MaxFailover = 90 * 24 * time.Hour
	// DefaultFailover is that time where nobody says: long enough for a machine to be replaced.
	DefaultFailover = 7 * 24 * time.Hour

	maxText = 253
	maxPath = 4096
)

// Kind names what a cluster is.
type Kind string

// The kinds.
const (
	KindMesos      Kind = "mesos"
	KindKubernetes Kind = "kubernetes"
	KindLocal      Kind = "local"     // given by a server's flags
	KindSimulated  Kind = "simulated" // likewise
)

// Spec is a cluster as its operator describes it. A Spec that is kept is never changed.
type Spec struct {
	Name   string
	Labels map[string]string
	// Shards is into how many parts its hosts are cut; 0 and 1: one. Each takes shard.MaxRows hosts at most.
	Shards int
	// Mesos is set for a Mesos cluster, Kubernetes for a Kubernetes cluster. Exactly one kind is.
	Mesos      *Mesos
	Kubernetes *Kubernetes
}

// Mesos is how to be a framework of a Mesos cluster.
type Mesos struct {
	// Masters are addresses of masters, http(s)://host:port, any of which may lead; or one of the ensemble that knows, zk://host:port,host:port/path.
	Masters []string
	// Roles are those under which it takes offers. Default: paceline.
	Roles []string
	// Principal and Secret say who it is. Empty: the master asks nobody.
	Principal string
	Secret    Secret
	// CAFile has the certificates that a master's must chain to. Default: those of the system.
	CAFile string
	// Failover is how long the master keeps its tasks when nobody speaks for it. Default: DefaultFailover.
	Failover time.Duration
	// User runs its tasks. Default: the user of the server.
	User string
	// Framework is its name at the master. Default: paceline.
	Framework string
}

// Secret says where a secret is: in a file or in the environment of the server. At most one is set.
type Secret struct {
	File string
	Env  string
}

// SecretEnvPrefix begins every variable that a secret may be read from, so that no reference reaches what a server's environment holds for others.
const SecretEnvPrefix = "PACELINE_SECRET_"

// Kind is the kind of a spec; "": it has none.
func (s *Spec) Kind() Kind {
	switch {
	case s.Mesos != nil:
		return KindMesos
	case s.Kubernetes != nil:
		return KindKubernetes
	}
	return ""
}

// Parts is the number of shards.
func (s *Spec) Parts() int { return max(s.Shards, 1) }

// Equal reports whether two specs say the same.
func (s *Spec) Equal(o *Spec) bool {
	if s.Name != o.Name || s.Shards != o.Shards || !maps.Equal(s.Labels, o.Labels) || (s.Mesos == nil) != (o.Mesos == nil) || (s.Kubernetes == nil) != (o.Kubernetes == nil) {
		return false
	}
	return (s.Mesos == nil || s.Mesos.equal(o.Mesos)) && (s.Kubernetes == nil || s.Kubernetes.equal(o.Kubernetes))
}

func (m *Mesos) equal(o *Mesos) bool {
	return slices.Equal(m.Masters, o.Masters) && slices.Equal(m.Roles, o.Roles) && m.Principal == o.Principal && m.Secret == o.Secret &&
		m.CAFile == o.CAFile && m.Failover == o.Failover && m.User == o.User && m.Framework == o.Framework
}

// FieldError is one field that cannot be, and how to mend it.
type FieldError struct {
	Field, Message, Hint string
}

func (e *FieldError) Error() string { return e.Message + "; " + e.Hint }

func wrong(field, hint, format string, args ...any) error {
	return &FieldError{Field: field, Hint: hint, Message: fmt.Sprintf(format, args...)}
}

var (
	namePattern = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)
	envPattern  = regexp.MustCompile(`^[A-Z0-9_]{1,100}$`)
)

// CheckName reports what is wrong with a cluster's name: it is part of the names of its shards and hosts.
func CheckName(name string) error {
	if !namePattern.MatchString(name) {
		return wrong("name", "use 1 to 63 lower-case letters, digits and dashes, with no dash at an end", "%.80q is no name for a cluster", name)
	}
	return nil
}

// Validate reports the first field that cannot be, as a *FieldError.
func (s *Spec) Validate() error {
	if err := CheckName(s.Name); err != nil {
		return err
	}
	switch {
	case s.Shards < 0 || s.Shards > MaxShards:
		return wrong("shards", fmt.Sprintf("use 1 to %d", MaxShards), "a cluster cannot be cut into %d shards", s.Shards)
	case len(s.Labels) > MaxLabels:
		return wrong("labels", "drop some", "%d labels are more than %d", len(s.Labels), MaxLabels)
	case s.Mesos == nil && s.Kubernetes == nil:
		return wrong("settings", "say how to reach it, such as mesos.masters or kubernetes.kubeconfig", "cluster %s has no kind", s.Name)
	case s.Mesos != nil && s.Kubernetes != nil:
		return wrong("settings", "drop the settings of one", "cluster %s cannot be both of Mesos and of Kubernetes", s.Name)
	}
	for _, key := range slices.Sorted(maps.Keys(s.Labels)) {
		if key == "" || len(key) > 63 || len(s.Labels[key]) > maxText || hasControl(key) || hasControl(s.Labels[key]) {
			return wrong("labels", "use 1 to 63 characters for a label and up to 253 for its value", "label %.80q cannot be kept", key)
		}
	}
	if s.Kubernetes != nil {
		return s.Kubernetes.validate()
	}
	return s.Mesos.validate()
}

func (m *Mesos) validate() error {
	if err := checkMasters(m.Masters); err != nil {
		return err
	}
	if err := m.checkIdentity(); err != nil {
		return err
	}
	for _, one := range []struct{ field, what, text string }{{"user", "user", m.User}, {"framework_name", "framework name", m.Framework}} {
		if len(one.text) > maxText || hasControl(one.text) {
			return wrong("mesos."+one.field, "use up to 253 printable characters", "%.80q cannot be the %s", one.text, one.what)
		}
	}
	switch {
	case m.Failover < 0 || m.Failover > MaxFailover:
		return wrong("mesos.failover_timeout", fmt.Sprintf("use up to %v; 0 is the default of %v", MaxFailover, DefaultFailover), "a failover time-out of %v is out of range", m.Failover)
	case len(m.CAFile) > maxPath || hasControl(m.CAFile):
		return wrong("mesos.ca_file", "name a file on the server's machine", "%.80q is no path", m.CAFile)
	case m.CAFile != "" && !filepath.IsAbs(m.CAFile):
		return wrong("mesos.ca_file", "give the whole path on the server's machine", "the path %.200q begins nowhere", m.CAFile)
	}
	return nil
}

func (m *Mesos) checkIdentity() error {
	if len(m.Roles) > MaxRoles {
		return wrong("mesos.roles", "drop some", "%d roles are more than %d", len(m.Roles), MaxRoles)
	}
	for n, role := range m.Roles {
		if !roleMayBe(role) || slices.Contains(m.Roles[:n], role) {
			return wrong("mesos.roles", "name each role once; no role is empty, . or .., begins with a dash, or has blanks or backslashes", "%.80q cannot be a role here", role)
		}
	}
	secret := m.Secret != Secret{}
	switch {
	case len(m.Principal) > maxText || hasControl(m.Principal) || strings.Contains(m.Principal, ":"):
		return wrong("mesos.principal", "use up to 253 printable characters and no colon", "%.80q cannot be a principal", m.Principal)
	case secret && m.Principal == "":
		return wrong("mesos.principal", "say whose secret it is", "there is a secret and no principal")
	case m.Principal != "" && !secret:
		return wrong("mesos.secret", "name a secret file or variable; a principal alone authenticates nobody", "principal %s has no secret", m.Principal)
	}
	return m.Secret.validate()
}

func (s Secret) validate() error {
	switch {
	case s.File != "" && s.Env != "":
		return wrong("mesos.secret_file", "name one of them", "the secret cannot be both in a file and in a variable")
	case len(s.File) > maxPath || hasControl(s.File):
		return wrong("mesos.secret_file", "name a file below the server's directory of secrets", "%.80q is no path", s.File)
	case s.Env != "" && (!strings.HasPrefix(s.Env, SecretEnvPrefix) || !envPattern.MatchString(s.Env)):
		return wrong("mesos.secret_env", "name a variable of the server that begins with "+SecretEnvPrefix, "no secret is read from the variable %.80q", s.Env)
	}
	return nil
}

// roleMayBe follows Mesos: a path of names.
func roleMayBe(role string) bool {
	if role == "*" {
		return true
	}
	if len(role) > maxText {
		return false
	}
	for part := range strings.SplitSeq(role, "/") {
		if part == "" || part == "." || part == ".." || part == "*" || part[0] == '-' || strings.ContainsAny(part, "\\ \t") || hasControl(part) {
			return false
		}
	}
	return true
}

func checkMasters(masters []string) error {
	switch n := len(masters); {
	case n == 0:
		return wrong("mesos.masters", "give http://host:5050 of a master, or zk://host:2181/mesos", "there is no address of a master")
	case n > MaxMasters:
		return wrong("mesos.masters", "drop some", "%d addresses of masters are more than %d", n, MaxMasters)
	}
	for _, address := range masters {
		if err := checkMaster(address, len(masters)); err != nil {
			return err
		}
	}
	return nil
}

func checkMaster(address string, among int) error {
	const hint = "use http://host:5050, https://host:5050, or zk://host:2181,host:2181/mesos"
	scheme, rest, _ := strings.Cut(address, "://")
	authority, path, _ := strings.Cut(rest, "/")
	switch {
	case strings.Contains(authority, "@"): // it would be shown
		return wrong("mesos.masters", "name a principal and where its secret lies instead", "the address of a master must not hold a name or a secret")
	case len(address) > 1024 || authority == "" || hasControl(address) || strings.ContainsAny(address, " ?#\\"):
		return wrong("mesos.masters", hint, "%.200q is no address of a master", address)
	case scheme == "zk" && among > 1:
		return wrong("mesos.masters", "put all hosts of the ensemble into one zk:// address, and no other beside it", "the address %.200q cannot stand beside others", address)
	case scheme == "zk" && strings.Trim(path, "/") == "":
		return wrong("mesos.masters", "end it with the path that the masters are given, such as /mesos", "the address %.200q names no path", address)
	case scheme == "zk":
		return nil
	case (scheme != "http" && scheme != "https") || strings.Trim(path, "/") != "":
		return wrong("mesos.masters", hint, "%.200q is no address of a master", address)
	}
	return nil
}

func hasControl(text string) bool {
	return strings.ContainsFunc(text, func(r rune) bool { return r < ' ' || r == 0x7f })
}
