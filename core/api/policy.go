package api

import (
	"context"
	"encoding/hex"
	"slices"
	"strings"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/paceline-sched/paceline/core/rollout"
	"github.com/paceline-sched/paceline/core/scheduler"
	pacelinev1 "github.com/paceline-sched/paceline/sdk/gen/paceline/v1"
	"github.com/paceline-sched/paceline/sdk/gen/paceline/v1/pacelinev1connect"
)

// Policies keeps policies and brings them into force. All of it may be called concurrently.
type Policies interface {
	// Book tells which policies there are. It must not be changed.
	Book() rollout.Book
	// Report tells everything.
	Report() rollout.Report
	// Push verifies a module with its configuration, keeps it as a version of a policy and returns the version's digest.
	Push(ctx context.Context, by string, u rollout.Upload) (rollout.Digest, error)
	// Change takes in an event. When it returns, what follows is durable and in force.
	Change(ctx context.Context, by string, event rollout.Event) ([]rollout.Moved, error)
}

// checkPolicy refuses a name under which nothing places.
func (c *cell) checkPolicy(field, name string) *fault {
	if name == "" || rollout.BuiltIn(name) {
		return nil
	}
	var book rollout.Book
	if c.policies != nil {
		book = c.policies.Book()
	}
	choices := book.Choices()
	if slices.Contains(choices, name) {
		return nil
	}
	return refuseField(field, "choose one of the policies that place, or leave it out", "there is no policy of placement %q: use %s", clip(name, 63), strings.Join(choices, ", "))
}

// defaultServes says that a job's policy is not what places it; "": it is.
func (c *cell) defaultServes(name string) string {
	if c.checkPolicy("", name) == nil {
		return ""
	}
	return "no version of its placement policy " + name + " is in force, so the default places its tasks"
}

type policyService struct{ cell *cell }

var _ pacelinev1connect.PolicyServiceHandler = (*policyService)(nil)

var errNoPolicies = refuse(connect.CodeUnimplemented, "ask a server that runs policies", "this server runs built-in policies only")

func (s *policyService) PushPolicy(ctx context.Context, request *connect.Request[pacelinev1.PushPolicyRequest]) (*connect.Response[pacelinev1.PushPolicyResponse], error) {
	in := request.Msg
	if s.cell.policies == nil {
		return nil, errNoPolicies
	}
	digest, err := s.cell.policies.Push(ctx, callerOf(ctx).Principal, rollout.Upload{
		Policy: in.GetName(), Kind: in.GetKind(), Module: in.GetModule(), Signature: in.GetSignature(), Config: in.GetConfig(), Expected: in.GetExpectedVersion(),
	})
	if err != nil {
		return nil, err
	}
	policy, err := s.policy(in.GetName())
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&pacelinev1.PushPolicyResponse{Policy: policy, Digest: digest.String()}), nil
}

func (s *policyService) MovePolicy(ctx context.Context, request *connect.Request[pacelinev1.MovePolicyRequest]) (*connect.Response[pacelinev1.MovePolicyResponse], error) {
	in := request.Msg
	v, err := s.version(in.GetName(), in.GetDigest())
	if err != nil {
		return nil, err
	}
	if pool := in.GetScope().GetPool(); pool != "" {
		if err := s.knows(ctx, pool); err != nil {
			return nil, err
		}
	}
	g := in.GetGates()
	event := rollout.Move{
		Policy: in.GetName(), Digest: v.Digest, To: stagesFromWire[in.GetStage()],
		Scope: rollout.Scope{Pool: in.GetScope().GetPool(), Percent: int(in.GetScope().GetPercent())},
		Gates: rollout.Gates{
			Strikes: int(g.GetStrikes()), SlowCall: g.GetSlowCall().AsDuration(), SlowShare: int(g.GetSlowPermille()), Unplaced: int(g.GetUnplacedPermille()),
			Divergence: int(g.GetDivergencePermille()),
		},
		Expected: in.GetExpectedVersion(),
	}
	policy, err := s.change(ctx, in.GetName(), event)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&pacelinev1.MovePolicyResponse{Policy: policy, Digest: v.Digest.String()}), nil
}

