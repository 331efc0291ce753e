package scheduler

import (
	"maps"
	"slices"
	"time"

	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/respool"
	"github.com/paceline-sched/paceline/core/usage"
	"github.com/paceline-sched/paceline/core/workload"
)

// accounting is the accounts of the cell: what runs hold, by pool and owner, and how each pool fares.
type accounting struct {
	ledger   *usage.Ledger
	balances map[workload.PoolID]*poolBalance
	// advancedAt is when the balances were advanced last; rolledAt is the time of the last readings.
	advancedAt, rolledAt int64
	// moved says that some pool stands otherwise than when balances were last advanced.
	moved bool
	// pruned is, for each level of readings, up to where those that are too old have been deleted.
	pruned [len(usage.Levels)]int64
}

// poolBalance is a pool's balance as it is now and as its record has it.
type poolBalance struct {
	usage.Balance
	written BalanceRecord
	held    resource.Vector // of the last sample
	// standing is how the pool stands since the balance was last advanced.
	standing usage.Standing
}

const (
	// balancePeriod is how often balances are advanced, at most.
	balancePeriod = time.Second
	// maxPruned bounds the readings that one Step deletes.
	maxPruned = 1024
)

func newAccounting() accounting {
	return accounting{ledger: usage.NewLedger(), balances: map[workload.PoolID]*poolBalance{}}
}

// meter is the account that the job's runs are charged to. One that is new counts from a time on.
func (s *State) meter(j *job, from int64) *usage.Meter {
	if j.meter == nil {
		var created bool
		if j.meter, created = s.accounts.ledger.Open(usage.Key{Pool: j.spec.Pool, Owner: j.spec.Owner}, from); created {
			s.dirty = append(s.dirty, dirtyEntry{meter: j.meter})
		}
	}
	return j.meter
}

// hold notes what a live run holds from its placement on, and that it holds nothing more.
func (s *State) hold(c *jobClass, t *task, on bool) {
	j := c.job
	since := usage.Milliseconds(t.placed) - usage.Milliseconds(j.Created)
	if on {
		s.meter(j, s.now).Begin(&c.class.Needs, t.placed)
		c.liveRuns++
		c.begunMillis += since
		return
	}
	j.meter.End(&c.class.Needs, t.placed)
	c.liveRuns--
	c.begunMillis -= since
	ran := usage.Milliseconds(s.now) - usage.Milliseconds(t.placed)
	t.heldMillis += ran
	c.heldMillis += ran
}

// held is what the job's runs have held so far.
func (j *job) held(now int64) (total usage.Seconds) {
	age := usage.Milliseconds(now) - usage.Milliseconds(j.Created)
	for _, c := range j.classes {
		total.Add(&c.class.Needs, c.heldMillis+c.liveRuns*age-c.begunMillis)
	}
	return total
}

// heldLive is how long the live runs of the class have held what they hold, together, in nanoseconds.
func (c *jobClass) heldLive(now int64) int64 {
	age := usage.Milliseconds(now) - usage.Milliseconds(c.job.Created)
	return (c.liveRuns*age - c.begunMillis) * int64(time.Millisecond)
}

// account takes the readings that are due: every account is brought up to the last full period, each pool's counters are written down,
// and old readings go. It is the first thing of a Step, so that what ends in the Step ends after it.
func (s *State) account() {
	a := &s.accounts
	at := s.now - s.now%int64(usage.Period)
	if a.moved && s.now-a.advancedAt >= int64(balancePeriod) {
		s.advanceBalances(false)
	}
	if at <= a.rolledAt {
		s.prune()
		return
	}
	first := a.rolledAt == 0
	a.rolledAt = at
	if first { // nothing is known of what was before
		return
	}
	s.advanceBalances(true) // pools that were made meanwhile begin
	for _, m := range a.ledger.Roll(at) {
		s.dirty = append(s.dirty, dirtyEntry{meter: m})
	}
	s.readCounters(at)
	s.prune()
}

// usageDue is when balances are advanced or the next readings are; 0 while nothing moves.
func (s *State) usageDue() int64 {
	due := int64(0)
	if s.live > 0 || s.pending > 0 {
		due = s.accounts.rolledAt + int64(usage.Period)
	}
	if s.accounts.moved {
		due = earlier(due, s.accounts.advancedAt+int64(balancePeriod))
	}
	return due
}

// advanceBalances counts how each pool stood since the last time, and how it stands now. Where nothing has changed that can wait until a reading of
// all is due.
func (s *State) advanceBalances(all bool) {
	a := &s.accounts
	a.advancedAt, a.moved = s.now, false
	demand := s.demandBelow()
	for id := range s.pools.IDs() {
		s.advanceBalance(id, demand[id], all)
	}
	s.advanceBalance(respool.RootID, demand[respool.RootID], all)
}

func (s *State) advanceBalance(id workload.PoolID, demand resource.Vector, always bool) {
	b := s.accounts.balances[id]
	if b == nil {
		b = &poolBalance{Balance: usage.Balance{Pool: id, Since: usage.Milliseconds(s.now), First: s.now}}
		s.accounts.balances[id] = b
	}
	now := usage.Standing{Demand: demand}
	if now.Entitlement, now.Usage = s.pools.Standing(id); now != b.standing || always {
		b.Advance(s.now, &b.standing)
		b.standing = now
	}
}

// demandBelow is what ordinary work in each pool, and in those below it, demands, where that is anything.
func (s *State) demandBelow() map[workload.PoolID]resource.Vector {
	demand := map[workload.PoolID]resource.Vector{}
	for id := range s.pools.IDs() {
		q := s.queues[queueKey{pool: id}]
		if q == nil {
			continue
		}
		own := q.demand.Preemptible.Add(q.demand.NonPreemptible)
		for at, some := id, !own.IsZero(); some; at, some = s.pools.Parent(at) {
			demand[at] = demand[at].Add(own)
		}
	}
	return demand
}

