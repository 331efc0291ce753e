package wasm_test

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/paceline-sched/paceline/policies/wasm"
	asm "github.com/paceline-sched/paceline/policies/wasm/internal/assembler"
	"github.com/paceline-sched/paceline/sdk/policyabi"
)

var update = flag.Bool("update", false, "write the modules that other packages' tests use")

// tunable is a policy of preemption that ranks nobody and has an order, of which it does not like 13.
func tunable() []byte {
	p := good()
	p.section = "paceline.policy 1\nname tunable\nabi 1.0\nkinds preempt\nconfig order int 1\nconfig words text \"\"\n"
	p.place = asm.I64Const(0)
	const value = 8 + 4 + uint32(len("order")) // behind the head of the configuration, and of the value
	p.Export(policyabi.ExportConfig, asm.Function, p.Func([]byte{asm.I32}, []byte{asm.I32}, nil, asm.Join(
		asm.I32Const(arenaAt+policyabi.HeaderConfig), asm.With(0x28, 2, 0), asm.With(0x2d, 0, arenaAt+value), asm.I32Const(13), asm.Op(0x46),
		asm.I32Const(int32(policyabi.StatusConfig)), asm.Op(0x6c))))
	return p.of(policyabi.Preempt)
}

// TestConfigured: a version is its module and what it is configured with, and the defaults are nothing of their own.
func TestConfigured(t *testing.T) {
	binary := tunable()
	path := filepath.Join("..", "registry", "testdata", "guests", "tunable.wasm")
	if *update {
		if err := os.WriteFile(path, binary, 0o644); err != nil { //nolint:gosec // a file of the repository
			t.Fatal(err)
		}
	}
	if kept, err := os.ReadFile(path); err != nil || !bytes.Equal(kept, binary) {
		t.Fatalf("%s is another module: go test ./policies/wasm -run Configured -update; %v", path, err)
	}
	m, err := wasm.Check(binary, wasm.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	seen := map[wasm.Digest]string{m.Digest: ""}
	for _, c := range []struct {
		order, words string
		own, fails   bool
	}{{"1", "", true, false}, {"2", "", false, false}, {"1", "a b", false, false}, {"13", "", false, true}} {
		values, err := m.Values(map[string]string{"order": c.order, "words": c.words})
		if err != nil {
			t.Fatal(err)
		}
		want, err := m.Configured(values)
		if err != nil || (want == m.Digest) != c.own {
			t.Fatalf("%+v: %s and %v", c, want, err)
		}
		if other, known := seen[want]; known && !c.own {
			t.Fatalf("%+v has the digest of %q", c, other)
		}
		seen[want] = c.order
		v, err := wasm.Load(t.Context(), m, wasm.Config{Values: values})
		if c.fails {
			if err == nil || !strings.Contains(err.Error(), "configuration") {
				t.Fatalf("%+v is taken: %v", c, err)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if v.Digest() != want || v.Module().Digest != m.Digest {
			t.Errorf("%+v is loaded as %s, not %s", c, v.Digest(), want)
		}
		v.Release()
	}
	for text, given := range map[string]map[string]string{
		`no value "ordre" to set; it has order, words`: {"ordre": "1"}, `"x" is no int`: {"order": "x"},
	} {
		if _, err := m.Values(given); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("%v: %v", given, err)
		}
	}
}
