package rego

import (
	"slices"
	"strings"

	"github.com/open-policy-agent/opa/v1/ast"
)

// reads are the parts of the input that rules look at. As rules have nothing but their input and their own data to go by, two inputs that
// are the same in these parts get the same answer.
type reads struct {
	paths []string // such as job.labels, below which everything may be looked at; sorted. An empty one is the whole input.
}

// maxReadDepth is how many names deep a path is told apart.
const maxReadDepth = 3

// readsOf finds every place where compiled modules speak of the input. A name that is only known when the rules run stands for all that it
// may be.
func readsOf(c *ast.Compiler) reads {
	found := map[string]bool{}
	var visit func(x any) bool
	visit = func(x any) bool {
		switch x := x.(type) {
		case ast.Ref:
			if len(x) > 0 && x[0].Equal(ast.InputRootDocument) {
				found[pathOf(x)] = true
			} else if len(x) > 0 {
				ast.NewGenericVisitor(visit).Walk(x[0])
			}
			for _, part := range x[min(1, len(x)):] {
				ast.NewGenericVisitor(visit).Walk(part)
			}
			return true
		case ast.Var:
			if x.Equal(ast.InputRootDocument.Value) {
				found[""] = true
			}
		}
		return false
	}
	for _, m := range c.Modules {
		ast.NewGenericVisitor(visit).Walk(m)
	}
	var r reads
	for path := range found {
		if !hasPrefixIn(found, path) {
			r.paths = append(r.paths, path)
		}
	}
	slices.Sort(r.paths)
	return r
}

func pathOf(ref ast.Ref) string {
	var names []string
	for _, part := range ref[1:min(len(ref), 1+maxReadDepth)] {
		name, ok := part.Value.(ast.String)
		if !ok || strings.Contains(string(name), ".") {
			break
		}
		names = append(names, string(name))
	}
	return strings.Join(names, ".")
}

// hasPrefixIn reports whether a path lies below another one that was found.
func hasPrefixIn(found map[string]bool, path string) bool {
	for path != "" {
		path = path[:max(strings.LastIndexByte(path, '.'), 0)]
		if found[path] {
			return true
		}
	}
	return false
}

// join is what two sets of rules look at together.
func (r reads) join(o reads) reads {
	all := map[string]bool{}
	for _, path := range slices.Concat(r.paths, o.paths) {
		all[path] = true
	}
	var out reads
	for path := range all {
		if !hasPrefixIn(all, path) {
			out.paths = append(out.paths, path)
		}
	}
	slices.Sort(out.paths)
	return out
}

func (r reads) under(root string) bool {
	return slices.ContainsFunc(r.paths, func(p string) bool { return p == "" || p == root || strings.HasPrefix(p, root+".") })
}

func (r reads) names() []string {
	var out []string
	for _, p := range r.paths {
		out = append(out, strings.TrimSuffix("input."+p, "."))
	}
	return out
}

// part is a part of the input, as a tree of names: all of it, or what is named below it. No part is none of it.
type part struct {
	whole bool
	below map[string]*part
}

// everything is a part that is looked at as a whole.
var everything = &part{whole: true}

// tree is what has to be in an input for rules that look at these parts.
func (r reads) tree() *part {
	root := &part{}
	for _, path := range r.paths {
		at := root
		for name := range strings.SplitSeq(path, ".") {
			if path == "" {
				break
			}
			if at.below == nil {
				at.below = map[string]*part{}
			}
			if at.below[name] == nil {
				at.below[name] = &part{}
			}
			at = at.below[name]
		}
		at.whole = true
	}
	return root
}

// of is the part below a name.
func (p *part) of(name string) *part {
	if p.whole {
		return p
	}
	return p.below[name]
}
