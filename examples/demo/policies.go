package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"connectrpc.com/connect"

	pacelinev1 "github.com/paceline-sched/paceline/sdk/gen/paceline/v1"
)

const (
	naps      = "/research/adhoc/naps"
	otherNaps = "/research/nightly/naps"
	napTasks  = 9
	demoHosts = 3
)

// together and apart are what may become of the naps.
const (
	together = false
	apart    = true
)

// policies takes a policy from its source to being the default, then breaks it.
func (d *demo) policies(ctx context.Context) error {
	for _, act := range []func(context.Context) error{d.shadow, d.canary, d.activate, d.rollback} {
		if err := act(ctx); err != nil {
			return err
		}
	}
	return nil
}

// build makes the module of a policy and pushes it as a version of fewest.
func (d *demo) build(ctx context.Context, folder string) error {
	module := filepath.Join(d.dir, folder+".wasm")
	if _, err := d.shell(ctx, "policy", "build", d.example("demo/"+folder), "--out", module); err != nil {
		return err
	}
	_, err := d.shell(ctx, "policy", "push", "fewest", module)
	return err
}

func (d *demo) shadow(ctx context.Context) error {
	title("A policy of your own, in shadow: it is asked, and decides nothing")
	show("The scheduler fills hosts one by one. examples/demo/fewest/main.go wants each task where the fewest are:")
	source, err := os.ReadFile(d.example("demo/fewest/main.go"))
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(source)) {
		if strings.HasPrefix(line, "func (*Fewest) Cost") {
			fmt.Print("     ", line)
		}
	}
	if err := d.build(ctx, "fewest"); err != nil {
		return err
	}
	ok("it is a sandboxed module now, was judged by the server, and is kept")
	if _, err := d.shell(ctx, "policy", "shadow", "fewest"); err != nil {
		return err
	}
	if err := d.nap(ctx, together); err != nil {
		return err
	}
	ok("the scheduler put all %d tasks on one host, as ever", napTasks)
	if err := eventually(ctx, func() error {
		versions, err := d.versions(ctx)
		if err != nil {
			return err
		}
		if f := versions[0].GetFare(); f.GetCompared() < napTasks || f.GetElsewhere() == 0 || f.GetPlaced() != f.GetReference() {
			return fmt.Errorf("the policy in shadow was compared with: %v", f)
		}
		return nil
	}); err != nil {
		return err
	}
	if _, err := d.shell(ctx, "policy", "list"); err != nil {
		return err
	}
	versions, err := d.versions(ctx)
	if err != nil {
		return err
	}
	f := versions[0].GetFare()
	ok("the policy would have put %d of %d elsewhere, and left none without a host", f.GetElsewhere(), f.GetCompared())
	return nil
}

func (d *demo) canary(ctx context.Context) error {
	title("The policy as a canary: it decides for one pool")
	if _, err := d.shell(ctx, "policy", "canary", "fewest", "--pool", "/research/adhoc"); err != nil {
		return err
	}
	if err := d.nap(ctx, apart); err != nil {
		return err
	}
	ok("in that pool the tasks went to all hosts, though the job names no policy")
	elsewhere, err := d.edited("demo/naps.yaml", "pool: /research/adhoc", "pool: /research/nightly")
	if err != nil {
		return err
	}
	if err := d.napAs(ctx, elsewhere, otherNaps, together); err != nil {
		return err
	}
	ok("in the pool beside it all %d went to one host", napTasks)
	return nil
}

func (d *demo) activate(ctx context.Context) error {
	title("The policy is active, and the default of batch jobs")
	if _, err := d.shell(ctx, "policy", "activate", "fewest", "--default", "batch"); err != nil {
		return err
	}
	if err := d.nap(ctx, apart); err != nil {
		return err
	}
	ok("the next job was spread over the hosts, without a restart of anything")
	return nil
}

