package auth

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"go.yaml.in/yaml/v3"
)

// The bounds of a token file.
const (
	MaxTokens     = 10_000
	maxFileBytes  = 8 << 20
	minTokenChars = 20 // 100 bits in base 32
	maxTokenChars = 512
	maxNameChars  = 128
	maxBindings   = 64
	// recheck is how often the file is looked at for a change, at most.
	recheck = time.Second
)

// localPrincipal is who presents the single token of a bare token file.
const localPrincipal = "local"

type digest = [sha256.Size]byte

// Tokens are the principals of a token file. The file is either a single token, which belongs to an admin named local, or YAML:
//
//	tokens:
//	  - principal: alice
//	    tenant: ads                        # default: the principal
//	    token: sha256:9f86d08...           # or the token itself
//	    roles: [viewer@/, submitter@/prod/ads]
type Tokens struct {
	path   string
	now    func() time.Time
	loaded func(error) // told of every later reading

	mu      sync.Mutex
	set     map[digest]*entry
	stamp   stamp
	checked time.Time
}

type entry struct {
	digest    digest
	principal Principal
}

// stamp changes when a file does.
type stamp struct {
	modified time.Time
	size     int64
	inode    uint64
	mode     fs.FileMode
}

// Open reads a token file. A later change of the file is noticed within a second of the next call; when the new content is refused, the
// former holds and loaded is told why. loaded may be nil.
func Open(path string, now func() time.Time, loaded func(error)) (*Tokens, error) {
	if loaded == nil {
		loaded = func(error) {}
	}
	t := &Tokens{path: path, now: now, loaded: loaded}
	set, stamp, err := read(path)
	if err != nil {
		return nil, err
	}
	t.set, t.stamp, t.checked = set, stamp, now()
	return t, nil
}

// Create makes a file that holds one new token, readable by its owner alone. A file that is there already is left as it is.
func Create(path string) error {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("make the token file: %w", err)
	}
	_, err = file.WriteString(rand.Text() + "\n")
	err = errors.Join(err, file.Sync(), file.Close())
	if err != nil {
		err = errors.Join(fmt.Errorf("write the token file: %w", err), os.Remove(path)) // half a token would lock everybody out
	}
	return err
}

// Authenticate finds who presents a token.
func (t *Tokens) Authenticate(token string) (*Principal, bool) {
	if token == "" || len(token) > maxTokenChars {
		return nil, false
	}
	sum := sha256.Sum256([]byte(token))
	t.mu.Lock()
	defer t.mu.Unlock()
	t.refresh()
	// The look-up leaks at most digests, which lead back to no token; the comparison leaks nothing at all.
	e := t.set[sum]
	if e == nil || subtle.ConstantTimeCompare(e.digest[:], sum[:]) != 1 {
		return nil, false
	}
	return &e.principal, true
}

// refresh reads the file again when it has changed.
func (t *Tokens) refresh() {
	now := t.now()
	if now.Sub(t.checked) < recheck {
		return
	}
	t.checked = now
	info, err := os.Stat(t.path)
	if err == nil && stampOf(info) == t.stamp {
		return
	}
	set, stamp, err := read(t.path)
	if err == nil {
		t.set, t.stamp = set, stamp
	} else if info != nil {
		t.stamp = stampOf(info) // tell once, not every second
	}
	t.loaded(err)
}

func stampOf(info fs.FileInfo) stamp {
	s := stamp{modified: info.ModTime(), size: info.Size(), mode: info.Mode()}
	if stat, ok := info.Sys().(*syscall.Stat_t); ok {
		s.inode = stat.Ino
	}
	return s
}

func read(path string) (map[digest]*entry, stamp, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, stamp{}, fmt.Errorf("open the token file: %w", err)
	}
	defer file.Close() //nolint:errcheck // it was only read
	info, err := file.Stat()
	if err != nil {
		return nil, stamp{}, fmt.Errorf("look at the token file: %w", err)
	}
	if err := checkPrivate(path, info); err != nil {
		return nil, stamp{}, err
	}
	raw, err := io.ReadAll(io.LimitReader(file, maxFileBytes+1))
	if err != nil {
		return nil, stamp{}, fmt.Errorf("read the token file: %w", err)
	}
	set, err := parse(raw)
	if err != nil {
		return nil, stamp{}, fmt.Errorf("token file %s: %w", path, err)
	}
	return set, stampOf(info), nil
}

// checkPrivate refuses a file that others than its owner could have read or written. A file of root's may be read by a group that this process is
// in: that is how Kubernetes gives a secret to a process that is not root.
func checkPrivate(path string, info fs.FileInfo) error {
	shown, err := filepath.Abs(path)
	if err != nil {
		shown = path
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("token file %s is not a regular file", shown)
	}
	stat, known := info.Sys().(*syscall.Stat_t)
	loose := fs.FileMode(0o077)
	if known && stat.Uid == 0 && inGroup(stat.Gid) {
		loose = 0o037
	}
	if mode := info.Mode().Perm(); mode&loose != 0 {
		return fmt.Errorf("token file %s has mode %#o, so others can read or change it: run chmod 600 %s", shown, mode, shown)
	}
	if uid := os.Geteuid(); known && stat.Uid != 0 && int(stat.Uid) != uid {
		return fmt.Errorf("token file %s belongs to user %d, who could change it: run chown %d %s", shown, stat.Uid, uid, shown)
	}
	return nil
}

