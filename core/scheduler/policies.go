package scheduler

import (
	"bytes"
	"slices"
)

// The bounds of what is kept of policies.
const (
	// MaxPolicyState bounds what is known of all policies together.
	MaxPolicyState = 512 << 10
	// MaxPolicyArchives is how many archives the modules of all policies may take.
	MaxPolicyArchives = 512
)

type (
	// PoliciesRecord is what is known of the cell's policies: their versions, which of them is in force, and what became of others. Only the registry of
	// policies can read State; the cell keeps it, and the archives that modules lie in.
	PoliciesRecord struct {
		Version  uint64 // grows with every edit; 0: there never was one
		State    []byte
		Archives [][32]byte // digests of the archives that State speaks of, ascending
		Updated  int64
		By       string // who made the last edit
	}

	// EditPolicies replaces what is known of policies. Archives that are spoken of no more go.
	EditPolicies struct {
		State           []byte
		Archives        [][32]byte // all that State speaks of
		New             []ArchiveRecord
		ExpectedVersion uint64 // of the record that the edit was made against
	}
)

func (PoliciesRecord) record() {}
func (EditPolicies) command()  {}

// Policies returns what is known of policies. It must not be changed.
func (r Reader) Policies() PoliciesRecord { return r.s.policies }

func (s *State) editPolicies(caller Caller, cmd *EditPolicies) *Error {
	old := &s.policies
	next := PoliciesRecord{Version: old.Version + 1, State: cmd.State, Archives: slices.Clone(cmd.Archives), Updated: s.now, By: caller.Principal}
	slices.SortFunc(next.Archives, compareDigests)
	next.Archives = slices.Compact(next.Archives)
	switch {
	case cmd.ExpectedVersion != old.Version:
		return refuse(Aborted, "expected_version", "read the policies again and decide anew", "the policies are at version %d, not %d", old.Version, cmd.ExpectedVersion)
	case len(next.State) > MaxPolicyState:
		return refuse(ResourceExhausted, "policies", "remove policies that are no longer needed", "what is known of policies is %d bytes; the limit is %d", len(next.State), MaxPolicyState)
	case len(next.Archives) > MaxPolicyArchives:
		return refuse(ResourceExhausted, "policies", "remove policies that are no longer needed", "the modules take %d archives; the limit is %d", len(next.Archives), MaxPolicyArchives)
	}
	for _, a := range cmd.New {
		if len(a.Archive) == 0 || len(a.Archive) > MaxArchiveBytes {
			return refuse(InvalidArgument, "archive", "cut the module into smaller parts", "an archive of %d bytes; the limit is %d", len(a.Archive), MaxArchiveBytes)
		}
	}
	for _, digest := range next.Archives {
		if !old.holds(digest) && !slices.ContainsFunc(cmd.New, func(a ArchiveRecord) bool { return a.Digest == digest }) {
			return refuse(InvalidArgument, "archives", "give every new archive with the edit", "an archive that is spoken of is not kept")
		}
	}
	for _, a := range cmd.New { // each by itself: together they may be larger than a group
		if next.holds(a.Digest) && !old.holds(a.Digest) {
			s.writeAlone(Write{Record: a})
		}
	}
	writes := []Write{{Record: next}}
	for _, digest := range old.Archives {
		if !next.holds(digest) && !s.ruled(digest) {
			writes = append(writes, Write{Record: ArchiveRecord{Digest: digest}, Delete: true})
		}
	}
	s.policies = next
	s.writeAlone(writes...)
	return nil
}

func compareDigests(a, b [32]byte) int { return bytes.Compare(a[:], b[:]) }

func (r *PoliciesRecord) holds(digest [32]byte) bool {
	_, found := slices.BinarySearchFunc(r.Archives, digest, compareDigests)
	return found
}

// ruled reports whether a bundle of rules has a version of that digest.
func (s *State) ruled(digest [32]byte) bool {
	for _, r := range s.rules.byName {
		if r.find(digest) >= 0 {
			return true
		}
	}
	return false
}
