package api_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"github.com/paceline-sched/paceline/core/api/admit"
	"github.com/paceline-sched/paceline/core/scheduler"
	"github.com/paceline-sched/paceline/sdk/client"
	pacelinev1 "github.com/paceline-sched/paceline/sdk/gen/paceline/v1"
)

// wordJudge judges by archives of lines: "deny TEXT", "warn TEXT", "cap N" for the priority, "busy" when it has no time, "state" when it wants to know
// the clusters. Anything else it cannot read.
type wordJudge struct {
	mu       sync.Mutex
	revision uint64
	bundles  []admit.Bundle
	log      []admit.Decision
}

func (w *wordJudge) Inspect(archive []byte) (admit.Info, error) {
	for line := range strings.Lines(string(archive)) {
		if word, _, _ := strings.Cut(strings.TrimSpace(line), " "); !slices.Contains([]string{"deny", "warn", "cap", "busy", "state"}, word) {
			return admit.Info{}, fmt.Errorf("the word %q is unknown", word)
		}
	}
	return admit.Info{}, nil
}

func (w *wordJudge) Load(revision uint64, bundles []admit.Bundle) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if revision > w.revision {
		w.revision, w.bundles = revision, bundles
	}
	return nil
}

func (w *wordJudge) WantsState() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.ContainsFunc(w.bundles, func(b admit.Bundle) bool { return strings.Contains(string(b.Archive), "state") })
}

func (w *wordJudge) Judge(_ context.Context, r *admit.Request) (*admit.Verdict, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	v := &admit.Verdict{}
	for _, b := range w.bundles {
		if b.Shadow {
			continue
		}
		for line := range strings.Lines(string(b.Archive)) {
			word, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
			switch word {
			case "deny":
				v.Denials = append(v.Denials, admit.Message{Bundle: b.Name, Text: rest})
			case "warn":
				v.Warnings = append(v.Warnings, admit.Message{Bundle: b.Name, Text: rest})
			case "busy":
				v.Failure = &admit.Failure{Bundle: b.Name, Reason: "no time", Passing: true}
			case "state":
				if r.State == nil {
					return nil, errors.New("it was not told of the clusters")
				}
			case "cap":
				n, err := strconv.ParseInt(rest, 10, 32)
				if err != nil {
					return nil, err
				}
				if before := r.Spec.GetPriority(); before > int32(n) {
					v.Spec, _ = proto.Clone(r.Spec).(*pacelinev1.JobSpec)
					v.Spec.Priority = int32(n)
					v.Changes = append(v.Changes, admit.Change{Bundle: b.Name, Field: "priority", Before: fmt.Sprint(before), After: rest})
				}
			}
		}
	}
	w.log = append(w.log, admit.Decision{At: time.Now(), Job: r.Job.Name, Principal: r.Principal.Name})
	return v, nil
}

func (w *wordJudge) Report(n int) (uint64, []admit.Status, []admit.Decision) {
	w.mu.Lock()
	defer w.mu.Unlock()
	var out []admit.Status
	for _, b := range w.bundles {
		out = append(out, admit.Status{Name: b.Name, Source: "store", Digest: b.Digest, Shadow: b.Shadow, Evaluated: 7})
	}
	out = append(out, admit.Status{Name: "built", Source: "built.tar.gz", Error: "it is broken"})
	return w.revision, out, w.log[max(0, len(w.log)-n):]
}

func push(t *testing.T, cl *client.Client, name, archive string, use pacelinev1.BundleUse) (*pacelinev1.PushBundleResponse, error) {
	t.Helper()
	answer, err := cl.Admission.PushBundle(t.Context(), connect.NewRequest(&pacelinev1.PushBundleRequest{Name: name, Archive: []byte(archive), Use: use}))
	if err != nil {
		return nil, err
	}
	return answer.Msg, nil
}