func (d *demo) rollback(ctx context.Context) error {
	title("A bad version of the policy is rolled back by itself")
	show("examples/demo/hasty/main.go panics on tasks that do not take half cores, which no table has that the server tries it on:")
	if err := d.build(ctx, "hasty"); err != nil {
		return err
	}
	if _, err := d.shell(ctx, "policy", "activate", "fewest", "--max-faults", "1"); err != nil {
		return err
	}
	if err := d.nap(ctx, together); err != nil {
		return err
	}
	ok("it panicked, and no task was lost: in the same moment the scheduler placed all %d itself", napTasks)
	if err := eventually(ctx, func() error { return d.rolledBack(ctx) }); err != nil {
		return err
	}
	out, err := d.quiet(ctx, "policy", "get", "fewest")
	if err != nil {
		return err
	}
	fmt.Println("$ paceline policy get fewest")
	fmt.Print(out)
	ok("a gate took it out of force, and the version before it is active again")
	if err := eventually(ctx, func() error { return d.nap(ctx, apart) }); err != nil { // until its module is loaded, the scheduler places
		return err
	}
	ok("and jobs are spread over the hosts again")
	return d.wake(ctx)
}

// rolledBack claims that the newest version of the policy was taken out of force by a gate, and the one before it decides.
func (d *demo) rolledBack(ctx context.Context) error {
	versions, err := d.versions(ctx)
	if err != nil {
		return err
	}
	if len(versions) != 2 {
		return fmt.Errorf("%d versions are kept, not 2", len(versions))
	}
	if bad := versions[0]; bad.GetStage() != pacelinev1.PolicyStage_POLICY_STAGE_ROLLED_BACK || bad.GetBy() != "" {
		return fmt.Errorf("the bad version is %v, by %q", bad.GetStage(), bad.GetBy())
	}
	if good := versions[1]; good.GetStage() != pacelinev1.PolicyStage_POLICY_STAGE_ACTIVE {
		return fmt.Errorf("the good version is %v", good.GetStage())
	}
	return nil
}

// versions are those of the policy, newest first.
func (d *demo) versions(ctx context.Context) ([]*pacelinev1.PolicyVersion, error) {
	r, err := d.client.Policies.ListPolicies(ctx, connect.NewRequest(&pacelinev1.ListPoliciesRequest{}))
	if err != nil {
		return nil, err
	}
	for _, p := range r.Msg.GetPolicies() {
		if p.GetName() == "fewest" && len(p.GetVersions()) > 0 {
			return p.GetVersions(), nil
		}
	}
	return nil, errors.New("policy fewest is not there")
}

// nap runs the naps in place of those of the act before, and claims that they went to all hosts or all to one.
func (d *demo) nap(ctx context.Context, spread bool) error {
	return d.napAs(ctx, d.example("demo/naps.yaml"), naps, spread)
}

func (d *demo) napAs(ctx context.Context, file, job string, spread bool) error {
	if err := d.wake(ctx); err != nil {
		return err
	}
	if _, err := d.shell(ctx, "job", "run", file); err != nil {
		return err
	}
	var got []int
	if err := eventually(ctx, func() (err error) {
		got, err = d.byHost(ctx, job)
		return err
	}); err != nil {
		return err
	}
	show("tasks by host: %v", got)
	if spread && slices.Min(got) < napTasks/demoHosts-1 || !spread && slices.Max(got) != napTasks {
		return fmt.Errorf("the hosts have %v tasks of %s", got, job)
	}
	return nil
}

// wake ends the naps of before, and waits until they are gone with all that they held.
func (d *demo) wake(ctx context.Context) error {
	for _, job := range []string{naps, otherNaps} {
		if _, err := d.quiet(ctx, "job", "delete", job, "--force"); err != nil && !strings.Contains(err.Error(), "exit code 3") {
			return err
		}
	}
	return eventually(ctx, func() error {
		for _, job := range []string{naps, otherNaps} {
			if _, err := d.job(ctx, job); connect.CodeOf(err) != connect.CodeNotFound {
				return fmt.Errorf("%s is still there (%w)", job, err)
			}
		}
		pool, err := d.pool(ctx, "/research")
		if err != nil {
			return err
		}
		if used := pool.GetUsage().GetCpuMilli(); used != 0 {
			return fmt.Errorf("/research is still charged %d", used)
		}
		return nil
	})
}

