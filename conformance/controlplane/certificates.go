package controlplane

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// validity is how long certificates live; a plane lives for minutes.
const validity = 30 * 24 * time.Hour

// authority signs a plane's certificates.
type authority struct {
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// newAuthority makes a certificate authority, ca.crt in a directory.
func newAuthority(dir string) (*authority, error) {
	a := &authority{dir: dir}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "conformance"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(validity),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	var err error
	if a.key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		return nil, fmt.Errorf("make a certificate authority: %w", err)
	}
	a.cert = template
	if err := a.write("ca", template, a.key); err != nil {
		return nil, err
	}
	raw, err := os.ReadFile(filepath.Join(dir, "ca.crt"))
	if err != nil {
		return nil, fmt.Errorf("make a certificate authority: %w", err)
	}
	block, _ := pem.Decode(raw)
	if a.cert, err = x509.ParseCertificate(block.Bytes); err != nil {
		return nil, fmt.Errorf("make a certificate authority: %w", err)
	}
	return a, nil
}

// issue makes NAME.crt and NAME.key for a subject, as a server at addresses or, without any, as a client.
func (a *authority) issue(name string, subject pkix.Name, serial int64, addresses ...string) error {
	template := &x509.Certificate{
		SerialNumber: big.NewInt(serial), Subject: subject, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(validity),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	for _, address := range addresses {
		template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
		if ip := net.ParseIP(address); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, address)
		}
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return fmt.Errorf("make a key for %s: %w", name, err)
	}
	return a.write(name, template, key)
}

func (a *authority) write(name string, template *x509.Certificate, key *ecdsa.PrivateKey) error {
	raw, err := x509.CreateCertificate(rand.Reader, template, a.cert, &key.PublicKey, a.key)
	if err != nil {
		return fmt.Errorf("sign the certificate of %s: %w", name, err)
	}
	if err := writePEM(filepath.Join(a.dir, name+".crt"), "CERTIFICATE", raw); err != nil {
		return err
	}
	return writeKey(filepath.Join(a.dir, name+".key"), key)
}

func writeKey(path string, key *ecdsa.PrivateKey) error {
	raw, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return fmt.Errorf("write a key: %w", err)
	}
	return writePEM(path, "EC PRIVATE KEY", raw)
}

func writePEM(path, kind string, raw []byte) error {
	if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: raw}), 0o600); err != nil {
		return fmt.Errorf("write a certificate: %w", err)
	}
	return nil
}
