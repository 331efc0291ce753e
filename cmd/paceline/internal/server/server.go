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

	"github.com/paceline-sched/paceline/cmd/paceline/internal/members"
	"github.com/paceline-sched/paceline/core/api"
	"github.com/paceline-sched/paceline/core/engine"
	"github.com/paceline-sched/paceline/core/store"
	"github.com/paceline-sched/paceline/core/store/badgerstore"
	"github.com/paceline-sched/paceline/core/telemetry"
	"github.com/paceline-sched/paceline/policies/decision"
	"github.com/paceline-sched/paceline/policies/registry"
	"github.com/paceline-sched/paceline/policies/rego"
)

// A store that another process has open is tried so often, and so far apart.
const lockTries, lockPause = 10, 50 * time.Millisecond

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
	flagged, err := config.check()
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
	emulated, stopEmulators, err := config.emulate(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stopEmulators()) }()
	flagged = append(flagged, emulated...)
	h := &host{cell: cell, policies: policies, decisions: decisions, log: config.Log}
	clusters := members.New(members.Config{Cell: cell, Flags: flagged, Prepare: config.prepare, Serve: h.serve, Log: config.Log.With(telemetry.KeyComponent, "clusters")})
	front, err := config.front(api.Parts{Engine: cell, Judge: judge, Policies: policies, Clusters: clusters, Metrics: metrics})
	if err != nil {
		return err
	}
	front.judge, front.policies, front.clusters, front.asked = judge, policies, clusters, h.asked()
	return config.serve(ctx, cell, front)
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

// door is where calls come in, with what runs behind it.
type door struct {
	server   *api.Server
	listener net.Listener
	judge    *rego.Judge
	policies *registry.Registry
	clusters *members.Manager
	asked    *decision.Asked // nil: not recorded
}

// front opens the door before anything runs behind it, so that a taken port is found out at once.
func (c *Config) front(parts api.Parts) (*door, error) {
	parts.Trace, parts.Log = parts.Metrics.Trace(), c.Log.With(telemetry.KeyComponent, "api")
	front, err := api.NewServer(c.api(), parts)
	if err != nil {
		return nil, err
	}
	listener, err := front.Listen()
	if err != nil {
		return nil, err
	}
	return &door{server: front, listener: listener}, nil
}

func (c *Config) roles() []string {
	roles := []string{"api", "core"}
	if c.Local.Hosts > 0 {
		roles = append(roles, "local")
	}
	if c.simulates() {
		roles = append(roles, "simulated")
	}
	if c.MesosAgents > 0 {
		roles = append(roles, "mesos")
	}
	if c.KubeNodes > 0 {
		roles = append(roles, "kubernetes")
	}
	return roles
}

func (c *Config) simulates() bool { return c.Simulated.Hosts > 0 || c.Simulated.Inventory != "" }

// serve runs the parts. The door closes first, so that nobody is answered half; then the engine, whose last commits release their
// effects; then the shards.
func (c *Config) serve(ctx context.Context, cell *engine.Engine, door *door) error {
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
	letGo := askPolicies(cell, door.policies, door.asked)
	frontErr := door.policies.Open(frontCtx) // before anything is placed
	if frontErr == nil {
		shardsDone.Go(func() { door.policies.Run(shardCtx) })
		if door.asked != nil {
			shardsDone.Go(func() { newSampler(cell, door.policies, door.asked).run(shardCtx) })
		}
		frontErr = door.clusters.Open(frontCtx)
	}
	if frontErr == nil {
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
	door.clusters.Close()
	stopShards()
	shardsDone.Wait()
	if door.asked != nil {
		door.asked.Close()
	}
	return errors.Join(engineErr, frontErr)
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
