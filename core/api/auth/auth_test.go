package auth_test

import (
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/paceline-sched/paceline/core/api/auth"
)

const (
	aliceToken = "alice-alice-alice-alice"
	bobToken   = "bob-bob-bob-bob-bob-bob"
)

func sum(token string) string { return fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(token))) }

func twoTokens() string {
	return fmt.Sprintf(`
tokens:
  - {principal: alice, token: %s, roles: [admin]}
  - {principal: bob, tenant: ads, token: %s, roles: [viewer@/prod, submitter@/prod/ads]}
`, aliceToken, sum(bobToken))
}

func write(t *testing.T, path, content string, mode os.FileMode) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), mode); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, mode); err != nil {
		t.Fatal(err)
	}
}

func TestRoles(t *testing.T) {
	p := auth.Principal{Bindings: []auth.Binding{{Role: auth.Viewer, Pool: "/prod"}, {Role: auth.Submitter, Pool: "/prod/ads"}}}
	cases := []struct {
		role auth.Role
		pool string
		want bool
	}{
		{auth.Viewer, "/prod", true},
		{auth.Viewer, "/prod/web/x", true},
		{auth.Viewer, "/production", false},
		{auth.Viewer, "/", false},
		{auth.Viewer, "", false},
		{auth.Submitter, "/prod", false},
		{auth.Submitter, "/prod/ads", true},
		{auth.Submitter, "/prod/ads/eu", true},
		{auth.Submitter, "/prod/ads2", false},
		{auth.Operator, "/prod/ads", false},
	}
	for _, c := range cases {
		if got := p.Allows(c.role, c.pool); got != c.want {
			t.Errorf("%s in %s: %v", c.role, c.pool, got)
		}
	}
	if !p.AllowsSome(auth.Submitter) || p.AllowsSome(auth.Operator) {
		t.Error("AllowsSome")
	}
	admin := auth.Principal{Bindings: []auth.Binding{{Role: auth.Admin, Pool: "/"}}}
	if !admin.Allows(auth.Viewer, "(a pool that is gone)") || !admin.Allows(auth.Admin, "/") {
		t.Error("an admin of everything is refused")
	}
}

// TestRolesGrow: a role that is given in a pool also gives every lesser role, in it and in every pool below.
func TestRolesGrow(t *testing.T) {
	path := rapid.StringMatching(`(/[ab]{1,2}){1,3}`)
	rapid.Check(t, func(t *rapid.T) {
		b := auth.Binding{Role: auth.Role(rapid.IntRange(1, 4).Draw(t, "role")), Pool: path.Draw(t, "pool")}
		p := auth.Principal{Bindings: []auth.Binding{b}}
		below := b.Pool + path.Draw(t, "below")
		for role := auth.Viewer; role <= auth.Admin; role++ {
			want := role <= b.Role
			if p.Allows(role, b.Pool) != want || p.Allows(role, below) != want || p.Allows(role, b.Pool+"c") || p.Allows(role, "/") {
				t.Fatalf("%s asked of a principal with %s", role, b)
			}
		}
		if again, err := auth.ParseBinding(b.String()); err != nil || again != b {
			t.Fatalf("%s read back: %v, %v", b, again, err)
		}
	})
}

func TestAuthenticate(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tokens")
	write(t, path, twoTokens(), 0o600)
	tokens, err := auth.Open(path, time.Now, nil)
	if err != nil {
		t.Fatal(err)
	}
	if p, ok := tokens.Authenticate(aliceToken); !ok || p.Name != "alice" || p.Tenant != "alice" || !p.Allows(auth.Admin, "/") {
		t.Errorf("alice: %+v %v", p, ok)
	}
	if p, ok := tokens.Authenticate(bobToken); !ok || p.Name != "bob" || p.Tenant != "ads" || p.Allows(auth.Submitter, "/prod") {
		t.Errorf("bob: %+v %v", p, ok)
	}
	for _, wrong := range []string{"", "x", aliceToken + "x", sum(bobToken), strings.Repeat("x", 1<<20)} {
		if _, ok := tokens.Authenticate(wrong); ok {
			t.Errorf("%.40q is accepted", wrong)
		}
	}
}

func TestReload(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tokens")
	write(t, path, twoTokens(), 0o600)
	now := time.Unix(1000, 0)
	var told []error
	tokens, err := auth.Open(path, func() time.Time { return now }, func(err error) { told = append(told, err) })
	if err != nil {
		t.Fatal(err)
	}
	accepts := func(token string) bool { _, ok := tokens.Authenticate(token); return ok }

	write(t, path, "tokens: [{principal: carol, token: carol-carol-carol-carol, roles: [viewer]}]", 0o600)
	if accepts("carol-carol-carol-carol") {
		t.Error("the file was read again within the same second")
	}
	now = now.Add(2 * time.Second)
	if !accepts("carol-carol-carol-carol") || accepts(aliceToken) {
		t.Error("the change went unnoticed")
	}

	write(t, path, "tokens: [{principal: carol, token: short, roles: [viewer]}]", 0o600)
	for range 5 {
		now = now.Add(2 * time.Second)
		if !accepts("carol-carol-carol-carol") {
			t.Error("a bad file replaced a good one")
		}
	}
	if len(told) != 2 || told[0] != nil || told[1] == nil {
		t.Errorf("told %v, want a good reading and a bad one, each once", told)
	}
}

