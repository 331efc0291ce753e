package image_test

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/paceline-sched/paceline/conformance/controlplane/image"
)

// An image is a layout whose parts are found by their digests, from the index to the program.
func TestWrite(t *testing.T) {
	t.Parallel()
	i := image.Image{Name: "test.local/one:1", Program: []byte("program"), Path: "/usr/bin/one", Entrypoint: []string{"/usr/bin/one", "word"}}
	var b bytes.Buffer
	if err := i.Write(&b); err != nil {
		t.Fatal(err)
	}
	files := unpack(t, b.Bytes())
	type descriptor struct {
		Digest      string
		Size        int
		Annotations map[string]string
	}
	blob := func(d descriptor) []byte {
		content := files["blobs/sha256/"+strings.TrimPrefix(d.Digest, "sha256:")]
		if fmt.Sprintf("sha256:%x", sha256.Sum256(content)) != d.Digest || len(content) != d.Size {
			t.Errorf("%s of %d bytes holds %d others", d.Digest, d.Size, len(content))
		}
		return content
	}
	var index struct{ Manifests []descriptor }
	read(t, files["index.json"], &index)
	if len(index.Manifests) != 1 || index.Manifests[0].Annotations["io.containerd.image.name"] != i.Name {
		t.Fatalf("the index is %s", files["index.json"])
	}
	var manifest struct {
		Config descriptor
		Layers []descriptor
	}
	read(t, blob(index.Manifests[0]), &manifest)
	var config struct {
		Config struct{ Entrypoint []string }
		RootFS struct {
			DiffIDs []string `json:"diff_ids"`
		}
	}
	read(t, blob(manifest.Config), &config)
	if len(config.Config.Entrypoint) != 2 || len(manifest.Layers) != 1 || config.RootFS.DiffIDs[0] != manifest.Layers[0].Digest {
		t.Errorf("the configuration is %+v, of layers %+v", config, manifest.Layers)
	}
	if program := unpack(t, blob(manifest.Layers[0]))["usr/bin/one"]; string(program) != "program" {
		t.Errorf("the program is %q", program)
	}
}

func read(t *testing.T, raw []byte, into any) {
	t.Helper()
	if err := json.Unmarshal(raw, into); err != nil {
		t.Fatalf("%q: %v", raw, err)
	}
}

func unpack(t *testing.T, raw []byte) map[string][]byte {
	t.Helper()
	files := map[string][]byte{}
	r := tar.NewReader(bytes.NewReader(raw))
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		if files[h.Name], err = io.ReadAll(r); err != nil {
			t.Fatal(err)
		}
	}
}
