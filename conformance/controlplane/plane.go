package controlplane

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	_ "embed" // the configuration of kwok
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/paceline-sched/paceline/conformance/controlplane/isolate"
	"github.com/paceline-sched/paceline/conformance/freeport"
)

const (
	// patience bounds the wait for a program to be ready.
	patience = 2 * time.Minute
	// look bounds one look at whether it is.
	look = 10 * time.Second
	// crashes bounds the starts of an API server that does not become ready.
	crashes = 3
	// etcdData is the directory of etcd's data, in that of the plane.
	etcdData = "etcd"
)

//go:embed kwok.yaml
var kwokConfig []byte

// Config says what a plane consists of.
type Config struct {
	// Dir is the plane's own directory; it must be empty. Default: one that is made, and removed by Close.
	Dir string
	// Kwok plays the kubelets of nodes that are annotated kwok.x-k8s.io/node=fake.
	Kwok bool
	// Scheduler runs kube-scheduler with its limits lifted.
	Scheduler bool
	// Controllers runs kube-controller-manager: sets of pods, volume claims, service accounts. Without it their admission is off.
	Controllers bool
	// Kubelets is how many real nodes there are, at most MaxKubelets. They need a program that package isolate runs. Pods reach the API server
	// by its service, as they do with a kube-proxy; other services lead nowhere.
	Kubelets int
	// Images are archives of more images for real nodes.
	Images []string
	// APIServer and Scheduling are more arguments for kube-apiserver and kube-scheduler.
	APIServer, Scheduling []string
	// Log is told what is done. Default: nobody.
	Log io.Writer
}

// Plane is a running control plane.
type Plane struct {
	cfg    Config
	bin    string
	made   bool   // the directory is ours
	etcd   int    // its port
	peer   int    // the one for other members, of which there are none
	port   int    // kube-apiserver's
	bind   string // the address that it listens on
	client *http.Client
	keeper *keeper
	nodes  []*node
}

// Where the API server's service is.
const servicePort = 443

var serviceAddress = netip.MustParseAddr("10.96.0.1")

// Token is what the plane's administrator shows.
const Token = "conformance-administrator" //nolint:gosec // of a server on the loopback that lives for minutes

// Start builds what is missing and starts a plane; it returns once the API server is ready.
func Start(ctx context.Context, cfg Config) (*Plane, error) {
	if cfg.Log == nil {
		cfg.Log = io.Discard
	}
	names := []string{Etcd, APIServer}
	if cfg.Kwok {
		names = append(names, Kwok)
	}
	if cfg.Scheduler {
		names = append(names, KubeScheduler)
	}
	if cfg.Controllers {
		names = append(names, Controllers)
	}
	if cfg.Kubelets > 0 {
		names = append(names, Kubelet)
	}
	switch {
	case cfg.Kubelets < 0 || cfg.Kubelets > MaxKubelets:
		return nil, fmt.Errorf("a control plane has from 0 to %d real kubelets, not %d", MaxKubelets, cfg.Kubelets)
	case cfg.Kubelets > 0 && !isolate.Inside():
		return nil, errors.New("real kubelets change mounts and networks: start them in a program that package isolate runs, as make conformance-kubelet does")
	}
	bin, err := Build(ctx, cfg.Log, names...)
	if err != nil {
		return nil, err
	}
	p := &Plane{cfg: cfg, bin: bin, keeper: newKeeper()}
	if err := p.start(ctx); err != nil {
		return nil, errors.Join(err, p.Close())
	}
	return p, nil
}

func (p *Plane) start(ctx context.Context) error {
	if err := p.prepare(); err != nil {
		return err
	}
	if err := p.startEtcd(); err != nil {
		return err
	}
	if err := p.StartAPIServer(ctx); err != nil {
		return err
	}
	if p.cfg.Controllers {
		if err := p.startControllers(); err != nil {
			return err
		}
	}
	if p.cfg.Kwok {
		if err := p.startKwok(); err != nil {
			return err
		}
	}
	if p.cfg.Scheduler {
		if err := p.StartScheduler(ctx); err != nil {
			return err
		}
	}
	return p.startNodes(ctx)
}

