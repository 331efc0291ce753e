package wasm

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/paceline-sched/paceline/sdk/policy"
	"github.com/paceline-sched/paceline/sdk/policyabi"
	"github.com/tetratelabs/wazero"
)

// Config is how policies are loaded. The zero value is ready for use.
type Config struct {
	Limits Limits
	// Cache is the directory of compiled modules, "" for none. It holds native code that is run: it is made with mode 0700 and refused with another.
	Cache string
	// Compiler, when set, compiles into Cache in a process of low priority before this one takes the result, so that guests of other policies
	// are not held up by it. Default nil: this process compiles.
	Compiler *Compiler
	// Name is what the policy is called by those who keep it, in faults and in what is said of its decisions. Default "": as its module calls itself.
	Name string
	// Values of the policy's configuration; its own defaults stand for the others.
	Values policyabi.Config
	// Log takes what a policy logs: its level, one of policyabi's, and one line. At most 16 lines a call. Default nil: nobody listens.
	Log func(level int, text string)
}

// Version is a loaded policy in a runtime of its own. It is closed when its owner has let go of it and the last Placer has moved on.
type Version struct {
	module   *Module
	digest   Digest
	native   *policy.Program // in place of what is compiled; nil: a module
	config   Config
	limits   Limits
	encoded  []byte // the configuration
	runtime  wazero.Runtime
	cache    wazero.CompilationCache
	compiled wazero.CompiledModule
	counters Counters
	budget   budget                      // of placement
	budgets  [policyabi.Route + 1]budget // of the other kinds

	mu     sync.Mutex
	users  int
	let    bool // its owner has let go of it
	closed chan struct{}
}

// Load compiles a module, brings an instance up and tries it on a table of its own, from which it learns what fuel a call may need. The error is a *Fault.
func Load(ctx context.Context, module *Module, config Config) (*Version, error) {
	v := &Version{module: module, digest: module.Digest, config: config, limits: config.Limits.orDefault(), closed: make(chan struct{})}
	bad := func(kind FaultKind, doing string, err error) (*Version, error) {
		v.close()
		return nil, &Fault{Kind: kind, Policy: v.Name(), Digest: module.Digest, Doing: doing, Err: err}
	}
	var err error
	if v.encoded, v.digest, err = module.configure(config.Values); err != nil {
		return bad(FaultStart, "configure", err)
	}
	if config.Cache != "" {
		if v.cache, err = openCache(config.Cache); err != nil {
			return bad(FaultCompile, "open the cache", err)
		}
		if config.Compiler != nil {
			if err := config.Compiler.Compile(ctx, config.Cache, module); err != nil {
				return bad(FaultCompile, "compile", err)
			}
		}
	}
	if err := v.compile(ctx); err != nil {
		return bad(FaultCompile, "compile", err)
	}
	if err := v.try(); err != nil {
		v.close()
		return nil, err
	}
	return v, nil
}

// runtimeConfig is the same wherever modules are compiled, or the cache would not be hit.
func runtimeConfig(limits Limits, cache wazero.CompilationCache) wazero.RuntimeConfig {
	c := wazero.NewRuntimeConfig().WithMemoryLimitPages(limits.MemoryPages).WithDebugInfoEnabled(false).WithCloseOnContextDone(false)
	if cache != nil {
		c = c.WithCompilationCache(cache)
	}
	return c
}

func (v *Version) compile(ctx context.Context) error {
	return v.compileWith(ctx, runtimeConfig(v.limits, v.cache))
}

func (v *Version) compileWith(ctx context.Context, config wazero.RuntimeConfig) error {
	v.runtime = wazero.NewRuntimeWithConfig(ctx, config)
	hosts := map[string]wazero.HostModuleBuilder{}
	seen := map[[2]string]bool{}
	for _, im := range v.module.imports {
		if seen[[2]string{im.Module, im.Name}] {
			continue
		}
		seen[[2]string{im.Module, im.Name}] = true
		if hosts[im.Module] == nil {
			hosts[im.Module] = v.runtime.NewHostModuleBuilder(im.Module)
		}
		f := allowed[im.Module][im.Name]
		hosts[im.Module].NewFunctionBuilder().WithGoModuleFunction(f.function(), f.types(f.params), f.types(f.results)).Export(im.Name)
	}
	for name, b := range hosts {
		if _, err := b.Instantiate(ctx); err != nil {
			return fmt.Errorf("offer the functions of %q: %w", name, err)
		}
	}
	var err error
	began := time.Now()
	v.compiled, err = v.runtime.CompileModule(ctx, v.module.metered)
	v.counters.Compiling.Store(uint64(time.Since(began)))
	return err
}

// Module is what was loaded.
func (v *Version) Module() *Module { return v.module }

// Digest identifies the version: its module and, where that has other values than its defaults, these.
func (v *Version) Digest() Digest { return v.digest }

// Name is what the policy is called: Config.Name, or as its module calls itself.
func (v *Version) Name() string {
	if v.config.Name != "" {
		return v.config.Name
	}
	return v.module.Capability.Name
}

// Counters count what the version did so far.
func (v *Version) Counters() *Counters { return &v.counters }

// acquire counts a user, unless the version is on its way out.
func (v *Version) acquire() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.let {
		return false
	}
	v.users++
	return true
}

func (v *Version) release() {
	v.mu.Lock()
	v.users--
	last := v.let && v.users == 0
	v.mu.Unlock()
	if last {
		v.close()
	}
}

// Release lets go of the version: it is closed as soon as nobody uses it. It must be called once, and not before a Slot that holds the version holds another.
func (v *Version) Release() {
	v.mu.Lock()
	if v.let {
		v.mu.Unlock()
		return
	}
	v.let = true
	last := v.users == 0
	v.mu.Unlock()
	if last {
		v.close()
	}
}

// Closed is closed when the version is.
func (v *Version) Closed() <-chan struct{} { return v.closed }

func (v *Version) close() {
	ctx := context.Background()
	if v.runtime != nil {
		_ = v.runtime.Close(ctx)
	}
	if v.cache != nil {
		_ = v.cache.Close(ctx)
	}
	close(v.closed)
}

// Slot holds the version that is in force. The zero value holds none.
type Slot struct {
	current atomic.Pointer[Version]
	watcher atomic.Pointer[func(*Version)]
}

// Swap puts a version in force, nil for none, and returns the one that was. That goes on serving whoever is at work with it; its owner Releases it.
func (s *Slot) Swap(v *Version) *Version {
	old := s.current.Swap(v)
	if told := s.watcher.Load(); told != nil && old != v {
		(*told)(v)
	}
	return old
}

// Watch has told called with the version in force, now and by whoever swaps it for another. A slot has one watcher, and only one goroutine at a time may swap under it.
func (s *Slot) Watch(told func(*Version)) {
	s.watcher.Store(&told)
	told(s.current.Load())
}

// Current is the version in force, nil for none.
func (s *Slot) Current() *Version { return s.current.Load() }

// acquire returns the version in force, counted, or nil.
func (s *Slot) acquire() *Version {
	for {
		v := s.current.Load()
		if v == nil || v.acquire() {
			return v
		}
		if s.current.Load() == v {
			return nil // released while in force: there is nothing to serve with
		}
	}
}
