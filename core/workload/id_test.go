package workload

import (
	"bytes"
	"cmp"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func drawRunID(t *rapid.T) RunID {
	var id RunID
	copy(id.Job[:], rapid.SliceOfN(rapid.Byte(), len(id.Job), len(id.Job)).Draw(t, "job"))
	id.Instance = rapid.Uint32().Draw(t, "instance")
	id.Generation = rapid.Uint32().Draw(t, "generation")
	id.Run = rapid.Uint32().Draw(t, "run")
	return id
}

func TestIDsRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		id := drawRunID(t)
		text := id.String()
		if len(text) > 63 || strings.ToLower(text) != text {
			t.Fatalf("%q is no legal name in every cluster", text)
		}
		if back, err := ParseRunID(text); err != nil || back != id {
			t.Fatalf("%q is read as %v, %v", text, back, err)
		}
		if back, err := ParseID(id.Job.String()); err != nil || JobID(back) != id.Job {
			t.Fatalf("%s is read as %v, %v", id.Job, back, err)
		}
	})
}

// TestLongestRunID holds the bound with every part at its largest.
func TestLongestRunID(t *testing.T) {
	id := RunID{Job: JobID(bytes.Repeat([]byte{0xff}, 16)), Instance: MaxInstances - 1, Generation: 1<<32 - 1, Run: 1<<32 - 1}
	if n := len(id.String()); n > 63 {
		t.Errorf("%s has %d characters; 63 are legal", id, n)
	}
}

func TestOrders(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := drawRunID(t), drawRunID(t)
		if rapid.Bool().Draw(t, "same job") {
			b.Job = a.Job
		}
		byParts := cmp.Or(bytes.Compare(a.Job[:], b.Job[:]), cmp.Compare(a.Instance, b.Instance), cmp.Compare(a.Generation, b.Generation),
			cmp.Compare(a.Run, b.Run))
		if byKey := bytes.Compare(a.AppendKey(nil), b.AppendKey(nil)); byKey != byParts {
			t.Fatalf("keys of %s and %s compare as %d, the ids as %d", a, b, byKey, byParts)
		}
		if byText := cmp.Compare(a.Job.String(), b.Job.String()); byText != ID(a.Job).Compare(ID(b.Job)) {
			t.Fatalf("the names of jobs %s and %s do not sort as their bytes", a.Job, b.Job)
		}
	})
}

func FuzzParseID(f *testing.F) {
	for _, s := range []string{"", "0", strings.Repeat("0", 26), strings.Repeat("v", 26), strings.Repeat("0", 25) + "1"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if id, err := ParseID(s); err == nil && id.String() != s {
			t.Errorf("%q is read as %s", s, id)
		}
	})
}

func FuzzParseRunID(f *testing.F) {
	zero := strings.Repeat("0", 26)
	for _, s := range []string{"", zero, zero + "-0-1-1", zero + "-00-1-1", zero + "-0-1-1-1", zero + "-3vvvvvv-3vvvvvv-3vvvvvv", zero + "-4000000-0-0", zero + "-+1-1-1"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if id, err := ParseRunID(s); err == nil && id.String() != s {
			t.Errorf("%q is read as %s", s, id)
		}
	})
}
