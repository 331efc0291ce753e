package usage

import (
	"bytes"
	"cmp"
	"slices"
	"strings"

	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/workload"
)

// MaxOwners bounds the owners of one pool that have an account of their own. Further ones share the account of Others.
const MaxOwners = 4096

// Others is the owner under whom those are summed up for whom there is no account left.
const Others = "(others)"

// Key names an account.
type Key struct {
	Pool  workload.PoolID
	Owner string
}

// Compare orders keys by pool and owner.
func (k Key) Compare(o Key) int {
	return cmp.Or(bytes.Compare(k.Pool[:], o.Pool[:]), strings.Compare(k.Owner, o.Owner))
}

// Account is what lasts of an account: what its runs held up to Since, and what those of them that have ended held after it.
// What live runs held after Since follows from when they began.
type Account struct {
	Key
	Since int64 // UTC milliseconds
	Held  Seconds
}

// Meter is an account with its live runs.
type Meter struct {
	account Account
	live    resource.Vector
	// begun is by how much live, counted from Since, is too much: needs times the time from Since to each run's beginning.
	begun Seconds
}

// Begin notes that a run holds its needs from a time on. It may lie before Since, as it does for runs of before a restart.
func (m *Meter) Begin(needs *resource.Vector, at int64) {
	m.live = m.live.Add(*needs)
	m.begun.Add(needs, Milliseconds(at)-m.account.Since)
}

// End notes that a run which began at a time holds nothing more. What it held counts once it was settled: that it ended, and what it held,
// are to become durable together.
func (m *Meter) End(needs *resource.Vector, began int64) {
	m.live = m.live.Sub(*needs)
	if m.live.HasNegative() {
		panic("usage: a run of owner " + m.account.Owner + " ended that never began")
	}
	var early Seconds
	early.Add(needs, Milliseconds(began)-m.account.Since)
	m.begun = m.begun.Minus(early)
}

// Settle counts what an ended run held since Since. The account must not have been rolled since the run's End.
func (m *Meter) Settle(needs *resource.Vector, began, ended int64) {
	m.account.Held.Add(needs, Milliseconds(ended)-max(Milliseconds(began), m.account.Since))
}

// Idle reports whether the account has no live runs.
func (m *Meter) Idle() bool { return m.live.IsZero() }

// Account is what lasts of the account now.
func (m *Meter) Account() Account { return m.account }

// Total is what the account's runs have held up to a time, live ones included.
func (m *Meter) Total(at int64) Seconds {
	then := *m
	then.roll(at)
	return then.account.Held
}

// roll brings the account up to a time.
func (m *Meter) roll(at int64) {
	to := Milliseconds(at)
	if to <= m.account.Since {
		return
	}
	m.account.Held.Add(&m.live, to-m.account.Since)
	m.account.Held = m.account.Held.Minus(m.begun)
	m.begun = Seconds{}
	m.account.Since = to
}

// Ledger is the accounts of a cell. The zero value is not usable; see NewLedger.
type Ledger struct {
	meters map[Key]*Meter
	owners map[workload.PoolID]int
}

// NewLedger returns a ledger without accounts.
func NewLedger() *Ledger { return &Ledger{meters: map[Key]*Meter{}, owners: map[workload.PoolID]int{}} }

// Restore puts an account back as it was recorded, before any of its runs is begun.
func (l *Ledger) Restore(a Account) {
	if l.meters[a.Key] == nil {
		l.owners[a.Pool]++
	}
	l.meters[a.Key] = &Meter{account: a}
}

// Open returns the account of an owner in a pool. It makes one that counts from a time on if there is none; created says so.
func (l *Ledger) Open(key Key, at int64) (m *Meter, created bool) {
	if m := l.meters[key]; m != nil {
		return m, false
	}
	if l.owners[key.Pool] >= MaxOwners {
		key.Owner = Others
		if m := l.meters[key]; m != nil {
			return m, false
		}
	}
	m = &Meter{account: Account{Key: key, Since: Milliseconds(at)}}
	l.meters[key] = m
	l.owners[key.Pool]++
	return m, true
}

// Roll brings every account with live runs up to a time, after which no run began or ended yet, and returns these, by pool and owner. The
// others stay as they are: nothing of theirs grows.
func (l *Ledger) Roll(at int64) []*Meter {
	var rolled []*Meter
	for _, m := range l.meters {
		if !m.Idle() {
			m.roll(at)
			rolled = append(rolled, m)
		}
	}
	sortMeters(rolled)
	return rolled
}

// All returns every account, by pool and owner.
func (l *Ledger) All() []*Meter {
	all := make([]*Meter, 0, len(l.meters))
	for _, m := range l.meters {
		all = append(all, m)
	}
	sortMeters(all)
	return all
}

func sortMeters(list []*Meter) {
	slices.SortFunc(list, func(a, b *Meter) int { return a.account.Compare(b.account.Key) })
}

// Close forgets an account without live runs.
func (l *Ledger) Close(key Key) {
	if m := l.meters[key]; m != nil && m.Idle() {
		delete(l.meters, key)
		if l.owners[key.Pool]--; l.owners[key.Pool] == 0 {
			delete(l.owners, key.Pool)
		}
	}
}
