package server

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/paceline-sched/paceline/core/engine"
	"github.com/paceline-sched/paceline/core/preemption"
	"github.com/paceline-sched/paceline/core/respool"
	"github.com/paceline-sched/paceline/core/telemetry"
	"github.com/paceline-sched/paceline/policies/decision"
	"github.com/paceline-sched/paceline/policies/registry"
	"github.com/paceline-sched/paceline/policies/signature"
	"github.com/paceline-sched/paceline/policies/wasm"
	"github.com/paceline-sched/paceline/policies/wasm/kit"
	"github.com/paceline-sched/paceline/sdk/policyabi"
)

// compileVerb is the hidden command that compiles a policy for a server, in a process of its own.
const compileVerb = "compile-policy"

// newCompileCommand is what a server starts to compile a policy. It reads the module from its standard input.
func newCompileCommand() *cobra.Command {
	return &cobra.Command{
		Use: compileVerb + " CACHE", Hidden: true, Short: "Compile a policy into a server's cache", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, given []string) error {
			return wasm.CompileChild(cmd.InOrStdin(), given[0], policyLimits)
		},
	}
}

// policyLimits hold where modules are compiled and where they run.
var policyLimits = wasm.Limits{StartFuel: registry.StartFuel}

// The kit's effort at a push: some hundred milliseconds. 'paceline policy verify' makes more.
const (
	pushRounds = 2
	pushCalls  = 2000
)

// policyKeys reads who may sign policies; none: they need no signature.
func (c *Config) policyKeys() (signature.Keys, error) {
	if c.PolicyKeys == "" {
		return nil, nil
	}
	keys, err := signature.ReadKeys(os.DirFS(c.PolicyKeys))
	if err != nil {
		return nil, fmt.Errorf("read the keys for policies in %s: %w", c.PolicyKeys, err)
	}
	return keys, nil
}

// registry makes what keeps the cell's policies. It knows of none before it is opened.
func (c *Config) registry(cell *engine.Engine, keys signature.Keys, trace *telemetry.Trace) *registry.Registry {
	config := wasm.Config{Limits: policyLimits, Cache: filepath.Join(c.DataDir, "policies")}
	if c.Compile != nil {
		config.Compiler = &wasm.Compiler{Command: c.Compile, Limits: policyLimits}
	}
	return registry.New(registry.Config{
		Store: cell, Keys: keys, Wasm: config, Kit: kit.Options{Rounds: pushRounds, Calls: pushCalls},
		Log: c.Log.With(telemetry.KeyComponent, "policies"), Trace: trace,
	})
}

// askPolicies has the engine ask the policies of quota and of preemption that are in force, now and whenever others come into force. What it returns lets go of
// them, once the engine has ended.
func askPolicies(cell *engine.Engine, policies *registry.Registry, asked *decision.Asked) (letGo func()) {
	config := func(kind policyabi.Kind) wasm.AskConfig {
		return wasm.AskConfig{
			Slot: policies.Slot(kind.String(), ""), Moment: func() (uint64, time.Time) { return 0, time.Now() },
			OnFault: func(f *wasm.Fault) { policies.Faulted(kind.String(), f) }, OnCall: func(c wasm.Call) { policies.Called(kind.String(), c) },
		}
	}
	ofQuota, ofVictims := config(policyabi.Quota), config(policyabi.Preempt)
	quota, ranker := wasm.NewQuota(ofQuota), wasm.NewRanker(ofVictims)
	ofQuota.Slot.Watch(func(v *wasm.Version) {
		if v == nil {
			_ = cell.UseQuota("", nil) // fails only when the engine has ended
			return
		}
		_ = cell.UseQuota(nameOf(v), recordQuota(asked, quota, nameOf(v))) // likewise
	})
	ofVictims.Slot.Watch(func(v *wasm.Version) {
		if v == nil {
			_ = cell.UseRanks("", nil) // likewise
			return
		}
		_ = cell.UseRanks(nameOf(v), recordRanks(asked, ranker, nameOf(v))) // likewise
	})
	return func() {
		quota.Close()
		ranker.Close()
	}
}

func recordQuota(asked *decision.Asked, p respool.Quota, by string) respool.Quota {
	if asked == nil {
		return p
	}
	return asked.Quota(p, by)
}

func recordRanks(asked *decision.Asked, p preemption.Adviser, by string) preemption.Adviser {
	if asked == nil {
		return p
	}
	return asked.Adviser(p, by)
}

// nameOf names a version to users.
func nameOf(v *wasm.Version) string {
	return v.Name() + "@" + v.Digest().Short()
}

// compileByItself starts this program again to compile a policy.
func compileByItself(ctx context.Context, cache string) *exec.Cmd {
	self, err := os.Executable()
	if err != nil {
		self = os.Args[0]
	}
	cmd := exec.CommandContext(ctx, self, compileVerb, cache) //nolint:gosec // this very program
	cmd.Args[0] = os.Args[0]                                  // by which it knows what it is
	return cmd
}
