package spec

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/workload"
	pacelinev1 "github.com/paceline-sched/paceline/sdk/gen/paceline/v1"
)

func index(field string, i int) string { return field + "[" + strconv.Itoa(i) + "]" }

// toOverrides spreads ranges over single instances, sorted. What they take then has to fit in room bytes.
func toOverrides(c *checker, in []*pacelinev1.Override, job *workload.JobSpec, scope Scope, room int) []workload.Override {
	var out []workload.Override
	from := map[uint32]int{} // instance -> the override that names it
	for i, o := range in {
		field := index(scope.Field+".overrides", i)
		ranges, err := ParseInstances(o.GetInstances())
		if err != nil {
			c.refuse(field+".instances", "%v", err)
			continue
		}
		one := toOverride(c, o, job, scope, field)
		each := overrideBytes(o)
		for _, r := range ranges {
			if r.Last >= job.Instances {
				c.refuse(field+".instances", "instance %d does not exist: the job has %d, from 0 to %d", r.Last, job.Instances, int64(job.Instances)-1)
				break
			}
			if len(out)+int(r.Last-r.First)+1 > MaxOverridden {
				c.refuse(field+".instances", "more than %d instances differ from the template: let tasks tell themselves apart by PACELINE_INSTANCE instead", MaxOverridden)
				return out
			}
			if room -= each * int(r.Last-r.First+1); room < 0 {
				c.refuse(field+".instances", "the spec takes more than %d bytes once each instance has its own overrides: shorten them", MaxBytes)
				return out
			}
			for n := r.First; n <= r.Last; n++ {
				if other, taken := from[n]; taken {
					c.refuse(field+".instances", "instance %d is in overrides[%d] already", n, other)
					break
				}
				from[n] = i
				one.Instance = n
				out = append(out, one)
			}
		}
	}
	slices.SortFunc(out, func(a, b workload.Override) int { return cmp.Compare(a.Instance, b.Instance) })
	return out
}

// overrideBytes is what one instance's share of an override takes.
func overrideBytes(o *pacelinev1.Override) int {
	const fixed = 8 // its number and lengths
	return proto.Size(o) - len(o.GetInstances()) + fixed
}

// baseBytes is the encoded size of a spec without its overrides.
func baseBytes(in *pacelinev1.JobSpec) int {
	size := proto.Size(in)
	for _, o := range in.GetOverrides() {
		size -= protowire.SizeTag(overridesField) + protowire.SizeBytes(proto.Size(o))
	}
	return size
}

const overridesField protowire.Number = 22

// Bytes is the encoded size of a spec, with overrides counted once for each instance that they name.
func Bytes(in *pacelinev1.JobSpec) int {
	size := baseBytes(in)
	for _, o := range in.GetOverrides() {
		ranges, err := ParseInstances(o.GetInstances())
		if err != nil {
			continue
		}
		for _, r := range ranges {
			size += overrideBytes(o) * int(r.Last-r.First+1)
		}
	}
	return size
}

func toOverride(c *checker, in *pacelinev1.Override, job *workload.JobSpec, scope Scope, field string) workload.Override {
	checkCommand(c, field+".command", in.GetCommand())
	checkEnv(c, field+".env", in.GetEnv())
	out := workload.Override{Command: list(in.GetCommand()), Env: table(in.GetEnv()), Labels: table(in.GetLabels())}
	if in.GetResources() != nil {
		needs := job.Template.Needs
		amountsOf(in.GetResources()).each(c, field+".resources", scope.Names, func(k resource.Kind, q int64) { needs[k] = q })
		checkGPU(c, field+".resources.gpu_milli", needs)
		checkParts(c, job.Template.Execution, needs, field+".resources", scope.Names)
		out.Needs = &needs
	}
	return out
}

// fromOverrides joins instances that differ from the template in the same way.
func fromOverrides(job *workload.JobSpec, names *resource.Names) []*pacelinev1.Override {
	type group struct {
		override  *workload.Override
		instances []uint32
	}
	var groups []*group
	byContent := map[string]*group{}
	for i := range job.Overrides {
		o := &job.Overrides[i]
		key := content(o)
		g := byContent[key]
		if g == nil {
			g = &group{override: o}
			byContent[key] = g
			groups = append(groups, g)
		}
		g.instances = append(g.instances, o.Instance)
	}
	var out []*pacelinev1.Override
	for _, g := range groups {
		// No list of ours is longer than the API lets a user's be.
		for chunk := range slices.Chunk(g.instances, maxListed) {
			out = append(out, fromOverride(g.override, FormatInstances(chunk), &job.Template, names))
		}
	}
	return out
}

// maxListed instances make a list of at most 4,096 characters even when no two are neighbours.
const maxListed = 500

// content is equal for overrides that say the same, whatever their instance.
func content(o *workload.Override) string {
	b := fmt.Appendf(nil, "%q", o.Command)
	for _, m := range []map[string]string{o.Env, o.Labels} {
		b = append(b, '|')
		for _, k := range slices.Sorted(maps.Keys(m)) {
			b = fmt.Appendf(b, "%q=%q,", k, m[k])
		}
	}
	if o.Needs != nil {
		b = fmt.Appendf(b, "|%v", *o.Needs)
	}
	return string(b)
}

func fromOverride(o *workload.Override, instances string, template *workload.TaskTemplate, names *resource.Names) *pacelinev1.Override {
	out := &pacelinev1.Override{Instances: instances, Command: o.Command, Env: o.Env, Labels: o.Labels}
	if o.Needs != nil {
		out.Resources = fromKinds(names, func(k resource.Kind) (int64, bool) { return o.Needs[k], o.Needs[k] != template.Needs[k] })
	}
	return out
}
