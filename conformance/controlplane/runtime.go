package controlplane

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
)

// containerRuntime is where the programs are that run containers for kubelets.
type containerRuntime struct {
	path    []string // folders of containerd, its shim, its client and runc
	runc    string
	plugins string // the folder of the network's
	library string // a folder of libraries that they need; "": the machine has them
}

// program finds one of the runtime's programs.
func (r *containerRuntime) program(name string) string {
	for _, dir := range r.path {
		if at := filepath.Join(dir, name); executable(at) {
			return at
		}
	}
	return name
}

func executable(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular()
}

// What makes a container runtime. Debian's packages have it all.
var (
	runtimePrograms = []string{"containerd", "containerd-shim-runc-v2", "ctr", "runc"}
	runtimePlugins  = []string{"bridge", "host-local", "loopback"}
	pluginFolders   = []string{"/opt/cni/bin", "/usr/lib/cni", "/usr/libexec/cni"}
	debianPackages  = []string{"containerd", "runc", "containernetworking-plugins", "libseccomp2"}
)

// FetchRuntime makes sure that there is a container runtime for kubelets: the one that is installed, or else Debian's packages, downloaded and
// unpacked into the cache. Nothing is installed.
func FetchRuntime(ctx context.Context, log io.Writer) error {
	_, err := fetchRuntime(ctx, log)
	return err
}

func fetchRuntime(ctx context.Context, log io.Writer) (*containerRuntime, error) {
	if r := installedRuntime(); r != nil {
		return r, nil
	}
	top, err := root()
	if err != nil {
		return nil, err
	}
	cache := filepath.Join(top, ".tools", "containerd")
	if _, err := os.Stat(cache); err != nil {
		if err := unpackRuntime(ctx, log, cache); err != nil {
			return nil, err
		}
	}
	r := &containerRuntime{
		path: []string{filepath.Join(cache, "usr/sbin"), filepath.Join(cache, "usr/bin")}, runc: filepath.Join(cache, "usr/sbin/runc"),
		plugins: filepath.Join(cache, "usr/lib/cni"),
	}
	found, err := filepath.Glob(filepath.Join(cache, "usr/lib/*/libseccomp.so.2"))
	if err == nil && len(found) > 0 {
		r.library = filepath.Dir(found[0])
	}
	return r, nil
}

// installedRuntime is the machine's own. nil: it has none, or not all of it.
func installedRuntime() *containerRuntime {
	r := &containerRuntime{}
	for _, name := range runtimePrograms {
		at, err := exec.LookPath(name)
		if err != nil {
			return nil
		}
		if dir := filepath.Dir(at); !slices.Contains(r.path, dir) {
			r.path = append(r.path, dir)
		}
		r.runc = at // the last is runc
	}
	for _, dir := range pluginFolders {
		if !slices.ContainsFunc(runtimePlugins, func(name string) bool { _, err := os.Stat(filepath.Join(dir, name)); return err != nil }) {
			r.plugins = dir
			return r
		}
	}
	return nil
}

// unpackRuntime downloads packages and unpacks them.
func unpackRuntime(ctx context.Context, log io.Writer, cache string) error {
	for _, tool := range []string{"apt-get", "dpkg-deb"} {
		if _, err := exec.LookPath(tool); err != nil {
			return fmt.Errorf("real kubelets need %v and the CNI plugins %v, and there is no %s to fetch them with: install containerd, runc and the plugins",
				runtimePrograms, runtimePlugins, tool)
		}
	}
	fmt.Fprintf(log, "downloading %v\n", debianPackages)
	half := cache + ".half"
	if err := errors.Join(os.RemoveAll(half), os.MkdirAll(half, 0o755)); err != nil { //nolint:gosec // programs are for everybody
		return fmt.Errorf("make a folder for a container runtime: %w", err)
	}
	download := exec.CommandContext(ctx, "apt-get", append([]string{"-o", "APT::Sandbox::User=root", "--quiet", "--quiet", "download"}, debianPackages...)...)
	download.Dir, download.Stderr = half, log
	if err := download.Run(); err != nil {
		return fmt.Errorf("download Debian's packages of a container runtime: %w (is the list of packages there? apt-get update fetches it; or install %v)", err, debianPackages)
	}
	archives, err := filepath.Glob(filepath.Join(half, "*.deb"))
	if err != nil || len(archives) < len(debianPackages) {
		return fmt.Errorf("download Debian's packages of a container runtime: only %v came", archives)
	}
	for _, archive := range archives {
		unpack := exec.CommandContext(ctx, "dpkg-deb", "--extract", archive, half) //nolint:gosec // what was downloaded
		unpack.Stderr = log
		if err := unpack.Run(); err != nil {
			return fmt.Errorf("unpack %s: %w", archive, err)
		}
		if err := os.Remove(archive); err != nil {
			return fmt.Errorf("remove a package that was unpacked: %w", err)
		}
	}
	if err := os.Rename(half, cache); err != nil && !errors.Is(err, syscall.ENOTEMPTY) { // somebody else was faster
		return fmt.Errorf("keep a container runtime: %w", err)
	}
	return nil
}