// knows refuses the path of a pool that is not there, where a canary would try nothing.
func (s *policyService) knows(ctx context.Context, pool string) error {
	found := false
	if err := s.cell.engine.Read(ctx, func(r scheduler.Reader) { _, found = r.Pool(pool) }); err != nil {
		return err
	}
	if !found {
		return refuse(connect.CodeNotFound, "list the pools and give the path of one", "there is no pool %q for a canary to decide for", clip(pool, 128))
	}
	return nil
}

func (s *policyService) RollBackPolicy(ctx context.Context, request *connect.Request[pacelinev1.RollBackPolicyRequest]) (*connect.Response[pacelinev1.RollBackPolicyResponse], error) {
	in := request.Msg
	policy, err := s.change(ctx, in.GetName(), rollout.Rollback{Policy: in.GetName(), Why: in.GetWhy(), Expected: in.GetExpectedVersion()})
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&pacelinev1.RollBackPolicyResponse{Policy: policy}), nil
}

func (s *policyService) RetirePolicy(ctx context.Context, request *connect.Request[pacelinev1.RetirePolicyRequest]) (*connect.Response[pacelinev1.RetirePolicyResponse], error) {
	policy, err := s.change(ctx, request.Msg.GetName(), rollout.Retire{Policy: request.Msg.GetName(), Expected: request.Msg.GetExpectedVersion()})
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&pacelinev1.RetirePolicyResponse{Policy: policy}), nil
}

func (s *policyService) SetDefaultPolicy(ctx context.Context, request *connect.Request[pacelinev1.SetDefaultPolicyRequest]) (*connect.Response[pacelinev1.SetDefaultPolicyResponse], error) {
	in := request.Msg
	if _, err := s.change(ctx, in.GetName(), rollout.SetDefault{JobKind: in.GetJobKind(), Policy: in.GetName()}); err != nil {
		return nil, err
	}
	return connect.NewResponse(&pacelinev1.SetDefaultPolicyResponse{}), nil
}

// change makes a change and returns the policy as it stands.
func (s *policyService) change(ctx context.Context, name string, event rollout.Event) (*pacelinev1.Policy, error) {
	if s.cell.policies == nil {
		return nil, errNoPolicies
	}
	if _, err := s.cell.policies.Change(ctx, callerOf(ctx).Principal, event); err != nil {
		return nil, err
	}
	return s.policy(name)
}

func (s *policyService) ListPolicies(context.Context, *connect.Request[pacelinev1.ListPoliciesRequest]) (*connect.Response[pacelinev1.ListPoliciesResponse], error) {
	report := s.report()
	out := &pacelinev1.ListPoliciesResponse{Warnings: report.Warnings}
	for _, name := range []string{rollout.BestFit, rollout.Pack, rollout.Spread} {
		out.Policies = append(out.Policies, builtInToWire(name, &report))
	}
	for i := range report.Book.Policies {
		p := policyToWire(&report.Book.Policies[i], &report)
		p.Story = nil
		out.Policies = append(out.Policies, p)
	}
	return connect.NewResponse(out), nil
}