// StartScheduler builds kube-scheduler if need be and starts it, on a plane that was started without one.
func (p *Plane) StartScheduler(ctx context.Context) error {
	if _, err := Build(ctx, p.cfg.Log, KubeScheduler); err != nil {
		return err
	}
	args := append([]string{"--config", p.path("scheduler.yaml"), "--bind-address", "127.0.0.1", "--secure-port", "0"}, p.cfg.Scheduling...)
	return p.run(KubeScheduler, nil, args...)
}

func (p *Plane) startKwok() error {
	return p.run(Kwok, nil, "--v", "ERROR", "--kubeconfig", p.Kubeconfig(), "--config", p.path("kwok.yaml"))
}

func (p *Plane) startControllers() error {
	return p.run(Controllers, nil, "--kubeconfig", p.Kubeconfig(), "--bind-address", "127.0.0.1", "--secure-port", "0", "--leader-elect=false",
		"--root-ca-file", p.path("ca.crt"), "--service-account-private-key-file", p.path("sa.key"), "--flex-volume-plugin-dir", p.path("plugins"))
}

func (p *Plane) path(name string) string { return filepath.Join(p.cfg.Dir, name) }

// Kubeconfig is the path of the plane's administrator's kubeconfig.
func (p *Plane) Kubeconfig() string { return p.path("kubeconfig") }

// EtcdURL is where etcd answers, to those who want to see what is stored whatever the API server says.
func (p *Plane) EtcdURL() string { return "http://127.0.0.1:" + strconv.Itoa(p.etcd) }

// Dir is the plane's directory, with the programs' logs.
func (p *Plane) Dir() string { return p.cfg.Dir }

// prepare writes certificates, keys and configurations.
func (p *Plane) prepare() error {
	if p.cfg.Dir == "" {
		dir, err := os.MkdirTemp("", "controlplane")
		if err != nil {
			return fmt.Errorf("make a directory for a control plane: %w", err)
		}
		p.cfg.Dir, p.made = dir, true
	}
	ports, err := freePorts(3)
	if err != nil {
		return err
	}
	p.etcd, p.peer, p.port, p.bind = ports[0], ports[1], ports[2], "127.0.0.1"
	if p.cfg.Kubelets > 0 {
		// The network is the plane's own. Pods look for the API server where its service is, the first of the services' addresses.
		p.port, p.bind = servicePort, "0.0.0.0"
		if err := isolate.AddAddress("lo:service", netip.PrefixFrom(serviceAddress, serviceAddress.BitLen())); err != nil {
			return err
		}
	}
	ca, err := newAuthority(p.cfg.Dir)
	if err != nil {
		return err
	}
	if err := ca.issue("server", pkix.Name{CommonName: APIServer}, 2, "127.0.0.1", "localhost", "kubernetes.default.svc", serviceAddress.String()); err != nil {
		return err
	}
	if err := ca.issue("admin", pkix.Name{CommonName: "admin", Organization: []string{"system:masters"}}, 3); err != nil {
		return err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return fmt.Errorf("make a key for service accounts: %w", err)
	}
	if err := writeKey(p.path("sa.key"), key); err != nil {
		return err
	}
	pool := x509.NewCertPool()
	pool.AddCert(ca.cert)
	p.client = &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}, DisableKeepAlives: true}}
	return p.writeFiles()
}

