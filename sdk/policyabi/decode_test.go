package policyabi_test

import (
	"bytes"
	"math"
	"reflect"
	"strings"
	"testing"

	"github.com/paceline-sched/paceline/sdk/policyabi"
	"pgregory.net/rapid"
)

func TestRecordsComeBack(t *testing.T) {
	b, l := sample(t)
	h := l.Header
	h.DirtyCount = 1
	entries, err := policyabi.DecodeDirectory(b, &h)
	if err != nil || !reflect.DeepEqual(entries, l.Entries) {
		t.Fatalf("directory came back as %+v, %v, was %+v", entries, err, l.Entries)
	}
	r, err := policyabi.DecodeRequest(b, &h, 0)
	if err != nil || r.Class != 9 || r.Count != 3 || r.Priority != -5 || r.Needs != [4]int32{1000, 2048, 0, 500} {
		t.Fatalf("request came back as %+v, %v", r, err)
	}
	x, err := policyabi.DecodeExtension(b[r.Extension : h.Extension+h.ExtensionBytes])
	if err != nil || len(x.Named) != 1 || !reflect.DeepEqual(x.Models, []uint16{1, 3, 4}) {
		t.Fatalf("extension came back as %+v, %v", x, err)
	}
	m, err := policyabi.DecodeMix(b, &h, 0)
	if err != nil || m.Weight != 0.75 || m.Models != 0b1010 {
		t.Fatalf("mix came back as %+v, %v", m, err)
	}
	if e := policyabi.Find(entries, policyabi.ColumnTopology, policyabi.Hash("rack")); e == nil || e.Type != policyabi.Int32 {
		t.Fatalf("topology column not found: %+v", e)
	}
	if _, err := policyabi.DecodeRequest(b, &h, 2); err == nil {
		t.Fatal("a third of two requests was read")
	}
}

func TestCapabilityComesBack(t *testing.T) {
	c := capability(t)
	text, err := c.Append(nil)
	if err != nil {
		t.Fatal(err)
	}
	back, err := policyabi.DecodeCapability(append(text, 0, 0))
	if err != nil || !reflect.DeepEqual(back, c) {
		t.Fatalf("came back as %+v, %v\nwas %+v", back, err, c)
	}
}

