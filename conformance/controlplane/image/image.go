// Package image makes container images of one file, without a registry and without tools.
//
// It owns the form: an OCI layout in a tar file, as container runtimes import it. It never looks at what the file does. Its functions may be
// called from any goroutine.
package image

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"path"
	"runtime"
	"strings"
)

// Image is an image of one program.
type Image struct {
	Name       string   // with a tag
	Program    []byte   // an executable that needs nothing else
	Path       string   // where it stands in the image
	Entrypoint []string // what is run
	User       string   // "": root
}

// The names of the format, as the OCI image specification has them.
const (
	layoutVersion = "1.0.0"
	mediaIndex    = "application/vnd.oci.image.index.v1+json"
	mediaManifest = "application/vnd.oci.image.manifest.v1+json"
	mediaConfig   = "application/vnd.oci.image.config.v1+json"
	mediaLayer    = "application/vnd.oci.image.layer.v1.tar"
	blobs         = "blobs/sha256/"
)

type object map[string]any

// Write writes the image as a tar file.
func (i *Image) Write(to io.Writer) error {
	layer, err := i.layer()
	if err != nil {
		return fmt.Errorf("pack image %s: %w", i.Name, err)
	}
	files := []file{{name: "blobs/"}, {name: blobs}}
	put := func(media string, content []byte) object {
		digest := fmt.Sprintf("%x", sha256.Sum256(content))
		files = append(files, file{name: blobs + digest, content: content, mode: 0o644})
		return object{"mediaType": media, "digest": "sha256:" + digest, "size": len(content)}
	}
	platform := object{"architecture": runtime.GOARCH, "os": "linux"}
	packed := put(mediaLayer, layer)
	config, err := json.Marshal(object{
		"architecture": runtime.GOARCH, "os": "linux",
		"config": object{"Entrypoint": i.Entrypoint, "Env": []string{"PATH=" + path.Dir(i.Path), "FROM_IMAGE=yes"}, "User": i.User},
		"rootfs": object{"type": "layers", "diff_ids": []any{packed["digest"]}},
	})
	if err != nil {
		return fmt.Errorf("describe image %s: %w", i.Name, err)
	}
	manifest, err := json.Marshal(object{"schemaVersion": 2, "mediaType": mediaManifest, "config": put(mediaConfig, config), "layers": []object{packed}})
	if err != nil {
		return fmt.Errorf("describe image %s: %w", i.Name, err)
	}
	entry := put(mediaManifest, manifest)
	entry["platform"] = platform
	entry["annotations"] = object{"io.containerd.image.name": i.Name, "org.opencontainers.image.ref.name": i.Name}
	index, err := json.Marshal(object{"schemaVersion": 2, "mediaType": mediaIndex, "manifests": []object{entry}})
	if err != nil {
		return fmt.Errorf("describe image %s: %w", i.Name, err)
	}
	files = append(files,
		file{name: "oci-layout", content: fmt.Appendf(nil, `{"imageLayoutVersion":%q}`, layoutVersion), mode: 0o644},
		file{name: "index.json", content: index, mode: 0o644},
	)
	if err := pack(to, files); err != nil {
		return fmt.Errorf("pack image %s: %w", i.Name, err)
	}
	return nil
}

// layer is the one layer: the program with the directories above it, and what programs expect.
func (i *Image) layer() ([]byte, error) {
	var b bytes.Buffer
	files := []file{{name: "tmp/"}, {name: "etc/"}}
	for at, c := range i.Path {
		if c == '/' && at > 0 {
			files = append(files, file{name: strings.TrimPrefix(i.Path[:at+1], "/")})
		}
	}
	files = append(files, file{name: strings.TrimPrefix(i.Path, "/"), content: i.Program, mode: 0o755})
	err := pack(&b, files)
	return b.Bytes(), err
}

// file is an entry of a tar file. One whose name ends in a slash is a directory.
type file struct {
	name    string
	content []byte
	mode    int64
}

func pack(to io.Writer, files []file) error {
	w := tar.NewWriter(to)
	for _, f := range files {
		header := &tar.Header{Name: f.name, Mode: f.mode, Size: int64(len(f.content)), Typeflag: tar.TypeReg}
		if strings.HasSuffix(f.name, "/") {
			header = &tar.Header{Name: f.name, Mode: 0o755, Typeflag: tar.TypeDir}
		}
		if err := w.WriteHeader(header); err != nil {
			return err
		}
		if _, err := w.Write(f.content); err != nil {
			return err
		}
	}
	return w.Close()
}
