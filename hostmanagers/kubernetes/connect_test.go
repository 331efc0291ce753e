package kubernetes_test

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/paceline-sched/paceline/hostmanagers/kubernetes"
)

// kubeconfig has two contexts: one as it should be, and "other", whose user is as given.
func kubeconfig(server, user string) []byte {
	return fmt.Appendf(nil, `apiVersion: v1
kind: Config
current-context: good
contexts:
- {name: good, context: {cluster: c, user: plain}}
- {name: other, context: {cluster: d, user: u}}
- {name: lost, context: {cluster: nowhere, user: plain}}
- {name: nobody, context: {cluster: c, user: nobody}}
clusters:
- {name: c, cluster: {server: "https://c.example.com:6443", certificate-authority-data: %s}}
- {name: d, cluster: {server: %q}}
users:
- {name: plain, user: {token: swordfish}}
- {name: u, user: %s}
`, base64.StdEncoding.EncodeToString([]byte("authority")), server, user)
}

func noFile(name string) (string, error) { return "", fmt.Errorf("%s is out of bounds", name) }

func TestReadKubeconfig(t *testing.T) {
	t.Parallel()
	raw := kubeconfig("https://d.example.com", `{client-certificate: own.crt, client-key: keys/own.key, tokenFile: token}`)
	c, err := kubernetes.ReadKubeconfig(raw, "", noFile)
	if err != nil || c.Host != "https://c.example.com:6443" || c.BearerToken != "swordfish" || string(c.CAData) != "authority" {
		t.Errorf("the current context is %v, %v", c, err)
	}
	dir := t.TempDir()
	c, err = kubernetes.ReadKubeconfig(raw, "other", func(name string) (string, error) {
		path := filepath.Join(dir, filepath.Base(name))
		return path, os.WriteFile(path, []byte(name), 0o600)
	})
	if err != nil || c.Host != "https://d.example.com" || c.CertFile != dir+"/own.crt" || c.KeyFile != dir+"/own.key" || c.BearerTokenFile != dir+"/token" {
		t.Errorf("the other context is %v, %v", c, err)
	}
	for context, says := range map[string]string{
		"other": "its client-certificate: own.crt is out of bounds", "lost": `names cluster "nowhere"`, "nobody": `names user "nobody"`,
		"nothing": "good, lost, nobody, other",
	} {
		_, err := kubernetes.ReadKubeconfig(raw, context, noFile)
		if err == nil || !strings.Contains(err.Error(), says) || errors.Is(err, kubernetes.ErrNoContext) != (context == "nothing") {
			t.Errorf("context %s: %v", context, err)
		}
	}
	for name, bad := range map[string]struct{ server, user, says string }{
		"a program":          {"https://d", `{exec: {apiVersion: client.authentication.k8s.io/v1, command: /bin/sh, interactiveMode: Never}}`, "exec"},
		"a provider":         {"https://d", `{auth-provider: {name: gcp}}`, "auth-provider"},
		"no server":          {"", `{}`, "has no server"},
		"a server of files":  {"file:///etc/passwd", `{}`, "is not https://"},
		"a server with keys": {"https://me:swordfish@d", `{}`, "holds a name or a secret"},
	} {
		_, err := kubernetes.ReadKubeconfig(kubeconfig(bad.server, bad.user), "other", noFile)
		if err == nil || !strings.Contains(err.Error(), bad.says) || strings.Contains(err.Error(), "swordfish") {
			t.Errorf("%s: %v", name, err)
		}
	}
	for proxy, says := range map[string]string{"htp://me:swordfish@p:1": "proxy-url", "http://me:swordfish@p:x": "proxy-url", "http://": "proxy-url", "socks5://me:swordfish@p:1": ""} {
		bad := bytes.Replace(raw, []byte(`{server: "https://d.example.com"}`), fmt.Appendf(nil, `{server: "https://d", proxy-url: %q}`, proxy), 1)
		_, err := kubernetes.ReadKubeconfig(bad, "other", func(name string) (string, error) { return filepath.Join(dir, filepath.Base(name)), nil })
		if (err == nil) != (says == "") || err != nil && (!strings.Contains(err.Error(), says) || strings.Contains(err.Error(), "swordfish")) {
			t.Errorf("the proxy %s: %v", proxy, err)
		}
	}
	if _, err := kubernetes.ReadKubeconfig([]byte("swordfish"), "", noFile); err == nil || strings.Contains(err.Error(), "swordfish") {
		t.Errorf("what is no kubeconfig: %v", err)
	}
	if _, err := kubernetes.ReadKubeconfig(nil, "", noFile); err == nil || !strings.Contains(err.Error(), "it is empty") {
		t.Errorf("an empty one: %v", err)
	}
}

// FuzzReadKubeconfig: whatever a kubeconfig says, it runs nothing and names no file but those that it may.
func FuzzReadKubeconfig(f *testing.F) {
	f.Add(kubeconfig("https://d", `{tokenFile: /etc/passwd}`), "other")
	f.Add(kubeconfig("https://d", `{exec: {apiVersion: client.authentication.k8s.io/v1, command: /bin/sh}}`), "other")
	f.Add(kubeconfig("http://d", `{client-certificate: a, client-key: b, username: c, password: d, act-as: e}`), "")
	f.Add([]byte(`{"contexts":[{}]}`), "")
	file := filepath.Join(f.TempDir(), "may-be-read")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, raw []byte, context string) {
		c, err := kubernetes.ReadKubeconfig(raw, context, func(string) (string, error) { return file, nil })
		if err != nil {
			return
		}
		if c.ExecProvider != nil || c.AuthProvider != nil {
			t.Error("it runs a program")
		}
		for _, path := range []string{c.BearerTokenFile, c.CertFile, c.KeyFile, c.CAFile} {
			if path != "" && path != file {
				t.Errorf("it reads %q", path)
			}
		}
	})
}
