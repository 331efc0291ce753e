package server

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/paceline-sched/paceline/cmd/paceline/internal/members"
	"github.com/paceline-sched/paceline/core/cluster"
	"github.com/paceline-sched/paceline/core/driver"
	"github.com/paceline-sched/paceline/core/execution"
	"github.com/paceline-sched/paceline/core/shard"
	"github.com/paceline-sched/paceline/core/telemetry"
	"github.com/paceline-sched/paceline/hostmanagers/local"
	"github.com/paceline-sched/paceline/hostmanagers/simulated"

	shardruntime "github.com/paceline-sched/paceline/hostmanagers/shard"
)

// serve runs one shard until its driver or ctx ends.
func (h *host) serve(ctx context.Context, s members.Shard) error {
	placers := h.policies.Source(string(s.ID))
	defer placers.Close()
	recorded, closeRecord := h.record(string(s.ID), placers)
	defer closeRecord()
	r, err := shardruntime.New(shardruntime.Config{
		Machine: shard.Config{ID: s.ID, Cluster: s.Cluster, Placers: recorded}, Driver: s.Driver, Core: h.cell, Parts: s.Parts,
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

// prepare says how to connect to a cluster that was added. It reads the files that the settings name, and speaks to nobody.
func (c *Config) prepare(s *cluster.Spec, id *members.Identity) (func() (driver.Driver, error), error) {
	switch {
	case s.Mesos != nil:
		return c.prepareMesos(s, id)
	case s.Kubernetes != nil:
		return c.prepareKubernetes(s, id)
	}
	return nil, fmt.Errorf("cluster %s is of a kind that this server cannot connect to", s.Name)
}

// flagged are the clusters that flags name.
func (c *Config) flagged() ([]members.Member, error) {
	var list []members.Member
	if c.Local.Hosts > 0 {
		list = append(list, members.Member{Name: "local", Kind: cluster.KindLocal, Connect: c.localDriver})
	}
	if !c.simulates() {
		return list, nil
	}
	hosts, err := c.simulatedHosts()
	if err != nil {
		return nil, err
	}
	parts := (len(hosts) + shard.MaxRows - 1) / shard.MaxRows
	if parts > cluster.MaxShards {
		return nil, fmt.Errorf("%d simulated hosts are more than %d", len(hosts), cluster.MaxShards*shard.MaxRows)
	}
	world, err := simulated.New(simulated.Config{
		Hosts: hosts, Features: execution.Features(), Seed: c.Simulated.Seed, DefaultDuration: c.Simulated.Duration, LaunchLatency: c.Simulated.LaunchLatency,
	})
	if err != nil {
		return nil, err
	}
	return append(list, members.Member{
		Name: "simulated", Kind: cluster.KindSimulated, Shards: parts, Connect: func() (driver.Driver, error) { return world.Driver(), nil },
	}), nil
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
