package host

import (
	"cmp"
	"fmt"
	"slices"
)

// portSet is what of one host's ports is taken.
type portSet struct {
	ranges []PortRange // ascending, disjoint, with gaps between them
	taken  []uint16    // ascending; twice where two runs claim one port, as a replay may find
}

// normalRanges sorts and merges.
func normalRanges(in []PortRange) []PortRange {
	sorted := slices.Clone(in)
	slices.SortFunc(sorted, func(a, b PortRange) int { return cmp.Compare(a.First, b.First) })
	var out []PortRange
	for _, r := range sorted {
		if n := len(out); n > 0 && int(r.First) <= int(out[n-1].Last)+1 {
			out[n-1].Last = max(out[n-1].Last, r.Last)
			continue
		}
		out = append(out, r)
	}
	return out
}

func checkPorts(h *Host) error {
	if len(h.Ports) > MaxPortRanges {
		return fmt.Errorf("host %q has %d port ranges, at most %d are allowed", h.Name, len(h.Ports), MaxPortRanges)
	}
	for _, r := range h.Ports {
		if r.First == 0 || r.Last < r.First {
			return fmt.Errorf("host %q: port range %d-%d must start at 1 or above and not end before it starts", h.Name, r.First, r.Last)
		}
	}
	return nil
}

func (p *portSet) offers(port uint16) bool {
	for _, r := range p.ranges {
		if port >= r.First && port <= r.Last {
			return true
		}
	}
	return false
}

// size is the number of ports that the host offers, taken or not.
func (p *portSet) size() int64 {
	n := int64(0)
	for _, r := range p.ranges {
		n += int64(r.Last) - int64(r.First) + 1
	}
	return n
}

// free is the number of ports offered and not taken.
func (p *portSet) free() int64 {
	n := p.size()
	for i, port := range p.taken {
		if (i == 0 || p.taken[i-1] != port) && p.offers(port) {
			n--
		}
	}
	return n
}

func (p *portSet) has(port uint16) bool {
	_, taken := slices.BinarySearch(p.taken, port)
	return taken
}

func (p *portSet) take(ports []uint16) {
	for _, port := range ports {
		i, _ := slices.BinarySearch(p.taken, port)
		p.taken = slices.Insert(p.taken, i, port)
	}
}

// holds reports whether all of ports are taken, each as often as it is named.
func (p *portSet) holds(ports []uint16) bool {
	for i, port := range ports {
		need := 1
		for _, earlier := range ports[:i] {
			if earlier == port {
				need++
			}
		}
		at, _ := slices.BinarySearch(p.taken, port)
		if at+need > len(p.taken) || p.taken[at+need-1] != port {
			return false
		}
	}
	return true
}

func (p *portSet) release(ports []uint16) {
	for _, port := range ports {
		if i, taken := slices.BinarySearch(p.taken, port); taken {
			p.taken = slices.Delete(p.taken, i, i+1)
		}
	}
}

// PortsFit reports whether the host at row can give the wanted ports: each fixed one, and one more for every 0.
func (t *Table) PortsFit(row Row, wanted []uint16) bool {
	p := &t.ports[row]
	for _, port := range wanted {
		if port != 0 && (!p.offers(port) || p.has(port)) {
			return false
		}
	}
	return int64(len(wanted)) <= t.portsFree[row]
}

// PortsOffered reports whether the host at row could give the wanted ports if none were taken.
func (t *Table) PortsOffered(row Row, wanted []uint16) bool {
	p := &t.ports[row]
	for _, port := range wanted {
		if port != 0 && !p.offers(port) {
			return false
		}
	}
	return int64(len(wanted)) <= p.size()
}

// PickPorts names the ports for wanted in its order: fixed ones as they are, the lowest free ones for the zeros. PortsFit must hold.
// Nothing is taken.
func (t *Table) PickPorts(row Row, wanted []uint16) []uint16 {
	if len(wanted) == 0 {
		return nil
	}
	p := &t.ports[row]
	picked := slices.Clone(wanted)
	ri, next := 0, 0
	for i, port := range picked {
		if port != 0 {
			continue
		}
		for ri < len(p.ranges) {
			r := p.ranges[ri]
			next = max(next, int(r.First))
			for next <= int(r.Last) && (p.has(uint16(next)) || slices.Contains(wanted, uint16(next))) {
				next++
			}
			if next <= int(r.Last) {
				break
			}
			ri++
		}
		if ri < len(p.ranges) {
			picked[i] = uint16(next)
			next++
		}
	}
	return picked
}
