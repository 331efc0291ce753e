package server

import (
	"crypto/rand"
	"errors"
	"path/filepath"
	"strings"

	"github.com/paceline-sched/paceline/cmd/paceline/internal/members"
	"github.com/paceline-sched/paceline/core/cluster"
	"github.com/paceline-sched/paceline/core/driver"
	"github.com/paceline-sched/paceline/core/telemetry"
	"github.com/paceline-sched/paceline/hostmanagers/kubernetes"
	"github.com/paceline-sched/paceline/hostmanagers/kubernetes/manifest"
	"github.com/paceline-sched/paceline/hostmanagers/kubernetes/mirror"
)

const (
	// maxKubeconfigBytes bounds a kubeconfig, and each file that it names.
	maxKubeconfigBytes = 1 << 20
	// An owner is the cell's name, of which it has the beginning, and something that no other has: a label's value.
	ownerCellBytes, ownerRandomBytes = 48, 12
	// unknownOwner stands for one while settings are only checked.
	unknownOwner = "unknown"
)

func (c *Config) prepareKubernetes(s *cluster.Spec, id *members.Identity) (func() (driver.Driver, error), error) {
	config, err := c.kubernetesConfig(s.Name, s.Kubernetes)
	if err != nil {
		return nil, err
	}
	config.Pods.Owner = unknownOwner
	if _, err := kubernetes.New(config); err != nil { // it starts nothing
		return nil, err
	}
	return func() (driver.Driver, error) {
		owner, err := ownerOfPods(c.Cell, id)
		if err != nil {
			return nil, err
		}
		config.Pods.Owner, config.Pods.Epoch, config.Place = owner, id.Epoch(), id
		return kubernetes.New(config)
	}, nil
}

// kubernetesSettings is what settings come to without a connection, the owner of pods and the epoch.
func (c *Config) kubernetesSettings(name string, k *cluster.Kubernetes) kubernetes.Config {
	config := kubernetes.Config{
		Pods: manifest.Config{
			Namespace: k.Namespace, NamespacePerPool: k.NamespacePerPool, DefaultImage: k.DefaultImage, HostPaths: k.HostPaths, Privileged: k.Privileged, Tolerated: k.Tolerated,
		},
		CreateNamespaces: k.CreateNamespaces,
		Limits:           mirror.Config{GPUs: k.GPUs, PoolLabel: k.PoolLabel, FirstPort: k.FirstPort, LastPort: k.LastPort, StartGrace: k.StartGrace, UnreachableGrace: k.UnreachableGrace},
		Logger:           c.Log.With(telemetry.KeyComponent, "kubernetes", telemetry.KeyCluster, name),
	}
	if t := k.KeepEnded; t != nil {
		config.Limits.KeepEnded = orNone(*t)
	}
	if n := k.KeepEndedPods; n != nil {
		config.Limits.KeepEndedPods = orNone(*n)
	}
	return config
}

// kubernetesConfig lacks the owner of pods and the epoch.
func (c *Config) kubernetesConfig(name string, k *cluster.Kubernetes) (kubernetes.Config, error) {
	config := c.kubernetesSettings(name, k)
	var err error
	if k.InCluster {
		if config.API, err = kubernetes.Connect("", ""); err != nil {
			return config, &cluster.FieldError{
				Field: "kubernetes.in_cluster", Message: err.Error(), Hint: "run the server as a pod with a service account, or name a kubeconfig",
			}
		}
		return config, nil
	}
	raw, err := c.secretFile(k.Kubeconfig, maxKubeconfigBytes)
	if err != nil {
		return config, wrongSecret("kubernetes.kubeconfig", err)
	}
	config.API, err = kubernetes.ReadKubeconfig(raw, k.Context, func(named string) (string, error) { return c.fileOf(k.Kubeconfig, named) })
	if err == nil {
		err = kubernetes.CheckCredentials(config.API)
	}
	switch {
	case errors.Is(err, kubernetes.ErrNoContext):
		return config, &cluster.FieldError{Field: "kubernetes.context", Message: err.Error(), Hint: "name one of these"}
	case err != nil:
		return config, &cluster.FieldError{
			Field: "kubernetes.kubeconfig", Message: "the kubeconfig " + k.Kubeconfig + " cannot be used: " + err.Error(),
			Hint: "mend the file on the server's machine; all that it names has to lie below the server's --secrets-dir, too",
		}
	}
	return config, nil
}

// orNone says 0 in the words of the driver, to which 0 is the default.
func orNone[T ~int | ~int64](n T) T {
	if n == 0 {
		return -1
	}
	return n
}

// fileOf is the path of a file that a kubeconfig names, relative to its own. It lies below the directory of secrets and can be read, or there is an error.
func (c *Config) fileOf(kubeconfig, named string) (string, error) {
	if !filepath.IsAbs(named) {
		named = filepath.Join(filepath.Dir(kubeconfig), named)
	}
	if _, err := c.secretFile(named, maxKubeconfigBytes); err != nil {
		return "", err
	}
	name, err := below(c.SecretsDir, named)
	if err != nil {
		return "", err
	}
	return filepath.Abs(filepath.Join(c.SecretsDir, name))
}

// identity keeps what a cluster knows a cell by.
type identity interface {
	Load() (string, error)
	Save(id string) error
}

// ownerOfPods tells the cell's pods in a cluster from those of all others, cells of the same name included. It is made once and kept before a pod has it.
func ownerOfPods(cell string, id identity) (string, error) {
	owner, err := id.Load()
	if err != nil || owner != "" {
		return owner, err
	}
	owner = cell[:min(len(cell), ownerCellBytes)] + "-" + strings.ToLower(rand.Text()[:ownerRandomBytes])
	if err := id.Save(owner); err != nil {
		return "", err
	}
	return owner, nil
}