func (s *policyService) GetPolicy(_ context.Context, request *connect.Request[pacelinev1.GetPolicyRequest]) (*connect.Response[pacelinev1.GetPolicyResponse], error) {
	in := request.Msg
	report := s.report()
	policy, err := policyOf(&report, in.GetName())
	if err != nil {
		return nil, err
	}
	out := &pacelinev1.GetPolicyResponse{Policy: policy}
	for _, w := range report.Warnings {
		if strings.HasPrefix(w, "policy "+in.GetName()+":") || strings.HasPrefix(w, "policy "+in.GetName()+" ") {
			out.Warnings = append(out.Warnings, w)
		}
	}
	if !in.GetModule() {
		return connect.NewResponse(out), nil
	}
	v, err := s.version(in.GetName(), in.GetDigest())
	if err != nil {
		return nil, err
	}
	out.Digest = v.Digest.String()
	for _, part := range v.Archives {
		archive, err := s.cell.engine.Archive(part)
		if err != nil {
			return nil, err
		}
		out.Module = append(out.Module, archive...)
	}
	if len(out.Module) != v.Size { // it went meanwhile
		return nil, missingPolicy(in.GetName())
	}
	return connect.NewResponse(out), nil
}

func missingPolicy(name string) error {
	return refuse(connect.CodeNotFound, "list the policies and choose one", "there is no policy %q", clip(name, 63))
}

// policy finds a policy by its name.
func (s *policyService) policy(name string) (*pacelinev1.Policy, error) {
	report := s.report()
	return policyOf(&report, name)
}

// report is all that can be said of policies.
func (s *policyService) report() (report rollout.Report) {
	if s.cell.policies != nil {
		report = s.cell.policies.Report()
	}
	return report
}

// policyOf finds a policy in a report by its name.
func policyOf(report *rollout.Report, name string) (*pacelinev1.Policy, error) {
	if rollout.BuiltIn(name) {
		return builtInToWire(name, report), nil
	}
	if p := report.Book.Find(name); p != nil {
		return policyToWire(p, report), nil
	}
	return nil, missingPolicy(name)
}

// version finds a version of a policy by the beginning of its digest; without one, the newest.
func (s *policyService) version(name, prefix string) (*rollout.Version, error) {
	if rollout.BuiltIn(name) {
		return nil, refuse(connect.CodeFailedPrecondition, "push your own under another name, or make it a default with policy default", "policy %s is built in: it has no versions and is always there", name)
	}
	if s.cell.policies == nil {
		return nil, errNoPolicies
	}
	book := s.cell.policies.Book()
	p := book.Find(name)
	if p == nil || len(p.Versions) == 0 {
		return nil, missingPolicy(name)
	}
	if prefix == "" {
		return &p.Versions[len(p.Versions)-1], nil
	}
	var found *rollout.Version
	matches := 0
	for i := range p.Versions {
		if strings.HasPrefix(p.Versions[i].Digest.String(), prefix) {
			found = &p.Versions[i]
			matches++
		}
	}
	if matches != 1 {
		return nil, refuse(connect.CodeNotFound, "see its versions with policy get, and give enough of a digest to tell them apart",
			"%d versions of policy %s begin with %q", matches, name, prefix)
	}
	return found, nil
}

var (
	stagesToWire = map[rollout.Stage]pacelinev1.PolicyStage{
		rollout.Uploaded: pacelinev1.PolicyStage_POLICY_STAGE_UPLOADED, rollout.Shadow: pacelinev1.PolicyStage_POLICY_STAGE_SHADOW,
		rollout.Canary: pacelinev1.PolicyStage_POLICY_STAGE_CANARY, rollout.Active: pacelinev1.PolicyStage_POLICY_STAGE_ACTIVE,
		rollout.Retired: pacelinev1.PolicyStage_POLICY_STAGE_RETIRED, rollout.RolledBack: pacelinev1.PolicyStage_POLICY_STAGE_ROLLED_BACK,
	}
	stagesFromWire = map[pacelinev1.PolicyStage]rollout.Stage{
		pacelinev1.PolicyStage_POLICY_STAGE_SHADOW: rollout.Shadow, pacelinev1.PolicyStage_POLICY_STAGE_CANARY: rollout.Canary,
		pacelinev1.PolicyStage_POLICY_STAGE_ACTIVE: rollout.Active,
	}
)

