package resource

import (
	"math"
	"math/big"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

var extremes = []int64{0, 1, -1, 2, MaxQuantity, math.MaxInt64, math.MaxInt64 - 1, math.MinInt64, math.MinInt64 + 1, math.MaxInt64 / 2, math.MinInt64 / 2}

func quantity() *rapid.Generator[int64] {
	return rapid.OneOf(rapid.SampledFrom(extremes), rapid.Int64())
}

// clamp is the oracle: exact arithmetic, cut to int64.
func clamp(x *big.Int) int64 {
	switch {
	case x.IsInt64():
		return x.Int64()
	case x.Sign() > 0:
		return math.MaxInt64
	}
	return math.MinInt64
}

func TestArithmeticSaturates(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := quantity().Draw(t, "a"), quantity().Draw(t, "b")
		n := rapid.OneOf(rapid.SampledFrom([]int64{0, 1, 2, math.MaxInt64}), rapid.Int64Range(0, math.MaxInt64)).Draw(t, "n")
		x, y := big.NewInt(a), big.NewInt(b)
		for _, c := range []struct {
			name      string
			got, want int64
		}{
			{"a + b", Vector{CPU: a}.Add(Vector{CPU: b})[CPU], clamp(new(big.Int).Add(x, y))},
			{"a - b", Vector{CPU: a}.Sub(Vector{CPU: b})[CPU], clamp(new(big.Int).Sub(x, y))},
			{"a * n", Vector{CPU: a}.Scale(n)[CPU], clamp(new(big.Int).Mul(x, big.NewInt(n)))},
		} {
			if c.got != c.want {
				t.Fatalf("a = %d, b = %d, n = %d: %s = %d, not %d", a, b, n, c.name, c.got, c.want)
			}
		}
	})
}

// TestTimesIsTheMostThatFits holds Times against FitsIn.
func TestTimesIsTheMostThatFits(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var need, room Vector
		for _, k := range []Kind{CPU, Memory, FirstNamed} {
			need[k] = rapid.Int64Range(0, 5).Draw(t, "need")
			room[k] = rapid.Int64Range(-3, 40).Draw(t, "room")
		}
		limit := rapid.Int64Range(0, 20).Draw(t, "limit")
		most := int64(0)
		for n := int64(1); n <= limit; n++ {
			if all := need.Scale(n); all.FitsIn(&room) {
				most = n
			}
		}
		if got := need.Times(&room, limit); got != most {
			t.Fatalf("%v fits %d times in %v, not %d", need, most, room, got)
		}
	})
}

func TestNames(t *testing.T) {
	n := &Names{}
	for at, name := range []string{"a", "nvidia.com/mig-1g", "x_2"} {
		for range 2 {
			if k, err := n.Intern(name); err != nil || k != FirstNamed+Kind(at) || n.Name(k) != name {
				t.Errorf("%s has kind %d, %v", name, k, err)
			}
		}
	}
	if k, err := n.Intern("memory_mib"); err != nil || k != Memory {
		t.Errorf("a built-in name has kind %d, %v", k, err)
	}
	for _, bad := range []string{"", "A", "-a", "a-", "a b", strings.Repeat("a", maxNameLength+1)} {
		if _, err := n.Intern(bad); err == nil {
			t.Errorf("%q was taken for a name", bad)
		}
	}
	for len(n.Named()) < MaxKinds-int(FirstNamed) {
		if _, err := n.Intern("r" + strings.Repeat("x", len(n.Named()))); err != nil {
			t.Fatal(err)
		}
	}
	before := n.Named()
	if _, err := n.Intern("one-more"); err == nil || !strings.Contains(err.Error(), "one-more") {
		t.Errorf("the name that is one too many: %v", err)
	}
	again, err := NewNames(before)
	if err != nil || !slices.Equal(n.Named(), before) || !slices.Equal(again.Named(), before) {
		t.Errorf("%v and %v, %v; want %v", n.Named(), again.Named(), err, before)
	}
	if text := n.Format(Vector{CPU: 5, FirstNamed: 1}); text != "cpu_milli=5 a=1" || n.Format(Vector{}) != "nothing" {
		t.Errorf("formatted %q", text)
	}
	if name := (&Names{}).Name(MaxKinds - 1); name != "kind-15" {
		t.Errorf("a kind that nobody met is named %q", name)
	}
}

func TestAmountsForPeople(t *testing.T) {
	names, err := NewNames([]string{"fpga"})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		kind Kind
		q    int64
		want string
	}{
		{CPU, 500, "0.5 cores"},
		{CPU, 1000, "1 core"},
		{CPU, 0, "0 cores"},
		{CPU, 10_000, "10 cores"},
		{CPU, 1, "0.001 cores"},
		{Memory, 64, "64 MiB of memory"},
		{Memory, 4096, "4 GiB of memory"},
		{Memory, 1500, "1500 MiB of memory"}, // not round: nothing is lost
		{Memory, 15 << 10, "15 GiB of memory"},
		{Memory, 15<<10 + 512, "15.5 GiB of memory"},
		{Disk, 2 << 20, "2 TiB of disk"},
		{GPU, 1000, "1 GPU"},
		{GPU, 2000, "2 GPUs"},
		{GPU, 300, "0.3 GPUs"},
		{FirstNamed, 3, "3 fpga"},
	} {
		if got := names.Amount(c.kind, c.q); got != c.want {
			t.Errorf("%d of %s: %q, want %q", c.q, names.Name(c.kind), got, c.want)
		}
	}
	if got, want := names.Amounts(&Vector{CPU: 1500, Memory: 2048, FirstNamed: 1}), "1.5 cores, 2 GiB of memory and 1 fpga"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if got := names.Amounts(&Vector{}); got != "nothing" {
		t.Errorf("%q of nothing", got)
	}
}
