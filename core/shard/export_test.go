package shard

import (
	"github.com/paceline-sched/paceline/core/host"
)

// Table lets tests compare the books with what they expect. They only read it.
func (m *Machine) Table() *host.Table { return m.table }

// The bounds that tests fill.
const (
	MaxHeld    = maxHeld
	MaxForeign = maxForeign
	MaxWatches = maxWatches
)
