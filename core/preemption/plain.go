package preemption

// Policy is how victims are chosen. The zero Policy is the default.
type Policy struct {
	// Ranker orders the jobs that may have to go. Default: ByOverage.
	Ranker Ranker
	// Plain takes the first host, in the order of the table, on which the task fits once enough have gone, and lets nobody off: neither who turns
	// out to be needless, nor several for whom one would do, nor many of one host for few of another. It is there to compare with.
	Plain bool
	// Nobody has nobody make room. It is there to tell what preemption costs and brings.
	Nobody bool
}

// YoungestFirst is the plain Policy to compare others with: of those who may go, what was started last goes first.
func YoungestFirst() Policy { return Policy{Ranker: alike{}, Plain: true} }

// WithDefaults fills zero fields.
func (p Policy) WithDefaults() Policy {
	if p.Ranker == nil {
		p.Ranker = ByOverage{}
	}
	return p
}

// alike ranks all jobs the same.
type alike struct{}

// Rank implements Ranker.
func (alike) Rank(candidates []Candidate) []int32 { return make([]int32, len(candidates)) }

func (q *query) plain() bool { return q.ledger != nil && q.request.Victims.Plain }

// placePlain takes one host after the other for as many tasks as it can be cleared for.
func (q *query) placePlain() {
	for row := range q.rows.All() {
		for len(q.placed) < q.request.Count && q.allows(row) {
			if _, ok := q.take(row); !ok {
				break
			}
		}
	}
}