// inGroup reports whether this process is in a group, as another user than root: root needs no group to read a file, so one that reads it is for others.
func inGroup(gid uint32) bool {
	if os.Geteuid() == 0 {
		return false
	}
	groups, err := os.Getgroups()
	return int(gid) == os.Getegid() || err == nil && slices.Contains(groups, int(gid))
}

// fileTokens is the schema of a token file.
type fileTokens struct {
	Tokens []struct {
		Principal string   `yaml:"principal"`
		Tenant    string   `yaml:"tenant"`
		Token     string   `yaml:"token"`
		Roles     []string `yaml:"roles"`
	} `yaml:"tokens"`
}

func parse(raw []byte) (map[digest]*entry, error) {
	if len(raw) > maxFileBytes {
		return nil, fmt.Errorf("is larger than %d bytes", maxFileBytes)
	}
	bare := string(bytes.TrimSpace(raw))
	if bare == "" {
		return nil, errors.New("is empty: delete it, and the next start on a loopback address makes one")
	}
	if !strings.ContainsAny(bare, ":{ \n") {
		sum, err := digestOf(bare)
		if err != nil {
			return nil, err
		}
		admin := Principal{Name: localPrincipal, Tenant: localPrincipal, Bindings: []Binding{{Role: Admin, Pool: Root}}}
		return map[digest]*entry{sum: {digest: sum, principal: admin}}, nil
	}
	var file fileTokens
	decoder := yaml.NewDecoder(bytes.NewReader(raw))
	decoder.KnownFields(true)
	if err := decoder.Decode(&file); err != nil {
		return nil, errors.New(redact(err))
	}
	if len(file.Tokens) == 0 || len(file.Tokens) > MaxTokens {
		return nil, fmt.Errorf("holds %d tokens: it must hold 1 to %d", len(file.Tokens), MaxTokens)
	}
	set := make(map[digest]*entry, len(file.Tokens))
	for i, line := range file.Tokens {
		e := &entry{principal: Principal{Name: line.Principal, Tenant: line.Tenant}}
		if e.principal.Tenant == "" {
			e.principal.Tenant = line.Principal
		}
		if err := e.fill(line.Token, line.Roles); err != nil {
			return nil, fmt.Errorf("tokens[%d]: %w", i, err)
		}
		if set[e.digest] != nil {
			return nil, fmt.Errorf("tokens[%d]: its token is %s's too: give each entry its own", i, set[e.digest].principal.Name)
		}
		set[e.digest] = e
	}
	return set, nil
}

// redact keeps a YAML error's place, which begins it, and drops what it quotes, which may be a token.
func redact(err error) string {
	message, _, _ := strings.Cut(err.Error(), "`")
	message, _, _ = strings.Cut(message, " in type ") // a type of ours
	return strings.TrimSpace(message) + " (the content is not shown)"
}

func (e *entry) fill(token string, roles []string) (err error) {
	for _, name := range [...]struct{ what, text string }{{"principal", e.principal.Name}, {"tenant", e.principal.Tenant}} {
		s := name.text
		if s == "" || len(s) > maxNameChars || strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r == 0x7f }) {
			return fmt.Errorf("%s %q must have 1 to %d characters, none of them white space", name.what, clip(s), maxNameChars)
		}
	}
	if e.digest, err = digestOf(token); err != nil {
		return err
	}
	if len(roles) == 0 || len(roles) > maxBindings {
		return fmt.Errorf("%s has %d roles: give 1 to %d, for example viewer@/ and submitter@/prod", e.principal.Name, len(roles), maxBindings)
	}
	for _, role := range roles {
		b, err := ParseBinding(role)
		if err != nil {
			return err
		}
		e.principal.Bindings = append(e.principal.Bindings, b)
	}
	return nil
}

func digestOf(token string) (digest, error) {
	if written, ok := strings.CutPrefix(token, "sha256:"); ok {
		raw, err := hex.DecodeString(written)
		if err != nil || len(raw) != sha256.Size {
			return digest{}, errors.New("what follows sha256: must be 64 hexadecimal digits, as printf %s TOKEN | sha256sum prints them")
		}
		return digest(raw), nil
	}
	if len(token) < minTokenChars || len(token) > maxTokenChars || strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return digest{}, fmt.Errorf("a token must have %d to %d printable ASCII characters and no space: make one with openssl rand -hex 20", minTokenChars, maxTokenChars)
	}
	return sha256.Sum256([]byte(token)), nil
}
