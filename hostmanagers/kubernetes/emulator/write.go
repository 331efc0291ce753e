package emulator

import (
	"encoding/json"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"

	"github.com/paceline-sched/paceline/hostmanagers/kubernetes/emulator/cluster"
	"github.com/paceline-sched/paceline/hostmanagers/kubernetes/emulator/wire"
)

// bodyObject reads an object of the request's kind.
func (e *Emulator) bodyObject(w http.ResponseWriter, r *request) (cluster.Object, error) {
	into := r.resource.New()
	object, err := e.body(w, r, into, r.resource.GroupVersionKind())
	if err != nil {
		return nil, err
	}
	o, ok := object.(cluster.Object)
	if !ok {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("a %s was expected", r.resource.Kind))
	}
	return o, nil
}

func (e *Emulator) create(w http.ResponseWriter, r *request) error {
	o, err := e.bodyObject(w, r)
	if err != nil {
		return err
	}
	dry, err := r.dry()
	if err != nil {
		return err
	}
	var made cluster.Object
	e.Do(func(c *cluster.Cluster) { made, err = c.Create(r.resource, r.namespace, o, dry) })
	if err != nil {
		return err
	}
	e.sendObject(w, r, http.StatusCreated, made)
	return nil
}

func (e *Emulator) replace(w http.ResponseWriter, r *request) error {
	o, err := e.bodyObject(w, r)
	if err != nil {
		return err
	}
	return e.update(w, r, func(old cluster.Object) (cluster.Object, error) {
		return o, cluster.Expect(r.resource, old, o.GetUID(), "")
	})
}

// update changes an object and answers with it.
func (e *Emulator) update(w http.ResponseWriter, r *request, change func(cluster.Object) (cluster.Object, error)) error {
	dry, err := r.dry()
	if err != nil {
		return err
	}
	var made cluster.Object
	e.Do(func(c *cluster.Cluster) { made, err = c.Update(r.resource, r.key(), r.part, change, dry) })
	if err != nil {
		return err
	}
	e.sendObject(w, r, http.StatusOK, made)
	return nil
}

// patch changes an object by a patch of one of three kinds.
func (e *Emulator) patch(w http.ResponseWriter, r *request) error {
	media, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil {
		return unsupported()
	}
	kind := types.PatchType(media)
	switch kind {
	case types.JSONPatchType, types.MergePatchType, types.StrategicMergePatchType:
	default:
		return plainStatus(http.StatusUnsupportedMediaType, metav1.StatusReasonUnsupportedMediaType, "415: Unsupported Media Type")
	}
	raw, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		return apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("limit is %d", maxBody))
	}
	return e.update(w, r, func(old cluster.Object) (cluster.Object, error) { return applyPatch(w, r, old, kind, raw) })
}

// applyPatch makes of an object what a patch says.
func applyPatch(w http.ResponseWriter, r *request, old cluster.Object, kind types.PatchType, patch []byte) (cluster.Object, error) {
	gvk := r.resource.GroupVersionKind()
	before, err := wire.Encode(wire.JSON, gvk.GroupVersion(), old)
	if err != nil {
		return nil, err
	}
	var after []byte
	switch kind {
	case types.JSONPatchType:
		operations, broken := jsonpatch.DecodePatch(patch)
		if broken != nil {
			return nil, apierrors.NewBadRequest(broken.Error())
		}
		if after, err = operations.Apply(before); err != nil {
			return nil, apierrors.NewGenericServerResponse(http.StatusUnprocessableEntity, "", schema.GroupResource{}, "", err.Error(), 0, false)
		}
	case types.MergePatchType:
		if after, err = jsonpatch.MergePatch(before, patch); err != nil {
			return nil, apierrors.NewBadRequest(err.Error())
		}
	default:
		if !json.Valid(patch) {
			return nil, apierrors.NewBadRequest("error decoding patch: invalid JSON")
		}
		if after, err = strategicpatch.StrategicMergePatch(before, patch, r.resource.New()); err != nil {
			return nil, apierrors.NewBadRequest(err.Error())
		}
	}
	object, err := read(w, r, wire.JSON, after, r.resource.New(), gvk)
	if err != nil {
		return nil, err
	}
	o, ok := object.(cluster.Object)
	if !ok {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("the patch makes no %s", r.resource.Kind))
	}
	return o, nil
}

// deletion reads the options of a request to delete, from its body and its query.
func (e *Emulator) deletion(w http.ResponseWriter, r *request) (cluster.Deletion, error) {
	options := &metav1.DeleteOptions{}
	if r.ContentLength != 0 {
		raw, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
		if err != nil {
			return cluster.Deletion{}, apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("limit is %d", maxBody))
		}
		if len(raw) > 0 {
			media := wire.Media(r.Header.Get("Content-Type"))
			if media == "" {
				return cluster.Deletion{}, unsupported()
			}
			object, err := read(w, r, media, raw, options, schema.GroupVersionKind{Version: "v1", Kind: "DeleteOptions"})
			if err != nil {
				return cluster.Deletion{}, err
			}
			if read, ok := object.(*metav1.DeleteOptions); ok {
				options = read
			}
		}
	}
	return r.deletionOf(options)
}