func TestCapabilityRefuses(t *testing.T) {
	const good = "paceline.policy 1\nname a\nabi 1.0\nkinds place\n"
	if _, err := policyabi.DecodeCapability([]byte(good + "later something\n")); err != nil {
		t.Fatalf("a word of a later version: %v", err)
	}
	for text, want := range map[string]string{
		"":                                                        "first line",
		"paceline.policy 2\n":                                     "first line",
		"paceline.policy 1\nname a\nabi 1.0\n":                    "kinds",
		good + "name b\n":                                         "twice",
		good + "columns nonsense\n":                               "no such column",
		good + "columns free\n":                                   "which kind",
		good + "columns free.*\nkinds quota\n":                    "twice",
		good + "columns reservation.*\n":                          "no column for a policy of these kinds",
		good + "columns leftover leftover\n":                      "twice",
		good + "scratch 99999999 0\n":                             "no number from",
		good + "config a int x\n":                                 "no int",
		good + "config a float NaN\n":                             "finite",
		good + "config b int 1\nconfig a int 1\n":                 "order of the alphabet",
		"paceline.policy 1\nname a\nabi 01.0\nkinds place\n":      "two numbers",
		"paceline.policy 1\nname a\nabi 1.0\nkinds place place\n": "each once",
		"paceline.policy 1\nname a b\nabi 1.0\nkinds place\n":     "a name is",
		"paceline.policy 1\nname a\nabi 1.0\nkinds score\n":       "none of place",
		good + strings.Repeat("x", policyabi.MaxCapability):       "more than",
		"paceline.policy 1\nname \xff\nabi 1.0\nkinds place\n":    "UTF-8",
		good + "features b a\n":                                   "order of the alphabet",
		good + "columns topology\n":                               "of which attribute",
		good + "columns leftover.cpu\n":                           "one column",
		good + "columns free:" + strings.Repeat("x", 64) + "\n":   "1 to 63",
		good + "version  \n":                                      "without blanks",
		good + "config a blob x\n":                                "none of bool",
		good + "config a int\n":                                   "a key, a type and a default",
	} {
		if _, err := policyabi.DecodeCapability([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want something about %q", text, err, want)
		}
	}
}

func TestConfigWithDefaults(t *testing.T) {
	c := capability(t)
	full, err := c.With(policyabi.Config{{Key: "weight", Type: policyabi.Int, Int: 2}, {Key: "strict", Type: policyabi.Bool, Bool: true}})
	if err != nil {
		t.Fatal(err)
	}
	if w, _ := full.Lookup("weight"); w.Type != policyabi.Float || w.Float != 2 {
		t.Errorf("weight is %+v", w)
	}
	if n, _ := full.Lookup("limit"); n.Int != 7 {
		t.Errorf("limit lost its default: %+v", n)
	}
	if d, _ := policyabi.Config(c.Config).Lookup("weight"); d.Float != 1.5 {
		t.Errorf("the policy's own default changed: %+v", d)
	}
	for _, bad := range []policyabi.Value{{Key: "unknown", Type: policyabi.Int}, {Key: "limit", Type: policyabi.Text, Text: "x"}} {
		if _, err := c.With(policyabi.Config{bad}); err == nil {
			t.Errorf("%+v was taken", bad)
		}
	}
}

func TestConfigComesBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		keys := rapid.SliceOfNDistinct(rapid.StringMatching(`[a-z][a-z0-9_./-]{0,20}`), 0, 8, rapid.ID[string]).Draw(t, "keys")
		c := make(policyabi.Config, 0, len(keys))
		for _, key := range sorted(keys) {
			v := policyabi.Value{Key: key, Type: policyabi.ValueType(rapid.IntRange(1, 4).Draw(t, "type"))}
			switch v.Type {
			case policyabi.Bool:
				v.Bool = rapid.Bool().Draw(t, "bool")
			case policyabi.Int:
				v.Int = rapid.Int64().Draw(t, "int")
			case policyabi.Float:
				v.Float = rapid.Float64().Draw(t, "float")
			case policyabi.Text:
				v.Text = rapid.StringMatching(`[ -~]{0,40}`).Draw(t, "text")
			}
			c = append(c, v)
		}
		b, err := c.Append(nil)
		if err != nil {
			t.Fatal(err)
		}
		back, err := policyabi.DecodeConfig(b)
		if err != nil || len(back) != len(c) {
			t.Fatalf("came back as %v, %v", back, err)
		}
		for i := range c {
			if back[i] != c[i] {
				t.Fatalf("%+v came back as %+v", c[i], back[i])
			}
		}
	})
}

func TestConfigRefuses(t *testing.T) {
	for name, c := range map[string]policyabi.Config{
		"order":    {{Key: "b", Type: policyabi.Int}, {Key: "a", Type: policyabi.Int}},
		"twice":    {{Key: "a", Type: policyabi.Int}, {Key: "a", Type: policyabi.Int}},
		"no key":   {{Type: policyabi.Int}},
		"no type":  {{Key: "a"}},
		"infinite": {{Key: "a", Type: policyabi.Float, Float: math.Inf(1)}},
		"zero":     {{Key: "a", Type: policyabi.Text, Text: "\x00"}},
		"long":     {{Key: "a", Type: policyabi.Text, Text: strings.Repeat("x", policyabi.MaxText+1)}},
		"many":     make(policyabi.Config, policyabi.MaxConfigKeys+1),
	} {
		if _, err := c.Append(nil); err == nil {
			t.Errorf("%s: taken", name)
		}
	}
}

