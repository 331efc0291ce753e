package server

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sync"

	"github.com/paceline-sched/paceline/cmd/paceline/internal/members"
	"github.com/paceline-sched/paceline/cmd/paceline/internal/mesosemu"
	"github.com/paceline-sched/paceline/core/cluster"
	"github.com/paceline-sched/paceline/core/driver"
	"github.com/paceline-sched/paceline/core/telemetry"
	"github.com/paceline-sched/paceline/hostmanagers/mesos"
)

func (c *Config) prepareMesos(s *cluster.Spec, id *members.Identity) (func() (driver.Driver, error), error) {
	config, err := c.mesosConfig(s.Mesos)
	if err != nil {
		return nil, err
	}
	config.Identity = id
	config.Logger = c.Log.With(telemetry.KeyComponent, "mesos", telemetry.KeyCluster, s.Name)
	if _, err := mesos.New(config); err != nil { // it starts nothing
		return nil, err
	}
	return func() (driver.Driver, error) { return mesos.New(config) }, nil
}

func (c *Config) mesosConfig(m *cluster.Mesos) (mesos.Config, error) {
	config := mesos.Config{
		Masters: m.Masters, FrameworkName: m.Framework, Roles: m.Roles, User: m.User, FailoverTimeout: m.Failover, Principal: m.Principal,
	}
	if m.Principal != "" {
		config.Secret = func() (string, error) { return c.readSecret(m.Secret) }
		if _, err := config.Secret(); err != nil {
			return config, err
		}
	}
	if m.CAFile != "" {
		raw, err := os.ReadFile(m.CAFile)
		if err != nil {
			return config, wrongFile("mesos.ca_file", err)
		}
		pool := x509.NewCertPool()
		if !pool.AppendCertsFromPEM(raw) {
			return config, wrongFile("mesos.ca_file", fmt.Errorf("%s holds no certificate in PEM form", m.CAFile))
		}
		config.TLS = &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
	}
	return config, nil
}

// maxMesosAgents bounds the agents of an emulated cluster: their tasks are processes of this machine.
const maxMesosAgents = 1000

// agentMemoryMiB is what each of them offers.
const agentMemoryMiB = 4096

// passing is an identity that ends with the process, as the emulated master that gave it does.
type passing struct {
	mu sync.Mutex
	id string
}

func (p *passing) Load() (string, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.id, nil
}

func (p *passing) Save(id string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.id = id
	return nil
}

// emulateMesos serves an emulated Mesos cluster, if there is to be one, until stop is called.
func (c *Config) emulateMesos(ctx context.Context) (list []members.Member, stop func() error, err error) {
	if c.MesosAgents == 0 {
		return nil, func() error { return nil }, nil
	}
	url, stop, err := mesosemu.Embed(ctx, mesosemu.Embedded{
		Agents: c.MesosAgents, CPUs: max(float64(runtime.NumCPU())/float64(c.MesosAgents), 0.5), MemoryMiB: agentMemoryMiB, Root: filepath.Join(c.DataDir, "mesos"),
	})
	if err != nil {
		return nil, nil, err
	}
	config, err := c.mesosConfig(&cluster.Mesos{Masters: []string{url}})
	if err != nil {
		return nil, nil, errors.Join(err, stop())
	}
	config.Identity, config.Logger = &passing{}, c.Log.With(telemetry.KeyComponent, "mesos", telemetry.KeyCluster, "mesos")
	return []members.Member{{
		Name: "mesos", Kind: cluster.KindMesos, Connect: func() (driver.Driver, error) { return mesos.New(config) },
	}}, stop, nil
}
