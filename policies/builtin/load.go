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
	info := policy.Info{Name: "load-aware", Remember: true, Columns: []string{"usage.cpu", "usage.memory", "total.cpu", "total.memory"}}
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

// Costs implements policy.BlockScorer: the weighted mean of the load, and the load of a kind once more where that makes a host hot.
func (p *loadAware) Costs(t *policy.Table, r *policy.Request, rows []int32, costs []int64) {
	clear(costs)
	p.add(t, r, policy.CPU, p.CPU, rows, costs)
	p.add(t, r, policy.Memory, p.Memory, rows, costs)
}

// add adds the load of one kind: the part of a host, in policy.Span, that is in use. Modules pay for every call of a function, so it is one loop.
func (p *loadAware) add(t *policy.Table, r *policy.Request, k policy.Kind, weight int64, rows []int32, costs []int64) {
	free, total, usage := t.Free(k), t.Total(k), t.Usage(k)
	if weight == 0 || free == nil || total == nil {
		return
	}
	need, hot, all, requested := r.Need(k), p.Hot*(policy.Span/100), p.CPU+p.Memory, p.Requested
	if usage == nil {
		usage, requested = total, 100
	}
	for i, row := range rows {
		size := int64(total[row])
		if size <= 0 {
			continue
		}
		asked := size - int64(free[row]) + need
		load := max(int64(usage[row])*(100-requested)+asked*requested, 0) * (policy.Span / 100) / size
		if costs[i] += load * weight / all; load > hot {
			costs[i] += load
		}
	}
}
