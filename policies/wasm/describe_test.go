package wasm_test

import (
	"strings"
	"testing"

	"github.com/paceline-sched/paceline/policies/wasm"
	asm "github.com/paceline-sched/paceline/policies/wasm/internal/assembler"
	"github.com/paceline-sched/paceline/sdk/policyabi"
)

// described is a module that returns where its text stands.
func described(text string, where int64) []byte {
	var m asm.Module
	m.Memory(1, 1)
	m.Export("memory", asm.Memory, 0)
	m.Data(64, []byte(text))
	f := m.Func(nil, []byte{asm.I64}, nil, asm.I64Const(where))
	m.Export(policyabi.ExportDescribe, asm.Function, f)
	return m.Bytes()
}

func TestDescribe(t *testing.T) {
	text := "paceline.policy 1\nname x\nabi 1.0\nkinds place\n"
	module := described(text, 64<<32|int64(len(text)))
	got, err := wasm.Describe(t.Context(), module, wasm.Limits{})
	if err != nil || string(got) != text {
		t.Fatalf("%q %v", got, err)
	}
	stamped, err := wasm.Stamp(module, got)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := wasm.Check(stamped, wasm.Limits{}); err == nil || !strings.Contains(err.Error(), `policy x`) || !strings.Contains(err.Error(), "does not export") {
		t.Errorf("the section of a stamped module was not read: %v", err)
	}
	if _, err := wasm.Stamp(stamped, got); err == nil || !strings.Contains(err.Error(), "already") {
		t.Errorf("stamped twice: %v", err)
	}
	if _, err := wasm.Stamp(module, []byte("x")); err == nil {
		t.Error("a section that says nothing was taken")
	}
	if _, err := wasm.Stamp([]byte("no module"), got); err == nil {
		t.Error("a module that is none was taken")
	}
}

func TestDescribeRefuses(t *testing.T) {
	text := "paceline.policy 1\nname x\n"
	for _, c := range []struct {
		why    string
		module []byte
		want   string
	}{
		{"no export", guest(t, "bestfit"), "does not export"},
		{"beyond memory", described(text, 65000<<32|4096), "no text within memory"},
		{"no text", described(text, 0), "no text within memory"},
		{"half a section", described(text, 64<<32|int64(len(text))), "the line is missing"},
		{"no module", []byte("paceline"), "no WebAssembly module"},
	} {
		if got, err := wasm.Describe(t.Context(), c.module, wasm.Limits{}); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %q %v, want %q", c.why, got, err, c.want)
		}
	}
}
