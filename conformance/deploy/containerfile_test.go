package deploy_test

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// base is what the container file builds in.
var base = regexp.MustCompile(`(?m)^FROM (\S+) AS build$`)

// bud builds the container file with buildah. No registry is asked: the image to build in is made here, with this machine's Go and its caches.
func bud(t *testing.T, to string) {
	t.Helper()
	from := base.FindSubmatch(read(t, root+"/deploy/Containerfile"))
	if from == nil {
		t.Fatal("the container file has no stage that builds")
	}
	store := t.TempDir()
	buildah := func(args ...string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), "buildah", append([]string{
			"--root", filepath.Join(store, "root"), "--runroot", filepath.Join(store, "run"), "--storage-driver", "vfs",
		}, args...)...)
		var said bytes.Buffer
		cmd.Stderr = &said
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("buildah %s: %v: %s%s", strings.Join(args, " "), err, out, said.String())
		}
		return strings.TrimSpace(string(out))
	}
	work := buildah("from", "scratch")
	buildah("copy", work, foundation(t), "/")
	buildah("config", "--env", "PATH=/usr/local/go/bin:/bin", "--env", "GOPATH=/go", "--env", "GOCACHE=/cache", "--env", "GOTOOLCHAIN=local", "--env", "GOPROXY="+goEnv(t, "GOPROXY"), work)
	buildah("commit", "--quiet", work, "docker.io/library/"+string(from[1]))
	context, err := filepath.Abs(root)
	if err != nil {
		t.Fatal(err)
	}
	buildah("bud", "--isolation", "chroot", "--layers=false", "--pull-never", "--quiet", "--build-arg", "VERSION="+imageVersion,
		"--volume", goEnv(t, "GOROOT")+":/usr/local/go:ro", "--volume", goEnv(t, "GOMODCACHE")+":/go/pkg/mod", "--volume", goEnv(t, "GOCACHE")+":/cache",
		"--file", filepath.Join(context, "deploy/Containerfile"), "--tag", imageName, context)
	buildah("push", "--quiet", imageName, "docker-archive:"+to+":"+imageName)
}

// foundation is a folder with what the container file's lines run, but for Go: a shell, mkdir, their libraries, and certificates.
func foundation(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "tmp"), 0o755); err != nil { // Go wants one
		t.Fatal(err)
	}
	files := map[string]string{"/etc/ssl/certs/ca-certificates.crt": "/etc/ssl/certs/ca-certificates.crt"}
	for _, name := range []string{"sh", "mkdir"} {
		path, err := exec.LookPath(name)
		if err != nil {
			t.Fatal(err)
		}
		files["/bin/"+name] = path
		out, err := exec.CommandContext(t.Context(), "ldd", path).CombinedOutput()
		if err != nil && !bytes.Contains(out, []byte("not a dynamic executable")) {
			t.Fatalf("ldd %s: %v: %s", path, err, out)
		}
		for word := range strings.FieldsSeq(string(out)) {
			if strings.HasPrefix(word, "/") {
				files[word] = word
			}
		}
	}
	for to, from := range files {
		target := filepath.Join(dir, to)
		raw, err := os.ReadFile(from)
		if err = errors.Join(err, os.MkdirAll(filepath.Dir(target), 0o755), os.WriteFile(target, raw, 0o755)); err != nil { //nolint:gosec // programs
			t.Fatal(err)
		}
	}
	return dir
}

func goEnv(t *testing.T, name string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "env", name).Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(out))
}

// packed is a file of an image.
type packed struct {
	header  *tar.Header
	content []byte
}

// config is what an image says of itself.
type config struct {
	Config struct {
		User         string
		Entrypoint   []string
		Cmd          []string
		ExposedPorts map[string]struct{}
		Labels       map[string]string
	} `json:"config"`
}

// unpack reads an image: what it says of itself, and its files without the directories above them.
func unpack(t *testing.T, path string) (said config, files map[string]packed) {
	t.Helper()
	parts := untar(t, read(t, path))
	var manifest []struct {
		Config string
		Layers []string
	}
	err := json.Unmarshal(parts["manifest.json"].content, &manifest)
	if err != nil || len(manifest) != 1 {
		t.Fatalf("it has %d images: %v", len(manifest), err)
	}
	if err := json.Unmarshal(parts[manifest[0].Config].content, &said); err != nil {
		t.Fatal(err)
	}
	files = map[string]packed{}
	for _, layer := range manifest[0].Layers {
		maps.Copy(files, untar(t, parts[layer].content))
	}
	for name := range files {
		for dir := filepath.Dir(name); dir != "."; dir = filepath.Dir(dir) {
			delete(files, dir)
		}
	}
	return said, files
}

func untar(t *testing.T, raw []byte) map[string]packed {
	t.Helper()
	files := map[string]packed{}
	for reader := tar.NewReader(bytes.NewReader(raw)); ; {
		header, err := reader.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(reader)
		if err != nil {
			t.Fatal(err)
		}
		files[strings.Trim(header.Name, "./")] = packed{header, content}
	}
}

// TestContainerfile: the container file builds, and what comes out is an image of one static program that is not root's.
func TestContainerfile(t *testing.T) {
	t.Parallel()
	if os.Getenv("PACELINE_CONTAINERFILE") == "" {
		t.Skip("builds an image: make conformance-containerfile")
	}
	if _, err := exec.LookPath("buildah"); err != nil {
		t.Skip("needs buildah, which Debian has")
	}
	path := filepath.Join(t.TempDir(), "image.tar")
	bud(t, path)
	said, files := unpack(t, path)
	c := &said.Config
	_, port := c.ExposedPorts["7411/tcp"]
	if c.User != "65532:65532" || !slices.Equal(c.Entrypoint, []string{"/paceline"}) || !slices.Equal(c.Cmd, []string{"help"}) || !port {
		t.Errorf("the image says %+v", c)
	}
	if got := c.Labels["org.opencontainers.image.version"]; got != imageVersion {
		t.Errorf("its version is %q", got)
	}
	if got, want := slices.Sorted(maps.Keys(files)), []string{"etc/ssl/certs/ca-certificates.crt", "paceline", "tmp"}; !slices.Equal(got, want) {
		t.Fatalf("it holds %q, want %q", got, want)
	}
	if mode := files["tmp"].header.Mode & 0o7777; mode != 0o1777 {
		t.Errorf("/tmp has mode %o", mode)
	}
	if f := files["paceline"].header; f.Uid != 0 || f.Mode&0o222 != 0o200 {
		t.Errorf("the program can be changed by the user that runs it: owner %d, mode %o", f.Uid, f.Mode)
	}
	program := filepath.Join(t.TempDir(), "paceline")
	if err := os.WriteFile(program, files["paceline"].content, 0o755); err != nil { //nolint:gosec // a program
		t.Fatal(err)
	}
	checkStatic(t, program)
	out, _ := exec.CommandContext(t.Context(), program, "version").CombinedOutput() // it fails, as there is no server to ask for its version
	if !bytes.Contains(out, []byte(imageVersion)) {
		t.Errorf("its program says %q", out)
	}
}
