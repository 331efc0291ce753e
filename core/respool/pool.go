// Package respool owns a cell's tree of resource pools: its rules, the ledger of what each pool uses, and the entitlement of
// each pool, by hierarchical weighted max-min fairness in exact integers.
//
// Work sits in leaves only. An inner pool is the sum of its children in every figure; were it to hold jobs too, they would
// compete with its own children without a share of their own, and "who is over" would have two answers.
//
// The package never decides what runs: core/admission compares queues with the figures here. It is pure and reads no clock. A
// Tree has one owner and is not safe for concurrent use; Pool values may be shared freely.
package respool

import (
	"fmt"
	"math"
	"regexp"

	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/workload"
)

// The bounds of a tree. Together they keep every sum over a tree inside int64.
const (
	// MaxPools bounds the pools of one cell, the root not counted.
	MaxPools = 10_000
	// MaxDepth bounds the levels below the root.
	MaxDepth = 8
	// MaxQuantity bounds one reservation or limit, in the unit of its kind.
	MaxQuantity = int64(1) << 48
	// MaxShare bounds a pool's weight.
	MaxShare = int64(1) << 32
	// MaxName bounds the characters of a pool's name.
	MaxName = 63
	// MaxCreator bounds the characters of Pool.Creator.
	MaxCreator = 256
)

// Unlimited is the ceiling of a kind that has none.
const Unlimited = int64(math.MaxInt64)

// DefaultShare is the weight of a pool whose maker does not care.
const DefaultShare = 1

// The ids that every cell knows. The root is no record: it has no settings, and its reservation is the cell's capacity.
var (
	RootID    = workload.PoolID{15: 1}
	DefaultID = workload.PoolID{15: 2}
)

// DefaultPool is the pool that a fresh cell begins with. It reserves whatever its siblings leave, so that work of any kind runs
// before anybody has configured anything.
func DefaultPool(creator string, createdAt int64) Pool {
	return Pool{
		ID: DefaultID, Parent: RootID, Name: "default", Kind: Elastic, ReserveRest: true, Share: DefaultShare,
		Version: 1, Creator: creator, CreatedAt: createdAt, UpdatedAt: createdAt,
	}
}

// Kind says what becomes of a reservation that its pool does not use.
type Kind uint8

// The kinds of pools.
const (
	Elastic Kind = iota + 1 // it is lent to others; the pool may borrow in turn
	Static                  // it is kept; the pool never gets more
)

func (k Kind) String() string {
	switch k {
	case Elastic:
		return "elastic"
	case Static:
		return "static"
	}
	return "unknown"
}

// Pool is one pool's configuration. It is a plain value: a tree is rebuilt from its records by NewTree.
type Pool struct {
	ID     workload.PoolID
	Parent workload.PoolID
	Name   string // unique among its siblings; a path is names joined by '/'
	Kind   Kind

	// Reservation is guaranteed. Siblings' reservations fit their parent's; below the root they may exceed the capacity of the
	// day and then scale down in proportion.
	Reservation resource.Vector
	// ReserveRest makes the reservation whatever the parent's leaves after the siblings', up to Limit. Reservation is empty
	// then. At most one child of a parent has it.
	ReserveRest bool
	// Limit is the ceiling: at least the reservation, at most the parent's.
	Limit Limits
	// Share is the weight for capacity beyond the reservations; 0 never gets any.
	Share int64

	Queue QueuePolicy
	// UserLimit bounds what the jobs of one owner use of the pool together.
	UserLimit Limits
	// ControllerPercent is the part of what the pool could be entitled to that jobs which direct others may use, 1 to 100. 0: all of it.
	ControllerPercent uint8
	// RevocablePercent is the part of the cell's slack that revocable jobs of the pool may use, 1 to 100. 0: all of it.
	RevocablePercent uint8
	// PlacementPolicy places the jobs of the pool, and of those below it that have none, which choose no policy themselves. Empty: the parent's, and at the top
	// the cell's default.
	PlacementPolicy string

	Version   uint64
	Creator   string
	CreatedAt int64 // UTC nanoseconds
	UpdatedAt int64
}

