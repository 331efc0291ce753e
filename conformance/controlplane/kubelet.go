package controlplane

import (
	"bytes"
	"context"
	"embed"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"text/template"

	"github.com/paceline-sched/paceline/conformance/controlplane/image"
	"github.com/paceline-sched/paceline/conformance/controlplane/isolate"
)

// MaxKubelets bounds the kubelets of a plane: each is a burden for its machine.
const MaxKubelets = 8

// The images that real kubelets have; nothing is pulled.
const (
	// TaskImage runs Task, which does as its words say: see the command task.
	TaskImage = "paceline.test/task:1"
	// UserImage is the same, for user 1234.
	UserImage = "paceline.test/user:1"
	// Task is where the program stands in both.
	Task = "/usr/local/bin/task"

	pauseImage = "paceline.test/pause:1"
	taskSource = "./conformance/controlplane/task"
	imageUser  = "1234"
	// shellImage is a shell and no more, where the machine has Debian's busybox-static; else there is none.
	shellImage = "paceline.test/shell:1"
	busybox    = "/bin/busybox"
)

// What all kubelets listen on, each at its node's own address.
const (
	kubeletPort = 10250
	healthPort  = 10248
)

//go:embed node
var nodeFiles embed.FS

// node is a real node: a kubelet with its container runtime.
type node struct {
	Name, Dir, Cgroup string
	Address           netip.Addr
	Subnet            netip.Prefix // of its pods
	Bridge            string
	Runc, Plugins     string
	Pause             string
	Port, Health      int
}

func (n *node) kubelet() string    { return Kubelet + "-" + n.Name }
func (n *node) containerd() string { return "containerd-" + n.Name }
func (n *node) socket() string     { return filepath.Join(n.Dir, "containerd.sock") }

// Nodes are the names of the plane's real nodes.
func (p *Plane) Nodes() []string {
	names := make([]string, len(p.nodes))
	for i, n := range p.nodes {
		names[i] = n.Name
	}
	return names
}

// KillKubelet ends a node's kubelet as a crash does. Its pods go on.
func (p *Plane) KillKubelet(name string) error {
	n, err := p.node(name)
	if err != nil {
		return err
	}
	return p.keeper.end(n.kubelet())
}

// StartKubelet starts a node's kubelet again after KillKubelet, and waits until it works.
func (p *Plane) StartKubelet(ctx context.Context, name string) error {
	n, err := p.node(name)
	if err != nil {
		return err
	}
	if err := p.startKubelet(n); err != nil {
		return err
	}
	return p.awaitKubelet(ctx, n)
}

// Said is the end of what one of the plane's programs has logged. That of a node is "kubelet-NODE" or "containerd-NODE".
func (p *Plane) Said(program string) string { return tail(p.path(program + ".log")) }

func (p *Plane) node(name string) (*node, error) {
	at := slices.IndexFunc(p.nodes, func(n *node) bool { return n.Name == name })
	if at < 0 {
		return nil, fmt.Errorf("there is no real node %q, only %v", name, p.Nodes())
	}
	return p.nodes[at], nil
}

// startNodes starts all real nodes, and waits until they are ready.
func (p *Plane) startNodes(ctx context.Context) error {
	if p.cfg.Kubelets == 0 {
		return nil
	}
	runtime, err := fetchRuntime(ctx, p.cfg.Log)
	if err != nil {
		return err
	}
	archives, err := p.makeImages(ctx)
	if err != nil {
		return err
	}
	archives = append(archives, p.cfg.Images...)
	for i := range p.cfg.Kubelets {
		n := &node{
			Name: "real-" + strconv.Itoa(i+1), Address: netip.AddrFrom4([4]byte{10, 9, 0, byte(i + 1)}),
			Subnet: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 244, byte(i + 1), 0}), 24), Bridge: "cni" + strconv.Itoa(i+1),
			Runc: runtime.runc, Plugins: runtime.plugins, Pause: pauseImage, Port: kubeletPort, Health: healthPort,
		}
		n.Dir, n.Cgroup = p.path(n.Name), isolate.Cgroup()+"/"+n.Name
		p.nodes = append(p.nodes, n)
		if err := p.startNode(ctx, n, i, runtime, archives); err != nil {
			return fmt.Errorf("start node %s: %w", n.Name, err)
		}
	}
	for _, n := range p.nodes {
		if err := p.awaitNode(ctx, n); err != nil {
			return err
		}
	}
	return nil
}

func (p *Plane) startNode(ctx context.Context, n *node, i int, runtime *containerRuntime, archives []string) error {
	if err := isolate.MakeCgroup(n.Cgroup); err != nil {
		return err
	}
	if err := isolate.AddAddress("lo:"+strconv.Itoa(i+1), netip.PrefixFrom(n.Address, n.Address.BitLen())); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Join(n.Dir, "network"), 0o700); err != nil {
		return fmt.Errorf("make its directory: %w", err)
	}
	for name, to := range map[string]string{"containerd.toml": "containerd.toml", "kubelet.yaml": "kubelet.yaml", "network.json": "network/10-bridge.conflist"} {
		t, err := template.ParseFS(nodeFiles, "node/"+name)
		if err != nil {
			return fmt.Errorf("read %s: %w", name, err)
		}
		var text bytes.Buffer
		if err := t.Execute(&text, n); err != nil {
			return fmt.Errorf("write %s: %w", name, err)
		}
		if err := os.WriteFile(filepath.Join(n.Dir, to), text.Bytes(), 0o600); err != nil {
			return fmt.Errorf("write %s: %w", name, err)
		}
	}
	if err := p.startRuntime(ctx, n, runtime, archives); err != nil {
		return err
	}
	return p.startKubelet(n)
}

