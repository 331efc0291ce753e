package policy

import (
	"bytes"
	"crypto/ed25519"
	"crypto/x509"
	"encoding/pem"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// writePEM writes a key.
func writePEM(t *testing.T, path, kind string, der []byte, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
}

// do runs a verb and returns what it wrote.
func do(t *testing.T, args ...string) string {
	t.Helper()
	for _, c := range NewCommands("") {
		if c.Name() == args[0] {
			var out bytes.Buffer
			c.SetOut(&out)
			c.SetArgs(args[1:])
			if err := c.ExecuteContext(t.Context()); err != nil {
				t.Fatal(args, err)
			}
			return out.String()
		}
	}
	t.Fatalf("no verb %s", args[0])
	return ""
}

func TestInspectTellsWhoSigned(t *testing.T) {
	dir := t.TempDir()
	module, private, keys := filepath.Join(dir, "m.wasm"), filepath.Join(dir, "ops.key"), filepath.Join(dir, "keys")
	raw, err := os.ReadFile("../../../../policies/wasm/testdata/guests/bestfit.wasm")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(module, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(keys, 0o700); err != nil {
		t.Fatal(err)
	}
	public, secret, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(secret)
	writePEM(t, private, "PRIVATE KEY", der, err)
	der, err = x509.MarshalPKIXPublicKey(public)
	writePEM(t, filepath.Join(keys, "ops.pem"), "PUBLIC KEY", der, err)

	want := func(text string, args ...string) {
		t.Helper()
		if got := do(t, append([]string{"inspect", module}, args...)...); !strings.Contains(got, text) {
			t.Errorf("%v: no %q in\n%s", args, text, got)
		}
	}
	want("signature  none")
	do(t, "sign", module, "--key", private, "--id", "ops")
	want("give --keys")
	want("signature  by ops", "--keys", keys)
	if err := os.WriteFile(module, append(raw, 0, 2, 1, 'x'), 0o600); err != nil { // another custom section: another module
		t.Fatal(err)
	}
	want("not good", "--keys", keys)
}