// Limits is a ceiling per kind. The zero value limits nothing, so that a kind which the cell meets later is unlimited until
// somebody says otherwise. Values are comparable.
type Limits struct {
	set      [resource.MaxKinds]bool
	quantity resource.Vector // zero where not set
}

// With returns l with the ceiling of one kind set to q; Unlimited removes it.
func (l Limits) With(k resource.Kind, q int64) Limits {
	l.set[k], l.quantity[k] = q != Unlimited, q
	if q == Unlimited {
		l.quantity[k] = 0
	}
	return l
}

// Of returns the ceiling of one kind, or Unlimited.
func (l *Limits) Of(k resource.Kind) int64 {
	if !l.set[k] {
		return Unlimited
	}
	return l.quantity[k]
}

var namePattern = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$`)

// check reports what is wrong with a record by itself.
func (p *Pool) check(names *resource.Names) error {
	switch {
	case workload.ID(p.ID).IsZero():
		return fmt.Errorf("pool %q has no id: draw one before adding it", clip(p.Name))
	case p.ID == RootID:
		return fmt.Errorf("pool %q carries the root's id: the root has no record; draw another id", clip(p.Name))
	case len(p.Name) > MaxName || !namePattern.MatchString(p.Name):
		return fmt.Errorf("pool name %q must be at most %d letters, digits, '.', '_', '-', starting and ending with a letter or digit",
			clip(p.Name), MaxName)
	case p.Kind != Elastic && p.Kind != Static:
		return fmt.Errorf("pool %s: kind %d is unknown: use elastic or static", p.Name, p.Kind)
	case p.Share < 0 || p.Share > MaxShare:
		return fmt.Errorf("pool %s: share %d must be between 0 and %d", p.Name, p.Share, MaxShare)
	case len(p.Creator) > MaxCreator:
		return fmt.Errorf("pool %s: its creator's name has %d characters: at most %d are kept", p.Name, len(p.Creator), MaxCreator)
	case p.ControllerPercent > 100 || p.RevocablePercent > 100:
		return fmt.Errorf("pool %s: controllers may use %d %% of it and revocable work %d %% of the slack: give percentages from 0 to 100",
			p.Name, p.ControllerPercent, p.RevocablePercent)
	case p.ReserveRest && !p.Reservation.IsZero():
		return fmt.Errorf("pool %s reserves the rest and also %s: leave one of the two out", p.Name, names.Format(p.Reservation))
	}
	if err := p.Queue.check(); err != nil {
		return fmt.Errorf("pool %s: %w", p.Name, err)
	}
	for k := range resource.Kind(resource.MaxKinds) {
		if err := p.checkQuantity(names, k, "reservation", p.Reservation[k]); err != nil {
			return err
		}
		if p.UserLimit.set[k] {
			if err := p.checkQuantity(names, k, "user limit", p.UserLimit.quantity[k]); err != nil {
				return err
			}
		}
		if !p.Limit.set[k] {
			continue
		}
		if err := p.checkQuantity(names, k, "limit", p.Limit.quantity[k]); err != nil {
			return err
		}
		if r, l := p.Reservation[k], p.Limit.quantity[k]; r > l {
			return fmt.Errorf("pool %s: its reservation of %s=%d is over its limit of %d: raise the limit or lower the reservation",
				p.Name, names.Name(k), r, l)
		}
	}
	return nil
}

func (p *Pool) checkQuantity(names *resource.Names, k resource.Kind, what string, q int64) error {
	if q < 0 || q > MaxQuantity {
		return fmt.Errorf("pool %s: %s %s=%d must be between 0 and %d", p.Name, what, names.Name(k), q, MaxQuantity)
	}
	if q > 0 && int(k) >= names.Len() {
		return fmt.Errorf("pool %s: %s of %d for resource number %d, but the cell knows only %d resources: name the resource first",
			p.Name, what, q, k, names.Len())
	}
	return nil
}

// clip keeps hostile input out of messages.
func clip(s string) string {
	if len(s) > 80 {
		return s[:80] + "..."
	}
	return s
}
