// Package auth knows who may do what: principals, their roles in subtrees of pools, and the file of static tokens that names them.
//
// It answers questions and never refuses a call itself: the API edge does. Secrets are kept as SHA-256 digests only, compared in
// constant time, and never appear in an error or a log.
//
// Concurrency: a Principal is immutable. Tokens may be used from any goroutine; it starts none and looks for changes of its file when
// it is asked.
package auth

import (
	"fmt"
	"strings"
)

// Role is what a principal may do. Each role includes those before it.
type Role uint8

// The roles.
const (
	None      Role = iota
	Viewer         // reads
	Submitter      // submits, restarts, stops and deletes jobs
	Operator       // edits pools, handles hosts
	Admin          // everything, backup included
)

func (r Role) String() string {
	return [...]string{"none", "viewer", "submitter", "operator", "admin"}[min(r, Admin)]
}

// ParseRole reads a role's name.
func ParseRole(name string) (Role, error) {
	for r := Viewer; r <= Admin; r++ {
		if r.String() == name {
			return r, nil
		}
	}
	return None, fmt.Errorf("role %q is unknown: use viewer, submitter, operator or admin", clip(name))
}

// Root is the subtree that holds everything, also what belongs to no pool.
const Root = "/"

// Binding gives a role in the subtree of pools under Pool.
type Binding struct {
	Role Role
	Pool string // path
}

// ParseBinding reads role@path, for example submitter@/prod/ads. A role alone holds everywhere.
func ParseBinding(s string) (Binding, error) {
	name, pool, found := strings.Cut(s, "@")
	if !found {
		pool = Root
	}
	role, err := ParseRole(name)
	if err != nil {
		return Binding{}, err
	}
	if !strings.HasPrefix(pool, "/") || (pool != Root && strings.HasSuffix(pool, "/")) || strings.Contains(pool, "//") {
		return Binding{}, fmt.Errorf("pool %q in role %q must be a path such as /prod/ads, or / for all", clip(pool), clip(s))
	}
	return Binding{Role: role, Pool: pool}, nil
}

func (b Binding) String() string { return b.Role.String() + "@" + b.Pool }

// Principal is who makes a call.
type Principal struct {
	Name     string
	Tenant   string
	Bindings []Binding
}

// Allows reports whether the principal has at least the role in the pool at a path. What belongs to no pool, or to one that is gone, is
// at Root.
func (p *Principal) Allows(role Role, pool string) bool {
	for _, b := range p.Bindings {
		if b.Role >= role && within(pool, b.Pool) {
			return true
		}
	}
	return false
}

// AllowsSome reports whether the principal has at least the role anywhere.
func (p *Principal) AllowsSome(role Role) bool {
	for _, b := range p.Bindings {
		if b.Role >= role {
			return true
		}
	}
	return false
}

// within reports whether a pool is the subtree's top or below it.
func within(pool, top string) bool {
	return top == Root || pool == top || (strings.HasPrefix(pool, top) && pool[len(top)] == '/')
}

// clip keeps hostile input out of messages.
func clip(s string) string {
	if len(s) > 80 {
		return strings.ToValidUTF8(s[:80], "") + "..."
	}
	return s
}
