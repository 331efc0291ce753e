package host

import "github.com/paceline-sched/paceline/core/workload"

// Selector picks occupants: those of Job when it is set, whose labels cover Labels.
type Selector struct {
	Job    workload.JobID
	Labels *LabelSet
}

func (s *Selector) matches(g *group) bool {
	return (s.Job == workload.JobID{} || s.Job == g.key.job) && g.labels.Covers(s.Labels)
}

// Counter is the number of matching occupants in each domain of one topology. It follows the table by itself, until MaxCounters
// others were asked for after it: ask for it again with every batch.
type Counter struct {
	selector Selector
	topology string
	column   *column
	counts   []int32 // by value id of the column; 0: hosts that lack the attribute
	total    int
	used     uint64
}

type counterKey struct {
	job      workload.JobID
	labels   string
	topology string
}

// Domain returns the domain that the host at row belongs to, 0 for none. Domains are small numbers, stable while a host has them.
func (c *Counter) Domain(row Row) uint32 { return c.column.ids[row] }

// In returns the number of matching occupants in a domain.
func (c *Counter) In(domain uint32) int32 {
	if int(domain) >= len(c.counts) {
		return 0
	}
	return c.counts[domain]
}

// At returns the number of matching occupants in the domain of the host at row; beside those on it, when it has no domain, of
// all hosts without one.
func (c *Counter) At(row Row) int32 { return c.In(c.column.ids[row]) }

// Total returns the number of matching occupants in the table.
func (c *Counter) Total() int { return c.total }

func (c *Counter) add(row Row, n int32) {
	id := c.column.ids[row]
	for int(id) >= len(c.counts) {
		c.counts = append(c.counts, make([]int32, max(int(id)+1-len(c.counts), len(c.counts)))...)
	}
	c.counts[id] += n
	c.total += int(n)
}

// Counter returns the counter of a selector over a topology attribute; workload.TopologyHost makes every host its own domain. The first call
// counts what the table holds: O(hosts + occupants). At most MaxCounters are kept.
func (t *Table) Counter(s Selector, topology string) *Counter {
	key := counterKey{job: s.Job, labels: s.Labels.Canonical(), topology: topology}
	t.counterUse++
	if c := t.counters[key]; c != nil {
		c.used = t.counterUse
		return c
	}
	if len(t.counters) >= MaxCounters {
		t.dropOldestCounter()
	}
	c := &Counter{selector: s, topology: topology, column: t.columnFor(topology), used: t.counterUse}
	c.counts = make([]int32, len(c.column.values))
	t.counters[key] = c
	matching := make([]bool, len(t.groups))
	for i := range t.groups {
		if g := &t.groups[i]; g.occupants > 0 && s.matches(g) {
			matching[i] = true
			g.counters = append(g.counters, c)
		}
	}
	for row := range t.residents {
		for _, r := range t.residents[row] {
			if matching[r.group] {
				c.add(Row(row), r.occupants)
			}
		}
	}
	return c
}

func (t *Table) dropOldestCounter() {
	var oldest *Counter
	for _, c := range t.counters {
		if oldest == nil || c.used < oldest.used { // uses are distinct, so map order does not show
			oldest = c
		}
	}
	t.dropCounters(func(c *Counter) bool { return c == oldest })
}

func (t *Table) dropCounters(which func(*Counter) bool) {
	for key, c := range t.counters {
		if which(c) {
			delete(t.counters, key)
			t.dropIdleColumn(key.topology)
		}
	}
	for i := range t.groups {
		g := &t.groups[i]
		kept := g.counters[:0]
		for _, c := range g.counters {
			if !which(c) {
				kept = append(kept, c)
			}
		}
		clear(g.counters[len(kept):])
		g.counters = kept
	}
}

// dropIdleColumn forgets a topology that no host has and no counter asks for, so that columns stay bounded by MaxKeys + MaxCounters.
func (t *Table) dropIdleColumn(topology string) {
	if c := t.columns[topology]; c == nil || c.rows > 0 || topology == workload.TopologyHost {
		return
	}
	for key := range t.counters {
		if key.topology == topology {
			return
		}
	}
	delete(t.columns, topology)
}

// count adds sign times what is on a host to the counters, under the domains that it has now.
func (t *Table) count(row Row, sign int32) {
	for _, r := range t.residents[row] {
		for _, c := range t.groups[r.group].counters {
			c.add(row, sign*r.occupants)
		}
	}
}
