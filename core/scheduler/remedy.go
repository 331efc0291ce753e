package scheduler

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/respool"
	"github.com/paceline-sched/paceline/core/shard"
	"github.com/paceline-sched/paceline/core/workload"
)

// maxRemedies bounds the remedies that an explanation lists.
const maxRemedies = 3

// RemedyKind is what a remedy changes.
type RemedyKind uint8

// The kinds, the one that asks less of others first.
const (
	RemedyOrder       RemedyKind = iota + 1 // it goes before the others of its pool's queue
	RemedyHostRoom                          // room comes free on a host
	RemedyPoolRoom                          // work of its pool ends
	RemedyReturn                            // a pool gives back what it uses beyond its entitlement
	RemedyRestriction                       // one restriction of the job is dropped
	RemedyLimit                             // a limit of a pool is raised
	RemedyReservation                       // a reservation of a pool is raised
	RemedyShare                             // a pool's share is raised
)

// Remedy is one change that, made alone, would let the next waiting instance start (of a gang, the fewest that start together).
type Remedy struct {
	Kind        RemedyKind
	Message     string          // completes "it would start if ..."
	Amount      resource.Vector // of a quantity that changes: by so much
	Pool        string          // path of the pool that changes
	Host        string          // with RemedyHostRoom and RemedyReturn: the host at which least is missing
	Hosts       int             // with RemedyHostRoom: hosts at which nothing but room is missing
	Restriction string          // with RemedyRestriction
	// size orders remedies: what changes of quantities as a part of what one start needs, at its largest; 1 for what has no quantity.
	size float64
}

// smallest sorts remedies and keeps the first.
func smallest(list []Remedy) []Remedy {
	slices.SortStableFunc(list, func(a, b Remedy) int {
		return cmp.Or(cmp.Compare(a.size, b.size), cmp.Compare(a.Kind, b.Kind), strings.Compare(a.Message, b.Message))
	})
	return list[:min(len(list), maxRemedies)]
}

// shortOf is what is missing of each kind.
func shortOf(need, left *resource.Vector) (lack resource.Vector) {
	for k, n := range need {
		if n > 0 {
			lack[k] = max(n-left[k], 0)
		}
	}
	return lack
}

// poolRemedies finds what would let a job's offered work out of its queue. own is what it takes, all what it takes together with everything
// that goes first.
func (s *State) poolRemedies(j *job, own, all resource.Vector, ahead int) (list []Remedy, untried bool) {
	path := s.poolPath(j.spec.Pool)
	var lacks resource.Vector
	fits := true
	for _, b := range s.bars(j.spec) {
		lacks = lacks.Max(shortOf(&all, &b.left))
		fits = fits && own.FitsIn(&b.left)
	}
	if fits && ahead > 0 {
		list = append(list, Remedy{
			Kind: RemedyOrder, Pool: path, size: 1, Message: fmt.Sprintf("it went before the %s ahead of it, for instance by a higher priority", plural(ahead, "job")),
		})
	}
	if lacks.IsZero() {
		return list, false
	}
	if r, ok := s.endingWork(j, path, lacks, ahead); ok {
		r.size = lacks.PartOf(&own)
		list = append(list, r)
	}
	more, untried := s.raises(j, all, lacks)
	for _, r := range more {
		r.size = r.Amount.PartOf(&own)
		list = append(list, r)
	}
	return list, untried
}

