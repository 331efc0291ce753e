package kubernetes_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	cryptotls "crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"io"
	"log"
	"math/big"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/paceline-sched/paceline/core/driver"
	"github.com/paceline-sched/paceline/hostmanagers/kubernetes"
	"github.com/paceline-sched/paceline/hostmanagers/kubernetes/manifest"
)

// pair makes a certificate that signs itself, with its key.
func pair(t *testing.T) (cert, key []byte) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	signed, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: signed}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: raw})
}

func TestCheckCredentials(t *testing.T) {
	t.Parallel()
	cert, key := pair(t)
	_, other := pair(t)
	for says, c := range map[string]rest.TLSClientConfig{
		"":                                 {CAData: cert, CertData: cert, KeyData: key},
		"its certificate-authority holds":  {CAData: []byte("kind: Config")},
		"its client-certificate and":       {CertData: cert, KeyData: other},
		"no such file":                     {CAFile: "/none/at/all"},
		"its client-certificate and clien": {CertData: []byte("x"), KeyData: key},
	} {
		err := kubernetes.CheckCredentials(&rest.Config{TLSClientConfig: c})
		if (err == nil) != (says == "") || err != nil && !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v", says, err)
		}
	}
}

type deaf struct{}

func (deaf) Inventory(driver.Inventory)           {}
func (deaf) HostsChanged([]driver.Host, []string) {}
func (deaf) Statuses([]driver.Status)             {}
func (deaf) Disconnected(error)                   {}

// A cluster that cannot be reached says what to do about it.
func TestAdvice(t *testing.T) {
	t.Parallel()
	answer := func(code int, reason string) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(code)
			_, _ = io.WriteString(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"`+reason+`","code":`+strconv.Itoa(code)+"}")
		})
	}
	quiet := log.New(io.Discard, "", 0)
	secure := func(h http.Handler) *httptest.Server {
		s := httptest.NewUnstartedServer(h)
		s.Config.ErrorLog = quiet
		s.StartTLS()
		t.Cleanup(s.Close)
		return s
	}
	plain := httptest.NewServer(answer(http.StatusForbidden, "Forbidden"))
	t.Cleanup(plain.Close)
	tls := secure(answer(http.StatusUnauthorized, "Unauthorized"))
	none := secure(http.NotFoundHandler())
	strict := httptest.NewUnstartedServer(answer(http.StatusOK, ""))
	strict.Config.ErrorLog = quiet
	strict.TLS = &cryptotls.Config{ClientAuth: cryptotls.RequireAnyClientCert, MinVersion: cryptotls.VersionTLS12}
	strict.StartTLS()
	t.Cleanup(strict.Close)
	authority := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: tls.Certificate().Raw})
	for name, c := range map[string]struct {
		api  rest.Config
		says string
	}{
		"rights":        {rest.Config{Host: plain.URL}, "deploy/kubernetes/rbac.yaml"},
		"token":         {rest.Config{Host: tls.URL, TLSClientConfig: rest.TLSClientConfig{CAData: authority}}, "may have expired"},
		"no API server": {rest.Config{Host: none.URL, TLSClientConfig: rest.TLSClientConfig{CAData: authority}}, "no Kubernetes API server"},
		"authority":     {rest.Config{Host: tls.URL}, "certificate-authority did not sign"},
		"name":          {rest.Config{Host: tls.URL, TLSClientConfig: rest.TLSClientConfig{CAData: authority, ServerName: "elsewhere"}}, "tls-server-name"},
		"certificate":   {rest.Config{Host: strict.URL, TLSClientConfig: rest.TLSClientConfig{Insecure: true}}, "client certificate"},
		"plain":         {rest.Config{Host: strings.Replace(plain.URL, "http:", "https:", 1)}, "speaks no TLS"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d, err := kubernetes.New(kubernetes.Config{API: &c.api, Pods: manifest.Config{Owner: "me", Epoch: 1, Namespace: "default"}})
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer d.Wait()
			defer cancel()
			started := make(chan error, 1)
			go func() { started <- d.Start(ctx, deaf{}) }()
			defer func() { cancel(); <-started }()
			limit := time.NewTimer(patience)
			defer limit.Stop()
			look := time.NewTicker(10 * time.Millisecond)
			defer look.Stop()
			for {
				select {
				case <-look.C:
					if err := d.Describe().Err; err != nil && strings.Contains(err.Error(), c.says) {
						return
					}
				case <-limit.C:
					t.Fatalf("it says %v, and not %q", d.Describe().Err, c.says)
				}
			}
		})
	}
}
