package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"time"

	"github.com/paceline-sched/paceline/cmd/paceline/internal/members"
	"github.com/paceline-sched/paceline/core/api"
	"github.com/paceline-sched/paceline/core/api/gate"
	"github.com/paceline-sched/paceline/core/driver"
	"github.com/paceline-sched/paceline/core/scheduler"
	"github.com/paceline-sched/paceline/core/telemetry"
	"github.com/paceline-sched/paceline/hostmanagers/local"
	"github.com/paceline-sched/paceline/policies/rego"
)

// DefaultAddress is where a server listens unless told otherwise, and where the command line looks for one.
const DefaultAddress = api.DefaultAddress

// MistakeError is a setting that cannot work, found before anything was done.
type MistakeError struct{ err error }

func (e *MistakeError) Error() string { return e.err.Error() }

func (e *MistakeError) Unwrap() error { return e.err }

// Mistake tells the command line that the user has to mend something, and not the machine.
func (e *MistakeError) Mistake() {}

// Config is one process with one cell. Zero fields take the defaults.
type Config struct {
	// DataDir holds the store, the token file and the runs of local hosts. It is made with mode 0700. Required.
	DataDir string
	// Cell names the cell; its store is bound to the name. Default: default.
	Cell string
	// Listen is host:port; port 0 takes a free one. Default: DefaultAddress.
	Listen string
	// TLSCert and TLSKey are PEM files. Both or neither; required off loopback.
	TLSCert, TLSKey string
	// TokenFile names who may call. Default: token in DataDir, made on the first start when listening on loopback.
	TokenFile string
	// JobRetention is how long ended jobs are kept. Default 24h.
	JobRetention time.Duration
	// DiskReserve is the free space below which the store takes no writes, in MiB. Default 512.
	DiskReserve int64
	// MaxCalls and MaxStreams are under way at once, see gate.Limits; MaxConnections see api.Config. Default: theirs.
	MaxCalls, MaxStreams, MaxConnections int

	// AdmissionDir holds bundles of admission rules besides those that are pushed, see rego.Config. Default: none.
	AdmissionDir string
	// AdmissionKeys is a directory of public keys, ID.pem each, of which one must have signed every bundle. Default: bundles need no signature.
	AdmissionKeys string

	// PolicyKeys is a directory of public keys, ID.pem each, of which one must have signed every policy. Default: policies need no signature.
	PolicyKeys string
	// Compile makes the process that compiles policies, see wasm.Compiler. Default: this process does.
	Compile func(ctx context.Context, cache string) *exec.Cmd

	// DecisionLogDir is where placement is recorded, see decision.Config. Default: decisions in DataDir.
	DecisionLogDir string
	// DecisionLogMiB is how much of it is kept. Default 256; negative: nothing is recorded.
	DecisionLogMiB int64

	// SecretsDir is where files with secrets of clusters lie. Default: secrets in DataDir.
	SecretsDir string

	Local     LocalConfig
	Simulated SimulatedConfig
	// MesosAgents is how many agents an emulated Mesos cluster beside them has, whose tasks are processes of this machine; 0: there is none.
	MesosAgents int
	// KubeNodes is how many nodes an emulated Kubernetes cluster has, likewise. kubectl finds what it needs to reach it in kubeconfig in DataDir.
	KubeNodes int

	Version, Commit string
	Log             *slog.Logger
	// Emulated is called with the address of the emulated Kubernetes cluster's API server, and a kubeconfig for kubectl, before Started.
	Emulated func(url, kubeconfig string)
	// Started is called with the address once the server takes calls.
	Started func(address string)
}

// LocalConfig is a cluster of virtual hosts that run real processes on this machine.
type LocalConfig struct {
	// Hosts is how many; 0: no local cluster.
	Hosts int
	// CPUMilli and MemoryMiB are one host's. Default: the machine's, divided.
	CPUMilli, MemoryMiB int64
	// Ports are divided among the hosts. Default: local.DefaultPorts.
	Ports driver.PortRange
}

