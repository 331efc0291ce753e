package kubefaults_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/paceline-sched/paceline/conformance/controlplane"
	"github.com/paceline-sched/paceline/hostmanagers/kubernetes"
	"github.com/paceline-sched/paceline/hostmanagers/kubernetes/emulator"
)

// proxy stands before a real API server, and does to requests what an emulated one does by its Faults. While the API server is away, whoever asks is cut off.
type proxy struct {
	fault   func(*http.Request) emulator.Fault
	reverse *httputil.ReverseProxy

	mu      sync.Mutex
	watches map[*http.Request]context.CancelFunc
}

// connection is the key of a request's connection in its context.
type connection struct{}

// startProxy starts one in a plane's directory, which ends with the test, and returns it with its own kubeconfig.
func startProxy(t *testing.T, plane *controlplane.Plane, fault func(*http.Request) emulator.Fault) (p *proxy, kubeconfig string) {
	t.Helper()
	api, err := kubernetes.Connect(plane.Kubeconfig(), "")
	if err != nil {
		t.Fatal(err)
	}
	behind, err := url.Parse(api.Host)
	if err != nil {
		t.Fatal(err)
	}
	transport, err := rest.TransportFor(api)
	if err != nil {
		t.Fatal(err)
	}
	silent := log.New(io.Discard, "", 0)
	p = &proxy{fault: fault, watches: map[*http.Request]context.CancelFunc{}}
	p.reverse = &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(behind) }, Transport: transport, FlushInterval: -1, ErrorLog: silent, ErrorHandler: cutOff,
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{
		Handler: p, ErrorLog: silent, ReadHeaderTimeout: time.Minute,
		ConnContext: func(ctx context.Context, c net.Conn) context.Context { return context.WithValue(ctx, connection{}, c) },
	}
	served := make(chan error, 1)
	go func() {
		served <- server.ServeTLS(l, filepath.Join(plane.Dir(), "server.crt"), filepath.Join(plane.Dir(), "server.key"))
	}()
	t.Cleanup(func() {
		_ = server.Close() // of connections, some are closed already
		if err := <-served; !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
		utilnet.CloseIdleConnectionsFor(transport)
	})
	config, err := clientcmd.LoadFromFile(plane.Kubeconfig())
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range config.Clusters {
		c.Server = "https://" + l.Addr().String()
	}
	kubeconfig = filepath.Join(plane.Dir(), "proxy.kubeconfig")
	if err := clientcmd.WriteToFile(*config, kubeconfig); err != nil {
		t.Fatal(err)
	}
	return p, kubeconfig
}

// cutOff ends a client's connection.
func cutOff(_ http.ResponseWriter, r *http.Request, _ error) {
	if c, ok := r.Context().Value(connection{}).(net.Conn); ok {
		_ = c.Close() // it may have been closed before
	}
	panic(http.ErrAbortHandler)
}

func (p *proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f := p.fault(r)
	if f.Delay > 0 {
		select {
		case <-time.After(f.Delay):
		case <-r.Context().Done(): // nobody waits for it any more
			return
		}
	}
	switch {
	case f.Code == 0 && !f.Drop:
		p.pass(w, r)
		return
	case f.Late:
		p.reverse.ServeHTTP(httptest.NewRecorder(), r)
	}
	if f.Drop {
		panic(http.ErrAbortHandler)
	}
	answer(w, f)
}

// pass has the API server answer. A watch lasts until it is cut.
func (p *proxy) pass(w http.ResponseWriter, r *http.Request) {
	if isWatch(r) {
		ctx, cancel := context.WithCancel(r.Context())
		r = r.WithContext(ctx)
		p.mu.Lock()
		p.watches[r] = cancel
		p.mu.Unlock()
		defer func() {
			cancel()
			p.mu.Lock()
			delete(p.watches, r)
			p.mu.Unlock()
		}()
	}
	p.reverse.ServeHTTP(w, r)
}

func isWatch(r *http.Request) bool { return r.URL.Query().Get("watch") != "" }

// cutWatches breaks all watches in the middle.
func (p *proxy) cutWatches() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, cancel := range p.watches {
		cancel()
	}
}

// answer is an error as an API server tells it.
func answer(w http.ResponseWriter, f emulator.Fault) {
	var told *apierrors.StatusError
	switch f.Code {
	case http.StatusGone:
		told = apierrors.NewResourceExpired("a loss of history")
	case http.StatusTooManyRequests:
		told = apierrors.NewTooManyRequests("a storm, please try again later", f.RetryAfter)
		w.Header().Set("Retry-After", strconv.Itoa(f.RetryAfter))
	case http.StatusServiceUnavailable:
		told = apierrors.NewServiceUnavailable("an outage")
	case http.StatusGatewayTimeout:
		told = apierrors.NewTimeoutError("a time-out", f.RetryAfter)
	default:
		told = apierrors.NewInternalError(errors.New("a failure"))
	}
	status := told.Status()
	status.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(f.Code)
	_ = json.NewEncoder(w).Encode(&status) // whoever asked may have gone
}
