package emulator

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/paceline-sched/paceline/hostmanagers/kubernetes/emulator/cluster"
	"github.com/paceline-sched/paceline/hostmanagers/kubernetes/emulator/wire"
)

// selection is what a list or a watch wants to see.
type selection struct {
	resource  *cluster.Resource
	namespace string
	labels    labels.Selector
	fields    fields.Selector
}

// selection reads a request's selectors.
func (r *request) selection() (*selection, error) {
	s := &selection{resource: r.resource, namespace: r.namespace}
	var err error
	if s.labels, err = labels.Parse(r.query.Get("labelSelector")); err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	if s.fields, err = fields.ParseSelector(r.query.Get("fieldSelector")); err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	for _, requirement := range s.fields.Requirements() {
		if _, ok := fieldsOf(r.resource.New())[requirement.Field]; !ok {
			return nil, apierrors.NewBadRequest(unknownField(r.resource, requirement.Field))
		}
	}
	return s, nil
}

// unknownField says that a field cannot be selected, as the resource's kind has it.
func unknownField(r *cluster.Resource, name string) string {
	if len(fieldsOf(r.New())) > len(fields.Set{"metadata.name": "", "metadata.namespace": ""}) {
		return "field label not supported: " + name
	}
	return fmt.Sprintf("%q is not a known field selector: only \"metadata.name\", \"metadata.namespace\"", name)
}

// checkList finds options of a list or a watch that do not go together.
func (r *request) checkList() error {
	check := r.checkMatch
	if r.watches() {
		check = r.checkStart
	}
	if errs := check(field.NewPath("resourceVersionMatch"), metav1.ResourceVersionMatch(r.query.Get("resourceVersionMatch"))); len(errs) > 0 {
		return apierrors.NewInvalid(schema.GroupKind{Group: metav1.GroupName, Kind: "ListOptions"}, "", errs)
	}
	return nil
}

const onePage = "resourceVersionMatch is forbidden when continue is provided"

// checkMatch is checkList for a list.
func (r *request) checkMatch(path *field.Path, match metav1.ResourceVersionMatch) (errs field.ErrorList) {
	version := r.query.Get("resourceVersion")
	if match != "" {
		if version == "" {
			errs = append(errs, field.Forbidden(path, "resourceVersionMatch is forbidden unless resourceVersion is provided"))
		}
		if r.query.Get("continue") != "" {
			errs = append(errs, field.Forbidden(path, onePage))
		}
		if match != metav1.ResourceVersionMatchExact && match != metav1.ResourceVersionMatchNotOlderThan {
			errs = append(errs, field.NotSupported(path, match, []metav1.ResourceVersionMatch{metav1.ResourceVersionMatchExact, metav1.ResourceVersionMatchNotOlderThan, ""}))
		}
		if match == metav1.ResourceVersionMatchExact && version == "0" {
			errs = append(errs, field.Forbidden(path, `resourceVersionMatch "exact" is forbidden for resourceVersion "0"`))
		}
	}
	if r.query.Has("sendInitialEvents") {
		errs = append(errs, field.Forbidden(field.NewPath("sendInitialEvents"), "sendInitialEvents is forbidden for list"))
	}
	return errs
}

// checkStart is checkList for a watch.
func (r *request) checkStart(path *field.Path, match metav1.ResourceVersionMatch) (errs field.ErrorList) {
	if r.query.Has("sendInitialEvents") {
		if match != metav1.ResourceVersionMatchNotOlderThan {
			errs = append(errs, field.Forbidden(path, "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"))
		}
	} else if match != "" {
		errs = append(errs, field.Forbidden(path, "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided"))
	}
	if match != "" {
		if match != metav1.ResourceVersionMatchNotOlderThan {
			errs = append(errs, field.NotSupported(path, match, []metav1.ResourceVersionMatch{metav1.ResourceVersionMatchNotOlderThan}))
		}
		if r.query.Get("continue") != "" {
			errs = append(errs, field.Forbidden(path, onePage))
		}
	}
	return errs
}

func (s *selection) everything() bool { return s.labels.Empty() && s.fields.Empty() }

func (s *selection) matches(o cluster.Object) bool {
	return o != nil && (s.namespace == "" || o.GetNamespace() == s.namespace) &&
		(s.labels.Empty() || s.labels.Matches(labels.Set(o.GetLabels()))) && (s.fields.Empty() || s.fields.Matches(fieldsOf(o)))
}

