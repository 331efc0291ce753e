package rego

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/open-policy-agent/opa/v1/ast"

	"github.com/paceline-sched/paceline/core/api/admit"
	"github.com/paceline-sched/paceline/core/telemetry"
)

// Config is what a Judge is made of. Zero fields take the defaults.
type Config struct {
	// Keys are who may sign bundles. Default: nobody has to.
	Keys Keys
	// Directory holds bundles besides those that are loaded: each directory or .tar.gz file in it is one, under its name; one whose name
	// ends in .shadow is only watched. Default: none. DirectoryName is how it is called towards users.
	Directory     fs.FS
	DirectoryName string
	// Limit is the time for all bundles of one job, of which only what this process computes in counts. Default: TimeLimit. More is patient
	// with rules that are slow.
	Limit time.Duration
	Log   *slog.Logger     // default: nothing is logged
	Trace *telemetry.Trace // default: nobody looks
}

// Judge judges jobs by the bundles in force.
type Judge struct {
	config Config
	slots  chan struct{} // evaluations at once: more than there are processors would only use up one another's time
	force  atomic.Pointer[set]
	log    decisionLog
	shadow chan shadowed
	missed atomic.Uint64 // jobs that no shadow bundle saw

	mu        sync.Mutex // held by whoever changes what is in force
	revision  uint64
	stored    []*unit
	directory directory
}

var _ admit.Judge = (*Judge)(nil)

// unit is one bundle in force.
type unit struct {
	name   string
	source string
	digest [32]byte
	shadow bool
	since  time.Time
	prog   *program // nil: it cannot be used, and judging by it fails with ill
	ill    error
	tally  *tally
}

// tally counts what came of a unit's evaluations.
type tally struct{ evaluated, denied, warned, mutated, failed atomic.Uint64 }

// set is what is in force at one moment. It is immutable but for its memo and tallies.
type set struct {
	active  []*unit
	shadows []*unit
	idle    []admit.Status // of a directory: what cannot be read and has no former version
	reads   reads          // of the active ones
	look    *part          // what they see of an input
	watch   *part          // what the shadows see
	memo    *memo
}

// New returns a Judge with the bundles of its directory in force. One that cannot be used is an error here, as there is no former version to
// keep.
func New(config Config) (*Judge, error) {
	if config.Log == nil {
		config.Log = slog.New(slog.DiscardHandler)
	}
	config.Trace = config.Trace.Complete()
	config.Limit = cmp.Or(config.Limit, TimeLimit)
	j := &Judge{config: config, slots: make(chan struct{}, runtime.GOMAXPROCS(0)), shadow: make(chan shadowed, maxShadows)}
	j.mu.Lock()
	defer j.mu.Unlock()
	if config.Directory != nil {
		if err := j.readDirectory(true); err != nil {
			return nil, err
		}
	}
	j.enforce()
	return j, nil
}

// Inspect reads an archive and changes nothing.
func (j *Judge) Inspect(archive []byte) (admit.Info, error) {
	p, err := compile(archive, j.config.Keys)
	if err != nil {
		return admit.Info{}, err
	}
	return p.info, nil
}

// Load puts the stored bundles in force; what is in force already goes on as it is, with its tally.
func (j *Judge) Load(revision uint64, bundles []admit.Bundle) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if revision < j.revision {
		return nil // another call was faster with newer ones
	}
	var units []*unit
	var ill error
	for _, b := range bundles {
		u := j.former(b)
		if u == nil {
			u = j.newUnit(b)
		}
		if u.ill != nil {
			ill = errors.Join(ill, fmt.Errorf("bundle %s: %w", u.name, u.ill))
		}
		units = append(units, u)
	}
	j.revision, j.stored = revision, units
	j.enforce()
	return ill
}

func (j *Judge) former(b admit.Bundle) *unit {
	for _, u := range j.stored {
		if u.name == b.Name && u.digest == b.Digest && u.shadow == b.Shadow && u.ill == nil {
			return u
		}
	}
	return nil
}

func (j *Judge) newUnit(b admit.Bundle) *unit {
	u := &unit{name: b.Name, source: "store", digest: b.Digest, shadow: b.Shadow, since: time.Now(), tally: &tally{}}
	if sha256.Sum256(b.Archive) != b.Digest {
		u.ill = errors.New("its archive is not the one that was stored")
		return u
	}
	u.prog, u.ill = compile(b.Archive, j.config.Keys)
	return u
}

// enforce makes a new set of all that is to be in force and puts it there in one move. mu is held.
func (j *Judge) enforce() {
	s := &set{}
	var watched reads
	for _, u := range slices.Concat(j.directory.units(), j.stored) {
		if u.shadow {
			s.shadows = append(s.shadows, u)
			if u.prog != nil {
				watched = watched.join(u.prog.reads)
			}
		} else {
			s.active = append(s.active, u)
			if u.prog != nil {
				s.reads = s.reads.join(u.prog.reads)
			}
		}
	}
	byName := func(a, b *unit) int { return cmp.Or(cmp.Compare(a.name, b.name), cmp.Compare(a.source, b.source)) }
	slices.SortFunc(s.active, byName)
	slices.SortFunc(s.shadows, byName)
	s.idle = j.directory.broken()
	s.look, s.watch = s.reads.tree(), watched.tree()
	s.memo = newMemo(s.reads)
	j.force.Store(s)
	counts := telemetry.Rules{Active: len(s.active), Shadow: len(s.shadows), Broken: len(s.idle)}
	for _, u := range slices.Concat(s.active, s.shadows) {
		if u.ill != nil || j.directory.illness(u) != "" {
			counts.Broken++
		}
		j.config.Log.Debug("bundle in force", slog.String(telemetry.KeyBundle, u.name), slog.String(telemetry.KeyVersion, short(u.digest)))
	}
	j.config.Trace.RulesLoaded(counts)
}