// SimulatedConfig is a cluster of hosts that only pretend.
type SimulatedConfig struct {
	// Hosts is how many generated ones; 0: none.
	Hosts int
	// Inventory is a CSV file of hosts instead, see simulated.ReadInventory.
	Inventory string
	// Duration is how long a run lasts whose job does not say. Default: until it is killed.
	Duration time.Duration
	// LaunchLatency is the time from a launch to RUNNING. Default: 0.
	LaunchLatency time.Duration
	Seed          uint64
}

func (c Config) withDefaults() Config {
	if c.Listen == "" {
		c.Listen = DefaultAddress
	}
	if c.TokenFile == "" {
		c.TokenFile = filepath.Join(c.DataDir, "token")
	}
	if c.Cell == "" {
		c.Cell = "default"
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	c.withDecisionLog()
	if c.SecretsDir == "" {
		c.SecretsDir = filepath.Join(c.DataDir, "secrets")
	}
	if c.Local.Hosts > 0 && c.Local.CPUMilli == 0 {
		c.Local.CPUMilli = int64(runtime.NumCPU()) * 1000 / int64(c.Local.Hosts)
	}
	return c
}

// Validate reports the first setting that cannot work.
func (c Config) Validate() error {
	switch {
	case c.DataDir == "":
		return errors.New("a data directory is required: give --data-dir")
	case c.Local.Hosts < 0 || c.Local.Hosts > local.MaxHosts:
		return fmt.Errorf("%d local hosts are out of range: use 0 to %d", c.Local.Hosts, local.MaxHosts)
	case c.Simulated.Hosts > 0 && c.Simulated.Inventory != "":
		return errors.New("simulated hosts are generated or read from an inventory, not both: drop one of the flags")
	case c.MesosAgents < 0 || c.MesosAgents > maxMesosAgents:
		return fmt.Errorf("%d agents of an emulated Mesos cluster are out of range: use 0 to %d", c.MesosAgents, maxMesosAgents)
	case c.KubeNodes < 0 || c.KubeNodes > maxKubeNodes:
		return fmt.Errorf("%d nodes of an emulated Kubernetes cluster are out of range: use 0 to %d", c.KubeNodes, maxKubeNodes)
	case c.DiskReserve < 0:
		return fmt.Errorf("a disk reserve of %d MiB is negative", c.DiskReserve)
	}
	return c.cell().WithDefaults().Validate()
}

// check finds what would fail only once the store is open and a new epoch has begun: the files that the settings name, too.
func (c *Config) check() ([]members.Member, error) {
	front := c.api().WithDefaults()
	if err := front.Check(); err != nil {
		return nil, err
	}
	if c.Local.Hosts > 0 {
		if _, err := c.localDriver(); err != nil {
			return nil, err
		}
	}
	return c.flagged()
}

// judge makes what judges jobs by rules. Bundles of the directory that cannot be used are a mistake at the start.
func (c *Config) judge(trace *telemetry.Trace) (*rego.Judge, error) {
	config := rego.Config{Log: c.Log.With(telemetry.KeyComponent, "admission"), Trace: trace}
	if c.AdmissionKeys != "" {
		keys, err := rego.ReadKeys(os.DirFS(c.AdmissionKeys))
		if err != nil {
			return nil, fmt.Errorf("read the keys for admission rules in %s: %w", c.AdmissionKeys, err)
		}
		config.Keys = keys
	}
	if c.AdmissionDir != "" {
		config.Directory, config.DirectoryName = os.DirFS(c.AdmissionDir), c.AdmissionDir
	}
	return rego.New(config)
}

func (c *Config) api() api.Config {
	return api.Config{
		Address: c.Listen, TLSCert: c.TLSCert, TLSKey: c.TLSKey, TokenFile: c.TokenFile, Cell: c.Cell, Roles: c.roles(),
		Build:  api.Build{Version: c.Version, Commit: c.Commit},
		Limits: gate.Limits{Calls: c.MaxCalls, Streams: c.MaxStreams}, MaxConnections: c.MaxConnections,
	}
}

func (c Config) cell() scheduler.Config {
	return scheduler.Config{Cell: c.Cell, JobRetention: c.JobRetention}
}
