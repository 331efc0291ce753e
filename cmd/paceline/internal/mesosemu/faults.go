package mesosemu

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/spf13/pflag"

	"github.com/paceline-sched/paceline/hostmanagers/mesos/emulator"
	"github.com/paceline-sched/paceline/hostmanagers/mesos/emulator/cluster"
)

// reregister is how long after a master's death its agents find the next one.
const reregister = 300 * time.Millisecond

// faults are what the emulated cluster suffers from. Durations are how often; 0: never. Shares are from 0 to 1.
type faults struct {
	newMaster, cut, loseAgent, loseFor time.Duration
	duplicate, repeat, refuse          float64
}

func (f *faults) register(fs *pflag.FlagSet) {
	fs.DurationVar(&f.newMaster, "fault-new-master", 0, "how often the master dies and one that knows nothing takes its place (0: never)")
	fs.DurationVar(&f.cut, "fault-cut", 0, "how often all subscriptions break in the middle of a record (0: never)")
	fs.DurationVar(&f.loseAgent, "fault-lose-agent", 0, "how often an agent is lost (0: never)")
	fs.DurationVar(&f.loseFor, "fault-lose-for", 30*time.Second, "how long a lost agent is away")
	fs.Float64Var(&f.duplicate, "fault-duplicate", 0, "`share` of status updates that are sent twice")
	fs.Float64Var(&f.repeat, "fault-repeat", 0, "`share` of status updates after which an old one is sent again")
	fs.Float64Var(&f.refuse, "fault-refuse", 0, "`share` of acknowledgements that are refused")
}

func (f *faults) check() error {
	for _, d := range []time.Duration{f.newMaster, f.cut, f.loseAgent, f.loseFor} {
		if d < 0 {
			return errors.New("the durations of --fault-... flags must not be negative")
		}
	}
	for _, share := range []float64{f.duplicate, f.repeat, f.refuse} {
		if share < 0 || share > 1 {
			return errors.New("the shares of --fault-... flags must be from 0 to 1")
		}
	}
	return nil
}

// config is what the emulator itself does of them.
func (f *faults) config() emulator.Faults {
	with := func(share float64) func() bool {
		if share == 0 {
			return nil
		}
		return func() bool { return rand.Float64() < share } //nolint:gosec // chance, not secrets
	}
	return emulator.Faults{Duplicate: with(f.duplicate), Repeat: with(f.repeat), Refuse: with(f.refuse)}
}

// inflict does the others, until ctx ends.
func (f *faults) inflict(ctx context.Context, e *emulator.Emulator, agents []string) {
	var work sync.WaitGroup
	defer work.Wait()
	every := func(period time.Duration, do func()) {
		if period == 0 {
			return
		}
		work.Go(func() {
			ticks := time.NewTicker(period)
			defer ticks.Stop()
			for {
				select {
				case <-ticks.C:
					do()
				case <-ctx.Done():
					return
				}
			}
		})
	}
	every(f.newMaster, func() { e.Do(func(c *cluster.Cluster) { c.Succeed(reregister) }) })
	every(f.cut, e.Cut)
	every(f.loseAgent, func() {
		id := agents[rand.IntN(len(agents))] //nolint:gosec // chance, not secrets
		e.Do(func(c *cluster.Cluster) { c.LoseAgent(id) })
		work.Go(func() {
			back := time.NewTimer(f.loseFor)
			defer back.Stop()
			select {
			case <-back.C:
				e.Do(func(c *cluster.Cluster) { c.ReturnAgent(id) })
			case <-ctx.Done():
			}
		})
	})
}