func TestReturnComesBack(t *testing.T) {
	for _, s := range []policyabi.Status{policyabi.StatusOK, policyabi.StatusInternal, policyabi.StatusPolicy - 3, math.MinInt32, math.MaxInt32} {
		if status, n := policyabi.SplitReturn(policyabi.Return(s, math.MaxUint32)); status != s || n != math.MaxUint32 {
			t.Errorf("%d came back as %d, %d", s, status, n)
		}
	}
	if got := (policyabi.StatusPolicy - 3).String(); got != "refused by the policy for its reason 3" {
		t.Error(got)
	}
}

// TestPlanSectionsAreApart draws shapes and looks at every section's bytes: aligned, within the arena, apart from all others.
func TestPlanSectionsAreApart(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		draw := func(name string, most int) int { return rapid.IntRange(0, most).Draw(t, name) }
		s := policyabi.Shape{
			Kind: policyabi.Place, Rows: draw("rows", 300), Requests: draw("requests", 9), Results: draw("results", 50), Bitmaps: draw("bitmaps", 5),
			Biases: draw("biases", 3), Config: draw("config", 300), Mix: draw("mix", 5), Dirty: draw("dirty", 40), Extension: draw("extension", 99), Scratch: draw("scratch", 999),
		}
		for range draw("columns", 6) {
			ids := []policyabi.ColumnID{policyabi.ColumnFree + 2, policyabi.ColumnDeviceModel, policyabi.ColumnHost, policyabi.ColumnInverse}
			s.Columns = append(s.Columns, policyabi.Column{ID: rapid.SampledFrom(ids).Draw(t, "id")})
		}
		l, err := policyabi.Plan(s)
		if err != nil {
			t.Fatal(err)
		}
		h := &l.Header
		owner := make([]byte, h.Total)
		claim := func(what byte, at, n uint32) {
			if at%policyabi.Alignment != 0 {
				t.Fatalf("section %d begins at %d", what, at)
			}
			for i := at; i < at+n; i++ {
				if owner[i] != 0 {
					t.Fatalf("byte %d belongs to sections %d and %d", i, owner[i], what)
				}
				owner[i] = what
			}
		}
		claim(1, 0, policyabi.HeaderBytes)
		claim(2, h.Directory, h.Columns*policyabi.EntryBytes)
		claim(3, h.Config, h.ConfigBytes)
		claim(4, h.Mix, h.MixCount*policyabi.MixBytes)
		claim(5, h.Dirty, 4*uint32(s.Dirty))
		claim(6, h.Requests, h.RequestCount*policyabi.RequestBytes)
		claim(7, h.Extension, h.ExtensionBytes)
		for i := range s.Bitmaps {
			claim(8, l.Bitmaps+uint32(i)*l.BitmapBytes, h.Capacity/8)
		}
		for i := range s.Biases {
			claim(9, l.Biases+uint32(i)*l.BiasBytes, 4*h.Capacity)
		}
		claim(10, h.Results, h.ResultCapacity*policyabi.ResultBytes)
		claim(11, h.Scratch, h.ScratchBytes)
		for i, e := range l.Entries {
			claim(byte(20+i), e.Offset, e.Rows*e.Stride)
			if e.Offset+e.Rows*e.Stride > l.Written {
				t.Fatal("a column lies behind what the host writes")
			}
		}
		if h.Results < l.Written {
			t.Fatal("results lie within what the host writes")
		}
		b := make([]byte, h.Total)
		h.Encode(b)
		if _, err := policyabi.DecodeHeader(b); err != nil {
			t.Fatal(err)
		}
	})
}

func TestPlanRefuses(t *testing.T) {
	for name, s := range map[string]policyabi.Shape{
		"kind":      {Rows: 1},
		"rows":      {Kind: policyabi.Place, Rows: policyabi.MaxRows + 1},
		"negative":  {Kind: policyabi.Place, Results: -1},
		"column":    {Kind: policyabi.Place, Columns: []policyabi.Column{{ID: 3}}},
		"type":      {Kind: policyabi.Place, Columns: []policyabi.Column{{ID: policyabi.ColumnFree, Type: policyabi.Int64}}},
		"extension": {Kind: policyabi.Place, Columns: []policyabi.Column{{ID: policyabi.ColumnExtension, Type: policyabi.Int64}}},
		"size":      {Kind: policyabi.Place, Rows: policyabi.MaxRows, Biases: policyabi.MaxRequests},
	} {
		if _, err := policyabi.Plan(s); err == nil {
			t.Errorf("%s: taken", name)
		}
	}
}

