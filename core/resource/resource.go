// Package resource holds fixed-point resource vectors and the registry that gives named extended resources their place in
// one.
//
// Quantities are int64 in the unit of their kind: CPU in thousandths of a core, memory and disk in MiB, GPU in thousandths of
// a device, an extended resource in whole units. There is no floating point and no unit conversion below the API edge.
//
// The package owns arithmetic and names only. It never knows who holds a resource, and it is pure: values are copied, nothing
// blocks, nothing is shared. A *Names is owned by one writer; a Vector may be read by anybody.
package resource

import (
	"fmt"
	"math"
	"regexp"
	"strings"
)

// Kind is the position of one resource in a Vector.
type Kind uint8

// The kinds that every cell has. Extended resources take the positions from FirstNamed on, in the order in which a cell met
// them.
const (
	CPU    Kind = iota // thousandths of a core
	Memory             // MiB
	Disk               // MiB
	GPU                // thousandths of a device
	FirstNamed

	// MaxKinds bounds the kinds of one cell, the four built-in ones included.
	MaxKinds = 16
)

const (
	// MaxQuantity bounds one quantity of one task or host, in the unit of its kind.
	MaxQuantity = int64(1) << 40
	// maxNameLength bounds an extended resource's name.
	maxNameLength = 63
)

// Vector is one quantity per kind. The zero value is empty and ready for use.
type Vector [MaxKinds]int64

// Add returns v + o, saturating at the int64 range so that a sum of absurd demands stays absurd instead of turning negative.
func (v Vector) Add(o Vector) Vector {
	for k := range v {
		v[k] = saturatingAdd(v[k], o[k])
	}
	return v
}

// Sub returns v - o, saturating as Add does. A result below zero is kept: a negative balance is for the caller to refuse.
func (v Vector) Sub(o Vector) Vector {
	for k := range v {
		v[k] = saturatingSub(v[k], o[k])
	}
	return v
}

// Scale returns v times n, saturating. n must not be negative.
func (v Vector) Scale(n int64) Vector {
	for k := range v {
		v[k] = saturatingMul(v[k], n)
	}
	return v
}

// Min returns the smaller quantity of each kind.
func (v Vector) Min(o Vector) Vector {
	for k := range v {
		v[k] = min(v[k], o[k])
	}
	return v
}

// Max returns the larger quantity of each kind.
func (v Vector) Max(o Vector) Vector {
	for k := range v {
		v[k] = max(v[k], o[k])
	}
	return v
}

// FitsIn reports whether room offers at least v of every kind that v asks for. A kind that v does not ask for is ignored, so
// that a room already negative there refuses nobody who does not touch it.
func (v *Vector) FitsIn(room *Vector) bool {
	for k, need := range v {
		if need > 0 && need > room[k] {
			return false
		}
	}
	return true
}

// Times returns how often v fits in room, at most limit. A vector that asks for nothing fits limit times.
func (v *Vector) Times(room *Vector, limit int64) int64 {
	for k, need := range v {
		if need <= 0 {
			continue
		}
		if room[k] < need {
			return 0
		}
		limit = min(limit, room[k]/need)
	}
	return limit
}

// PartOf is the largest part of needs that v is: 0 when nothing of v is positive.
func (v *Vector) PartOf(needs *Vector) float64 {
	most := 0.0
	for k, n := range v {
		if n > 0 {
			most = max(most, float64(n)/float64(max(needs[k], 1)))
		}
	}
	return most
}

// IsZero reports whether every quantity is zero.
func (v Vector) IsZero() bool { return v == Vector{} }

// HasNegative reports whether any quantity is below zero.
func (v *Vector) HasNegative() bool {
	for _, q := range v {
		if q < 0 {
			return true
		}
	}
	return false
}

func saturatingAdd(a, b int64) int64 {
	sum := a + b
	switch {
	case a > 0 && b > 0 && sum < 0:
		return math.MaxInt64
	case a < 0 && b < 0 && sum >= 0:
		return math.MinInt64
	}
	return sum
}

