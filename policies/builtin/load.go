package builtin

import (
	"errors"
	"strconv"

	"github.com/paceline-sched/paceline/sdk/policy"
)

// loadAware places where the load will be least: what is measured to be in use, and part of what is asked for and not used yet, as a share of the host.
type loadAware struct {
	// Requested is how much of what tasks asked for counts as load, in percent, where usage is measured. Where it is not, all of it does.
	Requested int64 `policy:"requested"`
	// Hot is the load, in percent, from which a host is taken only if no other is left.
	Hot int64 `policy:"hot"`
	// CPU and Memory are the weights of the two.
	CPU    int64 `policy:"cpu"`
	Memory int64 `policy:"memory"`
}

// LoadAware places on the least loaded hosts, by measured usage.
func LoadAware() *policy.Program {
	info := policy.Info{Name: "load-aware", Columns: []string{"usage.cpu", "usage.memory", "total.cpu", "total.memory"}}
	return program(info, &loadAware{Requested: 30, Hot: 85, CPU: 1, Memory: 1})
}

func (p *loadAware) Start() error {
	for _, percent := range []int64{p.Requested, p.Hot} {
		if percent < 0 || percent > 100 {
			return errors.New("requested and hot are percents, from 0 to 100, not " + strconv.FormatInt(percent, 10))
		}
	}
	const most = 1000
	if p.CPU < 0 || p.Memory < 0 || p.CPU > most || p.Memory > most || p.CPU+p.Memory == 0 {
		return errors.New("the weights cpu and memory are from 0 to " + strconv.Itoa(most) + ", and not both 0")
	}
	return nil
}

// Costs implements policy.BlockScorer: the weighted mean of the load, and the load of the kind that has most on top of the scale where that makes a host hot.
func (p *loadAware) Costs(t *policy.Table, r *policy.Request, rows []int32, costs []int64) {
	clear(costs)
	kinds := [...]struct {
		kind   policy.Kind
		weight int64
	}{{policy.CPU, p.CPU}, {policy.Memory, p.Memory}}
	for _, k := range kinds {
		if k.weight == 0 {
			continue
		}
		free, total, usage := t.Free(k.kind), t.Total(k.kind), t.Usage(k.kind)
		if free == nil || total == nil {
			continue
		}
		need := r.Need(k.kind)
		for i, row := range rows {
			load := p.load(int64(total[row])-int64(free[row])+need, int64(total[row]), usage, row)
			if costs[i] += k.weight * load / (p.CPU + p.Memory); load > p.Hot*policy.Span/100 {
				costs[i] += load
			}
		}
	}
}

// load is the part of a host, in policy.Span, that is in use of a kind.
func (p *loadAware) load(requested, total int64, usage []int32, row int32) int64 {
	if total <= 0 {
		return 0
	}
	load := requested
	if usage != nil {
		load = (int64(usage[row])*(100-p.Requested) + requested*p.Requested) / 100
	}
	return max(load, 0) * policy.Span / total
}
