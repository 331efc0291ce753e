package scheduler

import (
	"maps"
	"slices"
)

// The bounds of bundles of rules.
const (
	// MaxRules is how many bundles there are at once.
	MaxRules = 16
	// MaxRulesKept is how many versions of one are kept. A version in use is never dropped for a new one.
	MaxRulesKept = 8
	// MaxArchiveBytes bounds a version, which is one record of one group.
	MaxArchiveBytes = 768 << 10
)

type (
	// RulesRecord is a bundle of admission rules: its versions, and which of them is in use. What they say is not the cell's to know.
	RulesRecord struct {
		Name    string
		Version uint64   // grows with every edit
		Active  [32]byte // digest of the version that decides; zero: none
		Shadow  [32]byte // of the one that is only watched
		Kept    []RulesVersion
		Updated int64
		By      string // who made the last edit
	}

	// RulesVersion is one version that is kept, oldest first. Versions are replaced as a whole, never changed.
	RulesVersion struct {
		Digest [32]byte
		Size   int
		Pushed int64
		By     string
	}

	// ArchiveRecord is the bytes of one version, of whatever bundles have it. It is no part of an Image.
	ArchiveRecord struct {
		Digest  [32]byte
		Archive []byte
	}

	// EditRules changes a bundle of rules. With an Archive, a version is kept first.
	EditRules struct {
		Name            string
		Digest          [32]byte // of the version that the edit is about; of Archive, if there is one
		Archive         []byte
		Use             RulesUse
		ExpectedVersion uint64
	}
)

func (RulesRecord) record()   {}
func (ArchiveRecord) record() {}
func (EditRules) command()    {}

// RulesUse is what an edit does with a version.
type RulesUse uint8

// The uses.
const (
	RulesKeep     RulesUse = iota // nothing changes
	RulesActivate                 // it decides, in place of the one before
	RulesShadow                   // it is only watched
	RulesRemove                   // it is forgotten; without a digest, the whole bundle is
)

// cellRules are the bundles of a cell.
type cellRules struct {
	byName map[string]*RulesRecord
	edits  uint64 // since the start
}

// Rules returns the bundles of rules by name, and a number that grows whenever one of them changes, as long as the cell runs. The records
// must not be changed.
func (r Reader) Rules() (uint64, []RulesRecord) {
	var list []RulesRecord
	for _, name := range slices.Sorted(maps.Keys(r.s.rules.byName)) {
		list = append(list, *r.s.rules.byName[name])
	}
	return r.s.rules.edits, list
}

func (s *State) editRules(caller Caller, cmd *EditRules) *Error {
	old, exists := s.rules.byName[cmd.Name]
	if !exists {
		old = &RulesRecord{Name: cmd.Name}
	}
	switch {
	case cmd.Name == "" || len(cmd.Name) > 63:
		return refuse(InvalidArgument, "name", "use 1 to 63 characters", "the name of a bundle is %d bytes long", len(cmd.Name))
	case len(cmd.Archive) > MaxArchiveBytes:
		return refuse(InvalidArgument, "archive", "keep large data out of it, or cut it in two", "the bundle is %d bytes; the limit is %d", len(cmd.Archive), MaxArchiveBytes)
	case cmd.Archive == nil && !exists:
		return refuse(NotFound, "name", "list the bundles and choose one", "there is no bundle %q", cmd.Name)
	case cmd.ExpectedVersion != 0 && cmd.ExpectedVersion != old.Version:
		return refuse(Aborted, "expected_version", "read the bundle again and decide anew", "bundle %s is at version %d, not %d", cmd.Name, old.Version, cmd.ExpectedVersion)
	case !exists && len(s.rules.byName) >= MaxRules:
		return refuse(ResourceExhausted, "name", "remove a bundle that is no longer needed", "there are %d bundles, and no more are kept", MaxRules)
	}
	if cmd.Use == RulesRemove && cmd.Digest == ([32]byte{}) {
		s.forgetRules(old)
		return nil
	}
	edited := *old
	edited.Kept = slices.Clone(old.Kept)
	var writes []Write
	if cmd.Archive != nil {
		writes = s.keepVersion(&edited, caller, cmd)
	}
	at := edited.find(cmd.Digest)
	if at < 0 {
		return refuse(NotFound, "digest", "see which versions there are with admission get", "bundle %s has no such version", cmd.Name)
	}
	dropped, err := edited.use(cmd, at)
	if err != nil {
		return err
	}
	if dropped {
		writes = append(writes, s.dropArchive(cmd.Name, cmd.Digest)...)
	}
	edited.Version, edited.Updated, edited.By = old.Version+1, s.now, caller.Principal
	s.rules.byName[cmd.Name] = &edited
	s.rules.edits++
	s.writeAlone(append(writes, Write{Record: edited})...)
	return nil
}