func (p *Plane) writeFiles() error {
	const users = "%s,admin,admin,\"system:masters\"\nconformance-nobody,nobody,nobody,\"nobodies\"\n"
	kubeconfig := fmt.Sprintf(`apiVersion: v1
kind: Config
clusters: [{name: conformance, cluster: {server: "https://127.0.0.1:%d", certificate-authority: %q}}]
users: [{name: admin, user: {token: %q}}]
contexts: [{name: conformance, context: {cluster: conformance, user: admin, namespace: default}}]
current-context: conformance
`, p.port, p.path("ca.crt"), Token)
	scheduler := fmt.Sprintf(`apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
leaderElection: {leaderElect: false}
clientConnection: {kubeconfig: %q, qps: 5000, burst: 10000}
`, p.Kubeconfig())
	for name, text := range map[string]string{
		"tokens.csv": fmt.Sprintf(users, Token), "kubeconfig": kubeconfig, "scheduler.yaml": scheduler, "kwok.yaml": string(kwokConfig),
	} {
		if err := os.WriteFile(p.path(name), []byte(text), 0o600); err != nil {
			return fmt.Errorf("configure a control plane: %w", err)
		}
	}
	return nil
}

func (p *Plane) startEtcd() error {
	address, peer := "http://127.0.0.1:"+strconv.Itoa(p.etcd), "http://127.0.0.1:"+strconv.Itoa(p.peer)
	return p.run(Etcd, nil, "--name", "e", "--data-dir", p.path(etcdData), "--listen-client-urls", address, "--advertise-client-urls", address,
		"--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", "e="+peer,
		"--quota-backend-bytes", "8589934592", "--unsafe-no-fsync", "--log-level", "warn")
}

// StartAPIServer starts the API server, also again after KillAPIServer, and waits until it is ready.
func (p *Plane) StartAPIServer(ctx context.Context) error {
	const issuer = "https://kubernetes.default.svc"
	args := append([]string{
		"--etcd-servers", "http://127.0.0.1:" + strconv.Itoa(p.etcd), "--bind-address", p.bind, "--secure-port", strconv.Itoa(p.port),
		"--advertise-address", "127.0.0.1", "--endpoint-reconciler-type", "none",
		"--tls-cert-file", p.path("server.crt"), "--tls-private-key-file", p.path("server.key"), "--client-ca-file", p.path("ca.crt"),
		"--token-auth-file", p.path("tokens.csv"), "--service-account-issuer", issuer,
		"--service-account-key-file", p.path("sa.key"), "--service-account-signing-key-file", p.path("sa.key"),
		"--service-cluster-ip-range", "10.96.0.0/16", "--authorization-mode", "Node,RBAC",
		"--allow-privileged", "--enable-priority-and-fairness=false", "--max-requests-inflight", "0", "--max-mutating-requests-inflight", "0",
		"--event-ttl", "10m", "--profiling=false", "--kubelet-preferred-address-types", "InternalIP",
	}, p.cfg.APIServer...)
	if !p.cfg.Controllers {
		// These two would leave every node and pod unusable.
		args = append(args, "--disable-admission-plugins", "ServiceAccount,TaintNodesByCondition")
	}
	// Memory follows writes; without bounds it takes gigabytes.
	if err := p.run(APIServer, []string{"GOGC=200", "GOMEMLIMIT=3GiB"}, args...); err != nil {
		return err
	}
	return p.await(ctx)
}

// KillAPIServer ends the API server as a crash does.
func (p *Plane) KillAPIServer() error { return p.keeper.end(APIServer) }

// CrashAPIServer is KillAPIServer and StartAPIServer. One that does not become ready, as happens when it starts into trouble, is killed again, a few times. Kwok is
// started again with it: after some losses of its API server it would wait for up to a minute before it looked for the next one.
func (p *Plane) CrashAPIServer(ctx context.Context) error {
	var err error
	for range crashes {
		if p.PID(APIServer) != 0 {
			if err := p.KillAPIServer(); err != nil {
				return err
			}
		}
		if err = p.StartAPIServer(ctx); err == nil || ctx.Err() != nil {
			break
		}
	}
	if err != nil || !p.cfg.Kwok {
		return err
	}
	if err := p.keeper.end(Kwok); err != nil && p.PID(Kwok) != 0 { // else it has ended by itself
		return err
	}
	return p.startKwok()
}