func builtInToWire(name string, report *rollout.Report) *pacelinev1.Policy {
	return &pacelinev1.Policy{Name: name, Kind: rollout.Place, BuiltIn: true, DefaultFor: defaultsOf(name, report)}
}

func defaultsOf(name string, report *rollout.Report) []string {
	var kinds []string
	for _, kind := range rollout.JobKinds {
		if report.Book.Default(kind) == name {
			kinds = append(kinds, kind)
		}
	}
	return kinds
}

func policyToWire(p *rollout.Policy, report *rollout.Report) *pacelinev1.Policy {
	out := &pacelinev1.Policy{Name: p.Name, Kind: p.Kind, DefaultFor: defaultsOf(p.Name, report), Version: p.Edits}
	for i := len(p.Versions) - 1; i >= 0; i-- {
		v := &p.Versions[i]
		w := versionToWire(v)
		if fare := report.Fare(p.Name, v.Digest); fare != nil {
			w.Fare = fareOfPolicy(fare)
		}
		out.Versions = append(out.Versions, w)
	}
	for _, e := range slices.Backward(p.Story) {
		out.Story = append(out.Story, &pacelinev1.PolicyMove{
			Time: timeToWire(e.At), Digest: e.Digest.String(), From: stagesToWire[e.From], To: stagesToWire[e.To], By: e.By, Why: e.Why,
		})
	}
	for _, s := range report.Seats {
		if s.Policy != p.Name {
			continue
		}
		serving := &pacelinev1.PolicyServing{Shard: s.Shard, Time: timeToWire(s.At)}
		if s.Digest != (rollout.Digest{}) {
			serving.Digest = hex.EncodeToString(s.Digest[:])
		}
		out.Serving = append(out.Serving, serving)
	}
	return out
}

func versionToWire(v *rollout.Version) *pacelinev1.PolicyVersion {
	out := &pacelinev1.PolicyVersion{
		Digest: v.Digest.String(), Stage: stagesToWire[v.Stage], Since: timeToWire(v.Since), By: v.By, Why: v.Why, CallsItself: v.Calls,
		Config: v.Config, Size: uint64(max(v.Size, 0)), SignedBy: v.SignedBy, PushedBy: v.PushedBy, PushTime: timestamppb.New(time.Unix(0, v.Pushed)),
	}
	if v.Stage == rollout.Canary {
		out.Scope = &pacelinev1.PolicyScope{Pool: v.Scope.Pool, Percent: uint32(v.Scope.Percent)} //nolint:gosec // 0 to 100
	}
	if v.Stage == rollout.Active || v.Stage.Candidate() {
		g := v.Gates.WithDefaults()
		out.Gates = &pacelinev1.PolicyGates{ //nolint:gosec // bounded when they came in
			Strikes: int32(g.Strikes), SlowCall: durationpb.New(g.SlowCall), SlowPermille: int32(g.SlowShare), UnplacedPermille: int32(g.Unplaced),
			DivergencePermille: int32(g.Divergence),
		}
	}
	return out
}

func fareOfPolicy(f *rollout.Fare) *pacelinev1.PolicyFare {
	t := &f.Tally
	count := func(n int64) uint64 { return uint64(max(n, 0)) }
	out := &pacelinev1.PolicyFare{
		Calls: count(t.Calls), SlowCalls: count(t.Slow), Faults: count(t.Failed), Tasks: count(f.Tasks), Compared: count(t.Compared), Elsewhere: count(t.Elsewhere),
		Placed: count(t.Placed), Reference: count(t.Reference),
	}
	if t.Calls > 0 {
		out.CallTime = durationpb.New(time.Duration(f.Nanos / max(f.Calls, 1)))
	}
	if n := len(t.Faults); n > 0 {
		out.LastFault = t.Faults[n-1].Text
	}
	if t.Compared > 0 {
		out.LeftoverPermille = float64(t.Cost) / float64(t.Compared) / 1000
	}
	return out
}
