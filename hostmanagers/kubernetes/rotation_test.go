package kubernetes_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"io"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/paceline-sched/paceline/core/driver"
	"github.com/paceline-sched/paceline/core/workload"
	"github.com/paceline-sched/paceline/hostmanagers/kubernetes"
	"github.com/paceline-sched/paceline/hostmanagers/kubernetes/emulator"
	"github.com/paceline-sched/paceline/hostmanagers/kubernetes/emulator/cluster"
	"github.com/paceline-sched/paceline/hostmanagers/kubernetes/manifest"
)

const unauthorized = `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Unauthorized","message":"Unauthorized","code":401}`

// put writes a file as those who renew one do: whole, or not at all.
func put(t *testing.T, path string, content []byte) {
	t.Helper()
	err := os.WriteFile(path+".new", content, 0o600)
	if err == nil {
		err = os.Rename(path+".new", path)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// A token that is renewed in its file, as that of a pod's service account is, is taken up: before the old one has ended nobody notices, and after it, within a minute.
func TestATokenThatIsRenewed(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		var valid atomic.Pointer[[]string]
		accept := func(tokens ...string) { valid.Store(&tokens) }
		file := filepath.Join(t.TempDir(), "token")
		put(t, file, []byte("first"))
		accept("first")
		w.start(func(c *kubernetes.Config) {
			c.API.BearerTokenFile = file
			c.API.WrapTransport = func(next http.RoundTripper) http.RoundTripper {
				return tripper{func(r *http.Request, next http.RoundTripper) (*http.Response, error) {
					for _, token := range *valid.Load() {
						if r.Header.Get("Authorization") == "Bearer "+token {
							return next.RoundTrip(r)
						}
					}
					return &http.Response{
						StatusCode: http.StatusUnauthorized, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
						Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(bytes.NewReader([]byte(unauthorized))),
					}, nil
				}, next}
			}
		})
		w.launch(0, 1, nil)
		w.pass(time.Minute)
		w.expect(0, workload.RunRunning, 0)

		put(t, file, []byte("second")) // in time
		accept("first", "second")
		w.pass(time.Minute)
		accept("second")
		w.emulator.CutWatches()
		w.launch(1, 2, nil)
		w.pass(time.Minute)
		w.expect(1, workload.RunRunning, 0)
		if _, lost := w.sink.told(); lost != 0 {
			t.Errorf("contact was lost %d times", lost)
		}

		accept("third") // too late
		w.emulator.CutWatches()
		w.launch(2, 3, nil)
		w.pass(10 * time.Minute)
		if err := w.driver.Describe().Err; err == nil || !strings.Contains(err.Error(), "may have expired") {
			t.Errorf("with a token that has ended it says %v", err)
		}
		put(t, file, []byte("third"))
		w.pass(2 * time.Minute)
		w.expect(2, workload.RunRunning, 0)
		if err := w.driver.Describe().Err; err != nil {
			t.Errorf("afterwards it says %v", err)
		}
	})
}

// issuer makes client certificates.
type issuer struct {
	t    *testing.T
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newIssuer(t *testing.T) *issuer {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return &issuer{t, &x509.Certificate{SerialNumber: big.NewInt(1), IsCA: true, BasicConstraintsValid: true}, key}
}

// issue writes a certificate that lasts for a time, and its key.
func (i *issuer) issue(serial int64, lasts time.Duration, cert, key string) {
	i.t.Helper()
	own, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		i.t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(serial), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(lasts)}
	signed, err := x509.CreateCertificate(rand.Reader, template, i.cert, &own.PublicKey, i.key)
	if err != nil {
		i.t.Fatal(err)
	}
	raw, err := x509.MarshalPKCS8PrivateKey(own)
	if err != nil {
		i.t.Fatal(err)
	}
	put(i.t, key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: raw}))
	put(i.t, cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: signed}))
}

// A client certificate that has ended is named, with its file. One that is renewed there is taken up: by connections that are open, too, as an API server looks at
// it with each request.
func TestACertificateThatIsRenewed(t *testing.T) {
	t.Parallel()
	e, _ := emulated(t, emulator.Config{Cluster: cluster.Config{Behave: behave}})
	var accepted atomic.Int64 // the serial number of the certificate that is taken
	accepted.Store(10)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		shown := r.TLS.PeerCertificates
		if len(shown) != 1 || shown[0].SerialNumber.Int64() != accepted.Load() || time.Now().After(shown[0].NotAfter) {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusUnauthorized)
			_, _ = io.WriteString(w, unauthorized) // who is gone does not read it
			return
		}
		e.ServeHTTP(w, r)
	}))
	server.TLS = &tls.Config{ClientAuth: tls.RequestClientCert, MinVersion: tls.VersionTLS12}
	server.EnableHTTP2 = true
	server.StartTLS()
	t.Cleanup(server.Close)
	t.Cleanup(func() { // client-go's own, which ends with what it is for
		until(t, "the end of what renews certificates", func() bool {
			runtime.GC()
			stacks := make([]byte, 1<<20)
			return !strings.Contains(string(stacks[:runtime.Stack(stacks, true)]), "dynamicClientCert")
		})
	})

	dir, authority := t.TempDir(), newIssuer(t)
	cert, key := filepath.Join(dir, "client.crt"), filepath.Join(dir, "client.key")
	authority.issue(10, -time.Minute, cert, key)
	cfg := kubernetes.Config{
		API: &rest.Config{Host: server.URL, TLSClientConfig: rest.TLSClientConfig{
			CAData: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}), CertFile: cert, KeyFile: key,
		}},
		Pods:      manifest.Config{Owner: "us", Epoch: 1, Namespace: "default", DefaultImage: "none"},
		FirstWait: 10 * time.Millisecond, LongestWait: 200 * time.Millisecond,
	}
	d, err := kubernetes.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	l := &listener{driver: d}
	ctx, cancel := context.WithCancel(t.Context())
	started := make(chan error, 1)
	go func() { started <- d.Start(ctx, l) }()
	defer d.Wait()
	defer cancel()
	until(t, "the advice to renew the certificate", func() bool {
		err := d.Describe().Err
		return err != nil && strings.Contains(err.Error(), "ended at") && strings.Contains(err.Error(), cert)
	})

	authority.issue(10, time.Hour, cert, key)
	if err := <-started; err != nil {
		t.Fatal(err)
	}
	authority.issue(11, time.Hour, cert, key)
	accepted.Store(11)
	launch := driver.Launch{
		Run: workload.RunID{Job: workload.JobID{1}, Generation: 1, Run: 1}, Host: "a", Command: []string{"sleep"}, Needs: map[string]int64{"cpu_milli": 10},
	}
	if err := d.Launch(ctx, []driver.Launch{launch}); err != nil {
		t.Fatal(err)
	}
	until(t, "the run", func() bool {
		state, _ := l.state()
		return state == workload.RunRunning
	})
	until(t, "contact", func() bool { return d.Describe().Err == nil })
}
