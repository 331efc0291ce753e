package kubeemu

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/paceline-sched/paceline/hostmanagers/kubernetes/emulator/cluster"
)

// Embedded is an emulated cluster inside another program.
type Embedded struct {
	Nodes       int    // named node-1 and so on
	CPU, Memory string // of each, as quantities of Kubernetes
	Root        string // directory of what containers write; what runs there from before is ended
	Kubeconfig  string // file to write for kubectl; it is there while the cluster is
}

// Embed serves an emulated cluster on a free port of this machine until stop is called, which ends its containers. Pods that ask for the default
// scheduler are bound by one.
func Embed(ctx context.Context, k Embedded) (url string, stop func() error, err error) {
	f := &flags{
		listen: "127.0.0.1:0", nodes: k.Nodes, cpu: k.CPU, memory: k.Memory, scheduler: true, kubeconfig: k.Kubeconfig, root: k.Root, lasting: -1,
		nodeGone: cluster.DefaultNodeGone,
	}
	r, err := f.start(ctx)
	if err != nil {
		return "", nil, fmt.Errorf("emulate a Kubernetes cluster: %w", err)
	}
	return r.url, func() error {
		err := os.Remove(k.Kubeconfig)
		if errors.Is(err, os.ErrNotExist) { // somebody was faster
			err = nil
		}
		return errors.Join(r.stop(), err)
	}, nil
}
