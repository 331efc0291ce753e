package cli

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/paceline-sched/paceline/cmd/paceline/internal/output"
	pacelinev1 "github.com/paceline-sched/paceline/sdk/gen/paceline/v1"
)

// facts is a page of names and values; an empty value is left out.
type facts [][]string

func (f *facts) add(name, format string, args ...any) {
	if value := fmt.Sprintf(format, args...); value != "" && value != output.Dash {
		*f = append(*f, []string{name + ":", value})
	}
}

func (f *facts) write(p *output.Printer) error {
	page := *p
	page.NoHeaders = true
	return page.Rows(append([][]string{{"", ""}}, *f...))
}

// table writes a titled table below a page of facts.
func table(p *output.Printer, title string, rows [][]string) error {
	if len(rows) < 2 {
		return nil
	}
	if _, err := fmt.Fprintf(p.Out, "\n%s\n", title); err != nil {
		return err
	}
	return p.Rows(rows)
}

func (a *app) since(t *timestamppb.Timestamp) string {
	if t == nil {
		return ""
	}
	return fmt.Sprintf("%s (%s ago)", output.Clock(a.Now(), t), output.Age(a.Now(), t))
}

func (a *app) describeJob(p *output.Printer, job *pacelinev1.Job) error {
	s := job.GetSummary()
	var f facts
	f.add("Job", "%s", summaryPath(s))
	f.add("Id", "%s", s.GetId())
	f.add("Kind", "%s", kindLine(job))
	state := output.Enum(s.GetState())
	if s.GetRestarting() {
		state += ", " + restarting(s)
	}
	if s.GetGoal() != pacelinev1.JobGoal_JOB_GOAL_RUN {
		state += ", wanted: " + output.Enum(s.GetGoal())
	}
	f.add("State", "%s", state)
	f.add("Reason", "%s", output.Enum(s.GetReason()))
	f.add("Instances", "%d: %s", s.GetInstances(), counts(s))
	f.add("Runs", "%s", runCounts(s.GetRunCounts()))
	f.add("Waiting", "%s", pendingLine(job.GetPending()))
	f.add("Needs", "%s", quantities(taskNeeds(job.GetSpec().GetTask().GetResources())))
	f.add("Command", "%s", quoted(job.GetSpec().GetTask().GetCommand()))
	f.describeExecution(job.GetSpec().GetTask())
	f.add("Owner", "%s", s.GetOwner())
	f.add("Submitted by", "%s", s.GetSubmitter())
	f.add("Submitted", "%s", a.since(s.GetCreateTime()))
	f.add("Started", "%s", a.since(s.GetStartTime()))
	f.add("Ended", "%s", a.since(s.GetEndTime()))
	if s.GetDeadline() != nil {
		f.add("Deadline", "%s", output.Clock(a.Now(), s.GetDeadline()))
	}
	f.add("Labels", "%s", output.Pairs(s.GetLabels()))
	f.add("Version", "%d, spec version %d", s.GetVersion(), s.GetConfigVersion())
	return f.write(p)
}

// describeExecution tells what a task runs in, where its command is not all.
func (f *facts) describeExecution(t *pacelinev1.TaskSpec) {
	c := t.GetContainer()
	f.add("Image", "%s", container(c.GetImage(), c.GetPull(), c.GetPrivileged(), c.GetReadOnly()))
	f.add("Mounts", "%s", mounts(c.GetMounts()))
	f.add("Inits", "%s", sides(t.GetInits()))
	f.add("Sidecars", "%s", sides(t.GetSidecars()))
	var artifacts, volumes, own []string
	for _, a := range t.GetArtifacts() {
		artifacts = append(artifacts, a.GetUri())
	}
	for _, v := range t.GetVolumes() {
		volumes = append(volumes, v.GetName()+": "+volumeSource(v))
	}
	f.add("Artifacts", "%s", strings.Join(artifacts, ", "))
	f.add("Volumes", "%s", strings.Join(volumes, ", "))
	f.add("User", "%s", t.GetUser())
	f.add("On Mesos", "%s", prefixed("containerizer ", t.GetMesos().GetContainerizer()))
	if k := t.GetKubernetes(); k != nil {
		own = slices.DeleteFunc([]string{
			prefixed("namespace ", k.GetNamespace()), prefixed("service account ", k.GetServiceAccount()),
			prefixed("pull secrets ", strings.Join(k.GetPullSecrets(), " ")),
		}, func(s string) bool { return s == "" })
		if k.RunAsUser != nil {
			own = append(own, fmt.Sprintf("user %d", k.GetRunAsUser()))
		}
		if k.GetRunAsNonRoot() {
			own = append(own, "never as root")
		}
		if k.GetPodPatch() != nil {
			own = append(own, "pod patch")
		}
	}
	f.add("On Kubernetes", "%s", strings.Join(own, ", "))
}

