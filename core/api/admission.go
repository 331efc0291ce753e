package api

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"slices"
	"strings"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/paceline-sched/paceline/core/api/admit"
	"github.com/paceline-sched/paceline/core/scheduler"
	pacelinev1 "github.com/paceline-sched/paceline/sdk/gen/paceline/v1"
	"github.com/paceline-sched/paceline/sdk/gen/paceline/v1/pacelinev1connect"
)

const defaultDecisions = 50

type admissionService struct{ cell *cell }

var _ pacelinev1connect.AdmissionServiceHandler = (*admissionService)(nil)

var errNoJudge = refuse(connect.CodeUnimplemented, "ask a server that has an engine for rules", "this server judges no jobs by rules")

func (s *admissionService) PushBundle(ctx context.Context, request *connect.Request[pacelinev1.PushBundleRequest]) (*connect.Response[pacelinev1.PushBundleResponse], error) {
	in := request.Msg
	judge := s.cell.bench.judge
	if judge == nil {
		return nil, errNoJudge
	}
	if _, err := judge.Inspect(in.GetArchive()); err != nil {
		return nil, refuseField("archive", "mend the bundle; 'paceline admission test' finds the same without a server", "bundle %s cannot be used: %v", in.GetName(), err)
	}
	digest := sha256.Sum256(in.GetArchive())
	bundle, err := s.edit(ctx, scheduler.EditRules{
		Name: in.GetName(), Archive: in.GetArchive(), Digest: digest, Use: useFromWire(in.GetUse()), ExpectedVersion: in.GetExpectedVersion(),
	})
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&pacelinev1.PushBundleResponse{Bundle: bundle, Digest: hex.EncodeToString(digest[:])}), nil
}

func (s *admissionService) UseBundle(ctx context.Context, request *connect.Request[pacelinev1.UseBundleRequest]) (*connect.Response[pacelinev1.UseBundleResponse], error) {
	in := request.Msg
	digest, err := s.version(ctx, in.GetName(), in.GetDigest())
	if err != nil {
		return nil, err
	}
	archive, err := s.cell.engine.Archive(digest)
	if err != nil {
		return nil, err
	}
	if _, err := s.cell.bench.judge.Inspect(archive); err != nil { // the trusted keys may be others than when it was pushed
		return nil, refuse(connect.CodeFailedPrecondition, "push a version that can be used", "version %s of bundle %s cannot be used: %v", short(digest), in.GetName(), err)
	}
	bundle, err := s.edit(ctx, scheduler.EditRules{Name: in.GetName(), Digest: digest, Use: useFromWire(in.GetUse()), ExpectedVersion: in.GetExpectedVersion()})
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&pacelinev1.UseBundleResponse{Bundle: bundle}), nil
}

func (s *admissionService) RemoveBundle(ctx context.Context, request *connect.Request[pacelinev1.RemoveBundleRequest]) (*connect.Response[pacelinev1.RemoveBundleResponse], error) {
	in := request.Msg
	edit := scheduler.EditRules{Name: in.GetName(), Use: scheduler.RulesRemove, ExpectedVersion: in.GetExpectedVersion()}
	if in.GetDigest() != "" {
		var err error
		if edit.Digest, err = s.version(ctx, in.GetName(), in.GetDigest()); err != nil {
			return nil, err
		}
	}
	if _, err := s.edit(ctx, edit); err != nil {
		return nil, err
	}
	return connect.NewResponse(&pacelinev1.RemoveBundleResponse{}), nil
}

// edit makes an edit durable and its outcome live, in this order, and returns the bundle as it stands; none if it is gone.
func (s *admissionService) edit(ctx context.Context, command scheduler.EditRules) (*pacelinev1.Bundle, error) {
	if s.cell.bench.judge == nil {
		return nil, errNoJudge
	}
	if _, err := s.cell.do(ctx, command); err != nil {
		return nil, err
	}
	bundles, err := s.bundles(ctx)
	if err != nil {
		return nil, err
	}
	at := slices.IndexFunc(bundles, func(b *pacelinev1.Bundle) bool { return b.GetName() == command.Name && b.GetSource() == storeSource })
	if at < 0 {
		return nil, nil
	}
	return bundles[at], nil
}

