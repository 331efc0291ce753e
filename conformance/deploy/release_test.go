package deploy_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/paceline-sched/paceline/conformance/controlplane"
	"github.com/paceline-sched/paceline/conformance/controlplane/image"
)

// imageName is what the image is called where tests have it; imageVersion is what its program says of itself.
const (
	imageVersion = "v0.0.0-image"
	imageName    = "paceline.test/paceline:" + imageVersion
)

// makeImage packs the program that the container file builds, for the user that it names. It returns the archive, and the program beside it.
func makeImage(t *testing.T) (archive, program string) {
	t.Helper()
	program, user := buildImage(t)
	archive = filepath.Join(t.TempDir(), "image.tar")
	i := image.Image{Name: imageName, Program: read(t, program), Path: "/paceline", Entrypoint: []string{"/paceline"}, User: fmt.Sprintf("%d:%d", user, user)}
	var packed bytes.Buffer
	if err := errors.Join(i.Write(&packed), os.WriteFile(archive, packed.Bytes(), 0o600)); err != nil {
		t.Fatal(err)
	}
	return archive, program
}

// release is the chart installed on a real cluster, with a real kubelet.
type release struct {
	plane   *controlplane.Plane
	program string
	ca      string // a file
	token   string
	claimed string // the folder of the store
}

const serverPod = "paceline-0"

var succeeded = regexp.MustCompile(`State: +succeeded`)

// TestRelease does what docs/kubernetes.md says for a Paceline inside a cluster, on a real one: the chart's pod works as it is confined, takes in its own
// cluster by its service account, runs a job there, and is followed by another one that goes on with it.
func TestRelease(t *testing.T) {
	if os.Getenv("PACELINE_KUBELETS") == "" {
		t.Skip("needs real kubelets: make conformance-kubelet")
	}
	r := install(t)
	r.checkConfined(t)
	hangUp := r.forward(t)
	r.paceline(t, "", "cluster", "add", "kubernetes", "here", "--in-cluster", "--namespace", taskSpace, "--wait")
	if out := r.paceline(t, "", "host", "list"); !strings.Contains(out, "here/"+r.plane.Nodes()[0]) {
		t.Errorf("the hosts are:\n%s", out)
	}
	r.paceline(t, fmt.Sprintf(`name: hello
batch: {}
instances: 1
task:
  command: [%s, say, "from a pod", then, await, /tmp/go]
  container: {image: %q}
  resources: {cpu_milli: 100, memory_mib: 64}
`, controlplane.Task, controlplane.TaskImage), "job", "run", "-")
	until(t, "the job's output", func() bool {
		out, err := r.try(t, "", "task", "logs", "hello", "0")
		return err == nil && out == "from a pod\n"
	})
	before := r.kubectl(t, "get", "pods", "--namespace", taskSpace, "--output", "jsonpath={.items[*].metadata.name}")

	hangUp()
	r.replace(t)
	hangUp = r.forward(t)
	r.paceline(t, "", "cluster", "list")
	if after := r.kubectl(t, "get", "pods", "--namespace", taskSpace, "--output", "jsonpath={.items[*].metadata.name}"); after != before || strings.Contains(after, " ") {
		t.Errorf("the job's pod was %q, and after the server's end there is %q", before, after)
	}
	r.kubectl(t, "exec", "--namespace", taskSpace, before, "--", controlplane.Task, "write", "/tmp/go", "")
	until(t, "the job's success", func() bool { return succeeded.MatchString(r.paceline(t, "", "job", "get", "hello")) })
	hangUp()
	r.uninstall(t)
}

