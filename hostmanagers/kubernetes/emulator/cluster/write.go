package cluster

import (
	"errors"
	"fmt"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

type fieldErrors = field.ErrorList

// maxGenerated is how much of a prefix a generated name keeps.
const maxGenerated = 63 - 5

// Create stores a new object. With dry it only says what would be stored.
func (c *Cluster) Create(r *Resource, namespace string, o Object, dry bool) (Object, error) {
	o = copyOf(o)
	if err := c.admitNamespace(r, namespace, o); err != nil {
		return nil, err
	}
	if o.GetResourceVersion() != "" {
		return nil, errors.New("resourceVersion should not be set on objects to be created")
	}
	if o.GetName() == "" && o.GetGenerateName() != "" {
		prefix := o.GetGenerateName()
		o.SetName(prefix[:min(len(prefix), maxGenerated)] + c.suffix())
	}
	o.SetDeletionTimestamp(nil)
	o.SetDeletionGracePeriodSeconds(nil)
	o.SetSelfLink("")
	o.SetUID(c.uid())
	o.SetCreationTimestamp(c.stamp())
	o.SetGeneration(0)
	if err := c.admit(r, o); err != nil {
		return nil, err
	}
	if r.prepare != nil {
		r.prepare(c, o, nil)
	}
	if err := validate(r, r.check, o, nil); err != nil {
		return nil, err
	}
	if err := c.checkQuota(r, o); err != nil {
		return nil, err
	}
	s := c.shelves[r.GroupResource()]
	if s.objects[keyOf(o)] != nil {
		return nil, apierrors.NewAlreadyExists(r.GroupResource(), o.GetName())
	}
	if dry {
		return o, nil
	}
	return c.commit(s, o), nil
}

// admitNamespace checks the namespace of a new object, in the URL and in itself.
func (c *Cluster) admitNamespace(r *Resource, namespace string, o Object) error {
	switch own := o.GetNamespace(); {
	case own != "" && own != namespace:
		return apierrors.NewBadRequest("the namespace of the provided object does not match the namespace sent on the request")
	default:
		o.SetNamespace(namespace)
	}
	if !r.Namespaced {
		return nil
	}
	ns, ok := c.shelves[Namespaces.GroupResource()].objects[Key{Name: namespace}]
	if !ok {
		return apierrors.NewNotFound(Namespaces.GroupResource(), namespace)
	}
	if ns.GetDeletionTimestamp() != nil {
		err := apierrors.NewForbidden(r.GroupResource(), o.GetName(), fmt.Errorf("unable to create new content in namespace %s because it is being terminated", namespace))
		err.ErrStatus.Details.Causes = append(err.ErrStatus.Details.Causes, metav1.StatusCause{
			Type: corev1.NamespaceTerminatingCause, Message: fmt.Sprintf("namespace %s is being terminated", namespace), Field: "metadata.namespace",
		})
		return err
	}
	return nil
}

func validate(r *Resource, check func(o, old Object) fieldErrors, o, old Object) error {
	var errs fieldErrors
	meta := field.NewPath("metadata")
	if old == nil {
		name := validation.NameIsDNSSubdomain
		if r == Namespaces {
			name = validation.ValidateNamespaceName
		}
		errs = validation.ValidateObjectMetaAccessor(o, r.Namespaced, name, meta)
	} else {
		// An API server looks twice, and says it twice.
		errs = append(validation.ValidateObjectMetaAccessorUpdate(o, old, meta), validation.ValidateObjectMetaAccessorUpdate(o, old, meta)...)
	}
	if check != nil {
		errs = append(errs, check(o, old)...)
	}
	if len(errs) == 0 {
		return nil
	}
	return apierrors.NewInvalid(r.GroupKind(), o.GetName(), errs)
}

// binding is the part of a pod that names its node.
const binding = "binding"

// Update changes an object, or a part of it ("status"), by what change makes of a copy of it. Change may refuse.
func (c *Cluster) Update(r *Resource, key Key, part string, change func(Object) (Object, error), dry bool) (Object, error) {
	s := c.shelves[r.GroupResource()]
	old := s.objects[key]
	if old == nil {
		return nil, apierrors.NewNotFound(r.GroupResource(), key.Name)
	}
	o, err := change(copyFor(part, old))
	if err != nil {
		return nil, err
	}
	if err := matches(r, o, old, key); err != nil {
		return nil, err
	}
	keepMeta(o, old)
	if r.Status && part != binding {
		keepParts(o, old, part)
	}
	if r.prepare != nil && part == "" {
		r.prepare(c, o, old)
	}
	if r == Pods && part == "status" {
		prepareStatus(o, old)
	}
	if part != binding {
		check := r.check
		if r == Pods && part == "status" {
			check = nil // its spec is the old one's
		}
		if err := validate(r, check, o, old); err != nil {
			return nil, err
		}
	}
	if dry {
		return o, nil
	}
	if ended(o) {
		return c.remove(s, o), nil
	}
	if equality.Semantic.DeepEqual(o, old) {
		return old, nil
	}
	return c.commit(s, o), nil
}

// ended says that nothing holds a deleted object any more.
func ended(o Object) bool {
	grace := o.GetDeletionGracePeriodSeconds()
	return o.GetDeletionTimestamp() != nil && len(o.GetFinalizers()) == 0 && (grace == nil || *grace == 0) && !heldNamespace(o)
}

func heldNamespace(o Object) bool {
	ns, ok := o.(*corev1.Namespace)
	return ok && len(ns.Spec.Finalizers) > 0
}

// matches checks that a new state is one of the same object.
func matches(r *Resource, o, old Object, key Key) error {
	switch {
	case o.GetName() == "":
		o.SetName(key.Name)
	case o.GetName() != key.Name:
		return apierrors.NewBadRequest(fmt.Sprintf("the name of the object (%s) does not match the name on the URL (%s)", o.GetName(), key.Name))
	}
	switch {
	case o.GetNamespace() == "":
		o.SetNamespace(key.Namespace)
	case o.GetNamespace() != key.Namespace:
		return apierrors.NewBadRequest("the namespace of the provided object does not match the namespace sent on the request")
	}
	if version := o.GetResourceVersion(); version != "" && version != old.GetResourceVersion() {
		if _, err := strconv.ParseUint(version, 10, 64); err != nil {
			return apierrors.NewInvalid(r.GroupKind(), key.Name, fieldErrors{field.Invalid(field.NewPath("metadata", "resourceVersion"), version, err.Error())})
		}
		return apierrors.NewConflict(r.GroupResource(), key.Name, errModified)
	}
	return nil
}

var errModified = errors.New("the object has been modified; please apply your changes to the latest version and try again")

// Expect checks the preconditions of a change, as the storage of an API server words it.
func Expect(r *Resource, o Object, uid types.UID, version string) error {
	var why string
	switch {
	case uid != "" && uid != o.GetUID():
		why = fmt.Sprintf("Precondition failed: UID in precondition: %s, UID in object meta: %s", uid, o.GetUID())
	case version != "" && version != o.GetResourceVersion():
		why = fmt.Sprintf("Precondition failed: ResourceVersion in precondition: %s, ResourceVersion in object meta: %s", version, o.GetResourceVersion())
	default:
		return nil
	}
	path := "/registry/" + registry(r) + "/" + o.GetName()
	if o.GetNamespace() != "" {
		path = "/registry/" + registry(r) + "/" + o.GetNamespace() + "/" + o.GetName()
	}
	return apierrors.NewConflict(r.GroupResource(), o.GetName(),
		fmt.Errorf("StorageError: invalid object, Code: 4, Key: %s, ResourceVersion: 0, AdditionalErrorMsg: %s", path, why))
}

// registry is where an API server keeps a resource; nodes have an older name.
func registry(r *Resource) string {
	if r == Nodes {
		return "minions"
	}
	return r.Resource
}

// keepMeta puts back what nobody may change.
func keepMeta(o, old Object) {
	if o.GetUID() == "" {
		o.SetUID(old.GetUID())
	}
	o.SetCreationTimestamp(old.GetCreationTimestamp())
	o.SetDeletionTimestamp(old.GetDeletionTimestamp())
	o.SetDeletionGracePeriodSeconds(old.GetDeletionGracePeriodSeconds())
	o.SetGeneration(old.GetGeneration())
	o.SetSelfLink("")
	o.SetResourceVersion(old.GetResourceVersion())
	if o.GetGenerateName() == "" {
		o.SetGenerateName(old.GetGenerateName())
	}
}

// Deletion is a request to delete an object.
type Deletion struct {
	GraceSeconds *int64
	UID          *types.UID
	Version      *string
	Dry          bool
}

// Delete ends an object, at once or as its grace and finalizers allow. It returns the object's state, and whether it is gone.
func (c *Cluster) Delete(r *Resource, key Key, d Deletion) (o Object, gone bool, err error) {
	s := c.shelves[r.GroupResource()]
	old := s.objects[key]
	if old == nil {
		return nil, false, apierrors.NewNotFound(r.GroupResource(), key.Name)
	}
	if err := d.expect(r, old); err != nil {
		return nil, false, err
	}
	grace := int64(0)
	if p, ok := old.(*corev1.Pod); ok {
		grace = podGrace(p, d.GraceSeconds)
	}
	if held := old.GetDeletionGracePeriodSeconds(); old.GetDeletionTimestamp() != nil {
		switch {
		case held == nil || *held == 0:
			if ended(old) && !d.Dry {
				return c.remove(s, old), true, nil
			}
			return old, false, nil
		case d.GraceSeconds == nil || grace >= *held:
			return old, false, nil // it is on its way already, and can only go sooner
		}
	}
	o = metaCopy(old)
	c.markDeleted(o, grace)
	if d.Dry {
		return o, ended(o), nil
	}
	if ended(o) && r != Pods {
		return c.remove(s, old), true, nil
	}
	o = c.commit(s, o)
	if ended(o) {
		if s.objects[key] != o {
			return o, true, nil // its kubelet was faster
		}
		return c.remove(s, o), true, nil
	}
	if r == Namespaces {
		c.emptyNamespace(o.GetName())
	}
	return o, false, nil
}

// expect checks the preconditions of a deletion.
func (d *Deletion) expect(r *Resource, o Object) error {
	kind := schema.GroupResource{Group: r.Group, Resource: r.Kind}
	switch {
	case d.UID != nil && *d.UID != o.GetUID():
		return apierrors.NewConflict(kind, o.GetName(),
			fmt.Errorf("the UID in the precondition (%s) does not match the UID in record (%s). The object might have been deleted and then recreated", *d.UID, o.GetUID()))
	case d.Version != nil && *d.Version != o.GetResourceVersion():
		return apierrors.NewConflict(kind, o.GetName(),
			fmt.Errorf("the ResourceVersion in the precondition (%s) does not match the ResourceVersion in record (%s). The object might have been modified", *d.Version, o.GetResourceVersion()))
	}
	return nil
}

func (c *Cluster) markDeleted(o Object, grace int64) {
	due := metav1.NewTime(c.now.Add(seconds(grace)).Truncate(seconds(1)))
	was := o.GetDeletionTimestamp()
	if was == nil || due.Before(was) {
		o.SetDeletionTimestamp(&due)
	}
	o.SetDeletionGracePeriodSeconds(&grace)
	if g := o.GetGeneration(); g > 0 && was == nil {
		o.SetGeneration(g + 1)
	}
	if ns, ok := o.(*corev1.Namespace); ok {
		o.SetDeletionGracePeriodSeconds(nil)
		ns.Status.Phase = corev1.NamespaceTerminating
	}
}

// emptyNamespace does what the controller of namespaces does: it deletes what is in one, and lets it go once it is empty.
func (c *Cluster) emptyNamespace(name string) {
	c.after(0, func() {
		left := 0
		for _, r := range Resources {
			if !r.Namespaced {
				continue
			}
			objects, _ := c.List(r, name, 0) // the present is always there
			for _, o := range objects {
				if _, gone, err := c.Delete(r, keyOf(o), Deletion{}); err == nil && !gone {
					left++
				}
			}
		}
		if left > 0 {
			c.after(seconds(1), func() { c.emptyNamespace(name) })
			return
		}
		_, _ = c.Update(Namespaces, Key{Name: name}, "finalize", func(o Object) (Object, error) { // it may be gone
			if ns, ok := o.(*corev1.Namespace); ok && ns.DeletionTimestamp != nil {
				ns.Spec.Finalizers = nil
			}
			return o, nil
		}, false)
	})
}
