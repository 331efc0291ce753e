package tidy

import (
	"fmt"
	"go/ast"
	"path"
	"slices"
	"strconv"
	"strings"
)

// packageRule says what of ours the packages in a folder may import. The longest match decides for a package; one without a
// rule is a finding, so that a new folder is placed in the design before it is filled.
type packageRule struct {
	packages string
	ours     []string
	why      string
}

// pureSet is the decision core. It is told the time and the randomness, starts nothing and talks to nobody: that is what lets
// any run be recorded, replayed and simulated.
var pureSet = []string{
	"core/resource", "core/execution", "core/cluster", "core/workload", "core/host", "core/respool", "core/admission", "core/placement", "core/shard",
	"core/preemption", "core/fragment", "core/disruption", "core/estimate", "core/lifecycle", "core/usage", "core/scheduler", "core/rollout",
	"federation/directory", "federation/router",
}

var packageRules = []packageRule{
	{"core/resource", nil, "the lowest floor: arithmetic on quantities knows nobody who holds them"},
	{"core/execution", nil, "vocabulary only; clusters give it meaning"},
	{"core/cluster", nil, "settings only; who connects gives them meaning"},
	{"core/workload", []string{"core/resource", "core/execution"}, "vocabulary only; decisions stand above it"},
	{"core/host", []string{"core/resource", "core/workload"}, "the table knows what sits on it, not why"},
	{"core/respool", []string{"core/resource", "core/workload"}, "entitlement is arithmetic over the tree, not over hosts or jobs"},
	{"core/admission", []string{"core/resource", "core/workload", "core/respool"}, "queues spend entitlement; they never see a host"},
	{"core/placement", []string{"core/resource", "core/execution", "core/workload", "core/host"}, "places a batch on one table; never asks a pool or a queue"},
	{"core/fragment", []string{"core/resource", "core/workload", "core/host", "core/placement"}, "a measure of one table; it places nothing"},
	{"core/disruption", []string{"core/workload"}, "budgets follow from counts by run state alone"},
	{"core/preemption", []string{"core/resource", "core/workload", "core/host", "core/placement"}, "searches one table for victims; who may be one it is told"},
	{"core/driver", []string{"core/resource", "core/execution", "core/workload"}, "the contract of clusters speaks of runs and hosts only"},
	{"core/shard", []string{"core/resource", "core/workload", "core/host", "core/placement", "core/preemption", "core/driver"}, "a shard runs without the core that it serves"},
	{"core/lifecycle", []string{"core/resource", "core/workload"}, "goal state to actions, one job at a time"},
	{"core/estimate", []string{"core/resource"}, "a forecast is arithmetic over ends and a queue; it knows neither"},
	{"core/usage", []string{"core/resource", "core/workload"}, "accounts are sums over time; they know neither pools' rules nor hosts"},
	{
		"core/scheduler",
		[]string{
			"core/resource", "core/execution", "core/cluster", "core/workload", "core/host", "core/respool", "core/admission", "core/placement", "core/driver", "core/shard",
			"core/preemption", "core/disruption", "core/estimate", "core/lifecycle", "core/usage",
		},
		"joins the pure packages; storage, wire and clocks are the engine's",
	},
	{"core/rollout", []string{"core/scheduler"}, "which version of a policy is in force is decided without loading it"},
	{"core/engine", []string{"core/..."}, "the shell around the scheduler"},
	{"core/store", []string{"core/workload"}, "keys are made of ids; what the bytes behind them mean is record's"},
	{"core/store/record", []string{"core/resource", "core/execution", "core/cluster", "core/workload", "core/host", "core/respool", "core/placement", "core/driver", "core/shard", "core/usage", "core/scheduler", "core/store", "core/store/record/..."}, "turns state into bytes and back"},
	{"core/store/record/...", []string{"core/store/record/..."}, "generated storage messages"},
	{"core/store/badgerstore", []string{"core/store", "core/telemetry"}, "a backend knows the gateway's interface and the log's keys only"},
	{"core/store/memstore", []string{"core/store"}, "a backend knows the gateway's interface only"},
	{"core/api", []string{"core/resource", "core/execution", "core/cluster", "core/workload", "core/driver", "core/shard", "core/placement", "core/respool", "core/usage", "core/estimate", "core/scheduler", "core/rollout", "core/engine", "core/telemetry", "core/api/...", "sdk/..."}, "proto and error mapping: reaches state through the engine, never the store"},
	{"core/api/...", []string{"core/resource", "core/execution", "core/cluster", "core/workload", "core/driver", "core/shard", "core/placement", "core/respool", "core/usage", "core/estimate", "core/scheduler", "core/rollout", "core/engine", "core/telemetry", "core/api/...", "sdk/..."}, "parts of the API edge"},
	{"core/telemetry", nil, "anybody may log, so logging knows nobody"},

	{
		"policies/rego",
		[]string{"core/api/admit", "core/api/auth", "core/api/spec", "core/execution", "core/resource", "core/workload", "core/scheduler", "core/telemetry", "policies/signature", "sdk/..."},
		"judges jobs by rules; what is judged it is told, and what comes of it the edge does",
	},

	{"hostmanagers/shard", []string{"core/..."}, "runs any driver; knows none by name"},
	{"hostmanagers/split", []string{"core/cluster", "core/driver", "core/shard", "core/workload", "hostmanagers/simulated"}, "cuts any driver; its tests cut a simulated cluster"},
	{"hostmanagers/news", []string{"core/driver", "core/workload"}, "brings any driver's news to its sink; knows none by name"},
	{"hostmanagers/local", []string{"core/driver", "core/execution", "core/resource", "core/workload", "core/telemetry", "hostmanagers/local/..."}, "a driver knows the contract, not the scheduler"},
	{"hostmanagers/local/runner/...", []string{"core/driver", "core/execution", "core/resource", "core/workload", "hostmanagers/local/runner/..."}, "runs processes for every emulated cluster"},
	{"hostmanagers/simulated", []string{"core/driver", "core/execution", "core/resource", "core/workload", "core/telemetry"}, "a driver knows the contract, not the scheduler or other drivers"},
	{"hostmanagers/mesos", []string{"core/driver", "core/execution", "core/resource", "core/workload", "core/telemetry", "hostmanagers/mesos/master", "hostmanagers/mesos/framework", "hostmanagers/news"}, "a driver knows the contract, not the scheduler or other drivers"},
	{"hostmanagers/mesos/master", []string{"core/telemetry", "hostmanagers/mesos/recordio"}, "keeps a subscription up, whatever is said over it"},
	{"hostmanagers/mesos/framework", []string{"core/driver", "core/execution", "core/resource", "core/workload", "hostmanagers/news"}, "a pure machine between a shard and a master"},
	{"hostmanagers/mesos/emulator", []string{"hostmanagers/local/runner/...", "hostmanagers/mesos/emulator/...", "hostmanagers/mesos/recordio"}, "serves an emulated cluster to any framework; knows nothing of Paceline"},
	{"hostmanagers/mesos/emulator/cluster", []string{"hostmanagers/mesos/emulator/wire"}, "a state machine knows neither connections nor processes"},
	{"hostmanagers/mesos/emulator/wire", nil, "messages and their forms stand alone"},
	{"hostmanagers/mesos/recordings", nil, "data for tests"},
	{"hostmanagers/mesos/recordio", nil, "framing knows nothing of what is framed"},

	{"hostmanagers/kubernetes/emulator", []string{"hostmanagers/local/runner/...", "hostmanagers/kubernetes/emulator/..."}, "serves an emulated cluster to any client; knows nothing of Paceline"},
	{"hostmanagers/kubernetes/emulator/cluster", nil, "a state machine knows neither connections nor processes"},
	{"hostmanagers/kubernetes", []string{"core/driver", "core/execution", "core/telemetry", "core/workload", "hostmanagers/kubernetes/manifest", "hostmanagers/kubernetes/mirror", "hostmanagers/news"}, "a driver knows the contract, not the scheduler or other drivers"},
	{"hostmanagers/kubernetes/manifest", []string{"core/cluster", "core/driver", "core/execution", "hostmanagers/kubernetes/mirror"}, "writes pods for any cluster; the words of labels are mirror's"},
	{"hostmanagers/kubernetes/mirror", []string{"core/driver", "core/resource", "core/workload", "hostmanagers/news"}, "a pure machine between a shard and an API server"},
	{"hostmanagers/kubernetes/emulator/wire", nil, "messages and their forms stand alone"},

	{"policies/signature", nil, "a key signs bytes, whatever they are"},
	{"policies/registry", []string{"core/...", "sdk/policyabi", "policies/wasm", "policies/wasm/kit", "policies/signature"}, "chooses which loaded version decides; the cell stores what it knows"},
	{"policies/decision", []string{"core/resource", "core/workload", "core/host", "core/placement", "core/fragment", "core/shard", "core/preemption", "core/respool", "core/telemetry"}, "records any placer, and what other policies are asked; knows none by name"},
	{"policies/wasm", []string{"core/...", "sdk/...", "policies/wasm/..."}, "runs policies on a shard's table; knows no registry"},
	{"policies/wasm/kit", []string{"core/...", "sdk/...", "policies/wasm", "policies/wasm/internal/assembler"}, "judges modules through the placer that serves with them"},
	{"policies/builtin/...", []string{"sdk/policy/...", "sdk/policyabi", "policies/builtin"}, "is built into modules, so it may import what any author may"},
	{"policies/native", []string{"core/...", "sdk/...", "policies/builtin", "policies/wasm"}, "joins built-in policies with what runs them"},
	{"policies/wasm/fuel", []string{"policies/wasm/internal/assembler"}, "a module is bytes, whoever wrote it and whatever it decides"},
	{"policies/wasm/internal/assembler", nil, "a module is bytes"},

	{"sdk/gen/...", []string{"sdk/gen/..."}, "generated code stands alone"},
	{"sdk/...", []string{"sdk/..."}, "what others import must not drag the scheduler along"},

	{"cmd/paceline", []string{"core/...", "policies/...", "federation/...", "hostmanagers/...", "sdk/...", "cmd/paceline/..."}, "all wiring is here"},
	{"cmd/paceline/e2e", []string{"sdk/...", "cmd/paceline/internal/..."}, "judges the binary from outside; it only builds what is inside"},
	{"cmd/paceline/internal/server", []string{"core/...", "policies/...", "federation/...", "hostmanagers/...", "sdk/...", "cmd/paceline/internal/..."}, "all wiring is here"},
	{"cmd/paceline/internal/members", []string{"core/api", "core/cluster", "core/driver", "core/engine", "core/scheduler", "core/shard", "core/telemetry", "hostmanagers/split", "hostmanagers/shard", "hostmanagers/simulated"}, "keeps connections of any kind; what one is made of is server's"},
	{"cmd/paceline/internal/replay", []string{"core/host", "core/placement", "core/preemption", "core/resource", "core/respool", "core/workload", "policies/decision", "policies/native", "policies/wasm", "sdk/policyabi"}, "reads a log and runs policies on it as a shard would, without one"},
	{"cmd/paceline/internal/policy", []string{"core/host", "core/placement", "core/resource", "core/workload", "policies/wasm", "policies/wasm/kit", "policies/signature", "sdk/guest", "sdk/policyabi"}, "makes and judges policies as a server would, without one"},
	{"cmd/paceline/internal/rules", []string{"core/api/admit", "core/api/auth", "core/api/spec", "core/resource", "core/respool", "core/scheduler", "policies/rego", "sdk/...", "cmd/paceline/internal/jobfile"}, "judges jobs as a server would, without one"},
	{"cmd/paceline/internal/simpack", []string{"core/resource", "core/workload", "core/host", "core/placement", "core/fragment", "policies/native", "policies/wasm", "sdk/policyabi", "cmd/paceline/internal/tracefile"}, "an experiment on the real placement"},
	{"cmd/paceline/internal/kubeemu", []string{"hostmanagers/kubernetes/emulator", "hostmanagers/kubernetes/emulator/cluster"}, "serves an emulated cluster; no cell is near"},
	{"cmd/paceline/internal/mesosemu", []string{"hostmanagers/mesos/emulator", "hostmanagers/mesos/emulator/cluster"}, "serves an emulated cluster; no cell is near"},
	{"cmd/paceline/internal/simrun", []string{"core/resource", "core/workload", "core/respool", "core/placement", "core/driver", "core/shard", "core/estimate", "core/scheduler", "core/preemption", "hostmanagers/simulated", "cmd/paceline/internal/tracefile"}, "an experiment on a real cell without engine and store"},
	{"cmd/paceline/internal/...", []string{"sdk/...", "cmd/paceline/internal/..."}, "verbs speak to servers through the public API, as any user's program does"},

	{"conformance/tidy", nil, "judges the tree as text"},
	{"conformance/freeport", nil, "it only chooses a number"},
	{"conformance/storetest", []string{"core/store", "core/workload"}, "a kit sees what it judges through its interface"},
	{"conformance/drivertest", []string{"core/driver", "core/execution", "core/resource", "core/workload"}, "a kit sees what it judges through its interface"},
	{"conformance/...", []string{"core/...", "policies/...", "federation/...", "hostmanagers/...", "sdk/...", "conformance/..."}, "whole-system tests may join anything"},
	{"examples/...", []string{"sdk/..."}, "an example shows what a user can do, with what a user has"},
}