// everyPool is the root and all pools, parents before children.
func (s *State) everyPool() []respool.Pool {
	root, _ := s.pools.Pool(respool.RootID)
	return slices.AppendSeq([]respool.Pool{root}, s.pools.All())
}

// readCounters writes down a sample of every pool that did something since its last, and of every other once an hour.
func (s *State) readCounters(at int64) {
	for _, sample := range s.samples(at, at%int64(usage.OwnerPeriod) == 0) {
		b := s.accounts.balances[sample.Pool]
		still := sample.Held == b.held && sample.Demanded == b.written.Demanded.Whole
		if still && b.Sampled/int64(time.Hour) == at/int64(time.Hour) {
			continue
		}
		b.Sampled = at
		b.held, b.written = sample.Held, BalanceRecord{Balance: b.Balance}
		s.writeAlone(Write{Record: b.written}, Write{Record: SampleRecord{Sample: sample}})
	}
	if at%int64(time.Hour) == 0 {
		s.closeAccounts(at)
	}
}

// samples reads the counters of every pool.
func (s *State) samples(at int64, withOwners bool) []usage.Sample {
	a := &s.accounts
	held := map[workload.PoolID]usage.Seconds{}
	owners := map[workload.PoolID][]usage.OwnerReading{}
	for _, m := range a.ledger.All() {
		key, total := m.Account().Key, m.Total(at)
		held[key.Pool] = held[key.Pool].Plus(total)
		if withOwners {
			owners[key.Pool] = append(owners[key.Pool], usage.OwnerReading{Owner: key.Owner, Held: total.Whole})
		}
	}
	var list []usage.Sample
	for _, p := range s.everyPool() {
		b := a.balances[p.ID]
		if b == nil {
			continue // made since balances were last advanced
		}
		now := b.Balance
		now.Advance(at, &b.standing)
		list = append(list, usage.Sample{
			At: at, Pool: p.ID, Path: s.pools.Path(p.ID), Leaf: s.pools.IsLeaf(p.ID), First: b.First, Held: held[p.ID].Whole,
			Entitled: now.Entitled.Whole, Demanded: now.Demanded.Whole, Deficit: now.Deficit.Whole, Overage: now.Overage.Whole, Owners: owners[p.ID],
		})
	}
	return list
}

// UsageNow reads the counters of every pool at this moment.
func (r Reader) UsageNow() []usage.Sample { return r.s.samples(r.s.now, true) }

// closeAccounts forgets deleted pools of which no reading is left, with their accounts. Those of a pool that is there stay: its counter is their
// sum, and would fall. usage.MaxOwners bounds them.
func (s *State) closeAccounts(at int64) {
	a := &s.accounts
	oldest := at - int64(usage.Retention) - int64(time.Hour)
	for _, id := range a.pools() {
		b := a.balances[id]
		if _, exists := s.pools.Pool(id); exists || b.Sampled >= oldest {
			continue
		}
		delete(a.balances, id)
		s.writeAlone(Write{Record: b.written, Delete: true})
		for _, m := range a.ledger.All() {
			if account := m.Account(); account.Pool == id {
				a.ledger.Close(account.Key)
				s.writeAlone(Write{Record: AccountRecord{Account: account}, Delete: true})
			}
		}
	}
}

// pools are those with a balance, deleted ones too.
func (a *accounting) pools() []workload.PoolID {
	return slices.SortedFunc(maps.Keys(a.balances), func(a, b workload.PoolID) int { return workload.ID(a).Compare(workload.ID(b)) })
}

// prune deletes readings that are older than their level is kept, a bounded number at a time.
func (s *State) prune() {
	a := &s.accounts
	left := maxPruned
	for n, level := range usage.Levels {
		from := &a.pruned[n]
		if *from == 0 {
			*from = a.rolledAt - a.rolledAt%int64(level.Every)
		}
		for ; *from+int64(level.For) < a.rolledAt && left > 0; *from += int64(level.Every) {
			if level.IsDue(*from) {
				left -= s.pruneAt(*from)
			}
		}
	}
}

// pruneAt deletes the readings of a time and returns how many there may have been.
func (s *State) pruneAt(at int64) int {
	looked := 1
	for _, id := range s.accounts.pools() {
		if b := s.accounts.balances[id]; b.First <= at && at <= b.Sampled {
			s.writeAlone(Write{Record: SampleRecord{Sample: usage.Sample{At: at, Pool: id}}, Delete: true})
			looked++
		}
	}
	return looked
}

// loadAccounts takes up the accounts before any run is.
func (s *State) loadAccounts(im *Image) {
	a := &s.accounts
	for _, r := range im.Accounts {
		a.ledger.Restore(r.Account)
		s.now = max(s.now, r.Since*int64(time.Millisecond))
	}
	for id, r := range im.Balances {
		b := &poolBalance{Balance: r.Balance, written: r}
		b.Since = max(b.Since, usage.Milliseconds(s.now)) // nobody knows how the pool stood while no core was there
		a.balances[id] = b
		a.rolledAt = max(a.rolledAt, b.Sampled)
	}
}

// resumeReadings makes the next readings those of the first full period after the start: those that the last core did not come to are
// lost, as runs may have begun after them.
func (s *State) resumeReadings() {
	a := &s.accounts
	for n, level := range usage.Levels { // on from what was not yet too old then
		if from := a.rolledAt - int64(level.For); from > 0 {
			a.pruned[n] = from - from%int64(level.Every)
		}
	}
	a.rolledAt = max(a.rolledAt, s.now-s.now%int64(usage.Period))
}