func sorted(in []string) []string {
	out := append([]string(nil), in...)
	for i := range out {
		for j := i; j > 0 && out[j] < out[j-1]; j-- {
			out[j], out[j-1] = out[j-1], out[j]
		}
	}
	return out
}

func FuzzArena(f *testing.F) {
	b, _ := sample(f)
	f.Add(b)
	f.Add(b[:policyabi.HeaderBytes])
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := policyabi.DecodeHeader(b)
		if err != nil {
			return
		}
		again := make([]byte, policyabi.HeaderBytes)
		h.Encode(again)
		if !bytes.Equal(again, b[:policyabi.HeaderBytes]) {
			t.Fatal("the header does not encode to what was decoded")
		}
		entries, err := policyabi.DecodeDirectory(b, &h)
		if err == nil {
			for i := range entries {
				e := &entries[i]
				_ = b[e.Offset : uint64(e.Offset)+uint64(e.Rows)*uint64(e.Stride)]
			}
		}
		for i := range int(h.RequestCount) {
			r, err := policyabi.DecodeRequest(b, &h, i)
			if err == nil {
				_ = b[r.Bitmap : r.Bitmap+h.Capacity/8]
				if r.Extension != 0 {
					_, _ = policyabi.DecodeExtension(b[r.Extension : h.Extension+h.ExtensionBytes])
				}
			}
			_, _ = policyabi.DecodeCandidate(b, &h, i)
		}
		for i := range int(h.MixCount) {
			_, _ = policyabi.DecodeMix(b, &h, i)
		}
	})
}

func FuzzResult(f *testing.F) {
	f.Add(make([]byte, policyabi.ResultBytes))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) < policyabi.ResultBytes {
			return
		}
		r, err := policyabi.DecodeResult(b)
		if err != nil {
			return
		}
		again := make([]byte, policyabi.ResultBytes)
		r.Encode(again)
		if !bytes.Equal(again, b[:policyabi.ResultBytes]) {
			t.Fatal("the result does not encode to what was decoded")
		}
	})
}

func FuzzConfig(f *testing.F) {
	b, l := sample(f)
	f.Add(b[l.Header.Config : l.Header.Config+l.Header.ConfigBytes])
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := policyabi.DecodeConfig(b)
		if err != nil || len(b) == 0 {
			return
		}
		again, err := c.Append(nil)
		if err != nil || !bytes.Equal(again, b) {
			t.Fatalf("%v does not encode to what was decoded: %v", c, err)
		}
	})
}

func FuzzExtension(f *testing.F) {
	x := policyabi.Extension{Named: []policyabi.NamedNeed{{Kind: 4, Amount: 2}}, Models: []uint16{1, 3, 4}}
	f.Add(x.Append(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		x, err := policyabi.DecodeExtension(b)
		if err != nil {
			return
		}
		back, err := policyabi.DecodeExtension(x.Append(nil))
		if err != nil || !reflect.DeepEqual(x, back) {
			t.Fatalf("%+v came back as %+v, %v", x, back, err)
		}
	})
}

func FuzzCapability(f *testing.F) {
	c := capability(f)
	text, err := c.Append(nil)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := policyabi.DecodeCapability(b)
		if err != nil {
			return
		}
		again, err := c.Append(nil)
		if err != nil {
			return // a text in it may have become longer
		}
		back, err := policyabi.DecodeCapability(again)
		if err != nil || !reflect.DeepEqual(c, back) {
			t.Fatalf("%+v came back as %+v, %v", c, back, err)
		}
	})
}
