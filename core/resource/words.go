package resource

import (
	"strconv"
	"strings"
)

// spelling is how people speak of a built-in kind: one of what they count in thousands, several, or what they measure in bytes.
type spelling struct{ one, noun string }

var spellings = [FirstNamed]spelling{CPU: {"core", "cores"}, Memory: {"", "memory"}, Disk: {"", "disk"}, GPU: {"GPU", "GPUs"}}

// Amount writes a quantity of a kind as people say it, for messages: "0.5 cores", "4 GiB of memory", "2 GPUs", "3 fpga". What is exact
// stands in the vectors beside it.
func (n *Names) Amount(k Kind, q int64) string {
	switch {
	case k >= FirstNamed:
		return n.Figure(k, q) + " " + n.Name(k)
	case spellings[k].one == "":
		return n.Figure(k, q) + " of " + n.Noun(k)
	case q == 1000:
		return "1 " + spellings[k].one
	}
	return n.Figure(k, q) + " " + n.Noun(k)
}

// Figure is Amount without what it is of: "0.5", "4 GiB".
func (n *Names) Figure(k Kind, q int64) string {
	switch {
	case k >= FirstNamed:
		return strconv.FormatInt(q, 10)
	case spellings[k].one == "":
		return binary(q)
	}
	return decimal(float64(q)/1000, 3)
}

// Noun is what a kind is of, in a sentence.
func (n *Names) Noun(k Kind) string {
	if k < FirstNamed {
		return spellings[k].noun
	}
	return n.Name(k)
}

// Amounts writes what a vector has, "0.5 cores and 64 MiB of memory"; "nothing" where that is nothing.
func (n *Names) Amounts(v *Vector) string {
	var parts []string
	for k, q := range v {
		if q > 0 {
			parts = append(parts, n.Amount(Kind(k), q))
		}
	}
	if parts == nil {
		return "nothing"
	}
	if last := len(parts) - 1; last > 0 {
		return strings.Join(parts[:last], ", ") + " and " + parts[last]
	}
	return parts[0]
}

// binary writes MiB in the unit that keeps the figure short; where it is small and not round, in MiB, so that nothing is lost.
func binary(mib int64) string {
	const gib, tib = 1 << 10, 1 << 20
	size := max(mib, -mib)
	switch {
	case size >= 10*tib || size >= tib && size%gib == 0:
		return decimal(float64(mib)/tib, 2) + " TiB"
	case size >= 10*gib || size >= gib && size%gib == 0:
		return decimal(float64(mib)/gib, 2) + " GiB"
	}
	return strconv.FormatInt(mib, 10) + " MiB"
}

func decimal(f float64, places int) string {
	s := strconv.FormatFloat(f, 'f', places, 64)
	return strings.TrimSuffix(strings.TrimRight(s, "0"), ".")
}