func prefixed(what, value string) string {
	if value == "" {
		return ""
	}
	return what + value
}

func container(image, pull string, privileged, readOnly bool) string {
	parts := []string{image}
	if pull != "" && pull != "missing" {
		parts = append(parts, "pull "+pull)
	}
	if privileged {
		parts = append(parts, "privileged")
	}
	if readOnly {
		parts = append(parts, "read-only")
	}
	return strings.Join(parts, ", ")
}

func mounts(list []*pacelinev1.MountSpec) string {
	var parts []string
	for _, m := range list {
		part := m.GetVolume() + " at " + m.GetPath()
		if m.GetReadOnly() {
			part += " (read-only)"
		}
		parts = append(parts, part)
	}
	return strings.Join(parts, ", ")
}

func sides(list []*pacelinev1.SideContainerSpec) string {
	var parts []string
	for _, s := range list {
		parts = append(parts, fmt.Sprintf("%s (%s)", s.GetName(), first(
			container(s.GetImage(), s.GetPull(), s.GetPrivileged(), s.GetReadOnly()), quoted(s.GetCommand()))))
	}
	return strings.Join(parts, ", ")
}

func volumeSource(v *pacelinev1.VolumeSpec) string {
	switch source := v.GetSource().(type) {
	case *pacelinev1.VolumeSpec_HostPath:
		return "host path " + source.HostPath
	case *pacelinev1.VolumeSpec_Claim:
		return "claim " + source.Claim
	case *pacelinev1.VolumeSpec_ConfigMap:
		return "config map " + source.ConfigMap
	case *pacelinev1.VolumeSpec_Secret:
		return "secret " + source.Secret
	}
	return "scratch"
}

func kindLine(job *pacelinev1.Job) string {
	parts := []string{output.Enum(job.GetSummary().GetKind())}
	if gang := job.GetSpec().GetGang(); gang != nil {
		parts = append(parts, gangLine(gang))
	}
	if n := job.GetSpec().GetBatch().GetMaxRunning(); n > 0 {
		parts = append(parts, fmt.Sprintf("at most %d at once", n))
	}
	parts = append(parts, fmt.Sprintf("priority %d", job.GetSummary().GetPriority()))
	if job.GetSpec().Preemptible != nil && !job.GetSpec().GetPreemptible() {
		parts = append(parts, "not preemptible")
	}
	return strings.Join(parts, ", ")
}

func gangLine(g *pacelinev1.GangSpec) string {
	line := "gang"
	switch {
	case len(g.GetGroups()) > 0:
		line = output.Plural(uint32(len(g.GetGroups())), "gang")
	case g.GetMinSize() > 0:
		line += fmt.Sprintf(" of at least %d", g.GetMinSize())
	}
	if t := g.GetTopology(); t != nil {
		word := "preferably in one "
		if t.GetRequired() {
			word = "in one "
		}
		line += " " + word + t.GetKey()
	}
	return line
}

func runCounts(n *pacelinev1.RunCounts) string {
	var parts []string
	for _, c := range []struct {
		count uint32
		word  string
	}{
		{n.GetPlaced(), "placed"},
		{n.GetLaunching(), "launching"},
		{n.GetStarting(), "starting"},
		{n.GetRunning(), "running"},
		{n.GetKilling(), "killing"},
		{n.GetUnreachable(), "unreachable"},
		{n.GetSucceeded(), "succeeded"},
		{n.GetFailed(), "failed"},
		{n.GetKilled(), "killed"},
		{n.GetPreempted(), "preempted"},
		{n.GetLost(), "lost"},
	} {
		if c.count > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", c.count, c.word))
		}
	}
	return strings.Join(parts, ", ")
}

func pendingLine(p *pacelinev1.Pending) string {
	if p.GetInstances() == 0 {
		return p.GetMessage() // of a daemon that matches no host no instance waits
	}
	return fmt.Sprintf("%s, %s", output.Plural(p.GetInstances(), "instance"), first(p.GetMessage(), output.Enum(p.GetReason())))
}