func useFromWire(use pacelinev1.BundleUse) scheduler.RulesUse {
	switch use {
	case pacelinev1.BundleUse_BUNDLE_USE_ACTIVE:
		return scheduler.RulesActivate
	case pacelinev1.BundleUse_BUNDLE_USE_SHADOW:
		return scheduler.RulesShadow
	case pacelinev1.BundleUse_BUNDLE_USE_UNSPECIFIED:
	}
	return scheduler.RulesKeep
}

func short(digest [32]byte) string { return hex.EncodeToString(digest[:6]) }

func missingBundle(name string) error {
	return refuse(connect.CodeNotFound, "list the bundles and choose one that is kept in the store", "there is no bundle %q in the store", clip(name, 63))
}

// version finds a version of a bundle by the beginning of its digest; without one, the newest.
func (s *admissionService) version(ctx context.Context, name, prefix string) (digest [32]byte, err error) {
	if s.cell.bench.judge == nil {
		return digest, errNoJudge
	}
	var records []scheduler.RulesRecord
	if err := s.cell.engine.Read(ctx, func(r scheduler.Reader) { _, records = r.Rules() }); err != nil {
		return digest, err
	}
	at := slices.IndexFunc(records, func(r scheduler.RulesRecord) bool { return r.Name == name })
	if at < 0 {
		return digest, missingBundle(name)
	}
	kept := records[at].Kept
	if prefix == "" && len(kept) > 0 {
		return kept[len(kept)-1].Digest, nil
	}
	matches := 0
	for _, v := range kept {
		if strings.HasPrefix(hex.EncodeToString(v.Digest[:]), prefix) {
			digest = v.Digest
			matches++
		}
	}
	if matches == 1 {
		return digest, nil
	}
	return digest, refuse(connect.CodeNotFound, "see its versions with admission get, and give enough of a digest to tell them apart",
		"%d versions of bundle %s begin with %q", matches, name, prefix)
}

func (s *admissionService) ListBundles(ctx context.Context, _ *connect.Request[pacelinev1.ListBundlesRequest]) (*connect.Response[pacelinev1.ListBundlesResponse], error) {
	bundles, err := s.bundles(ctx)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&pacelinev1.ListBundlesResponse{Bundles: bundles}), nil
}

func (s *admissionService) GetBundle(ctx context.Context, request *connect.Request[pacelinev1.GetBundleRequest]) (*connect.Response[pacelinev1.GetBundleResponse], error) {
	in := request.Msg
	digest, err := s.version(ctx, in.GetName(), in.GetDigest())
	if err != nil {
		return nil, err
	}
	archive, err := s.cell.engine.Archive(digest)
	if err != nil {
		return nil, err
	}
	bundles, err := s.bundles(ctx)
	if err != nil {
		return nil, err
	}
	out := &pacelinev1.GetBundleResponse{Digest: hex.EncodeToString(digest[:]), Archive: archive}
	for _, b := range bundles {
		if b.GetName() == in.GetName() && b.GetSource() == storeSource {
			out.Bundle = b
		}
	}
	if out.Bundle == nil || archive == nil { // it went meanwhile
		return nil, missingBundle(in.GetName())
	}
	return connect.NewResponse(out), nil
}

func (s *admissionService) ListDecisions(_ context.Context, request *connect.Request[pacelinev1.ListDecisionsRequest]) (*connect.Response[pacelinev1.ListDecisionsResponse], error) {
	if s.cell.bench.judge == nil {
		return nil, errNoJudge
	}
	_, _, decisions := s.cell.bench.judge.Report(pageSize(request.Msg.GetLimit(), defaultDecisions))
	out := &pacelinev1.ListDecisionsResponse{}
	for i := range decisions {
		d := &decisions[i]
		out.Decisions = append(out.Decisions, &pacelinev1.Decision{
			Time: timestamppb.New(d.At), Operation: string(d.Operation), Principal: d.Principal, Pool: d.Pool, Job: d.Job, Outcome: d.Outcome, Shadow: d.Shadow,
			Messages: ruleMessagesToWire(d.Messages), Warnings: ruleMessagesToWire(d.Warnings), Changes: ruleChangesToWire(d.Changes),
			Remembered: d.Memo, Took: durationpb.New(d.Took), Input: d.Input,
		})
	}
	return connect.NewResponse(out), nil
}

