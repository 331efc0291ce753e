package respool

import (
	"fmt"

	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/workload"
)

// Demand is what the work of a leaf uses and waits for, together. Its maker has bounded it by each job's max_running and has
// left out classes that fit no host. Preemptible, NonPreemptible and Revocable do not overlap.
type Demand struct {
	Preemptible    resource.Vector
	NonPreemptible resource.Vector // counts up to the reservation, as only that much can ever be admitted
	Controllers    resource.Vector // the part of the first two that directs other work
	Revocable      resource.Vector // counts towards nothing but a part of the slack
}

// Work says whose work uses an amount, and in which ledgers that counts.
type Work struct {
	Owner          string
	NonPreemptible bool
	Controller     bool
	Revocable      bool // it counts as revocable usage alone
}

// Account is where a pool stands. Entitlement, Reservation and Demand are as the last Entitle found them.
type Account struct {
	Entitlement resource.Vector
	// Reservation is what is guaranteed today: scaled down in proportion when the capacity falls short.
	Reservation resource.Vector
	// Nominal is the reservation before scaling: as configured, or the rest.
	Nominal             resource.Vector
	Demand              resource.Vector // what counts of it, clipped by what the pool can ever be given
	Usage               resource.Vector
	NonPreemptibleUsage resource.Vector // a part of Usage
	ControllerUsage     resource.Vector // a part of Usage
	Jobs                int             // attached to this pool itself

	// The ledger of revocable work: what of the slack it may use, what it uses and waits for (clipped), and what it uses.
	RevocableEntitlement resource.Vector
	RevocableDemand      resource.Vector
	RevocableUsage       resource.Vector
}

// Account returns the figures of one pool, the root's included; false when it does not exist.
func (t *Tree) Account(id workload.PoolID) (Account, bool) {
	n := t.nodes[id]
	if n == nil {
		return Account{}, false
	}
	return Account{
		Entitlement: n.entitlement, Reservation: n.effective, Nominal: n.nominal, Demand: n.demand,
		Usage: n.usage, NonPreemptibleUsage: n.pinned, ControllerUsage: n.controllers, Jobs: n.jobs,
		RevocableEntitlement: n.revocable.entitlement, RevocableDemand: n.revocable.demand, RevocableUsage: n.revocable.usage,
	}, true
}

// Standing is what a pool may use and uses; zero for an unknown one.
func (t *Tree) Standing(id workload.PoolID) (entitlement, usage resource.Vector) {
	if n := t.nodes[id]; n != nil {
		entitlement, usage = n.entitlement, n.usage
	}
	return entitlement, usage
}

// AttachJob notes that a job lives in the pool, which must be a leaf and stays one until DetachJob.
func (t *Tree) AttachJob(id workload.PoolID) error {
	n, err := t.forJobs(id)
	if err != nil {
		return err
	}
	n.jobs++
	return nil
}

// forJobs returns a pool that may hold jobs.
func (t *Tree) forJobs(id workload.PoolID) (*node, error) {
	n := t.nodes[id]
	switch {
	case n == nil:
		return nil, fmt.Errorf("pool %s does not exist: list the pools and choose one", id)
	case n == t.root:
		return nil, fmt.Errorf("pool / is the root, which holds no jobs: choose a pool without children, such as /default")
	case len(n.children) > 0:
		return nil, fmt.Errorf("pool %s has children, and only pools without children hold jobs: choose one of them, such as %s",
			n.path(), n.children[0].path())
	}
	return n, nil
}

// DetachJob undoes one AttachJob.
func (t *Tree) DetachJob(id workload.PoolID) {
	n := t.leaf(id)
	if n.jobs == 0 {
		panic(fmt.Sprintf("respool: pool %s: a job left that never came", n.path()))
	}
	n.jobs--
}

// CheckGuarantee reports a pool that may hold no jobs, and work that may not be preempted and that the pool could never admit, because it needs more than the
// whole reservation. A reservation that follows the capacity refuses nothing: it may grow by itself.
func (t *Tree) CheckGuarantee(id workload.PoolID, need resource.Vector) error {
	n, err := t.forJobs(id)
	if err != nil || n.pool.ReserveRest {
		return err
	}
	for k := range resource.Kind(t.names.Len()) {
		if need[k] > n.pool.Reservation[k] {
			return fmt.Errorf("pool %s reserves %s=%d, and work that may not be preempted needs %d: raise the reservation, make the work preemptible, or choose another pool",
				n.path(), t.names.Name(k), n.pool.Reservation[k], need[k])
		}
	}
	return nil
}

