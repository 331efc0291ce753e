package registry

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/paceline-sched/paceline/core/rollout"
	"github.com/paceline-sched/paceline/core/scheduler"
	"github.com/paceline-sched/paceline/core/telemetry"
	"github.com/paceline-sched/paceline/policies/wasm"
	"github.com/paceline-sched/paceline/policies/wasm/kit"
)

// saveTimeout is how long an edit may take to become durable.
const saveTimeout = 30 * time.Second

// archiveBytes is how much of a module lies in one archive.
const archiveBytes = 512 << 10

// Push verifies a module with its configuration and keeps it as a version of a policy. It returns the version's digest.
func (r *Registry) Push(ctx context.Context, by string, u rollout.Upload) (rollout.Digest, error) { //nolint:gocritic // once for each module
	policy, kind, module := u.Policy, u.Kind, u.Module
	digest := rollout.Digest(sha256.Sum256(module))
	signer, err := r.signer(digest, u.Signature)
	if err != nil {
		return digest, refuse(scheduler.FailedPrecondition, "signature", "", "the module is refused: %v", err)
	}
	capability, err := r.verify(ctx, module, u.Config)
	if err != nil {
		return digest, err
	}
	if kind == "" {
		kind = capability.kinds[0]
	}
	if !slices.Contains(capability.kinds, kind) {
		return digest, refuse(scheduler.InvalidArgument, "kind", "push it as what it is", "the module is of kind %s, not %s", strings.Join(capability.kinds, ", "), kind)
	}
	if signer == "" {
		r.log.Warn("a policy is accepted without a signature: this server has no trusted keys for policies", slog.String(telemetry.KeyPolicy, policy), slog.String(telemetry.KeyDigest, digest.Short()))
	}
	v := rollout.Version{Digest: capability.digest, Size: len(module), Calls: capability.calls, Signature: u.Signature, SignedBy: signer}
	if v.Digest != digest {
		v.Module, v.Config = digest, u.Config
	}
	if signer == "" {
		v.Signature = nil
	}
	var archives []scheduler.ArchiveRecord
	for rest := module; len(rest) > 0; {
		part := rest[:min(len(rest), archiveBytes)]
		rest = rest[len(part):]
		a := scheduler.ArchiveRecord{Digest: sha256.Sum256(part), Archive: part}
		archives = append(archives, a)
		v.Archives = append(v.Archives, a.Digest)
	}
	_, err = r.change(ctx, by, rollout.Push{Policy: policy, Kind: kind, Version: v, Expected: u.Expected}, archives)
	return v.Digest, err
}

// signer is the id of the key that signed a module; "" where no signature is wanted.
func (r *Registry) signer(digest rollout.Digest, sign []byte) (string, error) {
	if len(r.config.Keys) == 0 {
		return "", nil
	}
	return r.config.Keys.Verify(digest, sign)
}

// capability is what a module says of itself.
type capability struct {
	calls  string
	kinds  []string
	digest rollout.Digest // with its configuration
}

// verify has the kit judge a module with its configuration.
func (r *Registry) verify(ctx context.Context, module []byte, config map[string]string) (*capability, error) {
	checked, err := wasm.Check(module, r.config.Wasm.Limits)
	if err != nil {
		return nil, refuse(scheduler.InvalidArgument, "module", "'paceline policy verify' finds the same without a server", "the module is refused: %v", err)
	}
	options := r.config.Kit
	if options.Config.Values, err = checked.Values(config); err != nil {
		return nil, refuse(scheduler.InvalidArgument, "config", "'paceline policy inspect' lists what can be set", "%v", err)
	}
	identity, err := checked.Configured(options.Config.Values)
	if err != nil {
		return nil, refuse(scheduler.InvalidArgument, "config", "'paceline policy inspect' lists what can be set", "%v", err)
	}
	report, err := kit.Run(ctx, module, options)
	if err != nil {
		return nil, err
	}
	if err := report.Err(); err != nil {
		return nil, refuse(scheduler.InvalidArgument, "module", "'paceline policy verify' finds the same without a server", "the module is refused: %v", err)
	}
	c := &capability{calls: checked.Capability.Name, digest: rollout.Digest(identity)}
	if checked.Capability.Version != "" {
		c.calls += " " + checked.Capability.Version
	}
	for _, k := range checked.Capability.Kinds {
		c.kinds = append(c.kinds, k.String())
	}
	return c, nil
}

