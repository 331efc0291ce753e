package scenarios

import (
	"flag"
	"fmt"
	"math/rand"
	"strings"
	"testing"
	"time"

	"github.com/paceline-sched/paceline/core/workload"
)

// stream is small work that never stops coming: wherever one ends, the next is there at once.
type stream struct {
	w     *world
	draw  *rand.Rand
	next  int
	alive map[string]int64 // when each ends, once it runs; 0: it waits
}

// flow ends whose time is over and keeps so many waiting.
func (s *stream) flow(waiting int) {
	for n := range s.next {
		name := fmt.Sprint("s", n)
		end, open := s.alive[name]
		if !open {
			continue
		}
		active := s.w.job(name).ByState[workload.InstanceActive] > 0
		switch {
		case active && end == 0:
			s.alive[name] = s.w.now + int64(time.Duration(5+s.draw.Intn(55))*time.Second)
		case active && end <= s.w.now:
			s.w.block("finish " + name + "/0")
			delete(s.alive, name)
		case !active:
			waiting--
		}
	}
	for ; waiting > 0; waiting-- {
		name := fmt.Sprint("s", s.next)
		s.next++
		s.w.block(fmt.Sprintf("run %s pool=/p n=1 cpu=550", name))
		s.alive[name] = 0
	}
}

// rounds is how many cells such tests play for each cell of a short run.
func rounds() int {
	checks := flag.Lookup("rapid.checks")
	if checks == nil || checks.Value.String() == checks.DefValue {
		return 1
	}
	return 16
}

// fleet is hosts in two racks, in one shard or in several of two hosts each; another cluster is too small for a gang.
func fleet(hosts, members int, shards bool) string {
	line := ""
	for n := range hosts {
		if cluster := fmt.Sprint("c", n/2); n == 0 || shards && n%2 == 0 {
			line += "\ncluster " + cluster
			if n > 0 {
				line += " of=c0"
			}
		}
		rack := "r"
		if n >= members+1 {
			rack = "s"
		}
		line += fmt.Sprintf(" %s.h%d=1000", rack, n)
	}
	if shards {
		line += "\ncluster other o1=1000 o2=1000"
	}
	return line[1:]
}

// TestLargeGangStartsBesideAStream has small tasks fill every host at once whenever one comes free, for ever. A gang of whole hosts that the pool has
// room for starts within a bound: the patience of kept room, one life of the longest small task, and the pauses between attempts. So does one that
// has to stay in one rack, one that needs the hosts of several shards, also where these must be of one cluster, and each member that joins an
// elastic one.
func TestLargeGangStartsBesideAStream(t *testing.T) {
	t.Parallel()
	const bound = 10 * time.Minute
	shapes := []string{"gang", "gang topology=rack!", "gang min=1", "shards gang", "shards gang topology=cluster!"}
	for n, shape := range shapes {
		for round := range rounds() {
			seed := int64(n + round*len(shapes))
			shape, shards := strings.CutPrefix(shape, "shards ")
			w := newWorld(t)
			w.cfg.JobRetention = time.Second
			w.block("crash")
			s := &stream{w: w, draw: rand.New(rand.NewSource(seed)), alive: map[string]int64{}}
			hosts := 5 + s.draw.Intn(4)
			if shards {
				hosts = 6 + 2*s.draw.Intn(2)
			}
			members := hosts * 450 / 900
			w.block(fleet(hosts, members, shards) + "\npool /p")
			s.flow(hosts + 2)
			w.block("advance 1s")
			w.block(fmt.Sprintf("run ring pool=/p n=%d cpu=900 %s", members, shape))
			began := w.now
			for up := uint32(0); int(up) < members; {
				if now := w.job("ring").ByState[workload.InstanceActive]; now > up {
					up, began = now, w.now
				}
				if w.now-began > int64(bound) {
					t.Fatalf("%s, seed %d: %d members of 900 on %d hosts of 1000 (over shards: %t) wait for %v beside a stream of small tasks:\n%s", shape, seed,
						members, hosts, shards, bound, w.showExplanation("ring"))
				}
				w.block("advance 3s")
				s.flow(2 + s.draw.Intn(3))
			}
		}
	}
}