// endingWork is the remedy that work of the pool ends, if there is enough of it.
func (s *State) endingWork(j *job, path string, lacks resource.Vector, ahead int) (Remedy, bool) {
	a, _ := s.pools.Account(j.spec.Pool)
	usage, whose := a.Usage, "pool "+path
	if j.spec.Revocable {
		usage, whose = a.RevocableUsage, "the revocable work of pool "+path
	}
	for _, b := range s.bars(j.spec) {
		switch {
		case b.kind == PendingReservation:
			usage, whose = usage.Min(a.NonPreemptibleUsage), "the work of pool "+path+" that may not be preempted"
		case b.kind == PendingUserLimit && !b.roomy(&lacks):
			usage, whose = usage.Min(s.pools.OwnerUsage(j.spec.Pool, j.spec.Owner)), j.spec.Owner+" in pool "+path
		case b.kind == PendingControllerLimit && !b.roomy(&lacks):
			usage, whose = usage.Min(a.ControllerUsage), "the controllers of pool "+path
		}
	}
	r := Remedy{Kind: RemedyPoolRoom, Pool: path, Amount: lacks}
	r.Message = fmt.Sprintf("%s of what %s uses came free", s.names.Amounts(&lacks), whose)
	if ahead > 0 {
		r.Message += fmt.Sprintf(", which is enough for the %s ahead of it too", plural(ahead, "job"))
	}
	return r, lacks.FitsIn(&usage)
}

// roomy reports whether a bar leaves something of every kind asked for, so that it is not what is short.
func (b *bar) roomy(lacks *resource.Vector) bool {
	for k, n := range lacks {
		if n > 0 && b.left[k] <= 0 {
			return false
		}
	}
	return true
}

// most times a share is doubled in search of one that is enough.
const maxShareDoublings = 3

// raises finds edits of one pool that would be enough. Each is tried out with today's capacity and demands, so what is told holds; at most one
// pool's limits, the leaf's reservation and a few shares are tried. untried says that some could not be, for want of time.
func (s *State) raises(j *job, need, lacks resource.Vector) (list []Remedy, untried bool) {
	leaf, ok := s.pools.Pool(j.spec.Pool)
	if !ok {
		return nil, false
	}
	suffices := func(edited respool.Pool) bool {
		enough, tried := s.suffices(edited, j.spec, &need)
		untried = untried || !tried
		return enough
	}
	for p, at := leaf, true; at && p.ID != respool.RootID; p, at = s.pools.Pool(p.Parent) {
		edited, what := s.raised(p, j, &need, &lacks)
		if what != "" && suffices(edited) {
			list = append(list, Remedy{
				Kind: RemedyLimit, Pool: s.poolPath(p.ID), Amount: lacks,
				Message: fmt.Sprintf("the %s of pool %s were higher by %s", what, s.poolPath(p.ID), s.names.Amounts(&lacks)),
			})
			break
		}
	}
	if j.spec.Revocable {
		return list, untried
	}
	path := s.poolPath(leaf.ID)
	if more := leaf; !leaf.ReserveRest {
		a, _ := s.pools.Account(leaf.ID)
		add := shortOf(&need, ptr(a.Reservation.Sub(a.Usage)))
		if !j.spec.Preemptible {
			add = add.Max(lacks)
		}
		if more.Reservation = leaf.Reservation.Add(add); suffices(more) {
			list = append(list, Remedy{
				Kind: RemedyReservation, Pool: path, Amount: add,
				Message: fmt.Sprintf("the reservation of pool %s were higher by %s", path, s.names.Amounts(&add)),
			})
		}
	}
	for n, more := 0, leaf; n < maxShareDoublings && leaf.Share > 0; n++ {
		if more.Share *= 2; suffices(more) {
			list = append(list, Remedy{
				Kind: RemedyShare, Pool: path, Amount: lacks,
				Message: fmt.Sprintf("the share of pool %s were %d instead of %d", path, more.Share, leaf.Share),
			})
			break
		}
	}
	return list, untried
}

