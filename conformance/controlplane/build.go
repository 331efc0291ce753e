package controlplane

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
)

// Version is the version of Kubernetes that is built.
const Version = "v1.36.3"

// The programs that can be built.
const (
	Etcd          = "etcd"
	APIServer     = "kube-apiserver"
	Kwok          = "kwok"
	KubeScheduler = "kube-scheduler"
	Controllers   = "kube-controller-manager"
	Kubelet       = "kubelet"
	Kubectl       = "kubectl"
)

// packages are where the programs' sources stand, in the nested module.
var packages = map[string]string{
	Etcd:          "go.etcd.io/etcd/server/v3",
	APIServer:     "k8s.io/kubernetes/cmd/kube-apiserver",
	Kwok:          "sigs.k8s.io/kwok/cmd/kwok",
	KubeScheduler: "k8s.io/kubernetes/cmd/kube-scheduler",
	Controllers:   "k8s.io/kubernetes/cmd/kube-controller-manager",
	Kubelet:       "k8s.io/kubernetes/cmd/kubelet",
	Kubectl:       "k8s.io/kubernetes/cmd/kubectl",
}

// linkFlags stamp the version as a release has it.
const linkFlags = "-s -w -X k8s.io/component-base/version.gitVersion=" + Version +
	" -X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=36 -X k8s.io/component-base/version.gitTreeState=clean"

// root finds the repository from the working directory upwards.
func root() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("find the repository: %w", err)
	}
	for ; ; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, module, "go.mod")); err == nil {
			return dir, nil
		}
		if dir == filepath.Dir(dir) {
			return "", errors.New("find the repository: start inside it")
		}
	}
}

// module is the nested module, below the root.
const module = "conformance/kubernetes"

// Cache is the folder of the programs of this version of the nested module.
func Cache() (string, error) {
	top, err := root()
	if err != nil {
		return "", err
	}
	sum := sha256.New()
	for _, name := range []string{"go.mod", "go.sum"} {
		raw, err := os.ReadFile(filepath.Join(top, module, name))
		if err != nil {
			return "", fmt.Errorf("identify the programs: %w", err)
		}
		_, _ = sum.Write(raw) // a hash takes everything
	}
	return filepath.Join(top, ".tools", "kubernetes", fmt.Sprintf("%x", sum.Sum(nil)[:6])), nil
}

// Cached says whether all those programs have been built.
func Cached(names ...string) bool {
	cache, err := Cache()
	if err != nil {
		return false
	}
	for _, name := range names {
		if _, err := os.Stat(filepath.Join(cache, file(name))); err != nil {
			return false
		}
	}
	return true
}

// Build makes sure that programs are in the cache and returns its folder. Builds run one at a time, also of several processes. What is done
// is told to log.
func Build(ctx context.Context, log io.Writer, names ...string) (string, error) {
	cache, err := Cache()
	if err != nil {
		return "", err
	}
	if Cached(names...) {
		return cache, nil
	}
	top, err := root()
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(cache, 0o755); err != nil { //nolint:gosec // programs are for everybody
		return "", fmt.Errorf("make the folder of programs: %w", err)
	}
	lock, err := os.OpenFile(filepath.Join(cache, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return "", fmt.Errorf("lock the folder of programs: %w", err)
	}
	defer func() { _ = lock.Close() }() // gives the lock back
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return "", fmt.Errorf("lock the folder of programs: %w", err)
	}
	for _, name := range names {
		if Cached(name) {
			continue
		}
		source, ok := packages[name]
		if !ok {
			return "", fmt.Errorf("there is no program %q to build", name)
		}
		fmt.Fprintf(log, "building %s %s; the first time takes minutes\n", name, Version)
		half := filepath.Join(cache, "."+name+".half")
		args := []string{"build", "-trimpath", "-ldflags", linkFlags, "-o", half}
		if name == Kwok {
			mended, err := mendKwok(ctx, filepath.Join(top, module), cache)
			if err != nil {
				return "", fmt.Errorf("mend %s: %w", name, err)
			}
			args = append(args, "-modfile", mended)
		}
		build := exec.CommandContext(ctx, "go", append(args, source)...)
		build.Dir = filepath.Join(top, module)
		build.Stdout, build.Stderr = log, log
		if err := build.Run(); err != nil {
			return "", fmt.Errorf("build %s: %w", source, err)
		}
		if err := os.Rename(half, filepath.Join(cache, file(name))); err != nil {
			return "", fmt.Errorf("keep %s: %w", name, err)
		}
	}
	return cache, nil
}
