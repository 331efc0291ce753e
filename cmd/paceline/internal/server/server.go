// Package server puts a cell together in one process: store, engine, shards with their drivers, and the API.
//
// It owns the order in which these start and stop, and what happens when one of them fails: a cell whose store fails stops the
// process, a shard whose cluster cannot be reached is tried again. It decides nothing else. Run owns every goroutine and returns
// when all are gone.
package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/paceline-sched/paceline/core/api"
	"github.com/paceline-sched/paceline/core/driver"
	"github.com/paceline-sched/paceline/core/engine"
	"github.com/paceline-sched/paceline/core/execution"
	"github.com/paceline-sched/paceline/core/shard"
	"github.com/paceline-sched/paceline/core/store"
	"github.com/paceline-sched/paceline/core/store/badgerstore"
	"github.com/paceline-sched/paceline/core/telemetry"
	"github.com/paceline-sched/paceline/hostmanagers/local"
	"github.com/paceline-sched/paceline/hostmanagers/simulated"
	"github.com/paceline-sched/paceline/policies/decision"
	"github.com/paceline-sched/paceline/policies/registry"
	"github.com/paceline-sched/paceline/policies/rego"

	shardruntime "github.com/paceline-sched/paceline/hostmanagers/shard"
)

const (
	// The delays between attempts to start a cluster's driver.
	firstRetry, lastRetry = time.Second, time.Minute
	// A store that another process has open is tried so often, and so far apart.
	lockTries, lockPause = 10, 50 * time.Millisecond
)