// makeImages builds the program of tests and packs it into images.
func (p *Plane) makeImages(ctx context.Context) (archives []string, err error) {
	top, err := root()
	if err != nil {
		return nil, err
	}
	program := p.path("task")
	build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags", "-s -w", "-o", program, taskSource)
	build.Dir, build.Env = top, append(os.Environ(), "CGO_ENABLED=0")
	build.Stdout, build.Stderr = p.cfg.Log, p.cfg.Log
	if err := build.Run(); err != nil {
		return nil, fmt.Errorf("build the program of images: %w", err)
	}
	raw, err := os.ReadFile(program)
	if err != nil {
		return nil, fmt.Errorf("read the program of images: %w", err)
	}
	images := map[string]image.Image{
		"task.tar": {Name: TaskImage, Program: raw, Path: Task, Entrypoint: []string{Task}}, "user.tar": {Name: UserImage, Program: raw, Path: Task, Entrypoint: []string{Task}, User: imageUser},
		"pause.tar": {Name: pauseImage, Program: raw, Path: Task, Entrypoint: []string{Task, "pause"}},
	}
	if shell, err := os.ReadFile(busybox); err == nil { // it is installed
		images["shell.tar"] = image.Image{Name: shellImage, Program: shell, Path: "/bin/sh", Entrypoint: []string{"/bin/sh"}}
	}
	for name, i := range images {
		var archive bytes.Buffer
		if err := i.Write(&archive); err != nil {
			return nil, err
		}
		if err := os.WriteFile(p.path(name), archive.Bytes(), 0o600); err != nil {
			return nil, fmt.Errorf("keep an image: %w", err)
		}
		archives = append(archives, p.path(name))
	}
	return archives, nil
}

// startRuntime starts a node's containerd and gives it the images.
func (p *Plane) startRuntime(ctx context.Context, n *node, runtime *containerRuntime, archives []string) error {
	env := []string{"PATH=" + strings.Join(append(runtime.path, os.Getenv("PATH")), string(os.PathListSeparator))}
	if runtime.library != "" {
		env = append(env, "LD_LIBRARY_PATH="+runtime.library)
	}
	if err := p.keeper.run(n.containerd(), runtime.program("containerd"), p.cfg.Dir, env, []string{"--config", filepath.Join(n.Dir, "containerd.toml")}); err != nil {
		return err
	}
	ctr := func(args ...string) error {
		command := exec.CommandContext(ctx, runtime.program("ctr"), append([]string{"--address", n.socket(), "--namespace", "k8s.io"}, args...)...) //nolint:gosec // fixed words
		command.Env = append(os.Environ(), env...)
		said, err := command.CombinedOutput()
		if err != nil {
			return fmt.Errorf("containerd: %w: %s", err, bytes.TrimSpace(said))
		}
		return nil
	}
	if err := p.until(ctx, n.containerd(), func(context.Context) error { return ctr("version") }); err != nil {
		return err
	}
	for _, archive := range archives {
		if err := ctr("images", "import", archive); err != nil {
			return fmt.Errorf("give images to a container runtime: %w", err)
		}
	}
	return nil
}

func (p *Plane) startKubelet(n *node) error {
	return p.keeper.run(n.kubelet(), filepath.Join(p.bin, Kubelet), p.cfg.Dir, nil, []string{
		"--config", filepath.Join(n.Dir, "kubelet.yaml"), "--kubeconfig", p.Kubeconfig(), "--root-dir", filepath.Join(n.Dir, "kubelet"),
		"--cert-dir", filepath.Join(n.Dir, "pki"), "--hostname-override", n.Name, "--node-ip", n.Address.String(), "--v", "2",
	})
}

// awaitKubelet waits until a kubelet says that it works.
func (p *Plane) awaitKubelet(ctx context.Context, n *node) error {
	return p.until(ctx, n.kubelet(), func(ctx context.Context) error {
		_, err := p.get(ctx, "http://"+netip.AddrPortFrom(n.Address, healthPort).String()+"/healthz")
		return err
	})
}

// awaitNode waits until a node is ready.
func (p *Plane) awaitNode(ctx context.Context, n *node) error {
	if err := p.awaitKubelet(ctx, n); err != nil {
		return err
	}
	return p.until(ctx, n.kubelet(), func(ctx context.Context) error {
		raw, err := p.get(ctx, fmt.Sprintf("https://127.0.0.1:%d/api/v1/nodes/%s", p.port, n.Name))
		if err != nil {
			return err
		}
		var object struct {
			Status struct {
				Conditions []struct{ Type, Status, Message string }
			}
		}
		if err := json.Unmarshal(raw, &object); err != nil {
			return err
		}
		for _, c := range object.Status.Conditions {
			if c.Type == "Ready" && c.Status == "True" {
				return nil
			}
		}
		return fmt.Errorf("node %s is not ready: %+v", n.Name, object.Status.Conditions)
	})
}