// library is one third-party module with its home. Code elsewhere goes through our own interface, so that a library can be
// replaced in one place.
type library struct {
	prefix string
	homes  []string
	why    string
}

var libraries = []library{
	{"github.com/dgraph-io/badger", []string{"core/store/badgerstore"}, "the storage gateway hides its backend"},
	{"github.com/dgraph-io/ristretto", []string{"core/store/badgerstore"}, "comes with badger"},
	{"github.com/klauspost/compress", []string{"core/store", "core/store/record", "core/store/badgerstore"}, "compression is a matter of storage"},
	{"connectrpc.com", []string{"core/api/...", "core/shardrpc/...", "sdk/...", "federation/gateway/...", "federation/peer/...", "cmd/paceline/...", "examples/..."}, "RPC stays at the edges"},
	{"github.com/open-policy-agent/opa", []string{"policies/rego"}, "rules have one engine, and its language stays with it"},
	{"buf.build/go/protovalidate", []string{"core/api/...", "policies/rego", "sdk/client", "cmd/paceline/internal/jobfile"}, "messages are validated where they enter"},
	{"buf.build/go/protoyaml", []string{"core/api/...", "cmd/paceline/internal/jobfile", "cmd/paceline/internal/output"}, "YAML is a user's format; below the edges there is none"},
	{"buf.build/gen/go", []string{"core/api/...", "sdk/gen/...", "sdk/client", "cmd/paceline/internal/jobfile"}, "validation rules are compiled into generated code"},
	{"google.golang.org/protobuf", []string{"core/api/...", "core/store/record/...", "core/shardrpc/...", "sdk/...", "federation/gateway/...", "federation/peer/...", "policies/rego", "cmd/paceline/..."}, "the decision core has its own types"},
	{"google.golang.org/genproto", []string{"core/api/...", "sdk/...", "cmd/paceline/internal/..."}, "error details"},
	{"github.com/prometheus", []string{"core/telemetry", "core/api/...", "core/engine"}, "metrics have one registry"},
	{"github.com/spf13", []string{"cmd/paceline/..."}, "flags belong to the command line"},
	{"github.com/tetratelabs/wazero", []string{"policies/wasm/..."}, "policies run in one sandbox"},
	{"github.com/mesos/mesos-go", []string{"hostmanagers/mesos/..."}, "Mesos is one kind of cluster"},
	{"github.com/gogo/protobuf", []string{"hostmanagers/mesos/..."}, "comes with mesos-go's messages"},
	{"k8s.io", []string{"hostmanagers/kubernetes/...", "conformance/..."}, "Kubernetes is one kind of cluster"},
	{"gopkg.in/evanphx/json-patch.v4", []string{"hostmanagers/kubernetes/..."}, "comes with Kubernetes' patches"},
	{"sigs.k8s.io", []string{"hostmanagers/kubernetes/...", "conformance/..."}, "comes with Kubernetes' types"},
	{"github.com/go-zookeeper/zk", []string{"hostmanagers/mesos/master"}, "ZooKeeper says which Mesos master leads, and nothing else"},
	{"gonum.org/v1/plot", []string{"cmd/paceline/internal/simpack", "cmd/paceline/internal/simrun"}, "plots are drawn by the simulator only"},
	{"go.yaml.in/yaml", []string{"core/api/...", "cmd/paceline/..."}, "configuration files are read at the edges"},
	{"golang.org/x/term", []string{"cmd/paceline/..."}, "terminals are the command line's"},
	{"golang.org/x/sys", []string{"hostmanagers/local/...", "core/store/badgerstore", "core/api/...", "cmd/paceline/...", "conformance/controlplane/isolate"}, "system calls stay in shells"},
	{"golang.org/x/sync", []string{"core/engine", "core/store/badgerstore", "core/api/...", "hostmanagers/...", "federation/...", "cmd/paceline/..."}, "goroutines stay in shells"},
	{"golang.org/x/net", []string{"core/api/...", "sdk/client", "federation/...", "cmd/paceline/..."}, "networks stay at the edges"},
}