func short(digest [32]byte) string { return hex.EncodeToString(digest[:6]) }

// WantsState reports whether any rule in force looks at the cell's clusters.
func (j *Judge) WantsState() bool {
	s := j.force.Load()
	wants := s.reads.under("cell")
	for _, u := range s.shadows {
		wants = wants || u.prog != nil && u.prog.reads.under("cell")
	}
	return wants
}

// Judge says what is to become of a job.
func (j *Judge) Judge(ctx context.Context, r *admit.Request) (*admit.Verdict, error) {
	s := j.force.Load()
	if len(s.active)+len(s.shadows) == 0 {
		return &admit.Verdict{}, nil
	}
	began := time.Now()
	v, memo, err := j.judge(ctx, s, r)
	if err != nil {
		return nil, err
	}
	hideSecrets(r, v)
	j.decided(r, v, decision{at: began, took: time.Since(began), memo: memo})
	if len(s.shadows) > 0 {
		select {
		case j.shadow <- shadowed{set: s, request: r}:
		default:
			j.missed.Add(1)
		}
	}
	return v, nil
}

// judge asks for changes first. A job that was changed is judged once more, so that what is accepted is what was judged.
func (j *Judge) judge(ctx context.Context, s *set, r *admit.Request) (*admit.Verdict, bool, error) {
	left := j.config.Limit
	answers, memo, err := j.ask(ctx, s, r, &left)
	if err != nil {
		return nil, false, err
	}
	spec, changes, fail := mutate(s.active, answers, r)
	wanted := answers
	defer func() { s.count(wanted, answers) }()
	if fail != nil || spec == nil {
		return verdictOf(s.active, answers, nil, nil, fail), memo, nil
	}
	changed, fail := rewritten(r, spec, changes)
	if fail != nil {
		return &admit.Verdict{Failure: fail}, memo, nil
	}
	answers, again, err := j.ask(ctx, s, changed, &left)
	if err != nil {
		return nil, false, err
	}
	if more, unsettled, fail := mutate(s.active, answers, changed); fail != nil || more != nil {
		if fail == nil {
			fail = &admit.Failure{
				Bundle: unsettled[0].Bundle, Reason: fmt.Sprintf("its rules do not settle: after they changed the job they want %s changed again", unsettled[0].Field),
				Hint: "write rules that want nothing more of a job that is as they want it",
			}
		}
		return &admit.Verdict{Failure: fail}, memo && again, nil
	}
	return verdictOf(s.active, answers, spec, changes, nil), memo && again, nil
}

// ask gets the answers of all active bundles, from the memo if it has them.
func (j *Judge) ask(ctx context.Context, s *set, r *admit.Request, left *time.Duration) ([]answer, bool, error) {
	k, _ := keys.Get().(*key)
	defer keys.Put(k)
	answers, ok := s.memo.find(k, r)
	if !ok {
		select {
		case j.slots <- struct{}{}:
		case <-ctx.Done():
			return nil, false, ctx.Err()
		}
		watch := newStopwatch()
		answers = evaluate(s.active, inputOf(r, s.look), *left)
		*left = max(*left-watch.spent(), leastPart)
		<-j.slots
		if !slices.ContainsFunc(answers, func(a answer) bool { return a.err != nil }) {
			s.memo.keep(k, answers)
		}
	}
	return answers, ok, nil
}

// evaluate asks one unit after the other; each gets an equal part of the time that is left for those that have not answered.
func evaluate(units []*unit, input ast.Value, left time.Duration) []answer {
	answers := make([]answer, len(units))
	for i, u := range units {
		watch := newStopwatch()
		answers[i] = u.eval(input, left/time.Duration(len(units)-i))
		left = max(left-watch.spent(), leastPart)
	}
	return answers
}

func (u *unit) eval(input ast.Value, limit time.Duration) answer {
	if u.ill != nil {
		return answer{err: u.ill}
	}
	return u.prog.eval(input, limit)
}

// count adds one job to the tallies: what was wanted of it at first, and what was said of it in the end.
func (s *set) count(wanted, said []answer) {
	for i, u := range s.active {
		if said == nil { // the caller has gone
			return
		}
		a := said[i]
		a.mutate = wanted[i].mutate
		u.tally.add(&a)
	}
}

func (t *tally) add(a *answer) {
	t.evaluated.Add(1)
	count(&t.denied, len(a.deny) > 0)
	count(&t.warned, len(a.warn) > 0)
	count(&t.mutated, len(a.mutate) > 0)
	count(&t.failed, a.err != nil)
}

func count(n *atomic.Uint64, hit bool) {
	if hit {
		n.Add(1)
	}
}
