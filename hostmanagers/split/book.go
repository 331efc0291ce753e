package split

import (
	"slices"
	"strings"

	"github.com/paceline-sched/paceline/core/driver"
)

// book says which part has which host.
type book struct {
	parts, rows int
	domains     []string
	hosts       map[string]placed
	units       map[string]*unit
	loads       []int // hosts of each part
	homeless    int
	filled      bool // the first inventory was cut
}

// placed is where a host is.
type placed struct {
	unit string
	part int // nowhere: no part has room
}

const nowhere = -1

// unit is what is not cut: the hosts of one pool that share their narrowest domain, or a host without any.
type unit struct {
	part  int
	hosts int
}

// share is what one part is told of a change.
type share struct {
	changed        []driver.Host
	removed, moved []string
}

func newBook(c *Config) book {
	return book{
		parts: c.Parts, rows: c.Rows, domains: c.Domains, hosts: map[string]placed{}, units: map[string]*unit{}, loads: make([]int, c.Parts),
	}
}

// partOf returns the part that has a host.
func (b *book) partOf(host string) (int, bool) {
	at, known := b.hosts[host]
	return at.part, known && at.part != nowhere
}

// unitOf names a host's unit, and says where it stands in the order in which the first inventory is cut: pool by pool, domain by domain.
func (b *book) unitOf(h *driver.Host) (name, order string) {
	parts := []string{h.Pool}
	for _, domain := range b.domains {
		if value, ok := h.Attributes[domain]; ok {
			parts = append(parts, value)
			name = domain + "\x00" + value
		}
	}
	if name == "" {
		name = "host\x00" + h.Name
		parts = append(parts, "\xff", h.Name) // behind those that are in domains
	}
	return h.Pool + "\x00" + name, strings.Join(parts, "\x00")
}

// replace takes in a whole inventory and cuts it.
func (b *book) replace(hosts []driver.Host) []driver.Inventory {
	listed := make(map[string]bool, len(hosts))
	for i := range hosts {
		listed[hosts[i].Name] = true
	}
	for name := range b.hosts {
		if !listed[name] {
			b.drop(name)
		}
	}
	if !b.filled && len(hosts) > 0 {
		b.fill(hosts)
	}
	for i := range hosts {
		b.put(&hosts[i])
	}
	out := make([]driver.Inventory, b.parts)
	for i := range hosts {
		at := b.hosts[hosts[i].Name].part
		for n := range out {
			switch n {
			case at:
				out[n].Hosts = append(out[n].Hosts, hosts[i])
			default:
				out[n].Elsewhere = append(out[n].Elsewhere, hosts[i].Name)
			}
		}
	}
	return out
}

// fill gives the units of the first inventory to the parts in order, so that pools and wide domains stay together as far as parts of like size
// let them.
func (b *book) fill(hosts []driver.Host) {
	b.filled = true
	type group struct {
		name, order string
		hosts       int
	}
	groups := map[string]*group{}
	for i := range hosts {
		name, order := b.unitOf(&hosts[i])
		g := groups[name]
		if g == nil {
			g = &group{name: name, order: order}
			groups[name] = g
		}
		g.order = min(g.order, order)
		g.hosts++
	}
	line := make([]*group, 0, len(groups))
	for _, g := range groups {
		line = append(line, g)
	}
	slices.SortFunc(line, func(a, o *group) int {
		if c := strings.Compare(a.order, o.order); c != 0 {
			return c
		}
		return strings.Compare(a.name, o.name)
	})
	fair := (len(hosts) + b.parts - 1) / b.parts
	planned := slices.Clone(b.loads)
	at := 0
	for _, g := range line {
		if u := b.units[g.name]; u != nil { // told of before the inventory: the others join those that have a part
			planned[u.part] += g.hosts - u.hosts
			continue
		}
		for at < b.parts-1 && planned[at] > 0 && planned[at]+(g.hosts+1)/2 > fair {
			at++
		}
		to := at
		if planned[to]+g.hosts > b.rows {
			to = least(planned)
		}
		planned[to] += g.hosts
		b.units[g.name] = &unit{part: to}
	}
}

// put enters a host, or moves it when its unit has become another. It returns the part that had it before.
func (b *book) put(h *driver.Host) (former int) {
	name, _ := b.unitOf(h)
	old, known := b.hosts[h.Name]
	if known && old.unit == name && old.part != nowhere {
		return old.part
	}
	former = nowhere
	if known {
		former = old.part
		b.drop(h.Name)
	}
	u := b.units[name]
	if u == nil {
		u = &unit{part: least(b.loads)}
		b.units[name] = u
	}
	u.hosts++
	to := u.part
	if b.loads[to] >= b.rows { // a domain larger than a part is cut after all: hosts that nobody may use serve it less
		to = least(b.loads)
	}
	if b.loads[to] >= b.rows {
		to = nowhere
		b.homeless++
	} else {
		b.loads[to]++
	}
	b.hosts[h.Name] = placed{unit: name, part: to}
	return former
}

// drop forgets a host.
func (b *book) drop(name string) {
	at, known := b.hosts[name]
	if !known {
		return
	}
	delete(b.hosts, name)
	if u := b.units[at.unit]; u != nil {
		if u.hosts--; u.hosts <= 0 {
			delete(b.units, at.unit)
		}
	}
	if at.part == nowhere {
		b.homeless--
	} else {
		b.loads[at.part]--
	}
}

// change takes in single hosts.
func (b *book) change(changed []driver.Host, removed []string) []share {
	out := make([]share, b.parts)
	for i := range changed {
		h := &changed[i]
		former := b.put(h)
		now := b.hosts[h.Name].part
		if former != nowhere && former != now {
			out[former].moved = append(out[former].moved, h.Name)
		}
		if now != nowhere {
			out[now].changed = append(out[now].changed, *h)
		}
	}
	for _, name := range removed {
		if at, known := b.partOf(name); known {
			out[at].removed = append(out[at].removed, name)
		}
		b.drop(name)
	}
	return out
}

// least is the part with the fewest hosts, the first of them.
func least(loads []int) int {
	best := 0
	for n, load := range loads {
		if load < loads[best] {
			best = n
		}
	}
	return best
}