// taskNeeds is a task's needs in the form of quantities.
func taskNeeds(r *pacelinev1.TaskResources) *pacelinev1.Quantities {
	return &pacelinev1.Quantities{
		CpuMilli: new(r.GetCpuMilli()), MemoryMib: new(r.GetMemoryMib()), DiskMib: new(r.GetDiskMib()), GpuMilli: new(r.GetGpuMilli()),
		Extended: r.GetExtended(),
	}
}

// maxQuoted bounds how much of a command is shown; -o yaml has it whole.
const maxQuoted = 200

func quoted(command []string) string {
	parts := make([]string, len(command))
	for i, word := range command {
		if parts[i] = word; word == "" || strings.ContainsAny(word, " \t\n\"'\\$`;&|<>(){}*?[]#~") {
			parts[i] = "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
		}
	}
	line := strings.ReplaceAll(strings.Join(parts, " "), "\n", `\n`)
	if len(line) > maxQuoted {
		return strings.ToValidUTF8(line[:maxQuoted], "") + "..."
	}
	return line
}

func (a *app) describeExplanation(p *output.Printer, e *pacelinev1.Explanation) error {
	s := e.GetJob()
	var f facts
	f.add("Job", "%s", summaryPath(s))
	f.add("State", "%s", counts(s))
	if len(e.GetReasons()) == 0 {
		f.add("Waiting", "no instance waits")
		return f.write(p)
	}
	f.add("Main reason", "%s", output.Enum(e.GetDominant()))
	f.add("Because", "%s", e.GetReasons()[0].GetMessage())
	for n, r := range e.GetRemedies() {
		title := "Would start"
		if n > 0 {
			title = "or"
		}
		f.add(title, "if %s", r.GetMessage())
	}
	if start := e.GetEstimate(); start != nil {
		f.add("Starts", "%s", start.GetMessage())
	}
	for _, note := range e.GetNotes() {
		f.add("Note", "%s", note)
	}
	if e.GetQueuePosition() > 0 {
		f.add("Queue", "position %d of %d in %s", e.GetQueuePosition(), e.GetQueueLength(), s.GetPool())
	}
	for _, name := range resources(e.GetPoolEntitlement(), e.GetPoolUsage()) {
		f.add("Pool "+resourceTitle(name), "%s of %s used", output.Quantity(name, amount(e.GetPoolUsage(), name)),
			output.Quantity(name, amount(e.GetPoolEntitlement(), name)))
	}
	if err := f.write(p); err != nil {
		return err
	}
	rows := [][]string{{"REASON", "INSTANCES", "WHY"}}
	for _, r := range e.GetReasons() {
		rows = append(rows, []string{output.Enum(r.GetReason()), number(r.GetInstances()), output.OrDash(r.GetMessage())})
	}
	if err := table(p, "Why instances wait:", rows); err != nil {
		return err
	}
	if err := gangTable(p, e.GetGangs()); err != nil {
		return err
	}
	for _, r := range e.GetReasons() {
		if err := refusals(p, r); err != nil {
			return err
		}
	}
	return nil
}

// gangTable writes where the gangs of a job stand, as far as somebody reads on.
func gangTable(p *output.Printer, gangs []*pacelinev1.Gang) error {
	const most = 20
	if len(gangs) == 0 {
		return nil
	}
	rows := [][]string{{"GANG", "GENERATION", "PRESENT", "FAILURES"}}
	for _, g := range gangs[:min(len(gangs), most)] {
		present := fmt.Sprintf("%d of %d", g.GetPresent(), g.GetSize())
		switch {
		case g.GetEnding():
			present += ", being ended"
		case g.GetMinSize() < g.GetSize():
			present += fmt.Sprintf(", at least %d", g.GetMinSize())
		}
		rows = append(rows, []string{g.GetName(), number(g.GetGeneration()), present, number(g.GetFailures())})
	}
	title := "Gangs:"
	if len(gangs) > most {
		title = fmt.Sprintf("Gangs, the first %d of %d:", most, len(gangs))
	}
	return table(p, title, rows)
}

// refusals writes for what hosts refused, most frequent first.
func refusals(p *output.Printer, pending *pacelinev1.Pending) error {
	rows := [][]string{{"REFUSED FOR", "HOSTS"}}
	for _, r := range pending.GetRefusals() {
		rows = append(rows, []string{output.Enum(r.GetReason()), number(r.GetHosts())})
	}
	title := output.Plural(pending.GetHosts(), "host") + " looked at:"
	if pending.GetGangSize() > 0 {
		title = fmt.Sprintf("%s looked at, room for %d of %d members", output.Plural(pending.GetHosts(), "host"), pending.GetGangLargest(), pending.GetGangSize())
		if in := pending.GetGangDomain(); in != "" {
			title += " in " + in
		}
		title += ":"
	}
	return table(p, title, rows)
}