// fieldsOf are the fields that can be selected.
func fieldsOf(o cluster.Object) fields.Set {
	set := fields.Set{"metadata.name": o.GetName(), "metadata.namespace": o.GetNamespace()}
	switch o := o.(type) {
	case *corev1.Pod:
		set["spec.nodeName"] = o.Spec.NodeName
		set["spec.restartPolicy"] = string(o.Spec.RestartPolicy)
		set["spec.schedulerName"] = o.Spec.SchedulerName
		set["spec.serviceAccountName"] = o.Spec.ServiceAccountName
		set["spec.hostNetwork"] = strconv.FormatBool(o.Spec.HostNetwork)
		set["status.phase"] = string(o.Status.Phase)
		set["status.podIP"] = o.Status.PodIP
		set["status.nominatedNodeName"] = o.Status.NominatedNodeName
	case *corev1.Node:
		set["spec.unschedulable"] = strconv.FormatBool(o.Spec.Unschedulable)
	case *corev1.Namespace:
		set["status.phase"] = string(o.Status.Phase)
		set["name"] = o.Name
	case *corev1.Secret:
		set["type"] = string(o.Type)
	case *corev1.Event:
		set["involvedObject.kind"] = o.InvolvedObject.Kind
		set["involvedObject.namespace"] = o.InvolvedObject.Namespace
		set["involvedObject.name"] = o.InvolvedObject.Name
		set["involvedObject.uid"] = string(o.InvolvedObject.UID)
		set["involvedObject.apiVersion"] = o.InvolvedObject.APIVersion
		set["involvedObject.resourceVersion"] = o.InvolvedObject.ResourceVersion
		set["involvedObject.fieldPath"] = o.InvolvedObject.FieldPath
		set["reason"] = o.Reason
		set["reportingComponent"] = o.ReportingController
		set["source"] = o.Source.Component
		set["type"] = o.Type
	}
	return set
}

// get answers with one object.
func (e *Emulator) get(w http.ResponseWriter, r *request) error {
	var object cluster.Object
	var err error
	e.Do(func(c *cluster.Cluster) {
		if _, err = revisionOf(r, c.Revision()); err == nil {
			object, err = c.Get(r.resource, r.key())
		}
	})
	if err != nil {
		return err
	}
	e.sendObject(w, r, http.StatusOK, object)
	return nil
}

// revisionOf reads the resource version of a request; 0: any.
func revisionOf(r *request, newest int64) (int64, error) {
	text := r.query.Get("resourceVersion")
	if text == "" || text == "0" {
		return 0, nil
	}
	revision, err := strconv.ParseInt(text, 10, 64)
	if err != nil || revision < 0 {
		return 0, apierrors.NewBadRequest("invalid resource version: " + badVersion(text).Error())
	}
	if revision > newest {
		late := apierrors.NewTimeoutError(fmt.Sprintf("Too large resource version: %d, current: %d", revision, newest), 1)
		late.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: metav1.CauseTypeResourceVersionTooLarge, Message: "Too large resource version"}}
		return 0, late
	}
	return revision, nil
}

// page is where the next part of a list begins.
type page struct {
	Revision int64  `json:"rv"`
	After    string `json:"after"` // "namespace/name"
}

// list answers with objects, in pages if there is a limit.
func (e *Emulator) list(w http.ResponseWriter, r *request) error {
	if err := r.checkList(); err != nil {
		return err
	}
	s, err := r.selection()
	if err != nil {
		return err
	}
	limit, _ := strconv.Atoi(r.query.Get("limit")) // nonsense is no limit
	from, err := readPage(r.query.Get("continue"))
	if err != nil {
		return err
	}
	var objects []cluster.Object
	var revision int64
	e.Do(func(c *cluster.Cluster) {
		revision = c.Revision()
		var asked int64
		if asked, err = revisionOf(r, revision); err != nil {
			return
		}
		switch {
		case from != nil:
			revision = from.Revision
		case r.query.Get("resourceVersionMatch") == string(metav1.ResourceVersionMatchExact):
			revision = asked
		}
		if objects, err = c.List(r.resource, r.namespace, revision); err != nil {
			err = apierrors.NewResourceExpired("The resourceVersion for the provided list is too old.")
		}
	})
	if err != nil {
		return err
	}
	chosen, next, left := choose(objects, s, from, limit)
	list := metav1.ListMeta{ResourceVersion: strconv.FormatInt(revision, 10)}
	if next != "" {
		list.Continue = writePage(page{revision, next})
		if s.everything() {
			list.RemainingItemCount = &left
		}
	}
	return e.sendList(w, r, chosen, list)
}

