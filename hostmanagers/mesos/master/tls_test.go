package master_test

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mesos/mesos-go/api/v1/lib/scheduler"

	"github.com/paceline-sched/paceline/hostmanagers/mesos/emulator"
	"github.com/paceline-sched/paceline/hostmanagers/mesos/master"
)

// eventually polls what real sockets need time for.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	ticks := time.NewTicker(time.Millisecond)
	defer ticks.Stop()
	for deadline := time.Now().Add(2 * time.Minute); !ok(); <-ticks.C {
		if time.Now().After(deadline) {
			t.Fatal(what)
		}
	}
}

// guarded puts a gateway with TLS and basic authentication before an emulated master, over real sockets.
func guarded(t *testing.T, secret string) *httptest.Server {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	e, _ := serve(t, emulator.Config{}, l)
	e.Do(addAgent)
	transport := &http.Transport{}
	proxy := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(&url.URL{Scheme: "http", Host: l.Addr().String()})
			r.Out.URL.Path = strings.TrimPrefix(r.In.URL.Path, "/mesos")
		},
		FlushInterval: -1, Transport: transport,
	}
	gateway := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if name, password, _ := r.BasicAuth(); name != "paceline" || password != secret || !strings.HasPrefix(r.URL.Path, "/mesos/") {
			http.Error(w, "who are you?", http.StatusUnauthorized)
			return
		}
		proxy.ServeHTTP(w, r)
	}))
	gateway.Config.ErrorLog = nil
	t.Cleanup(func() {
		gateway.CloseClientConnections()
		gateway.Close()
		transport.CloseIdleConnections()
	})
	return gateway
}

// TestTLSAndSecrets subscribes through a gateway that wants TLS and a secret, which is wrong at first and then mended.
func TestTLSAndSecrets(t *testing.T) {
	t.Parallel()
	gateway := guarded(t, "right")
	roots := x509.NewCertPool()
	roots.AddCert(gateway.Certificate())
	var secret atomic.Value
	secret.Store("wrong-hunter2")
	f := start(t, master.Config{
		Masters: []string{strings.TrimPrefix(gateway.URL, "https://") + "/mesos/"}, TLS: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12},
		Principal: "paceline", Secret: func() (string, error) { return secret.Load().(string), nil }, LongestWait: 10 * time.Millisecond,
		Timeout: 2 * time.Minute,
	})
	var refused *master.RefusedError
	eventually(t, "the wrong secret is not told", func() bool {
		err := f.Status().Err
		if err != nil && strings.Contains(err.Error(), "hunter2") {
			t.Fatalf("status tells %v", err)
		}
		return errors.As(err, &refused) && refused.Code == http.StatusUnauthorized
	})
	secret.Store("right")
	eventually(t, "no offer came", func() bool { return f.heard(scheduler.Event_OFFERS) > 0 })
	for range 3 {
		if err := f.Call(t.Context(), revive()); err != nil {
			t.Fatal(err)
		}
	}
	if agents, err := f.Agents(t.Context()); err != nil || len(agents) != 1 {
		t.Fatalf("%d agents (%v)", len(agents), err)
	}
	if leader := f.Leader(); leader != gateway.URL+"/mesos" {
		t.Errorf("the leader is %s", leader)
	}
}

// TestAnUnknownAuthority is not talked to.
func TestAnUnknownAuthority(t *testing.T) {
	t.Parallel()
	gateway := guarded(t, "right")
	f := start(t, master.Config{
		Masters: []string{gateway.URL + "/mesos"}, Principal: "paceline", Secret: func() (string, error) { return "right", nil }, LongestWait: 10 * time.Millisecond,
	})
	var unknown x509.UnknownAuthorityError
	eventually(t, "it is not told", func() bool { return errors.As(f.Status().Err, &unknown) })
}

// TestASecretThatCannotBeRead is told, and asked for again.
func TestASecretThatCannotBeRead(t *testing.T) {
	t.Parallel()
	missing := errors.New("no such file")
	f := start(t, master.Config{Masters: []string{"http://127.0.0.1:1"}, Principal: "paceline", Secret: func() (string, error) { return "", missing }})
	eventually(t, "it is not told", func() bool { return errors.Is(f.Status().Err, missing) })
}