// planHosts is how many hosts a server names in a plan at most.
const planHosts = 100

// describePlan writes a plan in the manner of a diff: + is new, ~ changes, = stays.
func (a *app) describePlan(spec *pacelinev1.JobSpec, plan *pacelinev1.PlanJobResponse) {
	path := jobPath(first(spec.GetPool(), "/default"), spec.GetName())
	switch plan.GetChange() {
	case pacelinev1.PlanChange_PLAN_CHANGE_NONE:
		a.say("= job %s stays as it is", path)
		return
	case pacelinev1.PlanChange_PLAN_CHANGE_UPDATE:
		a.say("~ job %s would change", path)
		for _, field := range plan.GetFields() {
			a.say("    %s: %s -> %s", field.GetField(), first(field.GetBefore(), "absent"), first(field.GetAfter(), "absent"))
		}
	default:
		a.say("+ job %s would be created", path) // its fields are the file's own
	}
	a.sayRuleChanges("would change", plan.GetRuleChanges())
	if plan.GetChecked() > 0 {
		a.say("  of %s, the pool's entitlement covers %d and %d would be placed at once", output.Plural(plan.GetChecked(), "instance"), plan.GetAdmitted(), plan.GetPlaceable())
	}
	var hosts []string
	for _, name := range slices.Sorted(maps.Keys(plan.GetHosts())) {
		if n := plan.GetHosts()[name]; n > 1 || spec.GetDaemon() == nil {
			name = fmt.Sprintf("%s (%d)", name, n)
		}
		hosts = append(hosts, name)
	}
	if spec.GetDaemon() != nil && len(hosts) >= planHosts {
		hosts = append(hosts, "and perhaps more")
	}
	switch on := strings.Join(hosts, ", "); {
	case on == "":
	case spec.GetDaemon() != nil:
		a.say("  belongs on %s", on)
	default:
		a.say("  on %s", on)
	}
	for _, pending := range plan.GetPending() {
		a.say("  waiting: %s", pendingLine(pending))
		for _, r := range pending.GetRefusals() {
			a.say("    %s: %s", output.Plural(r.GetHosts(), "host"), output.Enum(r.GetReason()))
		}
	}
	a.describeVictims(plan.GetPreemption())
	a.describeRehearsals(plan.GetRehearsals())
	for _, warning := range plan.GetWarnings() {
		a.say("  warning: %s", warning)
	}
}

// describeRehearsals says what clusters would do with a planned job.
func (a *app) describeRehearsals(list []*pacelinev1.PlanRehearsal) {
	several := slices.ContainsFunc(list, func(r *pacelinev1.PlanRehearsal) bool { return r.GetInstance() != list[0].GetInstance() })
	for _, r := range list {
		what := ""
		if several {
			what = fmt.Sprintf("instance %d and what is like it: ", r.GetInstance())
		}
		switch r.GetVerdict() {
		case pacelinev1.RehearsalVerdict_REHEARSAL_VERDICT_ADMITTED:
			a.say("  %sadmitted by cluster %s", what, r.GetCluster())
		case pacelinev1.RehearsalVerdict_REHEARSAL_VERDICT_REFUSED:
			a.say("  %srefused by cluster %s: %s", what, r.GetCluster(), r.GetMessage())
		default:
			a.say("  %scluster %s does not say whether it would take it: %s", what, r.GetCluster(), r.GetMessage())
		}
		for _, w := range r.GetWarnings() {
			a.say("    it warns: %s", w)
		}
	}
}

// describeVictims says who would make room for a planned job.
func (a *app) describeVictims(p *pacelinev1.PlanPreemption) {
	if p == nil {
		return
	}
	a.say("  preemption: %s", p.GetMessage())
	for _, v := range p.GetVictims() {
		a.say("    %s, instance %d on %s: %s", jobPath(v.GetPool(), v.GetName()), v.GetInstance(), v.GetHost(), v.GetWhy())
	}
	if more := int(p.GetRuns()) - len(p.GetVictims()); more > 0 && p.GetRuns() > 0 {
		a.say("    and %s more", output.Plural(uint32(more), "run")) //nolint:gosec // a part of a uint32
	}
}
