package rego

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"strings"
)

// checkArchive reads an archive once to its end within every bound, so that what reads it next cannot be made to unpack more.
func checkArchive(archive []byte) error {
	if len(archive) > MaxArchiveBytes {
		return fmt.Errorf("it is %d bytes long, at most %d are taken: keep data that is large out of it, or cut it in two", len(archive), MaxArchiveBytes)
	}
	packed, err := gzip.NewReader(bytes.NewReader(archive))
	if err != nil {
		return fmt.Errorf("it is no gzip file (%w): a bundle is a tar.gz file, as 'opa build' makes it, or a directory", err)
	}
	unpacked := &countedReader{r: packed, left: maxUnpackedBytes}
	entries := tar.NewReader(unpacked)
	seen := map[string]bool{}
	for n := 0; ; n++ {
		entry, err := entries.Next()
		switch {
		case errors.Is(err, io.EOF):
			_, err := io.Copy(io.Discard, unpacked) // what follows the end of the archive counts, too
			return wrapUnpack(err)
		case err != nil:
			return wrapUnpack(err)
		case n == maxFiles:
			return fmt.Errorf("it has more than %d entries", maxFiles)
		}
		if err := checkEntry(entry, seen); err != nil {
			return err
		}
	}
}

func checkEntry(entry *tar.Header, seen map[string]bool) error {
	name := path.Clean("/" + entry.Name)
	switch {
	case len(entry.Name) > maxNameBytes:
		return fmt.Errorf("an entry's name is %d bytes long, at most %d are taken", len(entry.Name), maxNameBytes)
	case strings.ContainsAny(entry.Name, "\\\x00") || strings.Contains("/"+entry.Name+"/", "/../"):
		return fmt.Errorf("the entry %q leaves the bundle: use plain relative paths", clip(entry.Name))
	case entry.Typeflag == tar.TypeDir:
		return nil
	case entry.Typeflag != tar.TypeReg:
		return fmt.Errorf("the entry %q is neither a file nor a directory", clip(entry.Name))
	case entry.Size > maxFileBytes:
		return fmt.Errorf("the file %q is %d bytes long, at most %d are taken", clip(entry.Name), entry.Size, maxFileBytes)
	case seen[name]:
		return fmt.Errorf("the file %q is in it twice", clip(entry.Name))
	case path.Base(name) == "policy.wasm" || path.Base(name) == "patch.json":
		return fmt.Errorf("the file %q is not taken: rules are Rego, and each version of a bundle is whole", clip(entry.Name))
	}
	seen[name] = true
	return nil
}

func wrapUnpack(err error) error {
	if err == nil || errors.Is(err, errUnpacked) {
		return err
	}
	return fmt.Errorf("it cannot be unpacked: %w", err)
}

var errUnpacked = fmt.Errorf("it unpacks to more than %d bytes", maxUnpackedBytes)

// countedReader fails once more than left bytes have come out of it.
type countedReader struct {
	r    io.Reader
	left int64
}

func (c *countedReader) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	if c.left -= int64(n); c.left < 0 {
		return 0, errUnpacked
	}
	return n, err
}

// Pack makes an archive of a directory: its Rego files without those of tests, its data.json and data.yaml files, its manifest and its
// signatures. One directory gives the same bytes wherever it is packed.
func Pack(dir fs.FS) ([]byte, error) {
	var out bytes.Buffer
	packed := gzip.NewWriter(&out)
	entries := tar.NewWriter(packed)
	total := int64(0)
	err := walkBundle(dir, func(name string) error {
		if isTest(name) {
			return nil
		}
		raw, err := readBounded(dir, name)
		if err != nil {
			return err
		}
		if total += int64(len(raw)); total > maxUnpackedBytes {
			return errUnpacked
		}
		if err := entries.WriteHeader(&tar.Header{Name: "/" + name, Mode: 0o644, Size: int64(len(raw)), Typeflag: tar.TypeReg}); err != nil {
			return err
		}
		_, err = entries.Write(raw)
		return err
	})
	if err := errors.Join(err, entries.Close(), packed.Close()); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

func isTest(name string) bool { return strings.HasSuffix(name, "_test.rego") }

// walkBundle visits the files of a bundle in a directory, tests among them, in the order of their names.
func walkBundle(dir fs.FS, visit func(name string) error) error {
	files := 0
	return fs.WalkDir(dir, ".", func(name string, entry fs.DirEntry, err error) error {
		switch base := path.Base(name); {
		case err != nil:
			return err
		case entry.IsDir():
			if name != "." && strings.HasPrefix(base, ".") {
				return fs.SkipDir
			}
			return nil
		case !isPart(base):
			return nil
		case !entry.Type().IsRegular(): // a link to a file is as good as the file
			if info, err := fs.Stat(dir, name); err != nil || !info.Mode().IsRegular() {
				return err
			}
		}
		if files++; files > maxFiles {
			return fmt.Errorf("it has more than %d files", maxFiles)
		}
		return visit(name)
	})
}

func isPart(base string) bool {
	switch base {
	case "data.json", "data.yaml", "data.yml", ".manifest", ".signatures.json":
		return true
	}
	return strings.HasSuffix(base, ".rego") && !strings.HasPrefix(base, ".")
}

func readBounded(dir fs.FS, name string) ([]byte, error) {
	file, err := dir.Open(name)
	if err != nil {
		return nil, err
	}
	defer file.Close() //nolint:errcheck // it is only read
	raw, err := io.ReadAll(io.LimitReader(file, maxFileBytes+1))
	if err == nil && len(raw) > maxFileBytes {
		err = fmt.Errorf("the file %q is longer than %d bytes", name, maxFileBytes)
	}
	return raw, err
}

// clip keeps what comes from outside short.
func clip(s string) string { return clipTo(s, 120) }

func clipTo(s string, most int) string {
	if len(s) <= most {
		return strings.ToValidUTF8(s, "\uFFFD")
	}
	return strings.ToValidUTF8(s[:most-3], "") + "..."
}