// byHost counts a job's tasks by host, in the order of the hosts' names, once all have one.
func (d *demo) byHost(ctx context.Context, job string) ([]int, error) {
	tasks, err := d.tasks(ctx, job)
	if err != nil {
		return nil, err
	}
	counts, total := make([]int, demoHosts), 0
	for _, t := range tasks {
		var host int
		if _, err := fmt.Sscanf(t.GetRun().GetHost(), "local-%d", &host); err != nil || host >= demoHosts {
			return nil, fmt.Errorf("instance %d of %s is on host %q", t.GetInstance(), job, t.GetRun().GetHost())
		}
		counts[host]++
		total++
	}
	if total != napTasks {
		return nil, fmt.Errorf("%d tasks of %s are there, not %d", total, job, napTasks)
	}
	return counts, nil
}

// edited writes a copy of an example with one text in place of another, and returns where.
func (d *demo) edited(name, old, with string) (string, error) {
	raw, err := os.ReadFile(d.example(name))
	if err != nil {
		return "", err
	}
	if !strings.Contains(string(raw), old) {
		return "", fmt.Errorf("%s has no %q", name, old)
	}
	path := filepath.Join(d.dir, filepath.Base(name))
	return path, os.WriteFile(path, []byte(strings.Replace(string(raw), old, with, 1)), 0o600)
}

// rules refuses a job by a rule and swaps the rule under a running server.
func (d *demo) rules(ctx context.Context) error {
	title("Rules in Rego say which jobs are accepted, and are swapped live")
	show("examples/rego/required-labels wants the labels team and cost-center:")
	if _, err := d.shell(ctx, "admission", "push", "labels", d.example("rego/required-labels"), "--activate"); err != nil {
		return err
	}
	if _, err := d.shell(ctx, "job", "run", d.example("demo/naps.yaml")); err == nil || !strings.Contains(err.Error(), "exit code 4") {
		return fmt.Errorf("the job should be refused with exit code 4: %w", err)
	}
	if _, err := d.job(ctx, naps); connect.CodeOf(err) != connect.CodeNotFound {
		return fmt.Errorf("the refused job is there: %w", err)
	}
	ok("the job was refused, with what to mend")
	bundle := filepath.Join(d.dir, "labels")
	if err := os.CopyFS(bundle, os.DirFS(d.example("rego/required-labels"))); err != nil {
		return err
	}
	data := []byte(`{"required_labels": ["team"], "label_patterns": {}}` + "\n")
	if err := os.WriteFile(filepath.Join(bundle, "data.json"), data, 0o600); err != nil {
		return err
	}
	show("Now the same rules with another data.json: %s", strings.TrimSpace(string(data)))
	if _, err := d.shell(ctx, "admission", "push", "labels", bundle, "--activate"); err != nil {
		return err
	}
	if err := d.nap(ctx, apart); err != nil {
		return err
	}
	ok("the same job was accepted at once: the new rule is in force, and the server went on running")
	if _, err := d.shell(ctx, "admission", "decisions"); err != nil {
		return err
	}
	return d.wake(ctx)
}

// kept claims that the policy and the rules are in force after the crash as they were before it.
func (d *demo) kept(ctx context.Context) error {
	if err := d.rolledBack(ctx); err != nil {
		return err
	}
	r, err := d.client.Admission.ListBundles(ctx, connect.NewRequest(&pacelinev1.ListBundlesRequest{}))
	if err != nil {
		return err
	}
	for _, b := range r.Msg.GetBundles() {
		for _, v := range b.GetVersions() {
			if b.GetName() == "labels" && v.GetUse() == pacelinev1.BundleUse_BUNDLE_USE_ACTIVE && v.GetError() == "" {
				ok("the policy and the rules are in force as before")
				return nil
			}
		}
	}
	return errors.New("the rules are not in force after the restart")
}
