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
	"strings"
	"sync"

	"github.com/paceline-sched/paceline/cmd/paceline/internal/members"
	"github.com/paceline-sched/paceline/cmd/paceline/internal/mesosemu"
	"github.com/paceline-sched/paceline/core/cluster"
	"github.com/paceline-sched/paceline/core/driver"
	"github.com/paceline-sched/paceline/core/telemetry"
	"github.com/paceline-sched/paceline/hostmanagers/mesos"
)

// prepare says how to connect to a cluster that was added. It reads the files that the settings name, and speaks to nobody.
func (c *Config) prepare(s *cluster.Spec, id *members.Identity) (func() (driver.Driver, error), error) {
	if s.Mesos == nil {
		return nil, fmt.Errorf("cluster %s is of a kind that this server cannot connect to", s.Name)
	}
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

func wrongFile(field string, err error) error {
	return &cluster.FieldError{Field: field, Message: err.Error(), Hint: "the path is one of the server's machine, and the server must be able to read the file"}
}

// maxSecretBytes bounds a secret.
const maxSecretBytes = 4096

// readSecret reads a secret where its reference says it is. Files count below the directory of secrets alone, so that who may add clusters cannot have the
// server send any of its machine's files to whom he likes.
func (c *Config) readSecret(ref cluster.Secret) (string, error) {
	if ref.Env != "" {
		secret, ok := os.LookupEnv(ref.Env)
		if !ok || secret == "" {
			return "", &cluster.FieldError{Field: "mesos.secret_env", Message: "the server's environment has no variable " + ref.Env, Hint: "start the server with it"}
		}
		return secret, nil
	}
	name, err := below(c.SecretsDir, ref.File)
	if err != nil {
		return "", wrongSecret(err)
	}
	root, err := os.OpenRoot(c.SecretsDir)
	if err != nil {
		return "", wrongSecret(err)
	}
	defer root.Close() //nolint:errcheck // it is only read
	raw, err := root.ReadFile(name)
	if err != nil {
		return "", wrongSecret(fmt.Errorf("below the server's directory of secrets, %s: %w", c.SecretsDir, err))
	}
	secret := strings.TrimRight(string(raw), "\r\n")
	if secret == "" || len(secret) > maxSecretBytes || strings.ContainsAny(secret, "\r\n\x00") {
		return "", wrongSecret(fmt.Errorf("%s holds no secret: it is one line of up to %d bytes", ref.File, maxSecretBytes))
	}
	return secret, nil
}

func wrongSecret(err error) error {
	return &cluster.FieldError{
		Field: "mesos.secret_file", Message: err.Error(),
		Hint: "put the file below the directory that the server's --secrets-dir names, by default secrets in its data directory, where the server may read it",
	}
}

// below returns a path as it is below a directory.
func below(dir, path string) (string, error) {
	if !filepath.IsAbs(path) {
		return path, nil
	}
	absolute, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	rest, ok := strings.CutPrefix(filepath.Clean(path), absolute+string(filepath.Separator))
	if !ok {
		return "", errors.New("the file " + path + " is not below " + absolute)
	}
	return rest, nil
}