// install starts the cluster, and does what the chart's notes say.
func install(t *testing.T) *release {
	t.Helper()
	archive, program := makeImage(t)
	r := &release{program: program, token: "release-release-release-release", claimed: t.TempDir()}
	var err error
	r.plane, err = controlplane.Start(t.Context(), controlplane.Config{Kubelets: 1, Scheduler: true, Controllers: true, Images: []string{archive}, Log: os.Stderr})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			r.tell(t)
		}
		if err := r.plane.Close(); err != nil {
			t.Error(err)
		}
	})
	kubectl(t, r.plane.Kubeconfig(), namespace(t, accountSpace), "apply", "--filename", "-")
	r.kubectl(t, "create", "namespace", taskSpace)
	kubectl(t, r.plane.Kubeconfig(), fmt.Sprintf(volume, r.claimed, r.plane.Nodes()[0]), "apply", "--filename", "-")
	dir := t.TempDir()
	cert, key := certificate(t)
	r.ca = filepath.Join(dir, "tls.crt")
	for name, raw := range map[string][]byte{
		"tls.crt": cert, "tls.key": key, "tokens.yaml": []byte("tokens: [{principal: admin, token: " + r.token + ", roles: [admin]}]\n"),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), raw, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	r.kubectl(t, "create", "secret", "generic", "paceline-tokens", "--namespace", accountSpace, "--from-file", filepath.Join(dir, "tokens.yaml"))
	r.kubectl(t, "create", "secret", "tls", "paceline-tls", "--namespace", accountSpace, "--cert", r.ca, "--key", filepath.Join(dir, "tls.key"))
	name, tag, _ := strings.Cut(imageName, ":")
	out, failure := helm(t, "install", "paceline", chart, "--kubeconfig", r.plane.Kubeconfig(), "--namespace", accountSpace,
		"--set", "image.name="+name, "--set", "image.tag="+tag, "--wait", "--timeout", "5m")
	if failure != "" {
		t.Fatalf("%s\n%s", failure, out)
	}
	return r
}

// volume is one for the store: a folder of a node. Nobody else provides any here.
const volume = `apiVersion: v1
kind: PersistentVolume
metadata: {name: store}
spec:
  capacity: {storage: 10Gi}
  accessModes: [ReadWriteOnce]
  persistentVolumeReclaimPolicy: Retain
  local: {path: %q}
  nodeAffinity: {required: {nodeSelectorTerms: [{matchExpressions: [{key: kubernetes.io/hostname, operator: In, values: [%s]}]}]}}
`

func (r *release) kubectl(t *testing.T, args ...string) string {
	t.Helper()
	return kubectl(t, r.plane.Kubeconfig(), "", args...)
}

// tell says how things stand, for who looks for the cause of a failure.
func (r *release) tell(t *testing.T) {
	t.Helper()
	for _, args := range [][]string{
		{"get", "pods,persistentvolumeclaims", "--all-namespaces"},
		{"describe", "pod", serverPod, "--namespace", accountSpace},
		{"get", "events", "--all-namespaces"},
		{"logs", serverPod, "--namespace", accountSpace},
	} {
		bin, err := controlplane.Build(context.WithoutCancel(t.Context()), os.Stderr, controlplane.Kubectl)
		if err != nil {
			t.Log(err)
			return
		}
		args = append(args, "--kubeconfig", r.plane.Kubeconfig())
		out, err := exec.CommandContext(context.WithoutCancel(t.Context()), filepath.Join(bin, controlplane.Kubectl), args...).CombinedOutput()
		t.Logf("kubectl %s: %v\n%s", args[0], err, out)
	}
	t.Logf("the kubelet said last:\n%s", r.plane.Said("kubelet-"+r.plane.Nodes()[0]))
}

// checkConfined: the kernel confines the server's process as the chart's security context says.
func (r *release) checkConfined(t *testing.T) {
	t.Helper()
	process := r.server(t)
	status := map[string]string{}
	for line := range strings.Lines(string(read(t, filepath.Join(process, "status")))) {
		key, value, _ := strings.Cut(line, ":")
		status[key] = strings.Join(strings.Fields(value), " ")
	}
	const nothing = "0000000000000000"
	for key, want := range map[string]string{
		"Uid": "65532 65532 65532 65532", "Gid": "65532 65532 65532 65532", "CapInh": nothing, "CapPrm": nothing, "CapEff": nothing, "CapBnd": nothing, "CapAmb": nothing,
		"NoNewPrivs": "1", "Seccomp": "2",
	} {
		if status[key] != want {
			t.Errorf("the server's process has %s %q, want %q", key, status[key], want)
		}
	}
	for line := range strings.Lines(string(read(t, filepath.Join(process, "mounts")))) {
		if words := strings.Fields(line); words[1] == "/" && !slices.Contains(strings.Split(words[3], ","), "ro") {
			t.Errorf("its root can be written: %s", line)
		}
	}
	store, err := os.Stat(filepath.Join(r.claimed, "data", "store"))
	if err != nil {
		t.Fatalf("the store is not on the volume: %v", err)
	}
	if owner, ok := store.Sys().(*syscall.Stat_t); !ok || owner.Uid != 65532 || owner.Gid != 65532 {
		t.Errorf("the store belongs to %+v", store.Sys())
	}
}

