package wasm

import (
	"time"

	"github.com/paceline-sched/paceline/core/placement"
)

// record is what a Placer remembers of a batch for those who keep it, and what it is told of how one was served before.
type record struct {
	served placement.Served
	digest string // of version
	of     *Version
	follow []placement.ServedCall // that are still to be repeated
}

var (
	_ placement.Witness  = (*Placer)(nil)
	_ placement.Follower = (*Placer)(nil)
)

// Served implements placement.Witness. What is only planned is not served.
func (p *Placer) Served() []placement.Served { return []placement.Served{p.record.served} }

// Follow implements placement.Follower: the next batch is cut into the same calls, which see the same seeds, times and work to come, if this policy served it.
func (p *Placer) Follow(s placement.Served) {
	if !p.enter() || s.Digest != p.digest() {
		return
	}
	p.record.follow = s.Calls
}

func (p *Placer) digest() string {
	if p.record.of != p.version {
		p.record.of, p.record.digest = p.version, p.version.digest.String()
	}
	return p.record.digest
}

// begin notes that a batch is served.
func (p *Placer) begin(requests int) {
	if p.planning {
		return
	}
	p.record.served = placement.Served{Requests: requests, By: p.version.Name(), Digest: p.digest()}
}

// next is the call to be repeated, nil when there is none.
func (p *Placer) next() *placement.ServedCall {
	if p.planning || len(p.record.follow) == 0 {
		return nil
	}
	return &p.record.follow[0]
}

// calling settles what a call of n requests sees, and notes it.
func (p *Placer) calling(n int) (seed uint64, now time.Time) {
	if c := p.next(); c != nil {
		seed, now = c.Seed, time.Unix(0, c.Time)
		p.mix.force(c.Mix)
		p.record.follow = p.record.follow[1:]
	} else {
		seed, now = p.moment()
		p.mix.renew()
	}
	if !p.planning {
		p.record.served.Calls = append(p.record.served.Calls, placement.ServedCall{
			Requests: n, Tasks: p.call.tasks, Seed: seed, Time: now.UnixNano(), Mix: p.mix.told,
		})
	}
	return seed, now
}

// spent notes fuel that a call used.
func (p *Placer) spent(fuel int64) {
	if !p.planning {
		p.record.served.Fuel += fuel
	}
}
