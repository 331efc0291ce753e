package rego

import (
	"slices"
	"strings"
	"sync"

	"github.com/open-policy-agent/opa/v1/ast"
)

// forbidden are the built-in functions that rules may not call, by name or, with a dot at the end, by family. What is left gives one answer
// for one input, on any machine and at any time.
var forbidden = []string{
	"http.",                                   // the network
	"net.",                                    // some of it asks name servers
	"opa.runtime",                             // the process's environment
	"time.now_ns",                             // input.now is the time
	"rand.",                                   // randomness
	"uuid.rfc4122",                            // randomness
	"io.jwt.",                                 // reads the clock; nothing in a job is a token
	"crypto.x509.",                            // reads the clock
	"crypto.parse_private_keys",               // nothing in a job is a private key
	"providers.",                              // signs requests to a cloud
	"graphql.",                                // large parsers for what no job holds
	"rego.parse_module",                       // likewise
	"json.match_schema", "json.verify_schema", // a schema may name documents elsewhere
	"trace", // there is nobody to read it
}

// capabilities are what rules may use.
var capabilities = sync.OnceValue(func() *ast.Capabilities {
	c := ast.CapabilitiesForThisVersion()
	c.Builtins = slices.DeleteFunc(slices.Clone(c.Builtins), func(b *ast.Builtin) bool { return isForbidden(b) })
	c.AllowNet = []string{}
	return c
})

func isForbidden(b *ast.Builtin) bool {
	return b.Nondeterministic || slices.ContainsFunc(forbidden, func(name string) bool {
		if strings.HasSuffix(name, ".") {
			return strings.HasPrefix(b.Name, name)
		}
		return b.Name == name
	})
}