// choose picks a page of objects, which are in order; next is the last one's key if there are more, left how many if everything is wanted.
func choose(objects []cluster.Object, s *selection, from *page, limit int) (chosen []cluster.Object, next string, left int64) {
	if from != nil {
		after, _ := slices.BinarySearchFunc(objects, from.After+"\x00", func(o cluster.Object, key string) int { return strings.Compare(pageKey(o), key) })
		objects = objects[after:]
	}
	if limit <= 0 {
		limit = len(objects)
	}
	for i, o := range objects {
		switch {
		case !s.matches(o):
		case len(chosen) == limit:
			return chosen, pageKey(chosen[limit-1]), int64(len(objects) - i)
		default:
			chosen = append(chosen, o)
		}
	}
	return chosen, "", 0
}

// pageKey is how the storage of an API server orders objects.
func pageKey(o cluster.Object) string { return o.GetNamespace() + "/" + o.GetName() }

func readPage(token string) (*page, error) {
	if token == "" {
		return nil, nil //nolint:nilnil // no page
	}
	raw, err := base64.RawURLEncoding.DecodeString(token)
	p := &page{}
	if err == nil {
		err = json.Unmarshal(raw, p)
	}
	if err == nil && p.Revision <= 0 {
		err = errors.New("it has no version")
	}
	if err != nil {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("invalid continue token: continue key is not valid: %v", err))
	}
	return p, nil
}

func writePage(p page) string {
	raw, _ := json.Marshal(p) //nolint:errchkjson // a number and a string
	return base64.RawURLEncoding.EncodeToString(raw)
}

// sendList writes a list in the form that was asked for.
func (e *Emulator) sendList(w http.ResponseWriter, r *request, objects []cluster.Object, list metav1.ListMeta) error {
	switch r.form.As {
	case wire.AsTable:
		table, err := e.table(r, objects, list.ResourceVersion, true)
		if err != nil {
			return err
		}
		table.ListMeta = list
		e.send(w, r.form, http.StatusOK, metav1.SchemeGroupVersion, table)
		return nil
	case wire.AsPartial, wire.AsPartials:
		partials := &metav1.PartialObjectMetadataList{ListMeta: list}
		for _, o := range objects {
			one := partial(r.resource, o)
			one.TypeMeta = metav1.TypeMeta{Kind: wire.AsPartial, APIVersion: metav1.SchemeGroupVersion.String()}
			partials.Items = append(partials.Items, *one)
		}
		e.send(w, r.form, http.StatusOK, metav1.SchemeGroupVersion, partials)
		return nil
	}
	gvk := r.resource.GroupVersionKind()
	gvk.Kind += "List"
	out, err := wire.Scheme.New(gvk)
	if err != nil {
		return fmt.Errorf("make a list of %s: %w", r.resource.Resource, err)
	}
	items := make([]runtime.Object, len(objects))
	for i, o := range objects {
		items[i] = o
	}
	if err := meta.SetList(out, items); err != nil {
		return fmt.Errorf("make a list of %s: %w", r.resource.Resource, err)
	}
	accessor, err := meta.ListAccessor(out)
	if err != nil {
		return fmt.Errorf("make a list of %s: %w", r.resource.Resource, err)
	}
	accessor.SetResourceVersion(list.ResourceVersion)
	accessor.SetContinue(list.Continue)
	accessor.SetRemainingItemCount(list.RemainingItemCount)
	e.send(w, r.form, http.StatusOK, r.resource.GroupVersion(), out)
	return nil
}

// badVersion says that a resource version is no number.
func badVersion(text string) error {
	_, err := strconv.ParseUint(text, 10, 64)
	if err == nil {
		err = errors.New("it is too large")
	}
	return field.Invalid(field.NewPath("resourceVersion"), text, err.Error())
}