// Charge adds v to what a leaf and all above it use.
func (t *Tree) Charge(id workload.PoolID, v resource.Vector, w Work) { t.post(id, v, w, 1) }

// Refund takes back what Charge added. A balance below zero is a broken invariant: it panics and is never clamped.
func (t *Tree) Refund(id workload.PoolID, v resource.Vector, w Work) { t.post(id, v, w, -1) }

func (t *Tree) post(id workload.PoolID, v resource.Vector, w Work, sign int64) {
	if v.HasNegative() {
		panic(fmt.Sprintf("respool: pool %s: a negative quantity was charged or refunded: %s", t.Path(id), t.names.Format(v)))
	}
	for n := t.leaf(id); n != nil; n = n.parent {
		if w.Revocable {
			add(&n.revocable.usage, &v, sign)
		} else {
			add(&n.usage, &v, sign)
			if w.NonPreemptible {
				add(&n.pinned, &v, sign)
			}
			if w.Controller {
				add(&n.controllers, &v, sign)
			}
			n.postOwner(w.Owner, &v, sign)
		}
		if !n.balanced(w.Owner) {
			panic(fmt.Sprintf("respool: pool %s: its balance broke at %s (of it non-preemptible %s, controllers %s, owner %q %s; revocable %s) after posting %d x (%s)",
				n.path(), t.names.Format(n.usage), t.names.Format(n.pinned), t.names.Format(n.controllers), w.Owner,
				t.names.Format(n.owned(w.Owner)), t.names.Format(n.revocable.usage), sign, t.names.Format(v)))
		}
	}
}

// add adds without saturating: a sum that left int64 shows as a negative one.
func add(to, v *resource.Vector, sign int64) {
	for k, q := range v {
		to[k] += sign * q
	}
}

// balanced reports whether the ledgers fit one another. What was refunded as another kind of work than it was charged as shows here too.
func (n *node) balanced(owner string) bool {
	owned := n.owned(owner)
	return !n.usage.HasNegative() && !n.pinned.HasNegative() && !n.controllers.HasNegative() && !n.revocable.usage.HasNegative() &&
		!owned.HasNegative() && within(&n.pinned, &n.usage) && within(&n.controllers, &n.usage) && within(&owned, &n.usage)
}

// owned is what one owner's ordinary work uses.
func (n *node) owned(owner string) resource.Vector {
	if v := n.owners[owner]; v != nil {
		return *v
	}
	return resource.Vector{}
}

// postOwner keeps the ledger of one owner, which is there as long as he uses something.
func (n *node) postOwner(owner string, v *resource.Vector, sign int64) {
	if n.ownersShared {
		owners := make(map[string]*resource.Vector, len(n.owners))
		for name, used := range n.owners {
			own := *used
			owners[name] = &own
		}
		n.owners, n.ownersShared = owners, false
	}
	at := n.owners[owner]
	if at == nil {
		at = &resource.Vector{}
		if n.owners == nil {
			n.owners = map[string]*resource.Vector{}
		}
		n.owners[owner] = at
	}
	if add(at, v, sign); at.IsZero() {
		delete(n.owners, owner)
	}
}

func within(part, whole *resource.Vector) bool {
	for k := range part {
		if part[k] > whole[k] {
			return false
		}
	}
	return true
}

// SetDemand replaces the demand of a leaf. The next Entitle reads it.
func (t *Tree) SetDemand(id workload.PoolID, d Demand) {
	n := t.leaf(id)
	if d.Preemptible.HasNegative() || d.NonPreemptible.HasNegative() || d.Controllers.HasNegative() || d.Revocable.HasNegative() {
		panic(fmt.Sprintf("respool: pool %s: negative demand %s, non-preemptible %s, of controllers %s, revocable %s", n.path(),
			t.names.Format(d.Preemptible), t.names.Format(d.NonPreemptible), t.names.Format(d.Controllers), t.names.Format(d.Revocable)))
	}
	n.asked = d
}

// leaf returns a pool that may hold work. Callers come here with pools that AttachJob has accepted.
func (t *Tree) leaf(id workload.PoolID) *node {
	n := t.nodes[id]
	if n == nil || n == t.root || len(n.children) > 0 {
		panic(fmt.Sprintf("respool: pool %s (%q) is no leaf of the tree", id, t.Path(id)))
	}
	return n
}
