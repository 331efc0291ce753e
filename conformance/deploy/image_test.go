package deploy_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"debug/elf"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
)

// wanted skips what builds, mounts and becomes other users, unless it is asked for.
func wanted(t *testing.T) {
	t.Helper()
	if os.Getenv("PACELINE_DEPLOY") == "" {
		t.Skip("builds a program of its own: make conformance-deploy")
	}
	if os.Geteuid() != 0 {
		t.Fatal("a root of its own and another user want root: run it as root")
	}
}

// The lines of the container file that matter here.
var (
	copied  = regexp.MustCompile(`(?m)^COPY ([a-z][a-z./ ]*) \S+$`)
	builds  = regexp.MustCompile(`(?m)^RUN (CGO_ENABLED=0 go build .*)$`)
	becomes = regexp.MustCompile(`(?m)^USER (\d+):(\d+)$`)
)

// buildImage builds the program as the container file does, from what the container file copies and nothing else, and returns its path.
func buildImage(t *testing.T) (program string, user int) {
	t.Helper()
	file := read(t, root+"/deploy/Containerfile")
	build, who := builds.FindSubmatch(file), becomes.FindSubmatch(file)
	if build == nil || who == nil || !bytes.Equal(who[1], who[2]) {
		t.Fatal("the container file has no line that builds, or none that says as whom it runs")
	}
	source, out := t.TempDir(), t.TempDir()
	for _, match := range copied.FindAllSubmatch(file, -1) {
		for _, name := range strings.Fields(string(match[1])) {
			copyTracked(t, name, source)
		}
	}
	command := strings.NewReplacer("${VERSION}", imageVersion, "/out/", out+"/").Replace(string(build[1]))
	cmd := exec.CommandContext(t.Context(), "sh", "-c", command)
	cmd.Dir = source
	if said, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v: %s", command, err, said)
	}
	user, err := strconv.Atoi(string(who[1]))
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(out, "paceline"), user
}

// copyTracked copies a file or a folder of the repository, without what git ignores.
func copyTracked(t *testing.T, name, to string) {
	t.Helper()
	list := exec.CommandContext(t.Context(), "git", "-c", "safe.directory=*", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", name)
	list.Dir = root
	out, err := list.Output()
	if err != nil || len(out) == 0 {
		t.Fatalf("the container file copies %s, which is not there: %v", name, err)
	}
	for path := range strings.SplitSeq(strings.TrimRight(string(out), "\x00"), "\x00") {
		raw, err := os.ReadFile(filepath.Join(root, path))
		if errors.Is(err, fs.ErrNotExist) {
			continue // deleted, and not yet committed
		}
		target := filepath.Join(to, path)
		if err = errors.Join(err, os.MkdirAll(filepath.Dir(target), 0o755), os.WriteFile(target, raw, 0o644)); err != nil {
			t.Fatal(err)
		}
	}
}

// TestImage: what the container file builds is one static program, which serves as the chart's pod has it: another user than root, a read-only root with
// nothing else in it, secrets as a kubelet mounts them, and no new privileges.
func TestImage(t *testing.T) {
	t.Parallel()
	wanted(t)
	program, user := buildImage(t)
	checkStatic(t, program)
	set := one[*appsv1.StatefulSet](t, decode(t, render(t, "")))
	if security := set.Spec.Template.Spec.SecurityContext; *security.RunAsUser != int64(user) || *security.FSGroup != int64(user) {
		t.Errorf("the image runs as user %d, the chart's pod as %d", user, *security.RunAsUser)
	}
	pod := layOut(t, program, user)
	args := slices.Clone(set.Spec.Template.Spec.Containers[0].Args)
	pod.address = freeAddress(t)
	i := slices.IndexFunc(args, func(arg string) bool { return strings.HasPrefix(arg, "--listen=") })
	args[i] = "--listen=" + pod.address
	for range 2 { // the second time from the store of the first
		stop := pod.start(t, args)
		pod.call(t, program)
		stop()
	}
	if _, err := os.Stat(filepath.Join(pod.root, "var/lib/paceline/data/store")); err != nil {
		t.Errorf("the store is not on the volume: %v", err)
	}
}

func checkStatic(t *testing.T, program string) {
	t.Helper()
	f, err := elf.Open(program)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }() // it is only read
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP || p.Type == elf.PT_DYNAMIC {
			t.Errorf("the program is not static: it has a segment %v", p.Type)
		}
	}
}

// podRoot is the root of a container on this machine.
type podRoot struct {
	root, address string
	user          int
	token         string
	cert          []byte
}

