package e2e_test

import (
	"crypto/sha256"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	pacelinev1 "github.com/paceline-sched/paceline/sdk/gen/paceline/v1"
)

// nobody is a user without rights, as whom a root test runs a server.
const nobody = 65534

// contents are the digests of all files below a folder.
func contents(t *testing.T, dir string) map[string]string {
	t.Helper()
	files := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		raw, err := os.ReadFile(path)
		info, statErr := e.Info()
		if err == nil {
			err = statErr
		}
		if err == nil {
			files[strings.TrimPrefix(path, dir)] = fmt.Sprintf("%v %d bytes %x", info.Mode(), len(raw), sha256.Sum256(raw))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// wantNoStart starts a server that has to refuse, and looks for harm in its directory.
func (c *cell) wantNoStart(t *testing.T, cmd *exec.Cmd, code int, stderr string) {
	t.Helper()
	before := contents(t, c.data)
	r := finish(t, cmd)
	want(t, r, code, stderr)
	if strings.Contains(r.stderr, "goroutine ") || strings.Contains(r.stdout, "serves at") {
		t.Errorf("%v\nwant a plain refusal", r)
	}
	after := contents(t, c.data)
	for _, files := range []map[string]string{before, after} { // whoever takes the lock writes his name into it
		maps.DeleteFunc(files, func(name, _ string) bool { return strings.HasSuffix(name, ".lock") || strings.HasSuffix(name, "/LOCK") })
	}
	if diff := differences(before, after); diff != "" {
		t.Errorf("%v\nchanged its directory:\n%s", r, diff)
	}
}

// keeper makes a cell with a job that was acknowledged and whose server was killed. check starts it and looks for the job.
func keeper(t *testing.T) (c *cell, check func(t *testing.T)) {
	t.Helper()
	c = startCell(t, simulates...)
	c.must("job", "run", write(t, c.dir, "kept.yaml", "name: kept\nbatch: {}\ninstances: 3\ntask: {simulation: {duration: 0.01s}}\n"), "--wait")
	before := c.state()
	c.kill()
	return c, func(t *testing.T) {
		t.Helper()
		c.start()
		if diff := differences(before, c.state()); diff != "" {
			t.Errorf("the cell has changed:\n%s", diff)
		}
		list, err := c.jobs()
		if err != nil || list["/default/kept"].GetState() != pacelinev1.JobState_JOB_STATE_SUCCEEDED {
			t.Errorf("the acknowledged job is %v, %v", list["/default/kept"], err)
		}
		c.kill()
	}
}

// TestBadStart gives servers settings and files that they must refuse before they have changed anything.
func TestBadStart(t *testing.T) { //nolint:tparallel // the parts share one cell, so they take turns
	t.Parallel()
	c, check := keeper(t)
	taken, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	mine, other := newCertificate(t, c.dir, "mine"), newCertificate(t, c.dir, "other")
	file := func(name, content string, mode os.FileMode) string {
		path := write(t, c.dir, name, content)
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	secret := "sesame-sesame-sesame-sesame"
	for _, b := range []struct {
		name   string
		flags  []string
		code   int
		stderr string
	}{
		{"others can read the tokens", []string{"--token-file", file("loose", secret, 0o644)}, 2, `token file .*/loose has mode 0644, so others can read or change it: run chmod 600 .*/loose\n`},
		{"others can write the tokens", []string{"--token-file", file("writable", secret, 0o620)}, 2, `has mode 0620, .*: run chmod 600`},
		{"short token", []string{"--token-file", file("short", "secret", 0o600)}, 2, `/short: a token must have 20 to 512 printable ASCII characters`},
		{"empty token file", []string{"--token-file", file("empty", "", 0o600)}, 2, `/empty: is empty: delete it`},
		{"tokens of unknown form", []string{"--token-file", file("form", "tokens:\n  - principal: a\n    secret: "+secret+"\n", 0o600)}, 2, `/form: (?s).*line 3: field secret not found \(the content is not shown\)`},
		{"unknown role", []string{"--token-file", file("role", "tokens: [{principal: a, token: "+secret+", roles: [king@/]}]\n", 0o600)}, 2, `/role: tokens\[0\]: .*king.*viewer`},
		{"token file that is a folder", []string{"--token-file", c.dir}, 2, `is not a regular file`},
		{"open listener", []string{"--listen", "0.0.0.0:0"}, 2, `refusing to listen on 0.0.0.0:0 without TLS, where others could read tokens: give a certificate and key, or listen on 127.0.0.1:7411`},
		{"open listener on every address", []string{"--listen", ":0"}, 2, `refusing to listen on :0 without TLS`},
		{"no tokens for an open listener", []string{"--listen", "0.0.0.0:0", "--tls-cert", mine.cert, "--tls-key", mine.key, "--token-file", filepath.Join(c.dir, "none")}, 2, `open the token file: open .*/none: no such file`},
		{"no address", []string{"--listen", "here"}, 2, `listen address "here" must be host:port, for example`},
		{"certificate without a key", []string{"--tls-cert", mine.cert}, 2, `a TLS certificate needs its key: give both files or neither`},
		{"certificate that is not there", []string{"--tls-cert", "none.pem", "--tls-key", mine.key}, 2, `load the TLS certificate none.pem .*no such file`},
		{"certificate that is none", []string{"--tls-cert", file("text", "text", 0o600), "--tls-key", mine.key}, 2, `load the TLS certificate .*/text .*must be PEM files`},
		{"key of another certificate", []string{"--tls-cert", mine.cert, "--tls-key", other.key}, 2, `load the TLS certificate .*/mine.pem and key .*/other.key.*private key does not match`},
		{"bad cell name", []string{"--cell", "Bad_Cell"}, 2, `cell name "Bad_Cell" must have 1 to 63 characters of a-z, 0-9 and -`},
		{"unknown log level", []string{"--log-level", "loud"}, 2, `log level "loud" is unknown: use debug, info, warn or error`},
		{"both kinds of simulated hosts", []string{"--simulated-inventory", "hosts.csv"}, 2, `generated or read from an inventory, not both`},
		{"inventory that is not there", []string{"--simulated-hosts", "0", "--simulated-inventory", "none.csv"}, 2, `read the inventory of simulated hosts: open none.csv: no such file`},
		{"inventory that is none", []string{"--simulated-hosts", "0", "--simulated-inventory", file("inventory", "one,two\n1,2\n", 0o600)}, 2, `read the inventory of simulated hosts, .*/inventory: `},
		{"too many local hosts", []string{"--local-hosts", "1000000"}, 2, `1000000 local hosts are out of range: use 0 to `},
		{"negative capacity", []string{"--local-hosts", "1", "--local-cpu", "-4"}, 2, `cpu_milli`},
		{"ports backwards", []string{"--local-hosts", "1", "--local-port-first", "3000", "--local-port-last", "2000"}, 2, `(?i)port`},
		{"negative disk reserve", []string{"--disk-reserve-mib", "-1"}, 2, `disk reserve of -1 MiB is negative`},
		{"unknown flag", []string{"--frobnicate"}, 2, `unknown flag: --frobnicate\nHint: see 'paceline server --help'`},
		{"no number", []string{"--local-hosts", "many"}, 2, `invalid argument "many" for "--local-hosts"`},
	} {
		t.Run(b.name, func(t *testing.T) { c.wantNoStart(t, c.command(b.flags...), b.code, b.stderr) })
	}
	// From here on the store is open before the mistake shows; it must be whole all the same.
	t.Run("address in use", func(t *testing.T) {
		r := finish(t, c.command("--listen", taken.Addr().String()))
		want(t, r, 1, `listen tcp .*: bind: address already in use; is another server running there\? choose another address`)
	})
	t.Run("store of another cell", func(t *testing.T) {
		want(t, finish(t, c.command("--cell", "other")), 1, `default.*other|other.*default`)
	})
	check(t)
}

// TestSecondServer wants a data directory to have one server.
func TestSecondServer(t *testing.T) {
	t.Parallel()
	c := startCell(t, simulates...)
	c.must("job", "run", write(t, c.dir, "kept.yaml", "name: kept\nbatch: {}\ntask: {simulation: {duration: 1000s}}\n"))
	before := c.state()
	second := finish(t, c.command())
	want(t, second, 1, fmt.Sprintf(`^Error: open the store in .*/store: the store is open in another process: process %d has it open; stop it, or give this one a data directory of its own\n$`, c.cmd.Process.Pid))
	if diff := differences(before, c.state()); diff != "" {
		t.Errorf("the second server changed the first one's cell:\n%s", diff)
	}
	c.must("job", "stop", "kept", "--wait")
	c.stop()
}

// TestBadStore starts servers on stores that were damaged or locked away: each is refused with what to do, and once the files are as they
// were everything is there.
func TestBadStore(t *testing.T) { //nolint:tparallel // the parts share one cell, so they take turns
	t.Parallel()
	c, check := keeper(t)
	dir := filepath.Join(c.data, "store")
	restore := `move the data directory away and restore the last backup into an empty one with: paceline .*restore --data-dir`
	type damage struct {
		name, file string
		change     func([]byte) []byte // nil: the file goes
		stderr     string
	}
	try := func(t *testing.T, d damage) {
		names, err := filepath.Glob(filepath.Join(dir, d.file))
		if err != nil || len(names) == 0 {
			t.Fatalf("no file %s: %v", d.file, err)
		}
		name := names[0]
		raw, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if d.change == nil {
			err = os.Remove(name)
		} else {
			err = os.WriteFile(name, d.change(slices.Clone(raw)), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
		c.wantNoStart(t, c.command(), 1, d.stderr+restore)
		if err := os.WriteFile(name, raw, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	flip := func(at int) func([]byte) []byte {
		return func(raw []byte) []byte {
			raw[at] ^= 0xff
			return raw
		}
	}
	cut := func(raw []byte) []byte { return raw[:5] }
	for _, d := range []damage{
		{"manifest cut", "MANIFEST", cut, `^Error: open the store in .*/store: the store is damaged: .*/store/MANIFEST: .*`},
		{"manifest overwritten", "MANIFEST", func([]byte) []byte { return []byte("this is a note, not a manifest\n") }, `/store/MANIFEST: .*`},
		{"manifest gone", "MANIFEST", nil, `/store/MANIFEST: the file is missing; `},
		{"log flipped", "*.mem", flip(100), `/store/\d+.mem: .*`},
		{"key registry cut", "KEYREGISTRY", cut, `/store/KEYREGISTRY: .*`},
	} {
		t.Run(d.name, func(t *testing.T) { try(t, d) })
	}
	check(t)
	c.start()
	c.stop() // which folds the log into a table
	for _, d := range []damage{
		{"table flipped", "*.sst", flip(50), `/store/\d+.sst: .*`},
		{"table cut", "*.sst", cut, `/store/\d+.sst: .*`},
		{"table gone", "*.sst", nil, `/store/\d+.sst: .*`},
	} {
		t.Run(d.name, func(t *testing.T) { try(t, d) })
	}
	t.Run("unreadable", func(t *testing.T) {
		cmd := c.command("--token-file", filepath.Join(c.dir, "own-token"))
		if os.Geteuid() == 0 { // whom modes do not keep out
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
			for path, mode := range map[string]os.FileMode{c.dir: 0o777, c.data: 0o711} {
				if err := os.Chmod(path, mode); err != nil {
					t.Fatal(err)
				}
			}
		} else if err := os.Chmod(dir, 0); err != nil {
			t.Fatal(err)
		}
		want(t, finish(t, cmd), 1, `^Error: open the store in .*/store: it may not be read and written by user \d+; change its owner or mode: .*permission denied`)
		if err := os.Chmod(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	})
	check(t)
}
