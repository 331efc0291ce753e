package shard

import (
	"slices"

	"github.com/paceline-sched/paceline/core/placement"
	"github.com/paceline-sched/paceline/core/workload"
)

// watch is one daemon selector with the hosts that match it, as the core was told.
type watch struct {
	job     workload.JobID
	class   *placement.Class
	matches map[workload.HostID]struct{}
}

// maxWatches bounds the selectors of a shard.
const maxWatches = 1024

// watch takes on a list of selectors. Those that went on unchanged keep what they know.
func (m *Machine) watch(selectors []Selector) {
	former := make(map[workload.JobID]*watch, len(m.watches))
	for _, w := range m.watches {
		former[w.job] = w
	}
	if len(selectors) > maxWatches {
		m.stats.IgnoredMessages++
		selectors = selectors[:maxWatches]
	}
	m.watches = make([]*watch, 0, len(selectors))
	var hosts []*machineHost
	for _, s := range selectors {
		if s.Class == nil {
			m.stats.IgnoredMessages++
			continue
		}
		if w := former[s.Job]; w != nil && w.class.ID == s.Class.ID {
			m.watches = append(m.watches, w)
			continue
		}
		w := &watch{job: s.Job, class: s.Class}
		m.watches = append(m.watches, w)
		if !m.ready() {
			continue // the merge reports it
		}
		if hosts == nil {
			hosts = m.sortedHosts()
		}
		m.reportWhole(w, hosts)
	}
}

// matching reports whether a daemon belongs on a host. Whether the host is ready, draining or full does not matter: that decides
// when the daemon starts there, not whether.
func (m *Machine) matching(w *watch, h *machineHost) bool {
	clusters := w.class.Placement.Clusters
	return h.known() && (len(clusters) == 0 || slices.Contains(clusters, m.config.Cluster)) && w.class.Matches(m.table, h.row)
}

// reportWhole works out a watch anew and reports its whole list. hosts are all, in order.
func (m *Machine) reportWhole(w *watch, hosts []*machineHost) {
	w.matches = map[workload.HostID]struct{}{}
	reply := Matches{Job: w.job, Complete: true}
	for _, h := range hosts {
		if m.matching(w, h) {
			w.matches[h.id] = struct{}{}
			reply.Added = append(reply.Added, h.id)
		}
	}
	m.out.reply(reply)
}

// rematch reports what changed and removed hosts mean to the watches.
func (m *Machine) rematch(changed, removed []*machineHost) {
	for _, w := range m.watches {
		reply := Matches{Job: w.job}
		for _, h := range changed {
			_, did := w.matches[h.id]
			switch does := m.matching(w, h); {
			case does && !did:
				w.matches[h.id] = struct{}{}
				reply.Added = append(reply.Added, h.id)
			case did && !does:
				delete(w.matches, h.id)
				reply.Removed = append(reply.Removed, h.id)
			}
		}
		for _, h := range removed {
			if _, did := w.matches[h.id]; did {
				delete(w.matches, h.id)
				reply.Removed = append(reply.Removed, h.id)
			}
		}
		if len(reply.Added)+len(reply.Removed) > 0 {
			m.out.reply(reply)
		}
	}
}