// testLibraries are open to every test and to the kits.
var testLibraries = []string{"pgregory.net/rapid", "go.uber.org/goleak", "github.com/rogpeppe/go-internal"}

// testOurs is open to every test: kits, data, and neighbours to build a scene from. The forbidden directions stay forbidden.
var testOurs = []string{"core/...", "conformance/...", "sdk/...", "hostmanagers/mesos/recordings", "hostmanagers/mesos/recordio", "hostmanagers/mesos/emulator/...", "hostmanagers/kubernetes/emulator/..."}

// CheckImports holds every package to its rule and every library to its home.
func CheckImports(t *Tree) []Finding {
	var found []Finding
	for _, dir := range t.packages() {
		if _, ok := ruleFor(dir); !ok {
			found = append(found, Finding{Path: dir, Text: "no import rule: place the package in packageRules (conformance/tidy/imports.go) with its reason"})
		}
	}
	for _, f := range t.gos {
		if f.nested {
			continue
		}
		for _, spec := range f.syntax.Imports {
			target, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				continue
			}
			if text := checkImport(f, target); text != "" {
				found = append(found, Finding{f.path, f.line(spec), text})
			}
		}
	}
	return found
}

func checkImport(f *goFile, target string) string {
	rule, ok := ruleFor(f.dir)
	if !ok {
		return ""
	}
	if target == Module || strings.HasPrefix(target, Module+"/") {
		dir := strings.TrimPrefix(strings.TrimPrefix(target, Module), "/")
		switch {
		case dir == f.dir, withinAny(dir, rule.ours):
			return ""
		case f.test && withinAny(dir, testOurs) && !strings.HasPrefix(f.dir, "sdk/"):
			return ""
		}
		return fmt.Sprintf("%s must not import %s: %s", f.dir, dir, rule.why)
	}
	first, _, _ := strings.Cut(target, "/")
	if !strings.Contains(first, ".") {
		return "" // the standard library; CheckPurity judges it
	}
	if (f.test || strings.HasPrefix(f.dir, "conformance/")) && slices.ContainsFunc(testLibraries, func(lib string) bool { return underPath(target, lib) }) {
		return ""
	}
	for _, lib := range libraries {
		if !underPath(target, lib.prefix) {
			continue
		}
		if withinAny(f.dir, lib.homes) || (f.test && strings.HasPrefix(f.dir, "conformance/")) {
			return ""
		}
		return fmt.Sprintf("%s belongs to %s: %s", lib.prefix, strings.Join(lib.homes, ", "), lib.why)
	}
	return fmt.Sprintf("library %s has no home: name one in libraries (conformance/tidy/imports.go) with its reason", target)
}

