package record

import (
	"bytes"
	"crypto/sha256"

	"github.com/paceline-sched/paceline/core/scheduler"
	"github.com/paceline-sched/paceline/core/store/record/recordpb"
)

// digestBytes leaves a digest that was never set out. The result aliases it.
func digestBytes(digest *[32]byte) []byte {
	if *digest == ([32]byte{}) {
		return nil
	}
	return digest[:]
}

// digest reads a digest that may be absent.
func (d *decoder) digest(raw []byte) (digest [32]byte) {
	if len(raw) != 0 && len(raw) != len(digest) {
		d.fail("a digest of %d bytes", len(raw))
	}
	copy(digest[:], raw)
	return digest
}

func rulesToProto(r *scheduler.RulesRecord) *recordpb.Rules {
	m := &recordpb.Rules{Version: r.Version, Active: digestBytes(&r.Active), Shadow: digestBytes(&r.Shadow), Updated: r.Updated, By: r.By, Name: r.Name}
	for i := range r.Kept {
		v := &r.Kept[i]
		m.Kept = append(m.Kept, &recordpb.RulesVersion{Digest: digestBytes(&v.Digest), Size: uint32(v.Size), Pushed: v.Pushed, By: v.By}) //nolint:gosec // at most scheduler.MaxArchiveBytes
	}
	return m
}

func (d *decoder) rules() scheduler.Record {
	var m recordpb.Rules
	d.unmarshal(&m)
	if !bytes.Equal(d.key, d.keys.Rules(sha256.Sum256([]byte(m.GetName())))) {
		d.fail("the bundle %.80q lies under another's key", m.GetName())
	}
	r := scheduler.RulesRecord{
		Name: m.GetName(), Version: m.GetVersion(), Active: d.digest(m.GetActive()), Shadow: d.digest(m.GetShadow()),
		Updated: m.GetUpdated(), By: m.GetBy(),
	}
	for _, v := range m.GetKept() {
		if v.GetSize() > scheduler.MaxArchiveBytes {
			d.fail("a version of %d bytes", v.GetSize())
		}
		r.Kept = append(r.Kept, scheduler.RulesVersion{Digest: d.digest(v.GetDigest()), Size: int(v.GetSize()), Pushed: v.GetPushed(), By: v.GetBy()})
	}
	return r
}

func (d *decoder) archive() scheduler.Record {
	var m recordpb.Archive
	d.unmarshal(&m)
	_, id, err := d.keys.Split(d.key)
	d.check(err)
	digest := sha256.Sum256(m.GetArchive())
	if !bytes.Equal(id, digest[:]) {
		d.fail("the bytes of a bundle are not those of its digest")
	}
	return scheduler.ArchiveRecord{Digest: digest, Archive: m.GetArchive()}
}

func policiesToProto(r *scheduler.PoliciesRecord) *recordpb.Policies {
	m := &recordpb.Policies{Version: r.Version, State: r.State, Updated: r.Updated, By: r.By}
	for i := range r.Archives {
		m.Archives = append(m.Archives, r.Archives[i][:])
	}
	return m
}

func (d *decoder) policies() scheduler.Record {
	var m recordpb.Policies
	d.unmarshal(&m)
	r := scheduler.PoliciesRecord{Version: m.GetVersion(), State: m.GetState(), Updated: m.GetUpdated(), By: m.GetBy()}
	for n, raw := range m.GetArchives() {
		digest := d.digest(raw)
		if digest == ([32]byte{}) || (n > 0 && bytes.Compare(r.Archives[n-1][:], digest[:]) >= 0) {
			d.fail("the archives of policies are out of order")
		}
		r.Archives = append(r.Archives, digest)
	}
	return r
}
