package api_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/paceline-sched/paceline/core/api"
	"github.com/paceline-sched/paceline/sdk/client"
	pacelinev1 "github.com/paceline-sched/paceline/sdk/gen/paceline/v1"
)

// certificate writes a self-signed certificate for 127.0.0.1 with its key.
func certificate(t *testing.T) (certFile, keyFile string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
	}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	write := func(name, kind string, der []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	return write("cert.pem", "CERTIFICATE", cert), write("key.pem", "PRIVATE KEY", private)
}

func TestTLS(t *testing.T) {
	cert, key := certificate(t)
	server, err := api.NewServer(api.Config{
		Address: "127.0.0.1:0", TLSCert: cert, TLSKey: key, TokenFile: filepath.Join(t.TempDir(), "token"),
	}, api.Parts{})
	if err != nil {
		t.Fatal(err)
	}
	listener, err := server.Listen()
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- server.Serve(ctx, listener) }()
	ask := func(options ...client.Option) error {
		c, err := client.New("https://"+listener.Addr().String(), append(options, client.WithAttempts(1), client.WithToken("wrong"))...)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		_, err = c.Admin.GetInfo(t.Context(), connect.NewRequest(&pacelinev1.GetInfoRequest{}))
		return err
	}
	if err := ask(client.WithCAFile(cert)); connect.CodeOf(err) != connect.CodeUnauthenticated {
		t.Errorf("trusted: %v", err) // the handshake succeeded, the token is wrong
	}
	if err := ask(); connect.CodeOf(err) != connect.CodeUnavailable || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("not trusted: %v", err)
	}
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestTLSFiles(t *testing.T) {
	cert, key := certificate(t)
	_, err := api.NewServer(api.Config{TLSCert: key, TLSKey: cert, TokenFile: filepath.Join(t.TempDir(), "token")}, api.Parts{})
	if err == nil || !strings.Contains(err.Error(), cert) {
		t.Errorf("files the wrong way round: %v", err)
	}
	_, err = api.NewServer(api.Config{Address: "0.0.0.0:0", TLSCert: cert, TLSKey: key, TokenFile: filepath.Join(t.TempDir(), "token")}, api.Parts{})
	if err == nil || !strings.Contains(err.Error(), "token file") {
		t.Errorf("no token is made for an address that is not loopback: %v", err)
	}
}

// elsewhere is a listener on an address that others can reach.
type elsewhere struct{ net.Listener }

func (elsewhere) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(10, 0, 0, 1), Port: 80} }

// TestServeLooksAtTheListener: a listener that was opened by somebody else is held to the same rule.
func TestServeLooksAtTheListener(t *testing.T) {
	server, err := api.NewServer(api.Config{Address: "127.0.0.1:0", TokenFile: filepath.Join(t.TempDir(), "token")}, api.Parts{})
	if err != nil {
		t.Fatal(err)
	}
	listener, err := server.Listen()
	if err != nil {
		t.Fatal(err)
	}
	if err := server.Serve(t.Context(), elsewhere{listener}); err == nil || !strings.Contains(err.Error(), "without TLS") {
		t.Errorf("got %v", err)
	}
}