// raised is a pool with the limits raised that hold the work back, and which they are; none: "".
func (s *State) raised(p respool.Pool, j *job, need, lacks *resource.Vector) (edited respool.Pool, what string) {
	a, _ := s.pools.Account(p.ID)
	owned := s.pools.OwnerUsage(p.ID, j.spec.Owner)
	edited = p
	for k, n := range lacks {
		kind := resource.Kind(k)
		if limit := p.Limit.Of(kind); n > 0 && limit != respool.Unlimited && limit-a.Usage[k] < need[k] {
			edited.Limit, what = edited.Limit.With(kind, limit+n), "limit"
		}
	}
	for k, n := range lacks {
		kind := resource.Kind(k)
		if limit := p.UserLimit.Of(kind); n > 0 && limit != respool.Unlimited && !j.spec.Revocable && limit-owned[k] < need[k] {
			edited.UserLimit = edited.UserLimit.With(kind, limit+n)
			if what == "" {
				what = "limit for one owner"
			}
		}
	}
	return edited, what
}

func ptr(v resource.Vector) *resource.Vector { return &v }

// maxTrials bounds the copies of the tree on which edits are tried in one Step. A copy and its recomputation take 2 ms with 1,000 pools; most
// edits need none, see respool.Tree.Try.
const maxTrials = 4

// suffices reports whether the work would be let go if the pool were as edited. tried is false where there were too many questions at once.
func (s *State) suffices(edited respool.Pool, spec *workload.JobSpec, need *resource.Vector) (enough, tried bool) {
	look := func(t *respool.Tree) {
		enough = true
		for _, b := range barsIn(t, spec) {
			enough = enough && need.FitsIn(&b.left)
		}
	}
	if !spec.Revocable && !spec.Controller { // these have figures of their own
		called, err := s.pools.Try(edited, spec.Pool, s.capacity, func() { look(s.pools) })
		if called || err != nil {
			return enough, true
		}
	}
	if s.trialsIn != s.steps {
		s.trials, s.trialsIn = 0, s.steps
	}
	if s.trials == maxTrials {
		return false, false
	}
	s.trials++
	t := s.pools.Clone()
	if t.Update(edited) == nil {
		t.Entitle(s.capacity)
		look(t)
	}
	return enough, true
}

// returns finds the pool whose work on the host gives back what is missing there, if it uses more than it is entitled to and nothing but its
// preemptible work is needed for that.
func (s *State) returns(j *job, n *shard.Nearest, own resource.Vector) (list []Remedy) {
	held := map[workload.PoolID]resource.Vector{}
	var pools []workload.PoolID
	for _, h := range n.Holders {
		o := s.jobs[h.Job]
		if o == nil || o.spec.Pool == j.spec.Pool || !o.spec.Preemptible || o.spec.Revocable || (h.Shares && n.Lacks[resource.GPU] > 0) {
			continue
		}
		sum, known := held[o.spec.Pool]
		if !known {
			pools = append(pools, o.spec.Pool)
		}
		held[o.spec.Pool] = sum.Add(h.Holds)
	}
	var best resource.Vector
	from := ""
	for _, id := range pools {
		a, _ := s.pools.Account(id)
		over, here := shortOf(&a.Usage, &a.Entitlement), held[id]
		if n.Lacks.FitsIn(&over) && n.Lacks.FitsIn(&here) && (from == "" || over.PartOf(&own) > best.PartOf(&own)) {
			best, from = over, s.poolPath(id)
		}
	}
	if from == "" {
		return nil
	}
	for k := range best {
		if n.Lacks[k] == 0 {
			best[k] = 0
		}
	}
	r := Remedy{Kind: RemedyReturn, Pool: from, Amount: n.Lacks, Host: s.hostPath(n.Host), size: n.Lacks.PartOf(&own)}
	r.Message = fmt.Sprintf("pool %s, which uses %s beyond its entitlement, gave back %s on host %s", from, s.names.Amounts(&best),
		s.names.Amounts(&n.Lacks), r.Host)
	return []Remedy{r}
}

// hostPath names a host by cluster and name.
func (s *State) hostPath(id workload.HostID) string {
	if h := s.hosts[id]; h != nil {
		return h.Cluster + "/" + h.Name
	}
	return id.String()
}