// Run serves until ctx ends (nil) or the cell cannot go on.
func Run(ctx context.Context, config Config) (err error) {
	if err := config.Validate(); err != nil {
		return &MistakeError{err}
	}
	config = config.withDefaults()
	keys, err := store.NewKeyspace(config.Cell)
	if err != nil {
		return &MistakeError{err}
	}
	members, err := config.check()
	if err != nil {
		return &MistakeError{err}
	}
	metrics := telemetry.NewMetrics(config.Version)
	judge, err := config.judge(metrics.Trace())
	if err != nil {
		return &MistakeError{err}
	}
	keysOfPolicies, err := config.policyKeys()
	if err != nil {
		return &MistakeError{err}
	}
	if err := os.MkdirAll(config.DataDir, 0o700); err != nil {
		return fmt.Errorf("make the data directory: %w", err)
	}
	db, err := config.openStore(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	decisions, err := config.decisionLog(metrics.Trace())
	if err != nil {
		return err
	}
	cell, err := engine.Open(ctx, engine.Config{
		Cell: config.cell(), Store: db, Keys: keys, Trace: metrics.Trace(), Log: config.Log.With(telemetry.KeyComponent, "engine"),
	})
	if err != nil {
		return err
	}
	policies := config.registry(cell, keysOfPolicies, metrics.Trace())
	defer policies.Close()
	front, err := config.front(cell, judge, policies, metrics)
	if err != nil {
		return err
	}
	front.decisions = decisions
	return config.serve(ctx, cell, members, front)
}

// openStore opens the store. A server that was killed in the very moment in which it started a process leaves its locks to the child
// until that has become another program; so a lock in the way is waited for, briefly.
func (c *Config) openStore(ctx context.Context) (*badgerstore.Store, error) {
	for try := 1; ; try++ {
		db, err := badgerstore.Open(ctx, badgerstore.Config{
			Dir: filepath.Join(c.DataDir, "store"), Cell: c.Cell, Reserve: uint64(c.DiskReserve) << 20,
			Logger: c.Log.With(telemetry.KeyComponent, "store"),
		})
		if !errors.Is(err, store.ErrLocked) || try == lockTries {
			return db, err
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(lockPause):
		}
	}
}

// door is where calls come in.
type door struct {
	server    *api.Server
	listener  net.Listener
	judge     *rego.Judge
	policies  *registry.Registry
	decisions *decision.Log // nil: none
}

// front opens the door before anything runs behind it, so that a taken port is found out at once.
func (c *Config) front(cell *engine.Engine, judge *rego.Judge, policies *registry.Registry, metrics *telemetry.Metrics) (*door, error) {
	front, err := api.NewServer(c.api(), api.Parts{
		Engine: cell, Judge: judge, Policies: policies, Metrics: metrics, Trace: metrics.Trace(), Log: c.Log.With(telemetry.KeyComponent, "api"),
	})
	if err != nil {
		return nil, err
	}
	listener, err := front.Listen()
	if err != nil {
		return nil, err
	}
	return &door{server: front, listener: listener, judge: judge, policies: policies}, nil
}

func (c *Config) roles() []string {
	roles := []string{"api", "core"}
	if c.Local.Hosts > 0 {
		roles = append(roles, "local")
	}
	if c.simulates() {
		roles = append(roles, "simulated")
	}
	return roles
}

func (c *Config) simulates() bool { return c.Simulated.Hosts > 0 || c.Simulated.Inventory != "" }

// serve runs the parts. The door closes first, so that nobody is answered half; then the engine, whose last commits release their
// effects; then the shards.
func (c *Config) serve(ctx context.Context, cell *engine.Engine, members []member, door *door) error {
	engineCtx, stopEngine := context.WithCancel(context.WithoutCancel(ctx))
	shardCtx, stopShards := context.WithCancel(context.WithoutCancel(ctx))
	frontCtx, stopFront := context.WithCancel(ctx)
	defer stopFront()
	var engineDone, shardsDone sync.WaitGroup
	var engineErr error
	engineDone.Go(func() {
		engineErr = cell.Run(engineCtx)
		stopFront()
	})
	shardsDone.Go(func() { door.judge.Run(shardCtx) })
	letGo := askPolicies(cell, door.policies)
	frontErr := door.policies.Open(frontCtx) // before anything is placed
	if frontErr == nil {
		shardsDone.Go(func() { door.policies.Run(shardCtx) })
		h := &host{cell: cell, policies: door.policies, decisions: door.decisions, log: c.Log}
		for _, m := range members {
			shardsDone.Go(func() { m.run(shardCtx, h) })
		}
		if c.Started != nil {
			c.Started(door.listener.Addr().String())
		}
		frontErr = door.server.Serve(frontCtx, door.listener)
	} else if frontErr = errors.Join(frontErr, door.listener.Close()); frontCtx.Err() != nil { // told to stop, or the engine tells why
		frontErr = nil
	}
	stopEngine()
	engineDone.Wait()
	letGo()
	stopShards()
	shardsDone.Wait()
	return errors.Join(engineErr, frontErr)
}

// member is one shard of a cluster, with its own connection.
type member struct {
	cluster string
	shard   int
	driver  func() (driver.Driver, error)
}

func (c *Config) members() ([]member, error) {
	var list []member
	if c.Local.Hosts > 0 {
		list = append(list, member{cluster: "local", driver: c.localDriver})
	}
	if !c.simulates() {
		return list, nil
	}
	hosts, err := c.simulatedHosts()
	if err != nil {
		return nil, err
	}
	for n := 0; len(hosts) > 0; n++ { // a shard owns so many hosts at most
		some := hosts[:min(len(hosts), shard.MaxRows)]
		hosts = hosts[len(some):]
		world, err := simulated.New(simulated.Config{
			Hosts: some, Features: execution.Features(), Seed: c.Simulated.Seed + uint64(n), DefaultDuration: c.Simulated.Duration, LaunchLatency: c.Simulated.LaunchLatency,
		})
		if err != nil {
			return nil, err
		}
		list = append(list, member{cluster: "simulated", shard: n, driver: func() (driver.Driver, error) { return world.Driver(), nil }})
	}
	return list, nil
}

func (c *Config) localDriver() (driver.Driver, error) {
	config := local.Config{
		Root: filepath.Join(c.DataDir, "local"), Hosts: c.Local.Hosts, HostsPerRack: 2, Capacity: map[string]int64{"cpu_milli": c.Local.CPUMilli},
		Ports: c.Local.Ports, Logger: c.Log.With(telemetry.KeyComponent, "local"),
	}
	if c.Local.MemoryMiB > 0 {
		config.Capacity["memory_mib"] = c.Local.MemoryMiB
	}
	return local.New(config)
}

func (c *Config) simulatedHosts() ([]driver.Host, error) {
	if c.Simulated.Inventory == "" {
		return simulated.Generate(simulated.Fleet{Hosts: c.Simulated.Hosts, Seed: c.Simulated.Seed})
	}
	file, err := os.Open(c.Simulated.Inventory)
	if err != nil {
		return nil, fmt.Errorf("read the inventory of simulated hosts: %w", err)
	}
	defer file.Close() //nolint:errcheck // it is only read
	hosts, err := simulated.ReadInventory(file, simulated.DefaultScale)
	if err != nil {
		return nil, fmt.Errorf("read the inventory of simulated hosts, %s: %w", c.Simulated.Inventory, err)
	}
	return hosts, nil
}

// run keeps a shard at work on the cluster until ctx ends; a driver that cannot start is tried again.
func (m *member) run(ctx context.Context, h *host) {
	delay := firstRetry
	for {
		began := time.Now()
		err := m.once(ctx, h)
		if ctx.Err() != nil {
			return
		}
		if time.Since(began) > lastRetry {
			delay = firstRetry
		}
		h.log.Error("shard stopped; it is started again", telemetry.KeyCluster, m.cluster, telemetry.KeyError, err, telemetry.KeyDuration, delay)
		select {
		case <-ctx.Done():
			return
		case <-time.After(delay):
		}
		delay = min(2*delay, lastRetry)
	}
}

func (m *member) once(ctx context.Context, h *host) error {
	d, err := m.driver()
	if err != nil {
		return err
	}
	id := fmt.Sprintf("%s/%d", m.cluster, m.shard)
	placers := h.policies.Source(id)
	defer placers.Close()
	recorded, closeRecord := h.record(id, placers)
	defer closeRecord()
	r, err := shardruntime.New(shardruntime.Config{
		Machine: shard.Config{ID: shard.ID(id), Cluster: m.cluster, Placers: recorded}, Driver: d, Core: h.cell,
		Log: h.log.With(telemetry.KeyComponent, "shard"),
	})
	if err != nil {
		return err
	}
	if err := h.cell.Attach(ctx, r); err != nil {
		return err
	}
	return r.Run(ctx)
}

// Restore fills an empty data directory from a backup.
func Restore(ctx context.Context, dataDir, cell, backup string) error {
	file, err := os.Open(backup)
	if err != nil {
		return fmt.Errorf("read the backup: %w", err)
	}
	defer file.Close() //nolint:errcheck // it is only read
	if cell == "" {
		cell = "default"
	}
	return badgerstore.Restore(ctx, badgerstore.Config{Dir: filepath.Join(dataDir, "store"), Cell: cell}, file)
}
