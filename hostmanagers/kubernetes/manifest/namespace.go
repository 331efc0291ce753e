package manifest

import (
	"crypto/sha256"
	"encoding/base32"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/paceline-sched/paceline/core/cluster"
	"github.com/paceline-sched/paceline/core/driver"
)

// PoolMark stands in Config.NamespacePerPool for the name that is made of a pool's path.
const PoolMark = cluster.PoolMark

const (
	maxLabel  = 63 // characters of a namespace
	digestLen = 12 // characters of a path's digest, of 5 bits each
	maxAround = 30 // characters of NamespacePerPool beside the mark, so that enough of a path can be read
)

var (
	plainName   = regexp.MustCompile(`^[a-z0-9]+$`)
	aroundMark  = regexp.MustCompile(`^([a-z0-9]([a-z0-9-]*))?x(([a-z0-9-]*)[a-z0-9])?$`) // x: the mark
	namespace   = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)
	notOfALabel = regexp.MustCompile(`[^a-z0-9]+`)
	digits      = base32.NewEncoding("0123456789abcdefghijklmnopqrstuv").WithPadding(base32.NoPadding)
)

// Validate reports what no pod can be written with.
func (c *Config) Validate() error {
	before, after, marked := strings.Cut(c.NamespacePerPool, PoolMark)
	switch {
	case c.NamespacePerPool == "" && !namespace.MatchString(c.Namespace):
		return fmt.Errorf("the namespace %.80q is no name: use 1 to 63 lower-case letters, digits and dashes, with no dash at an end", c.Namespace)
	case c.NamespacePerPool == "":
		return nil
	case !marked || strings.Contains(after, PoolMark):
		return fmt.Errorf("the namespace per pool is %.80q; it must have %s once, such as %s or batch-%s", c.NamespacePerPool, PoolMark, PoolMark, PoolMark)
	case len(before)+len(after) > maxAround || !aroundMark.MatchString(before+"x"+after):
		return fmt.Errorf("the namespace per pool is %.80q; beside %s use at most %d lower-case letters, digits and dashes, with no dash at an end",
			c.NamespacePerPool, PoolMark, maxAround)
	}
	return nil
}

// NamespaceOf is where the pod of a launch belongs.
func (c *Config) NamespaceOf(l *driver.Launch) string {
	switch own := ownNamespace(l); {
	case c.NamespacePerPool != "":
		return c.NamespaceOfPool(l.Pool)
	case own != "":
		return own
	}
	return c.Namespace
}

func ownNamespace(l *driver.Launch) string {
	if e := l.Execution; e != nil && e.Kubernetes != nil {
		return e.Kubernetes.Namespace
	}
	return ""
}

// NamespaceOfPool is the namespace of a pool by NamespacePerPool, which must be set. Two pools never share one, up to a collision of 60 bits of SHA-256.
//
// The names of a path are joined by single dashes: /eng/batch is eng-batch. A path that another could be taken for so, as a name in it has more
// than lower-case letters and digits, or that is too long, or one of the cluster's own namespaces, ends in two dashes and a digest of the path: /eng-batch is eng-batch--0123456789ab. Joined
// names alone never have two dashes on end.
func (c *Config) NamespaceOfPool(path string) string {
	before, after, _ := strings.Cut(c.NamespacePerPool, PoolMark)
	room := maxLabel - len(before) - len(after)
	names := strings.Split(strings.Trim(path, "/"), "/")
	plain := before != "" || names[0] != "kube" && path != "/default" // which are the cluster's own
	for _, name := range names {
		plain = plain && plainName.MatchString(name)
	}
	name := strings.Join(names, "-")
	if !plain || len(name) > room {
		sum := sha256.Sum256([]byte(path))
		name = strings.Trim(notOfALabel.ReplaceAllString(strings.ToLower(name), "-"), "-")
		name = strings.TrimRight(name[:min(len(name), room-digestLen-2)], "-")
		if name == "" {
			name = "x"
		}
		name += "--" + digits.EncodeToString(sum[:])[:digestLen]
	}
	return before + name + after
}

// checkNamespace keeps jobs in the namespaces of their pools, where there are such.
func (c *Config) checkNamespace(l *driver.Launch) error {
	own := ownNamespace(l)
	switch {
	case c.NamespacePerPool == "":
		return nil
	case l.Pool == "":
		return errors.New("its namespace is that of its pool, and the launch names none")
	case own != "" && own != c.NamespaceOfPool(l.Pool):
		return fmt.Errorf("the job names namespace %q, and on this cluster the pods of pool %s are in %q: leave the namespace out", own, l.Pool, c.NamespaceOfPool(l.Pool))
	}
	return nil
}
