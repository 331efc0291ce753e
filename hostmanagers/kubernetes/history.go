package kubernetes

import (
	"context"
	"fmt"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
)

// point is how far a view has followed the history of a kind of object, and by what that history is recognised when it is to be gone on with. A server that was
// restored from a backup has another one: under the same versions other things happened.
type point struct {
	version string // to go on from; "": from a list
	// last is the one that got this version. Those of a list's end and of a bookmark are no object's: nobody could tell later whose history they were of.
	last object
	gone []object // what was deleted after that; at most maxGone
}

// maxGone bounds how many deletions in a row are kept, and then looked at, to go on from before them. After more of them everything is listed anew.
const maxGone = 8

// object names one life of an object. The zero value is none.
type object struct {
	namespace, name string
	uid             types.UID
}

func objectOf(o metav1.Object) object { return object{o.GetNamespace(), o.GetName(), o.GetUID()} }

// heard takes in an event. The version stays that of something that is there: deletions after it are told once more, and nobody minds.
func (p *point) heard(e watch.Event) {
	o, err := meta.Accessor(e.Object)
	switch {
	case err != nil || e.Type == watch.Bookmark:
	case e.Type == watch.Deleted && len(p.gone) == maxGone:
		p.last, p.gone = object{}, nil
	case e.Type == watch.Deleted:
		p.gone = append(p.gone, objectOf(o))
	case o.GetResourceVersion() != "":
		*p = point{version: o.GetResourceVersion(), last: objectOf(o)}
	}
}

// sighting is what a server has of an object, at a version of its own.
type sighting struct {
	uid     types.UID // "": the object is not there
	version string    // the object's
	at      string
}

// looker looks for objects of a resource in the lists that newList makes. A version asks how it was then; without one, how it is, beyond any cache.
func (d *Driver) looker(resource string, newList func() runtime.Object) func(context.Context, object, string) (sighting, error) {
	return func(ctx context.Context, o object, version string) (sighting, error) {
		ctx, cancel := context.WithTimeout(ctx, listTimeout)
		defer cancel()
		options := metav1.ListOptions{Limit: 1, FieldSelector: fields.OneTermEqualSelector("metadata.name", o.name).String()}
		if version != "" {
			options.ResourceVersion, options.ResourceVersionMatch = version, metav1.ResourceVersionMatchExact
		}
		list := newList()
		if err := d.get(resource, &options).NamespaceIfScoped(o.namespace, o.namespace != "").Do(ctx).Into(list); err != nil {
			return sighting{}, fmt.Errorf("look whether the %s are those that were known: %w", resource, err)
		}
		var seen sighting
		if m, err := meta.ListAccessor(list); err == nil {
			seen.at = m.GetResourceVersion()
		}
		err := meta.EachListItem(list, func(item runtime.Object) error {
			if m, err := meta.Accessor(item); err == nil && m.GetName() == o.name && m.GetNamespace() == o.namespace {
				seen.uid, seen.version = m.GetUID(), m.GetResourceVersion()
			}
			return nil
		})
		if err != nil {
			return sighting{}, fmt.Errorf("look whether the %s are those that were known: %w", resource, err)
		}
		return seen, nil
	}
}

// continues reports whether what is known at a point is a part of the server's own history, so that a watch from there on leaves nothing out. If not, what it keeps
// was restored from a backup, another server stands in its place, or it does not remember; then everything is to be listed anew.
//
// Asking whether it has come as far is not enough: by the time that somebody asks, a server with another history may have come further. But in hardly any
// other one has the same object got the same version; and what was deleted since is looked for, as it is there again if the backup is of before.
func continues(ctx context.Context, v *view, p point) (bool, error) {
	if p.last == (object{}) {
		return false, nil
	}
	now, err := v.look(ctx, p.last, "")
	if err != nil || behind(now.at, p.version) {
		return false, err
	}
	if now.uid != p.last.uid || now.version != p.version { // it has changed since, or never was
		then, err := v.look(ctx, p.last, p.version)
		switch {
		case gone(err), apierrors.IsInvalid(err), apierrors.IsBadRequest(err): // it cannot say
			return false, nil
		case err != nil || then.uid != p.last.uid || then.version != p.version:
			return false, err
		}
	}
	for _, o := range p.gone {
		if now, err := v.look(ctx, o, ""); err != nil || now.uid == o.uid {
			return false, err
		}
	}
	return true, nil
}

// behind reports whether a version is below another. Those that are no numbers cannot be compared.
func behind(version, other string) bool {
	a, errA := strconv.ParseUint(version, 10, 64)
	b, errB := strconv.ParseUint(other, 10, 64)
	return errA == nil && errB == nil && a < b
}