func underPath(target, prefix string) bool {
	return target == prefix || strings.HasPrefix(target, prefix+"/")
}

func ruleFor(dir string) (packageRule, bool) {
	best := -1
	for i, rule := range packageRules {
		switch {
		case !within(dir, rule.packages):
		case rule.packages == dir: // a rule of its own goes before one for a whole folder
			return rule, true
		case best < 0 || len(rule.packages) > len(packageRules[best].packages):
			best = i
		}
	}
	if best < 0 {
		return packageRule{}, false
	}
	return packageRules[best], true
}

// CheckRulesLive finds table entries that no longer name anything, so that the tables stay true.
func CheckRulesLive(t *Tree) []Finding {
	var found []Finding
	dirs := t.packages()
	for _, rule := range packageRules {
		if !slices.ContainsFunc(dirs, func(dir string) bool { return within(dir, rule.packages) }) {
			found = append(found, Finding{Path: rule.packages, Text: "has an import rule but no package"})
		}
	}
	return append(found, deadRatchets(t)...)
}

// impure maps what the decision core may not import to the reason. A name ending in "/" forbids the whole folder.
var impure = map[string]string{
	"crypto/rand":       "randomness is a hash of seed, run and sequence",
	"hash/maphash":      "its seed differs in every process",
	"io/ioutil":         "it does no I/O",
	"log":               "pure code is silent",
	"log/":              "pure code is silent",
	"math/rand":         "randomness is a hash of seed, run and sequence",
	"math/rand/":        "randomness is a hash of seed, run and sequence",
	"net":               "it talks to nobody",
	"net/":              "it talks to nobody",
	"os":                "it does no I/O",
	"os/":               "it does no I/O",
	"runtime":           "results must not depend on the machine",
	"sync":              "one owner per state; a lock means that somebody else looks",
	"sync/":             "one owner per state; an atomic means that somebody else looks",
	"syscall":           "it does no I/O",
	"testing/quick":     "properties use rapid, which prints how to replay",
	"golang.org/x/sys/": "it does no I/O",
}

