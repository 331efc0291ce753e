package scheduler

import (
	"strconv"
	"strings"

	"github.com/paceline-sched/paceline/core/workload"
)

// maxGangHosts bounds the members whose hosts and ports stand in the environment of each: 256 names in 256 environments. Members of a larger
// gang are told rank 0's alone.
const maxGangHosts = 256

// told is what the environments of a gang's members have in common. It holds for one number of live members in one Step.
type told struct {
	step         uint64
	live         uint32
	hosts, ports string
}

// gangEnvironment tells a member who it is and where the others are. In a plan those that start together are there, and nobody knows where.
func (s *State) gangEnvironment(g *gang, i uint32, env map[string]string) {
	number := func(n uint32) string { return strconv.FormatUint(uint64(n), 10) }
	rank, _ := g.Rank(i)
	env["PACELINE_GANG_NAME"] = g.Name
	env["PACELINE_GANG_RANK"] = number(rank)
	present, generation := g.Min, uint32(1)
	if !g.job.planned {
		present, generation = g.present(), g.generation()
	}
	env["PACELINE_GANG_SIZE"] = number(present)
	env["PACELINE_GANG_MIN"] = number(g.Min)
	env["PACELINE_GANG_MAX"] = number(g.Size)
	env["PACELINE_GANG_GENERATION"] = number(generation)
	if g.told.step != s.steps || g.told.live != g.live {
		g.told = told{step: s.steps, live: g.live}
		g.told.hosts, g.told.ports = g.addresses()
	}
	env["PACELINE_GANG_HOSTS"] = g.told.hosts
	if len(g.job.spec.Template.Ports) > 0 {
		env["PACELINE_GANG_PORTS"] = g.told.ports
	}
	if g.Size > maxGangHosts {
		env["PACELINE_GANG_HOSTS_PARTIAL"] = "1"
	}
}

// addresses lists the hosts of the members by rank, and their first ports, with nothing between the commas for a member that is not there.
func (g *gang) addresses() (hosts, ports string) {
	var h, p strings.Builder
	for rank, i := range g.All() {
		if rank > 0 {
			if g.Size > maxGangHosts {
				break
			}
			h.WriteByte(',')
			p.WriteByte(',')
		}
		if g.job.planned {
			continue
		}
		t := &g.job.tasks[i]
		if t.generation != g.generation() || !t.runState.Live() || t.runState == workload.RunKilling {
			continue
		}
		h.WriteString(t.host.Name)
		if numbers := t.ports(); len(numbers) > 0 {
			p.WriteString(strconv.Itoa(int(numbers[0])))
		}
	}
	return h.String(), p.String()
}
