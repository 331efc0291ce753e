package e2e_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// certificate is a self-signed one of 127.0.0.1, as the PEM files that a server and its clients read.
type certificate struct{ cert, key string }

func newCertificate(t *testing.T, dir, name string) certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return certificate{
		cert: write(t, dir, name+".pem", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))),
		key:  write(t, dir, name+".key", string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: raw}))),
	}
}

const tokens = `tokens:
  - {principal: root, token: the-secret-token-of-root, roles: [admin@/]}
  - {principal: ops, token: the-secret-token-of-ops, roles: [operator@/]}
  - {principal: eve, token: the-secret-token-of-eve, roles: [viewer@/]}
  - {principal: ann, token: the-secret-token-of-ann, roles: [submitter@/ads]}
  - {principal: bob, token: the-secret-token-of-bob, roles: [viewer@/, submitter@/search]}
`

// TestRoles drives a cell behind TLS as people with different roles.
func TestRoles(t *testing.T) {
	t.Parallel()
	c := newCell(t, simulates...)
	mine, other := newCertificate(t, c.dir, "mine"), newCertificate(t, c.dir, "other")
	c.flags = append(c.flags, "--tls-cert", mine.cert, "--tls-key", mine.key, "--token-file", write(t, c.dir, "tokens.yaml", tokens))
	c.start()
	for _, who := range []string{"root", "ops", "eve", "ann", "bob"} {
		write(t, c.dir, who+".token", "the-secret-token-of-"+who+"\n")
	}
	as := func(who string, args ...string) result {
		return c.paceline(append(slices.Clone(args), "--token-file", filepath.Join(c.dir, who+".token"), "--ca-file", mine.cert)...)
	}
	ok := func(who string, args ...string) result {
		t.Helper()
		r := as(who, args...)
		want(t, r, 0, ``)
		return r
	}
	no := func(stderr, who string, args ...string) {
		t.Helper()
		want(t, as(who, args...), 4, stderr)
	}
	pools := write(t, c.dir, "pools.yaml", "path: /ads\n---\npath: /ads/batch\n---\npath: /search\n")
	ads := write(t, c.dir, "ads.yaml", "name: crunch\npool: /ads/batch\nbatch: {}\ntask: {simulation: {duration: 0.01s}}\n")
	search := write(t, c.dir, "search.yaml", "name: index\npool: /search\nservice: {}\ntask: {simulation: {duration: 1000s}}\npreemptible: true\n")

	// Pools are the operators'.
	no(`eve does not have the role operator in any pool`, "eve", "pool", "apply", pools)
	no(`ann does not have the role operator in any pool`, "ann", "pool", "apply", pools)
	ok("ops", "pool", "apply", pools)

	// Submitters submit below their pool and nowhere else; what they may not see is not there for them.
	ok("ann", "job", "run", ads, "--wait")
	want(t, as("ann", "job", "run", search), 3, `search.yaml:2: pool: pool /search does not exist, or you may not see it`)
	no(`bob does not have the role submitter in /ads/batch`, "bob", "job", "run", ads)
	ok("bob", "job", "run", search)
	no(`eve does not have the role submitter in any pool`, "eve", "job", "run", ads)
	want(t, as("eve", "job", "plan", ads), 255, `eve does not have the role submitter`)
	no(`eve does not have the role submitter in any pool`, "eve", "job", "stop", "/search/index")
	want(t, as("ann", "job", "stop", "/search/index"), 3, `does not exist, or you may not see it`)
	no(`bob does not have the role submitter in /ads/batch`, "bob", "job", "delete", "/ads/batch/crunch")

	// Lists hold what their reader may see.
	for who, list := range map[string]string{"eve": "/ads/batch/crunch\n/search/index\n", "ann": "/ads/batch/crunch\n", "bob": "/ads/batch/crunch\n/search/index\n"} {
		seen := ""
		for line := range strings.Lines(ok(who, "job", "list", "--no-headers").stdout) {
			seen += strings.Fields(line)[0] + "\n"
		}
		if seen != list {
			t.Errorf("%s sees the jobs\n%swant\n%s", who, seen, list)
		}
	}
	if pools := ok("ann", "pool", "tree", "-o", "name").stdout; pools != "/ads\n/ads/batch\n" {
		t.Errorf("ann sees the pools\n%s", pools)
	}
	ok("eve", "host", "list")
	ok("eve", "task", "get", "/search/index", "0")

	// A backup holds everything, so it is the admins'.
	no(`ops does not have the role admin in /`, "ops", "backup", "ops.backup")
	if _, err := os.Stat(filepath.Join(c.dir, "ops.backup")); err == nil {
		t.Error("a refused backup left a file")
	}
	ok("root", "backup", "root.backup")
	if v := ok("bob", "version").stdout; !strings.Contains(v, `bob, viewer in /, submitter in /search`) {
		t.Errorf("bob is told that he is\n%s", v)
	}

	// Who is nobody gets nothing, and nobody speaks to a server that is not the one that he trusts.
	stranger := write(t, c.dir, "stranger.token", "token-of-nobody-whom-we-know\n")
	want(t, c.paceline("job", "list", "--token-file", stranger, "--ca-file", mine.cert), 4, `the call carries no valid token\nHint: `)
	want(t, c.paceline("job", "list", "--token-file", "eve.token", "--ca-file", other.cert), 5, `certificate`)
	want(t, c.paceline("job", "list", "--token-file", "eve.token"), 5, `certificate`)
	want(t, c.paceline("job", "list", "--token-file", "eve.token", "--ca-file", "eve.token"), 2, `holds no PEM certificate`)

	// A token that is taken away ends at once, without a restart.
	write(t, c.dir, "tokens.yaml", "tokens: [{principal: root, token: the-secret-token-of-root, roles: [admin@/]}]\n")
	c.await("eve is unknown", func() error {
		if r := as("eve", "job", "list"); r.code != 4 {
			return os.ErrExist
		}
		return nil
	})
	ok("root", "job", "delete", "/search/index", "--force")
	c.stop()
}