func saturatingSub(a, b int64) int64 {
	difference := a - b
	switch {
	case a >= 0 && b < 0 && difference < 0:
		return math.MaxInt64
	case a < 0 && b > 0 && difference >= 0:
		return math.MinInt64
	}
	return difference
}

func saturatingMul(a, n int64) int64 {
	if a == 0 || n == 0 {
		return 0
	}
	product := a * n
	if product/n != a {
		if a < 0 {
			return math.MinInt64
		}
		return math.MaxInt64
	}
	return product
}

// builtinNames are the names of the built-in kinds, as they appear in records, files and messages.
var builtinNames = [FirstNamed]string{"cpu_milli", "memory_mib", "disk_mib", "gpu_milli"}

var namePattern = regexp.MustCompile(`^[a-z0-9]([a-z0-9._/-]*[a-z0-9])?$`)

// Names gives each extended resource of a cell its Kind. Kinds are handed out in order of first use and never change: a
// Vector means the same for as long as its cell lives. The zero value knows the built-in kinds.
type Names struct {
	named []string // named[i] is the name of Kind FirstNamed+i
}

// NewNames returns the registry in which the extended resources hold the kinds from FirstNamed on in the given order, as
// Named returned them.
func NewNames(named []string) (*Names, error) {
	n := &Names{}
	for _, name := range named {
		if _, err := n.Intern(name); err != nil {
			return nil, err
		}
	}
	return n, nil
}

// Lookup returns the kind of a name, built-in or extended.
func (n *Names) Lookup(name string) (Kind, bool) {
	for k, b := range builtinNames {
		if b == name {
			return Kind(k), true
		}
	}
	for i, known := range n.named {
		if known == name {
			return FirstNamed + Kind(i), true
		}
	}
	return 0, false
}

// Intern returns the kind of a name and gives a new name the next free kind. It fails when the name is malformed or when the
// cell has MaxKinds kinds already; nothing changes then.
func (n *Names) Intern(name string) (Kind, error) {
	if k, ok := n.Lookup(name); ok {
		return k, nil
	}
	if err := CheckName(name); err != nil {
		return 0, err
	}
	if len(n.named) == MaxKinds-int(FirstNamed) {
		return 0, fmt.Errorf("resource %q is one too many: a cell has at most %d extended resources (%s)",
			name, MaxKinds-int(FirstNamed), strings.Join(n.named, ", "))
	}
	n.named = append(n.named, name)
	return FirstNamed + Kind(len(n.named)-1), nil
}

// CheckName reports what is wrong with an extended resource's name.
func CheckName(name string) error {
	if len(name) > maxNameLength || !namePattern.MatchString(name) {
		return fmt.Errorf("resource name %q must be at most %d of a-z, 0-9, '.', '_', '/', '-', starting and ending with a letter or digit",
			name, maxNameLength)
	}
	return nil
}

// Name returns the name of a kind, or "kind-N" for one that the registry has not met.
func (n *Names) Name(k Kind) string {
	switch {
	case k < FirstNamed:
		return builtinNames[k]
	case int(k-FirstNamed) < len(n.named):
		return n.named[k-FirstNamed]
	}
	return fmt.Sprintf("kind-%d", k)
}

// Len returns the number of kinds in use, the built-in ones included.
func (n *Names) Len() int { return int(FirstNamed) + len(n.named) }

// Named returns the extended names in kind order.
func (n *Names) Named() []string { return append([]string(nil), n.named...) }

// Format renders the non-zero quantities of v, for messages.
func (n *Names) Format(v Vector) string {
	var parts []string
	for k, q := range v {
		if q != 0 {
			parts = append(parts, fmt.Sprintf("%s=%d", n.Name(Kind(k)), q))
		}
	}
	if parts == nil {
		return "nothing"
	}
	return strings.Join(parts, " ")
}
