package policyabi_test

import (
	"bytes"
	"encoding/hex"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/paceline-sched/paceline/sdk/policyabi"
)

var update = flag.Bool("update", false, "write the golden files and the tables of the page anew")

// golden compares got with a file below testdata.
func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.MkdirAll("testdata", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s differs: guests built before would misread the arena. If that is meant, raise the version and run the test with -update\ngot:\n%s", path, got)
	}
}

// sample is an arena with something in every section.
func sample(t testing.TB) ([]byte, policyabi.Layout) {
	t.Helper()
	config, err := policyabi.Config{
		{Key: "label", Type: policyabi.Text, Text: "größe"},
		{Key: "limit", Type: policyabi.Int, Int: -3},
		{Key: "strict", Type: policyabi.Bool, Bool: true},
		{Key: "weight", Type: policyabi.Float, Float: 1.5},
	}.Append(nil)
	if err != nil {
		t.Fatal(err)
	}
	x := policyabi.Extension{Named: []policyabi.NamedNeed{{Kind: 4, Amount: 2}}, Models: []uint16{1, 3, 4}}
	extension := x.Append(nil)
	l, err := policyabi.Plan(policyabi.Shape{
		Kind: policyabi.Place, Rows: 70,
		Columns: []policyabi.Column{
			{ID: policyabi.ColumnFree},
			{ID: policyabi.ColumnFree + 4, Key: policyabi.Hash("licences"), Shift: 3},
			{ID: policyabi.ColumnDeviceFree},
			{ID: policyabi.ColumnVersion},
			{ID: policyabi.ColumnTopology, Key: policyabi.Hash("rack")},
			{ID: policyabi.ColumnExtension, Key: policyabi.Hash("power"), Type: policyabi.Float32, Lanes: 2},
		},
		Requests: 2, Results: 16, Bitmaps: 2, Biases: 1, Config: len(config), Mix: 1, Dirty: 20, Extension: len(extension), Scratch: 100,
	})
	if err != nil {
		t.Fatal(err)
	}
	h := l.Header
	h.Epoch, h.BaseEpoch, h.Generation, h.Seed, h.Time, h.DirtyCount = 7, 6, 5, 0x1122334455667788, 1_700_000_000_000, 1
	b := make([]byte, h.Total)
	h.Encode(b)
	for i := range l.Entries {
		l.Entries[i].Encode(b[int(h.Directory)+i*policyabi.EntryBytes:])
	}
	copy(b[h.Config:], config)
	copy(b[h.Extension:], extension)
	mix := policyabi.Mix{Class: 9, Weight: 0.75, Needs: [4]int32{1000, 2048, 0, 500}, Share: 500, Devices: 1, Models: 0b1010}
	mix.Encode(b[h.Mix:])
	first := policyabi.Request{
		Class: 9, Count: 3, Flags: policyabi.RequestGang, Bitmap: l.Bitmaps, Bias: l.Biases, Needs: [4]int32{1000, 2048, 0, 500},
		Share: 500, Devices: 1, Priority: -5, Spread: uint32(policyabi.ColumnTopology), Pool: 4, Extension: h.Extension,
	}
	second := policyabi.Request{Class: 10, Count: 1, Bitmap: l.Bitmaps + l.BitmapBytes, Needs: [4]int32{1, 1, 1, 0}}
	first.Encode(b[h.Requests:])
	second.Encode(b[h.Requests+policyabi.RequestBytes:])
	result := policyabi.Result{Request: 1, Count: 1, Host: 69, Score: -0.5, Devices: 0, Reason: 12}
	result.Encode(b[h.Results:])
	h2, err := policyabi.DecodeHeader(b)
	if err != nil || h2 != h {
		t.Fatalf("header %+v came back as %+v, %v", h, h2, err)
	}
	return b, l
}

func TestGoldenArena(t *testing.T) {
	b, l := sample(t)
	var out bytes.Buffer
	fmt.Fprintf(&out, "kind %v rows %d capacity %d total %d written %d\n", l.Header.Kind, l.Header.Rows, l.Header.Capacity, l.Header.Total, l.Written)
	dump := func(name string, at, n uint32) {
		fmt.Fprintf(&out, "\n%s at %d\n%s", name, at, hex.Dump(b[at:at+n]))
	}
	h := &l.Header
	dump("header", 0, policyabi.HeaderBytes)
	dump("directory", h.Directory, h.Columns*policyabi.EntryBytes)
	dump("config", h.Config, h.ConfigBytes)
	dump("mix", h.Mix, policyabi.MixBytes)
	dump("requests", h.Requests, 2*policyabi.RequestBytes)
	dump("extension", h.Extension, h.ExtensionBytes)
	dump("results", h.Results, policyabi.ResultBytes)
	fmt.Fprintf(&out, "\ndirty at %d, bitmaps at %d every %d, biases at %d every %d, scratch at %d\n", h.Dirty, l.Bitmaps, l.BitmapBytes, l.Biases, l.BiasBytes, h.Scratch)
	candidate := policyabi.Candidate{
		Job: 1, Pool: 2, Over: 3, Work: 4, Priority: -5, Flags: policyabi.CandidateGang, Runs: 6, Members: 7, Use: [4]int32{8, 9, 10, 11},
	}
	raw := make([]byte, policyabi.CandidateBytes)
	candidate.Encode(raw)
	fmt.Fprintf(&out, "\ncandidate\n%s", hex.Dump(raw))
	golden(t, "arena.golden", out.Bytes())
}

func TestGoldenCapability(t *testing.T) {
	c := capability(t)
	text, err := c.Append(nil)
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "capability.golden", text)
}

func capability(t testing.TB) policyabi.Capability {
	t.Helper()
	c := policyabi.Capability{
		Name: "best-fit", Version: "1.2.0", Major: policyabi.Major, Minor: policyabi.Minor, Kinds: []policyabi.Kind{policyabi.Place, policyabi.Preempt},
		Features: []string{policyabi.FeatureScan}, Scratch: 4096, ScratchPerRow: 8, SDK: "go 0.1.0",
		Config: []policyabi.Value{
			{Key: "label", Type: policyabi.Text, Text: "a \"quoted\"\nline"},
			{Key: "limit", Type: policyabi.Int, Int: 7},
			{Key: "strict", Type: policyabi.Bool},
			{Key: "weight", Type: policyabi.Float, Float: 1.5},
		},
	}
	for _, text := range []string{"leftover", "free.*", "total.cpu", "free:licences", "topology:rack", "device_free", "extension:power"} {
		w, err := policyabi.ParseWant(text)
		if err != nil {
			t.Fatal(err)
		}
		if w.String() != text {
			t.Fatalf("%q came back as %q", text, w)
		}
		c.Columns = append(c.Columns, w)
	}
	return c
}