func refuse(kind scheduler.ErrorKind, field, hint, format string, args ...any) error {
	return &scheduler.Error{Kind: kind, Field: field, Hint: hint, Message: fmt.Sprintf(format, args...)}
}

// Change takes in an event. When it returns without an error, what follows is durable and in force. A version that a Move brings into force and that cannot be loaded is refused, and
// nothing changes.
func (r *Registry) Change(ctx context.Context, by string, event rollout.Event) ([]rollout.Moved, error) {
	if _, ok := event.(rollout.Push); ok {
		return nil, errors.New("a module is kept with Push")
	}
	return r.change(ctx, by, event, nil)
}

func (r *Registry) change(ctx context.Context, by string, event rollout.Event, archives []scheduler.ArchiveRecord) ([]rollout.Moved, error) {
	r.edit.Lock()
	defer r.edit.Unlock()
	return r.apply(ctx, by, event, archives)
}

// apply is change; r.edit is held. A change by nobody is one by a gate, which goes into force before it is written down.
func (r *Registry) apply(ctx context.Context, by string, event rollout.Event, archives []scheduler.ArchiveRecord) ([]rollout.Moved, error) {
	before := r.Book()
	next, moves, err := rollout.Step(before, r.now(), by, event)
	if err != nil {
		return nil, err
	}
	if len(moves) == 0 && maps.Equal(before.Defaults, next.Defaults) {
		return nil, nil
	}
	if by == "" {
		r.withdraw(moves)
	} else if err := r.prepare(ctx, &next, event); err != nil {
		return nil, err
	}
	err = r.save(ctx, by, &next, archives)
	if err != nil && by != "" {
		r.discardUnwanted(&before)
		return nil, err
	}
	r.unsaved = err != nil // it is out of force nevertheless, and Run tries again
	r.book.Store(&next)
	r.tell(moves)
	if by != "" { // who gives up waiting does not keep from loading what is in force
		ctx = context.WithoutCancel(ctx)
	}
	r.install(ctx)
	return moves, err
}

// save makes a book durable.
func (r *Registry) save(ctx context.Context, by string, book *rollout.Book, archives []scheduler.ArchiveRecord) error {
	state, err := book.Encode()
	if err != nil {
		return fmt.Errorf("write down what is known of policies: %w", err)
	}
	if by == "" {
		by = caller
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), saveTimeout) // half an edit is none, but who gives up waiting does not take it back
	defer cancel()
	edit := scheduler.EditPolicies{State: state, Archives: book.Archives(), New: archives, ExpectedVersion: r.version}
	err = r.edited(ctx, by, edit)
	var behind *scheduler.Error
	if errors.As(err, &behind) && behind.Kind == scheduler.Aborted { // an edit that was given up became durable after all: nobody else writes the record
		if err := r.config.Store.Read(ctx, func(look scheduler.Reader) { edit.ExpectedVersion = look.Policies().Version }); err != nil {
			return err
		}
		err = r.edited(ctx, by, edit)
	}
	if err == nil {
		r.version = edit.ExpectedVersion + 1
	}
	return err
}

// edited writes the record.
func (r *Registry) edited(ctx context.Context, by string, edit scheduler.EditPolicies) error {
	answer, err := r.config.Store.Do(ctx, scheduler.Caller{Principal: by}, edit)
	if err == nil && answer.Err != nil {
		err = answer.Err
	}
	return err
}

// tell logs and counts what became of versions.
func (r *Registry) tell(moves []rollout.Moved) {
	for _, m := range moves {
		r.trace.PolicyMoved(telemetry.PolicyMove{Policy: m.Policy, Stage: string(m.To), Gate: m.By == ""})
		level := slog.LevelInfo
		if m.To == rollout.RolledBack {
			level = slog.LevelError
		}
		r.log.Log(context.Background(), level, "policy moved", slog.String(telemetry.KeyPolicy, m.Policy), slog.String(telemetry.KeyDigest, m.Digest.Short()),
			slog.String(telemetry.KeyState, string(m.To)), slog.String(telemetry.KeyPrincipal, m.By), slog.String(telemetry.KeyReason, m.Why))
	}
}

// StartFuel is what coming up may use where versions are to be swapped under load: three times what a guest of the plain Go toolchain needs, some tens of milliseconds.
const StartFuel = 1 << 26
