package rollout

type (
	// Report is all that can be said of policies at a moment. It belongs to whoever asked.
	Report struct {
		Book  Book
		Fares []Fare    // of versions in force
		Seats []Serving // of shards that placed something, by shard and policy
		// Warnings are what somebody should look at, such as versions that were rolled back by a gate.
		Warnings []string
	}

	// Fare is how a version in force fares.
	Fare struct {
		Policy string
		Digest Digest
		Tally  Tally
		Tasks  int64 // placed
		Calls  int64 // of it, trials included
		Nanos  int64 // in these
	}

	// Serving is what placed last under a policy's name in a shard.
	Serving struct {
		Shard  string
		Policy string
		Digest Digest // zero: the built-in placer
		At     int64
	}
)

// Fare finds how a version fares; nil: it is not in force.
func (r *Report) Fare(policy string, digest Digest) *Fare {
	for i := range r.Fares {
		if r.Fares[i].Policy == policy && r.Fares[i].Digest == digest {
			return &r.Fares[i]
		}
	}
	return nil
}

// Choices are the names that jobs and pools may choose: those that are built in, and those under which something places.
func (b *Book) Choices() []string {
	names := []string{BestFit, Pack, Spread}
	for i := range b.Policies {
		if b.Policies[i].Kind == Place && b.Policies[i].InForce() {
			names = append(names, b.Policies[i].Name)
		}
	}
	return names
}
