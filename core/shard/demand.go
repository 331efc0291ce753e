package shard

// want notes that the core has work that waits for this shard. What waits is asked for again within demandLinger, placed or not, so
// that being asked is the sign of demand and silence the sign of none.
func (m *Machine) want() {
	if !m.config.Demands {
		return
	}
	m.wantedUntil = m.now + int64(demandLinger)
	if !m.wanting {
		m.wanting = true
		m.out.Demand = &m.wanting
	}
}

// wantNoMore ends the demand when its time is over. Leases are held for work that is about to be launched.
func (m *Machine) wantNoMore() {
	switch {
	case !m.wanting || m.now < m.wantedUntil:
	case len(m.held) > 0:
		m.wantedUntil = m.held[0].moment + 1
	default:
		m.wanting = false
		m.out.Demand = &m.wanting
	}
}
