package mirror

import "errors"

// ErrStale is returned for launches by a process of the cell that another one has followed.
var ErrStale = errors.New("another process of this cell has taken over the Kubernetes cluster")

// fence looks at a pod that was not known. One of a later epoch than ours that turns up after the first inventory is the work of a process that speaks for
// the cell now: nothing is created any more. In the first inventory such pods prove nothing: the cell's store may have been restored from a backup.
func (m *Machine) fence(p *Pod) {
	if m.begun && m.cfg.Epoch > 0 && p.Epoch > m.cfg.Epoch {
		m.newer = max(m.newer, p.Epoch)
	}
}

// Newer is the epoch of the process that has followed this one; 0: none is known.
func (m *Machine) Newer() uint64 { return m.newer }