func ruleMessagesToWire(list []admit.Message) []*pacelinev1.RuleMessage {
	var out []*pacelinev1.RuleMessage
	for _, m := range list {
		out = append(out, &pacelinev1.RuleMessage{Bundle: m.Bundle, Text: m.Text})
	}
	return out
}

// storeSource is where bundles come from that were pushed.
const storeSource = "store"

// bundles joins what is kept with what is in force, which is up to date then.
func (s *admissionService) bundles(ctx context.Context) ([]*pacelinev1.Bundle, error) {
	judge := s.cell.bench.judge
	if judge == nil {
		return nil, errNoJudge
	}
	var edits uint64
	var records []scheduler.RulesRecord
	if err := s.cell.engine.Read(ctx, func(r scheduler.Reader) { edits, records = r.Rules() }); err != nil {
		return nil, err
	}
	if err := s.cell.bring(ctx, edits); err != nil {
		return nil, errors.Join(errors.New("put rules in force"), err)
	}
	_, statuses, _ := judge.Report(0)
	var out []*pacelinev1.Bundle
	for i := range records {
		out = append(out, bundleToWire(&records[i], statuses))
	}
	for i := range statuses {
		st := &statuses[i]
		if st.Source == storeSource {
			continue
		}
		v := &pacelinev1.BundleVersion{}
		if st.Digest != ([32]byte{}) {
			v.Digest, v.Use = hex.EncodeToString(st.Digest[:]), pacelinev1.BundleUse_BUNDLE_USE_ACTIVE
			if st.Shadow {
				v.Use = pacelinev1.BundleUse_BUNDLE_USE_SHADOW
			}
		}
		fareToWire(v, st)
		out = append(out, &pacelinev1.Bundle{Name: st.Name, Source: st.Source, Versions: []*pacelinev1.BundleVersion{v}})
	}
	slices.SortStableFunc(out, func(a, b *pacelinev1.Bundle) int { return cmp.Compare(a.GetName(), b.GetName()) })
	return out, nil
}

func bundleToWire(r *scheduler.RulesRecord, statuses []admit.Status) *pacelinev1.Bundle {
	out := &pacelinev1.Bundle{Name: r.Name, Source: storeSource, Version: r.Version, UpdatedBy: r.By, UpdateTime: timeToWire(r.Updated)}
	for _, kept := range slices.Backward(r.Kept) {
		v := &pacelinev1.BundleVersion{
			Digest: hex.EncodeToString(kept.Digest[:]), Size: uint64(max(kept.Size, 0)), PushedBy: kept.By, PushTime: timeToWire(kept.Pushed),
		}
		switch kept.Digest {
		case r.Active:
			v.Use = pacelinev1.BundleUse_BUNDLE_USE_ACTIVE
		case r.Shadow:
			v.Use = pacelinev1.BundleUse_BUNDLE_USE_SHADOW
		}
		for i := range statuses {
			if st := &statuses[i]; st.Source == storeSource && st.Name == r.Name && st.Digest == kept.Digest {
				fareToWire(v, st)
			}
		}
		out.Versions = append(out.Versions, v)
	}
	return out
}

// fareToWire tells how a version in use fares.
func fareToWire(v *pacelinev1.BundleVersion, st *admit.Status) {
	v.Revision, v.Rules, v.Inputs, v.FailOpen, v.SignedBy = st.Info.Revision, st.Info.Rules, st.Info.Inputs, st.Info.FailOpen, st.Info.SignedBy
	v.Error = st.Error
	if !st.Since.IsZero() {
		v.ActiveSince = timestamppb.New(st.Since)
	}
	v.Evaluated, v.Denied, v.Warned, v.Mutated, v.Failed = st.Evaluated, st.Denied, st.Warned, st.Mutated, st.Failed
}
