package policy

// memoryRows bounds the costs that are remembered, over all classes: 8 MiB of them.
const memoryRows = 1 << 19

// memory is what hosts cost, by class, where a policy lets it be remembered. A cost holds while the host has the stamp, and all of them until the expected work changes or columns take
// another meaning.
type memory struct {
	classes    []*remembered
	now        *remembered // of the request that is being served; nil: there is no room for it
	asked      uint64
	mix        uint64
	generation uint64

	missing, where [blockRows]int32
	fresh          [blockRows]int64
}

// remembered is what the tasks of one class cost, by row.
type remembered struct {
	id    uint64
	asked uint64
	rows  []memo
}

type memo struct {
	stamp uint64 // 0: nothing is known
	cost  int64
}

// turn turns to the class of a request.
func (m *memory) turn(t *Table, r *Request) {
	_, mix := t.Mix()
	if mix != m.mix || t.Generation() != m.generation {
		m.mix, m.generation = mix, t.Generation()
		for _, c := range m.classes {
			clear(c.rows)
		}
	}
	m.now = nil
	rows := t.Rows()
	if r.class == 0 || rows == 0 {
		return
	}
	m.asked++
	for _, c := range m.classes {
		if c.id == r.class {
			m.now = c
		}
	}
	if m.now == nil {
		m.now = m.room(rows)
		m.now.id = r.class
		clear(m.now.rows)
	}
	if m.now.asked = m.asked; len(m.now.rows) < rows {
		m.now.rows = make([]memo, rows)
	}
}

// known is what is remembered of the class of a request, as it counts for the search: nil where preferences move it.
func (m *memory) known(r *Request) []memo {
	if m.now == nil || r.bias != nil {
		return nil
	}
	return m.now.rows
}

// room is a place for one more class, that of the one least lately asked for where memory is short.
func (m *memory) room(rows int) *remembered {
	if (len(m.classes)+1)*rows <= memoryRows {
		c := &remembered{}
		m.classes = append(m.classes, c)
		return c
	}
	oldest := m.classes[0]
	for _, c := range m.classes {
		if c.asked < oldest.asked {
			oldest = c
		}
	}
	return oldest
}

// priceRows sets costs[i] to what a task of the request costs on rows[i], without preferences.
func (c *Call) priceRows(r *Request, rows []int32, costs []int64) {
	m := &c.memory
	if m.now == nil {
		c.ask(r, rows, costs)
		return
	}
	n, known, stamps := 0, m.now.rows, c.table.stamps
	for i, row := range rows {
		if k := known[row]; k.stamp == stamps[row] {
			costs[i] = k.cost
			continue
		}
		m.missing[n], m.where[n] = row, int32(i)
		n++
	}
	if n == 0 {
		return
	}
	c.ask(r, m.missing[:n], m.fresh[:n])
	for j, row := range m.missing[:n] {
		costs[m.where[j]] = m.fresh[j]
		known[row] = memo{stamps[row], m.fresh[j]}
	}
}

// ask asks the policy.
func (c *Call) ask(r *Request, rows []int32, costs []int64) {
	if c.block != nil {
		c.block.Costs(c.table, r, rows, costs)
		return
	}
	for i, row := range rows {
		costs[i] = c.scorer.Cost(r, Host{c.table, int(row)})
	}
}
