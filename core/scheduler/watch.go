package scheduler

import (
	"github.com/paceline-sched/paceline/core/preemption"
	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/respool"
	"github.com/paceline-sched/paceline/core/workload"
)

// QuotaQuestion returns what a policy of quota would be asked now, and what pools are entitled to, row by row, whoever decided that. It costs O(pools).
func (r Reader) QuotaQuestion() (*respool.Snapshot, []resource.Vector) {
	s := r.s.pools.Snapshot()
	decided := make([]resource.Vector, len(s.Rows))
	for i := range s.Rows {
		account, _ := r.s.pools.Account(s.Rows[i].ID)
		decided[i] = account.Entitlement
	}
	return s, decided
}

// RanksQuestion returns what a policy of preemption would be asked if work of a pool claimed room of its own pool's now, with a zero pool that of pools above their entitlement: in the
// built-in order. It costs O(jobs that may have to go).
func (r Reader) RanksQuestion(pool workload.PoolID) []preemption.Contender {
	_, list := r.s.contenders(pool)
	return list
}