// server finds the folder in /proc of the server's process.
func (r *release) server(t *testing.T) string {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		raw, _ := os.ReadFile(file) // it may be gone
		if strings.HasPrefix(string(raw), "/paceline\x00server\x00") {
			return filepath.Dir(file)
		}
	}
	t.Fatal("the server's process is not on this machine")
	return ""
}

// replace deletes the server's pod, and waits for the one that follows.
func (r *release) replace(t *testing.T) {
	t.Helper()
	const state = `jsonpath={.metadata.uid} {.status.conditions[?(@.type=="Ready")].status}`
	get := []string{"get", "pod", serverPod, "--namespace", accountSpace, "--ignore-not-found", "--output", state}
	old, _, _ := strings.Cut(r.kubectl(t, get...), " ")
	r.kubectl(t, "delete", "pod", serverPod, "--namespace", accountSpace)
	until(t, "another pod", func() bool {
		now, ready, _ := strings.Cut(r.kubectl(t, get...), " ")
		return now != "" && now != old && ready == "True"
	})
}

// forward leads the API's port here, and returns what ends that.
func (r *release) forward(t *testing.T) (hangUp func()) {
	t.Helper()
	bin, err := controlplane.Build(t.Context(), os.Stderr, controlplane.Kubectl)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), filepath.Join(bin, controlplane.Kubectl), "port-forward", "--kubeconfig", r.plane.Kubeconfig(), "--namespace", accountSpace, "service/paceline", "7411")
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatalf("kubectl port-forward: %v: %v", err, cmd.Wait())
	}
	t.Log(strings.TrimSpace(line))
	return func() {
		_ = cmd.Process.Kill() // it may have ended with its pod
		_ = cmd.Wait()         // it was killed
	}
}

// try calls the server as a user does.
func (r *release) try(t *testing.T, input string, args ...string) (string, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), r.program, args...)
	cmd.Env = []string{"PACELINE_ADDRESS=https://127.0.0.1:7411", "PACELINE_CA_FILE=" + r.ca, "PACELINE_TOKEN=" + r.token, "HOME=" + t.TempDir()}
	cmd.Stdin = strings.NewReader(input)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func (r *release) paceline(t *testing.T, input string, args ...string) string {
	t.Helper()
	out, err := r.try(t, input, args...)
	if err != nil {
		t.Fatalf("paceline %s: %v: %s", strings.Join(args, " "), err, out)
	}
	return out
}

// uninstall takes the release away. Its volume claim stays, and nothing else.
func (r *release) uninstall(t *testing.T) {
	t.Helper()
	if out, failure := helm(t, "uninstall", "paceline", "--kubeconfig", r.plane.Kubeconfig(), "--namespace", accountSpace, "--wait", "--timeout", "5m"); failure != "" {
		t.Fatalf("%s\n%s", failure, out)
	}
	const kinds = "statefulsets,pods,services,serviceaccounts,persistentvolumeclaims,clusterroles,clusterrolebindings,roles,rolebindings"
	want := []string{"persistentvolumeclaim/store-" + serverPod}
	until(t, "the end of all but the volume claim", func() bool {
		left := strings.Fields(r.kubectl(t, "get", kinds, "--all-namespaces", "--selector", "app.kubernetes.io/instance=paceline", "--output", "name"))
		return slices.Equal(left, want)
	})
}