// layOut makes the root of the chart's container: the program, and volumes as a kubelet makes them.
func layOut(t *testing.T, program string, user int) *podRoot {
	t.Helper()
	p := &podRoot{root: t.TempDir(), user: user, token: "image-image-image-image-image"}
	cert, key := certificate(t)
	p.cert = cert
	raw := read(t, program)
	for _, dir := range []string{"proc", "dev", "tmp", "var/lib/paceline", "etc/paceline/secrets"} {
		if err := os.MkdirAll(filepath.Join(p.root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(
		os.WriteFile(filepath.Join(p.root, "paceline"), raw, 0o755),                                                               //nolint:gosec // a program
		os.Chown(filepath.Join(p.root, "var/lib/paceline"), 0, user), os.Chmod(filepath.Join(p.root, "var/lib/paceline"), 0o2775), //nolint:gosec // as fsGroup has it
	); err != nil {
		t.Fatal(err)
	}
	p.secret(t, "etc/paceline/tls", map[string][]byte{"tls.crt": cert, "tls.key": key})
	p.secret(t, "etc/paceline/tokens", map[string][]byte{"tokens.yaml": []byte("tokens: [{principal: admin, token: " + p.token + ", roles: [admin]}]\n")})
	return p
}

// secret is a volume of a secret: files of root's that the pod's group may read, behind links that are changed all at once.
func (p *podRoot) secret(t *testing.T, dir string, files map[string][]byte) {
	t.Helper()
	const version = "..2026_01_01"
	full := filepath.Join(p.root, dir)
	err := errors.Join(os.MkdirAll(filepath.Join(full, version), 0o755), os.Symlink(version, filepath.Join(full, "..data")))
	for name, raw := range files {
		path := filepath.Join(full, version, name)
		err = errors.Join(err, os.WriteFile(path, raw, 0o440), os.Chown(path, 0, p.user), os.Symlink("..data/"+name, filepath.Join(full, name))) //nolint:gosec // as a kubelet has it
	}
	if err != nil {
		t.Fatal(err)
	}
}

// enter makes the root read-only, but for its volumes, and becomes the user in it.
const enter = `set -e
mount --bind "$1" "$1"
mount --bind "$1/var/lib/paceline" "$1/var/lib/paceline"
mount -t tmpfs -o mode=1777 tmp "$1/tmp"
mount -t proc proc "$1/proc"
mount --bind /dev "$1/dev"
mount -o remount,ro,bind "$1"
! touch "$1/written" 2>/dev/null || { echo "the root can be written"; exit 1; }
root=$1 user=$2; shift 2
exec setpriv --no-new-privs chroot --userspec="$user:$user" --groups="$user" "$root" "$@"
`

// start starts the program as the pod's container does, and waits until its probes succeed. It returns what stops it as a kubelet does.
func (p *podRoot) start(t *testing.T, args []string) (stop func()) {
	t.Helper()
	var log bytes.Buffer
	command := append([]string{"--mount", "--propagation", "private", "sh", "-c", enter, "sh", p.root, strconv.Itoa(p.user), "/paceline"}, args...)
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), "unshare", command...)
	cmd.Env, cmd.Stdout, cmd.Stderr = []string{"PATH=" + os.Getenv("PATH")}, &log, &log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(p.cert)
	client := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}, DisableKeepAlives: true}}
	until(t, "a server that is well", func() bool {
		select {
		case err := <-ended:
			t.Fatalf("the server ended: %v: %s", err, log.String())
		default:
		}
		answer, err := client.Get("https://" + p.address + "/healthz")
		if err != nil {
			return false
		}
		_, _ = io.Copy(io.Discard, answer.Body) // the status says it
		_ = answer.Body.Close()
		return answer.StatusCode == http.StatusOK
	})
	return func() {
		t.Helper()
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		select {
		case err := <-ended:
			if err != nil {
				t.Errorf("the server did not end well: %v: %s", err, log.String())
			}
		case <-time.After(patience):
			_ = cmd.Process.Kill() // its end says the rest
			t.Errorf("the server does not end: %v: %s", <-ended, log.String())
		}
	}
}

// call asks the server something as a user does.
func (p *podRoot) call(t *testing.T, program string) {
	t.Helper()
	ca := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(ca, p.cert, 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), program, "version")
	cmd.Env = []string{"PACELINE_ADDRESS=https://" + p.address, "PACELINE_CA_FILE=" + ca, "PACELINE_TOKEN=" + p.token, "HOME=" + t.TempDir()}
	out, err := cmd.CombinedOutput()
	if err != nil || strings.Count(string(out), imageVersion) != 2 { // the command's, and the server's
		t.Errorf("the server is asked for its version: %v: %s", err, out)
	}
}

func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }() // nobody called
	return l.Addr().String()
}

// certificate makes a certificate for the loopback that signs itself, and its key.
func certificate(t *testing.T) (cert, key []byte) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
	}
	signed, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := x509.MarshalECPrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: signed}), pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: raw})
}

// tooNew is what a systemd before 254 says of the one setting that it does not know.
var tooNew = regexp.MustCompile(`(?m)^.*Unknown key (name )?'DelegateSubgroup' in section .Service., ignoring.\n`)

// exposure is the most that systemd's own judgement of a unit's confinement may come to, of 100.
const exposure = 20

// TestUnit: systemd finds nothing wrong with the unit, and little exposed.
func TestUnit(t *testing.T) {
	t.Parallel()
	wanted(t)
	if _, err := exec.LookPath("systemd-analyze"); err != nil {
		t.Fatal("systemd-analyze is not installed: it comes with systemd")
	}
	// The unit names the program where it will be.
	unit := filepath.Join(t.TempDir(), "paceline.service")
	text := strings.ReplaceAll(string(read(t, root+"/deploy/systemd/paceline.service")), "/usr/local/bin/paceline ", "/bin/true ")
	if err := os.WriteFile(unit, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"verify", "--man=no", unit}, {"security", "--offline=true", fmt.Sprintf("--threshold=%d", exposure), "--no-pager", unit},
	} {
		out, err := exec.CommandContext(t.Context(), "systemd-analyze", args...).CombinedOutput()
		out = tooNew.ReplaceAll(out, nil)
		if err != nil || args[0] == "verify" && len(out) > 0 {
			t.Errorf("systemd-analyze %s: %v: %s", args[0], err, out)
		}
	}
}