// clockCalls are the functions of package time that read or wait for the clock.
var clockCalls = []string{"Now", "Since", "Until", "Sleep", "After", "AfterFunc", "Tick", "NewTimer", "NewTicker"}

// CheckPurity keeps clock, randomness, goroutines, channels and I/O out of the decision core.
func CheckPurity(t *Tree) []Finding {
	var found []Finding
	for _, f := range t.gos {
		if f.test || !withinAny(f.dir, pureSet) {
			continue
		}
		for _, spec := range f.syntax.Imports {
			target, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				continue
			}
			if why := impureReason(target); why != "" {
				found = append(found, Finding{f.path, f.line(spec), fmt.Sprintf("the decision core must not import %s: %s", target, why)})
			}
		}
		ast.Inspect(f.syntax, func(n ast.Node) bool {
			if what := impureNode(n); what != "" {
				found = append(found, Finding{f.path, f.line(n), what})
			}
			return true
		})
	}
	return found
}

func impureReason(target string) string {
	if why, ok := impure[target]; ok {
		return why
	}
	for dir := path.Dir(target); dir != "."; dir = path.Dir(dir) {
		if why, ok := impure[dir+"/"]; ok {
			return why
		}
	}
	return ""
}

func impureNode(n ast.Node) string {
	switch n := n.(type) {
	case *ast.GoStmt:
		return "the decision core starts no goroutine"
	case *ast.ChanType, *ast.SelectStmt:
		return "the decision core has no channels: it is stepped, it never waits"
	case *ast.SelectorExpr:
		if pkg, ok := n.X.(*ast.Ident); ok && pkg.Name == "time" && slices.Contains(clockCalls, n.Sel.Name) {
			return "the decision core is told the time; time." + n.Sel.Name + " asks for it"
		}
	}
	return ""
}