func (r *RulesRecord) find(digest [32]byte) int {
	return slices.IndexFunc(r.Kept, func(v RulesVersion) bool { return v.Digest == digest })
}

func (r *RulesRecord) uses(digest [32]byte) bool { return digest == r.Active || digest == r.Shadow }

// use does what the edit wants with a version, and reports whether it is forgotten.
func (r *RulesRecord) use(cmd *EditRules, at int) (dropped bool, err *Error) {
	digest := r.Kept[at].Digest
	switch cmd.Use {
	case RulesKeep:
	case RulesActivate:
		if r.Active = digest; r.Shadow == digest {
			r.Shadow = [32]byte{}
		}
	case RulesShadow:
		if r.Shadow = digest; r.Active == digest {
			r.Active = [32]byte{}
		}
	case RulesRemove:
		if r.uses(digest) {
			return false, refuse(FailedPrecondition, "digest", "put another version in its place first, or remove the whole bundle", "the version is in use")
		}
		r.Kept = slices.Delete(r.Kept, at, at+1)
		return true, nil
	}
	return false, nil
}

// keepVersion adds a version that is not there yet; the oldest that is not in use makes room for it.
func (s *State) keepVersion(r *RulesRecord, caller Caller, cmd *EditRules) []Write {
	if r.find(cmd.Digest) >= 0 {
		return nil
	}
	var writes []Write
	if len(r.Kept) >= MaxRulesKept { // of which at most two are in use
		at := slices.IndexFunc(r.Kept, func(v RulesVersion) bool { return !r.uses(v.Digest) })
		writes = append(writes, s.dropArchive(r.Name, r.Kept[at].Digest)...)
		r.Kept = slices.Delete(r.Kept, at, at+1)
	}
	r.Kept = append(r.Kept, RulesVersion{Digest: cmd.Digest, Size: len(cmd.Archive), Pushed: s.now, By: caller.Principal})
	return append(writes, Write{Record: ArchiveRecord{Digest: cmd.Digest, Archive: cmd.Archive}})
}

// dropArchive deletes the bytes of a version that a bundle no longer has, unless another one has it.
func (s *State) dropArchive(name string, digest [32]byte) []Write {
	for other, r := range s.rules.byName {
		if other != name && r.find(digest) >= 0 {
			return nil
		}
	}
	if s.policies.holds(digest) {
		return nil
	}
	return []Write{{Record: ArchiveRecord{Digest: digest}, Delete: true}}
}

func (s *State) forgetRules(r *RulesRecord) {
	var writes []Write
	for _, v := range r.Kept {
		writes = append(writes, s.dropArchive(r.Name, v.Digest)...)
	}
	delete(s.rules.byName, r.Name)
	s.rules.edits++
	s.writeAlone(append(writes, Write{Record: *r, Delete: true})...)
}

func (s *State) loadRules(im *Image) {
	for name, r := range im.Rules {
		s.rules.byName[name] = &r
	}
}