const (
	keep   = pacelinev1.BundleUse_BUNDLE_USE_UNSPECIFIED
	active = pacelinev1.BundleUse_BUNDLE_USE_ACTIVE
	shadow = pacelinev1.BundleUse_BUNDLE_USE_SHADOW
)

func TestRulesOfAdmission(t *testing.T) {
	c := newTestCell(t, 10)
	root, ads := c.as(adminToken), c.as(adsToken)
	if _, err := c.apply(root, "{path: /ads}"); err != nil {
		t.Fatal(err)
	}
	must := func(_ any, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	create := func(job string) (*pacelinev1.CreateJobResponse, error) {
		t.Helper()
		answer, err := ads.Jobs.CreateJob(t.Context(), connect.NewRequest(&pacelinev1.CreateJobRequest{Spec: parseYAML[*pacelinev1.JobSpec](t, job), IdempotencyKey: "key of " + job}))
		if err != nil {
			return nil, err
		}
		return answer.Msg, nil
	}
	const high = "{name: high, pool: /ads, priority: 500, service: {}, task: {command: [x]}, preemptible: true}"

	_, err := push(t, ads, "caps", "cap 10", active)
	c.want("a submitter pushes", err, connect.CodePermissionDenied, "admin")
	_, err = push(t, root, "caps", "hat 10", active)
	c.want("a broken bundle", err, connect.CodeInvalidArgument, `bundle caps cannot be used: the word "hat" is unknown`)
	must(push(t, root, "caps", "cap 10", active))
	must(push(t, root, "words", "warn mind the gap\nstate", active))
	plan, err := ads.Jobs.PlanJob(t.Context(), connect.NewRequest(&pacelinev1.PlanJobRequest{Spec: parseYAML[*pacelinev1.JobSpec](t, high)}))
	if err != nil || len(plan.Msg.GetRuleChanges()) != 1 || plan.Msg.GetRuleChanges()[0].GetAfter() != "10" {
		t.Fatalf("plan: %v, %v", plan, err)
	}
	made, err := create(high)
	if err != nil || len(made.GetRuleChanges()) != 1 || !slices.Contains(made.GetWarnings(), "rules of words: mind the gap") {
		t.Fatalf("create: %v, %v", made, err)
	}
	if job, err := c.get(ads, "/ads/high"); err != nil || job.GetSpec().GetPriority() != 10 {
		t.Fatalf("the job is %v, %v", job, err)
	}

	// The same file is the same job, whatever the rules say by now: with the key of the first call, another, or none.
	must(push(t, root, "caps", "cap 5\ndeny never", active))
	for _, key := range []string{"key of " + high, "another", ""} {
		answer, err := ads.Jobs.CreateJob(t.Context(), connect.NewRequest(&pacelinev1.CreateJobRequest{Spec: parseYAML[*pacelinev1.JobSpec](t, high), IdempotencyKey: key}))
		if err != nil || !answer.Msg.GetUnchanged() || answer.Msg.GetJob().GetId() != made.GetJob().GetId() || len(answer.Msg.GetRuleChanges()) > 0 {
			t.Fatalf("with key %q: %v, %v", key, answer, err)
		}
	}
	plan, err = ads.Jobs.PlanJob(t.Context(), connect.NewRequest(&pacelinev1.PlanJobRequest{Spec: parseYAML[*pacelinev1.JobSpec](t, high)}))
	if err != nil || plan.Msg.GetChange() != pacelinev1.PlanChange_PLAN_CHANGE_NONE {
		t.Fatalf("plan of the same: %v, %v", plan, err)
	}
	_, err = create(strings.Replace(high, "500", "400", 1))
	c.want("another spec under the name", err, connect.CodeFailedPrecondition, "refused by rules of admission: caps: never")
	must(push(t, root, "more", "deny nor now", active))
	_, err = create(strings.Replace(high, "name: high", "name: low", 1))
	c.want("a denied job", err, connect.CodeFailedPrecondition, "caps: never; more: nor now")
	if detail := client.Detail(err); detail == nil || len(detail.GetViolations()) != 2 || detail.GetViolations()[1].GetRule() != "more" {
		t.Errorf("got %v", detail)
	}
	if _, err := c.get(ads, "/ads/low"); connect.CodeOf(err) != connect.CodeNotFound {
		t.Errorf("a denied job is there: %v", err)
	}
	must(root.Admission.UseBundle(t.Context(), connect.NewRequest(&pacelinev1.UseBundleRequest{Name: "more", Use: shadow})))
	must(root.Admission.RemoveBundle(t.Context(), connect.NewRequest(&pacelinev1.RemoveBundleRequest{Name: "caps"})))
	must(create(strings.Replace(high, "name: high", "name: low", 1)))
	must(push(t, root, "more", "busy", active))
	_, err = create(strings.Replace(high, "name: high", "name: late", 1))
	c.want("a job without judgement", err, connect.CodeUnavailable, "bundle more could not judge it: no time")
}

func TestVersionsOfRules(t *testing.T) {
	c := newTestCell(t, -1)
	root := c.as(adminToken)
	var digests []string
	for n := range scheduler.MaxRulesKept + 2 {
		use := keep
		if n == 0 {
			use = active
		}
		answer, err := push(t, root, "a", fmt.Sprintf("warn %d", n), use)
		if err != nil {
			t.Fatal(err)
		}
		digests = append(digests, answer.GetDigest())
	}
	got, err := root.Admission.GetBundle(t.Context(), connect.NewRequest(&pacelinev1.GetBundleRequest{Name: "a", Digest: digests[0][:8]}))
	if err != nil || string(got.Msg.GetArchive()) != "warn 0" || len(got.Msg.GetBundle().GetVersions()) != scheduler.MaxRulesKept {
		t.Fatalf("the version in use is not kept: %v, %v", got, err)
	}
	_, err = root.Admission.GetBundle(t.Context(), connect.NewRequest(&pacelinev1.GetBundleRequest{Name: "a", Digest: digests[1]}))
	c.want("the oldest that is not in use", err, connect.CodeNotFound, "0 versions of bundle a")
	_, err = root.Admission.RemoveBundle(t.Context(), connect.NewRequest(&pacelinev1.RemoveBundleRequest{Name: "a", Digest: digests[0]}))
	c.want("removing what is in use", err, connect.CodeFailedPrecondition, "in use")
	_, err = root.Admission.UseBundle(t.Context(), connect.NewRequest(&pacelinev1.UseBundleRequest{Name: "a", Use: shadow, ExpectedVersion: 3}))
	c.want("an edit of another version", err, connect.CodeAborted, "is at version 10, not 3")
	_, err = root.Admission.UseBundle(t.Context(), connect.NewRequest(&pacelinev1.UseBundleRequest{Name: "b", Use: shadow}))
	c.want("a bundle that is not there", err, connect.CodeNotFound, `no bundle "b"`)
	for n := range scheduler.MaxRules - 1 {
		if _, err := push(t, root, fmt.Sprint("b", n), "warn x", keep); err != nil {
			t.Fatal(err)
		}
	}
	_, err = push(t, root, "too-many", "warn x", keep)
	c.want("one bundle more", err, connect.CodeResourceExhausted, "no more are kept")
	list, err := root.Admission.ListBundles(t.Context(), connect.NewRequest(&pacelinev1.ListBundlesRequest{}))
	if err != nil || len(list.Msg.GetBundles()) != scheduler.MaxRules+1 {
		t.Fatalf("got %v, %v", list, err)
	}
	last := list.Msg.GetBundles()[scheduler.MaxRules]
	if last.GetSource() != "built.tar.gz" || last.GetVersions()[0].GetError() != "it is broken" {
		t.Errorf("got %v", last)
	}
}
