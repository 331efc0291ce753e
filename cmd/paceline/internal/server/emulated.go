package server

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"runtime"

	"github.com/paceline-sched/paceline/cmd/paceline/internal/kubeemu"
	"github.com/paceline-sched/paceline/cmd/paceline/internal/members"
	"github.com/paceline-sched/paceline/core/cluster"
	"github.com/paceline-sched/paceline/core/driver"
	"github.com/paceline-sched/paceline/hostmanagers/kubernetes"
)

// emulate serves the clusters that are to be emulated in this process until stop is called.
func (c *Config) emulate(ctx context.Context) (list []members.Member, stop func() error, err error) {
	list, stopMesos, err := c.emulateMesos(ctx)
	if err != nil {
		return nil, nil, err
	}
	more, stopKubernetes, err := c.emulateKubernetes(ctx)
	if err != nil {
		return nil, nil, errors.Join(err, stopMesos())
	}
	return append(list, more...), func() error { return errors.Join(stopKubernetes(), stopMesos()) }, nil
}

const (
	// maxKubeNodes bounds the nodes of an emulated cluster: their pods are processes of this machine.
	maxKubeNodes = 1000
	// nodeMemory is what each of them offers.
	nodeMemory = "4Gi"
	// noImage is said to be the image of tasks that name none: an emulated kubelet needs none.
	noImage = "none"
)

// emulateKubernetes serves an emulated Kubernetes cluster, if there is to be one, until stop is called. Its pods end with it, so that its owner
// and its epoch tell nothing apart.
func (c *Config) emulateKubernetes(ctx context.Context) (list []members.Member, stop func() error, err error) {
	if c.KubeNodes == 0 {
		return nil, func() error { return nil }, nil
	}
	kubeconfig, err := filepath.Abs(filepath.Join(c.DataDir, "kubeconfig"))
	if err != nil {
		return nil, nil, fmt.Errorf("find the data directory: %w", err)
	}
	url, stop, err := kubeemu.Embed(ctx, kubeemu.Embedded{
		Nodes: c.KubeNodes, CPU: fmt.Sprintf("%dm", max(1000*runtime.NumCPU()/c.KubeNodes, 500)), Memory: nodeMemory,
		Root: filepath.Join(c.DataDir, "kubernetes"), Kubeconfig: kubeconfig,
	})
	if err != nil {
		return nil, nil, err
	}
	connect := func() (driver.Driver, error) {
		api, err := kubernetes.Connect(kubeconfig, "")
		if err != nil {
			return nil, err
		}
		config := c.kubernetesSettings("kubernetes", &cluster.Kubernetes{DefaultImage: noImage, FirstPort: firstKubePort, LastPort: lastKubePort})
		config.API, config.Pods.Owner, config.Pods.Epoch = api, "dev", 1
		return kubernetes.New(config)
	}
	if c.Emulated != nil {
		c.Emulated(url, kubeconfig)
	}
	return []members.Member{{Name: "kubernetes", Kind: cluster.KindKubernetes, Connect: connect}}, stop, nil
}

// Emulated nodes share this machine's ports with the local hosts and the emulated agents, so they have some of their own.
const firstKubePort, lastKubePort = 12_000, 19_999