func TestBadFiles(t *testing.T) {
	one := func(entry string) string { return "tokens: [{" + entry + "}]" }
	cases := []struct{ name, content, says string }{
		{"empty", " \n", "is empty"},
		{"short", "secret", "20 to 512"},
		{"no tokens", "tokens: []", "holds 0 tokens"},
		{"unknown field", one("principal: a, token: " + aliceToken + ", roles: [admin], admin: true"), "field admin not found"},
		{"no principal", one("token: " + aliceToken + ", roles: [admin]"), "principal \"\" must have"},
		{"no roles", one("principal: a, token: " + aliceToken), "has 0 roles"},
		{"role", one("principal: a, token: " + aliceToken + ", roles: [root]"), `role "root" is unknown`},
		{"pool", one("principal: a, token: " + aliceToken + ", roles: [viewer@prod]"), "must be a path"},
		{"digest", one("principal: a, token: 'sha256:12', roles: [viewer]"), "64 hexadecimal digits"},
		{"twice", "tokens: [{principal: a, token: " + aliceToken + ", roles: [viewer]}, {principal: b, token: '" + sum(aliceToken) + "', roles: [viewer]}]", "its token is a's too"},
		{"no YAML", "tokens: {a\n: b", "yaml"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "tokens")
			write(t, path, c.content, 0o600)
			_, err := auth.Open(path, time.Now, nil)
			if err == nil || !strings.Contains(err.Error(), c.says) || !strings.Contains(err.Error(), path) {
				t.Fatalf("got %v", err)
			}
			if strings.Contains(err.Error(), aliceToken) {
				t.Errorf("the message shows a token: %v", err)
			}
		})
	}
}

func TestErrorsHideTokens(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tokens")
	write(t, path, "tokens: very-secret-very-secret-token", 0o600)
	if _, err := auth.Open(path, time.Now, nil); err == nil || strings.Contains(err.Error(), "very-secret") {
		t.Errorf("got %v", err)
	}
}

func TestLoosePermissions(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tokens")
	for _, mode := range []os.FileMode{0o644, 0o640, 0o620, 0o604} {
		write(t, path, twoTokens(), mode)
		_, err := auth.Open(path, time.Now, nil)
		if err == nil || !strings.Contains(err.Error(), "run chmod 600 "+path) {
			t.Errorf("mode %#o: %v", mode, err)
		}
	}
	if _, err := auth.Open(filepath.Dir(path), time.Now, nil); err == nil {
		t.Error("a directory is accepted")
	}
}

// A file of root's may be read by a group of the server's, which is not root; that is how Kubernetes mounts secrets. The test becomes another user in a
// process of its own.
func TestSecretOfKubernetes(t *testing.T) {
	if path := os.Getenv("PACELINE_AUTH_FILE"); path != "" {
		if _, err := auth.Open(path, time.Now, nil); err != nil {
			t.Fatal(err)
		}
		return
	}
	if os.Geteuid() != 0 {
		t.Skip("only root can become another user")
	}
	const user, group, other = 65532, 65533, 65534
	dir := t.TempDir()
	if err := os.Chmod(filepath.Dir(dir), 0o755); err != nil { // closed to others
		t.Fatal(err)
	}
	path := filepath.Join(dir, "tokens.yaml")
	for _, tc := range []struct {
		uid, gid int
		mode     os.FileMode
		accepted bool
	}{
		{0, group, 0o440, true},
		{0, group, 0o640, true},
		{0, user, 0o440, true}, // its primary group
		{0, group, 0o660, false},
		{0, group, 0o444, false},
		{0, other, 0o444, false},
		{user, group, 0o440, false},
		{user, group, 0o400, true},
	} {
		write(t, path, twoTokens(), tc.mode)
		if err := os.Chown(path, tc.uid, tc.gid); err != nil {
			t.Fatal(err)
		}
		child := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^TestSecretOfKubernetes$")
		child.Env, child.Dir = append(os.Environ(), "PACELINE_AUTH_FILE="+path), "/"
		child.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: user, Gid: user, Groups: []uint32{group}}}
		if out, err := child.CombinedOutput(); (err == nil) != tc.accepted || err != nil && !strings.Contains(string(out), "token file "+path) {
			t.Errorf("%+v: %v: %s", tc, err, out)
		}
	}
}

func TestCreate(t *testing.T) {
	path := filepath.Join(t.TempDir(), "token")
	if err := auth.Create(path); err != nil {
		t.Fatal(err)
	}
	first, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	tokens, err := auth.Open(path, time.Now, nil)
	if err != nil {
		t.Fatal(err)
	}
	if p, ok := tokens.Authenticate(strings.TrimSpace(string(first))); !ok || p.Name != "local" || !p.Allows(auth.Admin, "/") {
		t.Errorf("the new token stands for %+v", p)
	}
	if err := auth.Create(path); err != nil {
		t.Fatal(err)
	}
	if second, err := os.ReadFile(path); err != nil || string(second) != string(first) {
		t.Error("a second start replaced the token")
	}
}

// FuzzTokenFile: no content makes the reading panic.
func FuzzTokenFile(f *testing.F) {
	f.Add([]byte(twoTokens()))
	f.Add([]byte("single-token-single-token\n"))
	f.Add([]byte("tokens: [{}]"))
	f.Add([]byte("a: &a [*a]"))
	path := filepath.Join(f.TempDir(), "tokens")
	f.Fuzz(func(t *testing.T, content []byte) {
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		tokens, err := auth.Open(path, time.Now, nil)
		if err != nil {
			return
		}
		if _, ok := tokens.Authenticate("never-a-token-of-that-file"); ok {
			t.Fatal("a token of nobody is accepted")
		}
	})
}