// Backup copies what etcd keeps into a directory that is not there yet. Etcd and the API server are stopped for that, and run again when it returns.
func (p *Plane) Backup(ctx context.Context, dir string) error {
	return p.resting(ctx, func() error { return os.CopyFS(dir, os.DirFS(p.path(etcdData))) })
}

// Restore has etcd go on from a backup, as if nothing had been written since, and starts the API server anew.
func (p *Plane) Restore(ctx context.Context, dir string) error {
	return p.resting(ctx, func() error {
		if err := os.RemoveAll(p.path(etcdData)); err != nil {
			return fmt.Errorf("make room for a backup: %w", err)
		}
		return os.CopyFS(p.path(etcdData), os.DirFS(dir))
	})
}

// resting does something while neither etcd nor the API server runs.
func (p *Plane) resting(ctx context.Context, do func() error) error {
	for _, program := range []string{APIServer, Etcd} {
		if err := p.keeper.end(program); err != nil {
			return err
		}
	}
	if err := do(); err != nil {
		return fmt.Errorf("copy what etcd keeps: %w", err)
	}
	if err := p.startEtcd(); err != nil {
		return err
	}
	return p.StartAPIServer(ctx)
}

// PID is the process id of one of the plane's programs, for who measures it. Zero: it does not run.
func (p *Plane) PID(program string) int { return p.keeper.pid(program) }

func (p *Plane) run(program string, env []string, args ...string) error {
	return p.keeper.run(program, filepath.Join(p.bin, file(program)), p.cfg.Dir, env, args)
}

// await waits until the API server is ready.
func (p *Plane) await(ctx context.Context) error {
	return p.until(ctx, APIServer, func(ctx context.Context) error {
		_, err := p.get(ctx, fmt.Sprintf("https://127.0.0.1:%d/readyz", p.port))
		return err
	})
}

// until waits until one of the plane's programs is as it should be.
func (p *Plane) until(ctx context.Context, program string, holds func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		looking, looked := context.WithTimeout(ctx, look)
		err := holds(looking)
		looked()
		if err == nil {
			return nil
		}
		if p.PID(program) == 0 {
			return fmt.Errorf("%s ended: %s", program, tail(p.path(program+".log")))
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s is not ready: %w: %s", program, err, tail(p.path(program+".log")))
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// get asks one of the plane's programs something, as the administrator.
func (p *Plane) get(ctx context.Context, url string) ([]byte, error) {
	const most = 1 << 20
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return nil, fmt.Errorf("ask %s: %w", url, err)
	}
	request.Header.Set("Authorization", "Bearer "+Token)
	answer, err := p.client.Do(request)
	if err != nil {
		return nil, fmt.Errorf("ask %s: %w", url, err)
	}
	raw, err := io.ReadAll(io.LimitReader(answer.Body, most))
	_ = answer.Body.Close() // all was read
	if err == nil && answer.StatusCode != http.StatusOK {
		err = errors.New(answer.Status)
	}
	if err != nil {
		return nil, fmt.Errorf("ask %s: %w", url, err)
	}
	return raw, nil
}

// tail is the end of a log.
func tail(path string) string {
	const most = 2048
	raw, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	return string(bytes.TrimSpace(raw[max(0, len(raw)-most):]))
}

// Close ends the plane's processes, and removes its directory if it made it.
func (p *Plane) Close() error {
	err := p.keeper.close()
	if p.made && len(p.nodes) == 0 { // what real nodes have mounted goes with its namespaces, and so does what lies there
		err = errors.Join(err, os.RemoveAll(p.cfg.Dir))
	}
	return err
}

// freePorts finds ports of the loopback, each another one, on which nobody listens. The kernel gives them to nobody: a program that is killed finds its port free
// when it comes back.
func freePorts(n int) ([]int, error) {
	var ports []int
	for len(ports) < n {
		port, err := freeport.Find()
		if err != nil {
			return nil, fmt.Errorf("start a control plane: %w", err)
		}
		if !slices.Contains(ports, port) {
			ports = append(ports, port)
		}
	}
	return ports, nil
}
