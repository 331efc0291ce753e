package signature_test

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/pem"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/paceline-sched/paceline/policies/signature"
)

func block(t *testing.T, kind string, der []byte, err error) []byte {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}

func pair(t *testing.T) (private, public []byte) {
	t.Helper()
	p, s, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(s)
	private = block(t, "PRIVATE KEY", der, err)
	der, err = x509.MarshalPKIXPublicKey(p)
	return private, block(t, "PUBLIC KEY", der, err)
}

func TestSignatures(t *testing.T) {
	ann, annPublic := pair(t)
	bob, _ := pair(t)
	keys, err := signature.ReadKeys(fstest.MapFS{"ann.pem": {Data: annPublic}, "notes.txt": {Data: []byte("x")}})
	if err != nil {
		t.Fatal(err)
	}
	module := []byte("a module")
	sign := func(key []byte, id string) []byte {
		text, err := signature.Sign(module, key, id)
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	good := sign(ann, "ann")
	for _, c := range []struct {
		name   string
		module string
		text   []byte
		want   string // "": it is ann's
	}{
		{"good", "a module", good, ""},
		{"none", "a module", nil, "not signed"},
		{"of another module", "another", good, "not of this module"},
		{"by a stranger", "a module", sign(bob, "bob"), "does not trust"},
		{"by a stranger under a trusted name", "a module", sign(bob, "ann"), "not of this module"},
		{"not a signature", "a module", []byte("hello"), "no signature"},
		{"two signatures", "a module", append(bytes.Clone(good), good...), "no signature"},
		{"cut", "a module", good[:len(good)-9], "not of this module"},
		{"no key's id", "a module", []byte("paceline policy signature 1\nann\n"), "no signature"},
		{"huge", "a module", append(bytes.Clone(good), bytes.Repeat([]byte("\n"), 2000)...), "no signature"},
	} {
		id, err := keys.Verify(sha256.Sum256([]byte(c.module)), c.text)
		switch {
		case c.want == "" && (err != nil || id != "ann"):
			t.Errorf("%s: %q, %v", c.name, id, err)
		case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
	if _, err := signature.Sign(module, ann, "two words"); err == nil {
		t.Error("a key was named by two words")
	}
}

func TestReadKeysRefuses(t *testing.T) {
	private, public := pair(t)
	other, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKIXPublicKey(&other.PublicKey)
	for name, c := range map[string]struct {
		files fstest.MapFS
		want  string
	}{
		"empty":        {fstest.MapFS{}, "no key"},
		"private":      {fstest.MapFS{"a.pem": {Data: private}}, "PUBLIC KEY"},
		"not a key":    {fstest.MapFS{"a.pem": {Data: []byte("x")}}, "PUBLIC KEY"},
		"two keys":     {fstest.MapFS{"a.pem": {Data: append(bytes.Clone(public), public...)}}, "one PEM block"},
		"another kind": {fstest.MapFS{"a.pem": {Data: block(t, "PUBLIC KEY", der, err)}}, "use Ed25519"},
	} {
		if _, err := signature.ReadKeys(c.files); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

func FuzzVerify(f *testing.F) {
	f.Add([]byte("paceline policy signature 1\nann AAAA\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		if id, err := (signature.Keys{"ann": make(ed25519.PublicKey, ed25519.PublicKeySize)}).Verify([32]byte{1}, text); err == nil {
			t.Fatalf("%q passes as %s's", text, id)
		}
	})
}