func (r *request) deletionOf(options *metav1.DeleteOptions) (cluster.Deletion, error) {
	dry, err := r.dry()
	if err != nil {
		return cluster.Deletion{}, err
	}
	d := cluster.Deletion{GraceSeconds: options.GracePeriodSeconds, Dry: dry || len(options.DryRun) > 0}
	if text := r.query.Get("gracePeriodSeconds"); text != "" && d.GraceSeconds == nil {
		seconds, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return cluster.Deletion{}, apierrors.NewBadRequest(fmt.Sprintf("gracePeriodSeconds is %q, which is no number", text))
		}
		d.GraceSeconds = &seconds
	}
	if p := options.Preconditions; p != nil {
		d.UID, d.Version = p.UID, p.ResourceVersion
	}
	return d, nil
}

func (e *Emulator) delete(w http.ResponseWriter, r *request) error {
	d, err := e.deletion(w, r)
	if err != nil {
		return err
	}
	var object cluster.Object
	var gone bool
	e.Do(func(c *cluster.Cluster) { object, gone, err = c.Delete(r.resource, r.key(), d) })
	if err != nil {
		return err
	}
	if gone && !r.resource.Returned {
		e.send(w, r.plain(), http.StatusOK, metav1.SchemeGroupVersion, deleted(r, object))
		return nil
	}
	e.sendObject(w, r, http.StatusOK, object)
	return nil
}

// plain is the form of an answer that is no object of the resource.
func (r *request) plain() wire.Form { return wire.Form{Media: r.form.Media} }

func deleted(r *request, o cluster.Object) runtime.Object {
	return &metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusSuccess,
		Details: &metav1.StatusDetails{Name: o.GetName(), Group: r.resource.Group, Kind: r.resource.Resource, UID: o.GetUID()},
	}
}

// deleteAll deletes what a selection finds.
func (e *Emulator) deleteAll(w http.ResponseWriter, r *request) error {
	s, err := r.selection()
	if err != nil {
		return err
	}
	d, err := e.deletion(w, r)
	if err != nil {
		return err
	}
	var found []cluster.Object
	var revision int64
	e.Do(func(c *cluster.Cluster) {
		objects, broken := c.List(r.resource, r.namespace, 0)
		if err = broken; err != nil {
			return
		}
		for _, o := range objects {
			if !s.matches(o) {
				continue
			}
			if _, _, err = c.Delete(r.resource, cluster.Key{Namespace: o.GetNamespace(), Name: o.GetName()}, d); err != nil && !apierrors.IsNotFound(err) {
				return
			}
			err = nil
			found = append(found, o)
		}
		revision = c.Revision()
	})
	if err != nil {
		return err
	}
	return e.sendList(w, r, found, metav1.ListMeta{ResourceVersion: strconv.FormatInt(revision, 10)})
}

// success is the answer to what makes no object of its own.
func success() *metav1.Status {
	return &metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusSuccess, Code: http.StatusCreated}
}

func (e *Emulator) bind(w http.ResponseWriter, r *request) error {
	object, err := e.body(w, r, &corev1.Binding{}, corev1.SchemeGroupVersion.WithKind("Binding"))
	if err != nil {
		return err
	}
	dry, err := r.dry()
	if err != nil {
		return err
	}
	b, ok := object.(*corev1.Binding)
	if !ok {
		return apierrors.NewBadRequest("a Binding was expected")
	}
	if r.name != "" && b.Name != r.name {
		return apierrors.NewBadRequest("name in URL does not match name in Binding object")
	}
	e.Do(func(c *cluster.Cluster) { err = c.Bind(r.namespace, b, dry) })
	if err != nil {
		return err
	}
	e.send(w, r.plain(), http.StatusCreated, metav1.SchemeGroupVersion, success())
	return nil
}

func (e *Emulator) evict(w http.ResponseWriter, r *request) error {
	object, err := e.body(w, r, &policyv1.Eviction{}, policyv1.SchemeGroupVersion.WithKind("Eviction"))
	if err != nil {
		return err
	}
	v, ok := object.(*policyv1.Eviction)
	if !ok {
		return apierrors.NewBadRequest("an Eviction was expected")
	}
	if v.Name != r.name {
		return apierrors.NewBadRequest("name in URL does not match name in Eviction object")
	}
	options := v.DeleteOptions
	if options == nil {
		options = &metav1.DeleteOptions{}
	}
	d, err := r.deletionOf(options)
	if err != nil {
		return err
	}
	e.Do(func(c *cluster.Cluster) { err = c.Evict(r.namespace, v, d) })
	if err != nil {
		return err
	}
	e.send(w, r.plain(), http.StatusCreated, metav1.SchemeGroupVersion, success())
	return nil
}
