package deploy_test

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/yaml"
)

const (
	root  = "../.."
	chart = root + "/deploy/helm/paceline"
	plain = root + "/deploy/kubernetes/rbac.yaml"
)

// codecs decode strictly what the manifests are made of, and nothing else.
var codecs = func() serializer.CodecFactory {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, appsv1.AddToScheme, rbacv1.AddToScheme, policyv1.AddToScheme, networkingv1.AddToScheme} {
		if err := add(scheme); err != nil {
			panic(err)
		}
	}
	return serializer.NewCodecFactory(scheme, serializer.EnableStrict)
}()

// decode reads the documents of a YAML stream, each into its Go type. Unknown and doubled fields are errors.
func decode(t *testing.T, raw []byte) []runtime.Object {
	t.Helper()
	reader, decoder := yaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(raw))), codecs.UniversalDeserializer()
	var all []runtime.Object
	for {
		document, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		if !hasContent(document) {
			continue
		}
		object, _, err := decoder.Decode(document, nil, nil)
		if err != nil {
			t.Errorf("%v:\n%s", err, document)
			continue
		}
		all = append(all, object)
	}
}

// hasContent reports whether a document is more than comments.
func hasContent(document []byte) bool {
	for line := range strings.Lines(string(document)) {
		if line = strings.TrimSpace(line); line != "" && line != "---" && !strings.HasPrefix(line, "#") {
			return true
		}
	}
	return false
}

// one finds the only object of a type.
func one[T runtime.Object](t *testing.T, all []runtime.Object) T {
	t.Helper()
	list := every[T](all)
	if len(list) != 1 {
		t.Fatalf("there are %d objects of type %T", len(list), *new(T))
	}
	return list[0]
}

func every[T runtime.Object](all []runtime.Object) []T {
	var list []T
	for _, object := range all {
		if o, ok := object.(T); ok {
			list = append(list, o)
		}
	}
	return list
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// readAll reads a folder, so that a test that hands it to another program is run again when it changes.
func readAll(t *testing.T, dir string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err == nil && e.Type().IsRegular() {
			_, err = os.ReadFile(path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}
