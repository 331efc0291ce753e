package emulator

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/paceline-sched/paceline/hostmanagers/kubernetes/emulator/cluster"
	"github.com/paceline-sched/paceline/hostmanagers/kubernetes/emulator/wire"
)

// maxBody bounds a request.
const maxBody = 3 << 20

// request is one request for a resource.
type request struct {
	*http.Request
	resource  *cluster.Resource
	namespace string
	name      string
	part      string // the subresource
	query     url.Values
	form      wire.Form
}

func (r *request) key() cluster.Key { return cluster.Key{Namespace: r.namespace, Name: r.name} }

// dry says whether a request only asks what would be.
func (r *request) dry() (bool, error) {
	values := r.query["dryRun"]
	for _, v := range values {
		if v != metav1.DryRunAll {
			return false, apierrors.NewBadRequest(fmt.Sprintf("invalid dryRun value %q: only All is known", v))
		}
	}
	return len(values) > 0, nil
}

// route finds who answers a request.
func (e *Emulator) route(w http.ResponseWriter, hr *http.Request) {
	w.Header().Set("Cache-Control", "no-cache, private")
	words := strings.Split(strings.Trim(hr.URL.Path, "/"), "/")
	var gv schema.GroupVersion
	switch {
	case words[0] == "api" && len(words) > 2:
		gv, words = schema.GroupVersion{Version: words[1]}, words[2:]
	case words[0] == "apis" && len(words) > 3:
		gv, words = schema.GroupVersion{Group: words[1], Version: words[2]}, words[3:]
	default:
		e.discover(w, hr, words)
		return
	}
	if gv == reviews && words[0] == "selfsubjectaccessreviews" && len(words) == 1 && hr.Method == http.MethodPost {
		e.review(w, hr)
		return
	}
	r := &request{Request: hr, query: hr.URL.Query()}
	if !r.parse(gv, words) {
		e.refuse(w, hr, plainStatus(http.StatusNotFound, metav1.StatusReasonNotFound, "the server could not find the requested resource"))
		return
	}
	form, ok := wire.Choose(hr.Header.Get("Accept"), r.writes)
	if !ok {
		e.refuse(w, hr, notAcceptable())
		return
	}
	r.form = form
	if err := e.answer(w, r); err != nil {
		e.refuse(w, hr, err)
	}
}

// plainStatus is an error that concerns no object.
func plainStatus(code int32, reason metav1.StatusReason, message string) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: code, Reason: reason, Message: message, Details: &metav1.StatusDetails{},
	}}
}

func notAcceptable() error {
	return plainStatus(http.StatusNotAcceptable, metav1.StatusReasonNotAcceptable, "406: Not Acceptable")
}

// writes says whether an answer can have a form.
func (r *request) writes(f wire.Form) bool {
	if r.watches() && !f.Streams() {
		return false
	}
	switch f.As {
	case "":
		return true
	case wire.AsTable:
		return f.Media != wire.Protobuf && f.Group == metav1.GroupName && r.Method == http.MethodGet
	case wire.AsPartial, wire.AsPartials:
		return f.Group == metav1.GroupName
	}
	return false
}

func (r *request) watches() bool {
	return r.flag("watch") && r.Method == http.MethodGet && r.name == ""
}

// flag reads an option that is given or not: anything but "false" and "0" is yes.
func (r *request) flag(name string) bool {
	value := r.query.Get(name)
	return r.query.Has(name) && value != "0" && !strings.EqualFold(value, "false")
}

// parse takes a path apart. False: there is no such thing.
func (r *request) parse(gv schema.GroupVersion, words []string) bool {
	itself := len(words) == 3 && (words[2] == "status" || words[2] == "finalize") // of the namespace
	if words[0] == "namespaces" && len(words) > 2 && !itself {
		r.namespace, words = words[1], words[2:]
	}
	name := words[0]
	if name == "bindings" && gv.Group == "" && len(words) == 1 {
		r.resource, r.part = cluster.Pods, "binding"
		return r.namespace != "" && r.Method == http.MethodPost
	}
	at := slices.IndexFunc(cluster.Resources, func(c *cluster.Resource) bool { return c.GroupVersion() == gv && c.Resource == name })
	if at < 0 || len(words) > 3 {
		return false
	}
	r.resource = cluster.Resources[at]
	if len(words) > 1 {
		r.name = words[1]
	}
	if len(words) > 2 {
		r.part = words[2]
	}
	if r.resource.Namespaced != (r.namespace != "") && (r.name != "" || !r.resource.Namespaced) {
		return false
	}
	return r.part == "" || slices.Contains(parts(r.resource), r.part)
}

// parts are the subresources of a resource.
func parts(r *cluster.Resource) []string {
	switch {
	case r == cluster.Pods:
		return []string{"binding", "eviction", "log", "status"}
	case r == cluster.Namespaces:
		return []string{"finalize", "status"}
	case r.Status:
		return []string{"status"}
	}
	return nil
}

// answer does what a request asks.
func (e *Emulator) answer(w http.ResponseWriter, r *request) error {
	switch {
	case r.part == "log" && r.Method == http.MethodGet:
		return e.log(w, r)
	case r.Method == http.MethodGet && r.watches():
		return e.watch(w, r)
	case r.Method == http.MethodGet && r.name == "":
		return e.list(w, r)
	case r.Method == http.MethodGet && (r.part == "" || r.part == "status"):
		return e.get(w, r)
	case r.Method == http.MethodPost && r.part == "binding":
		return e.bind(w, r)
	case r.Method == http.MethodPost && r.part == "eviction":
		return e.evict(w, r)
	case r.Method == http.MethodPost && r.name == "":
		return e.create(w, r)
	case r.Method == http.MethodPut && r.name != "" && (r.part == "" || r.part == "status" || r.part == "finalize"):
		return e.replace(w, r)
	case r.Method == http.MethodPatch && r.name != "" && (r.part == "" || r.part == "status"):
		return e.patch(w, r)
	case r.Method == http.MethodDelete && r.name != "" && r.part == "":
		return e.delete(w, r)
	case r.Method == http.MethodDelete && r.part == "":
		return e.deleteAll(w, r)
	}
	return plainStatus(http.StatusMethodNotAllowed, metav1.StatusReasonMethodNotAllowed, "the server does not allow this method on the requested resource")
}

// refuse answers with an error of the API.
func (e *Emulator) refuse(w http.ResponseWriter, r *http.Request, err error) {
	status := statusOf(err)
	if d := status.Details; d != nil && d.RetryAfterSeconds > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(int(d.RetryAfterSeconds)))
	}
	form, ok := wire.Choose(r.Header.Get("Accept"), func(f wire.Form) bool { return f.As == "" })
	if !ok {
		form = wire.Form{Media: wire.JSON}
	}
	e.send(w, form, int(status.Code), schema.GroupVersion{Version: "v1"}, status)
}

// statusOf is an error as the API tells it.
func statusOf(err error) *metav1.Status {
	var known apierrors.APIStatus
	if !errors.As(err, &known) {
		return &metav1.Status{Status: metav1.StatusFailure, Code: http.StatusInternalServerError, Message: err.Error()}
	}
	status := known.Status()
	return &status
}

// send writes an answer.
func (e *Emulator) send(w http.ResponseWriter, form wire.Form, code int, gv schema.GroupVersion, object runtime.Object) {
	raw, err := wire.Encode(form.Media, gv, object)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", form.ContentType())
	w.WriteHeader(code)
	_, _ = w.Write(raw) // whoever asked may be gone
}

// sendJSON writes an answer that has one form only.
func sendJSON(w http.ResponseWriter, value any) {
	raw, err := json.Marshal(value)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", wire.JSON)
	_, _ = w.Write(raw) // whoever asked may be gone
}

// sendObject writes an object in the form that was asked for.
func (e *Emulator) sendObject(w http.ResponseWriter, r *request, code int, o cluster.Object) {
	object, gv, err := e.convert(r, o)
	if err != nil {
		e.refuse(w, r.Request, err)
		return
	}
	e.send(w, r.form, code, gv, object)
}

// convert gives one object the form that was asked for. What it returns is nobody else's to read while it is written.
func (e *Emulator) convert(r *request, o cluster.Object) (runtime.Object, schema.GroupVersion, error) {
	switch r.form.As {
	case wire.AsTable:
		table, err := e.table(r, []cluster.Object{o}, "", true)
		return table, metav1.SchemeGroupVersion, err
	case wire.AsPartial, wire.AsPartials:
		return partial(r.resource, o), metav1.SchemeGroupVersion, nil
	}
	return shallow(o), r.resource.GroupVersion(), nil
}

// shallow is an object whose kind can be written while others read the object.
func shallow(o cluster.Object) runtime.Object {
	v := reflect.ValueOf(o).Elem()
	fresh := reflect.New(v.Type())
	fresh.Elem().Set(v)
	object, ok := fresh.Interface().(runtime.Object)
	if !ok {
		return o.DeepCopyObject()
	}
	return object
}

// partial is an object's metadata alone.
func partial(_ *cluster.Resource, o cluster.Object) *metav1.PartialObjectMetadata {
	v := reflect.ValueOf(o).Elem().FieldByName("ObjectMeta")
	meta, ok := v.Interface().(metav1.ObjectMeta)
	if !ok {
		return &metav1.PartialObjectMetadata{}
	}
	return &metav1.PartialObjectMetadata{ObjectMeta: meta}
}

// body reads an object from a request.
func (e *Emulator) body(w http.ResponseWriter, r *request, into runtime.Object, kind schema.GroupVersionKind) (runtime.Object, error) {
	media := wire.Media(r.Header.Get("Content-Type"))
	if media == "" {
		return nil, unsupported()
	}
	raw, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		return nil, apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("limit is %d", maxBody))
	}
	return read(w, r, media, raw, into, kind)
}

// read decodes an object as strictly as the request asks.
func read(w http.ResponseWriter, r *request, media string, raw []byte, into runtime.Object, kind schema.GroupVersionKind) (runtime.Object, error) {
	object, complaints, err := wire.Decode(media, raw, kind, into)
	if err != nil {
		return nil, unreadable(raw, kind, err)
	}
	if got := object.GetObjectKind().GroupVersionKind(); reflect.TypeOf(object) != reflect.TypeOf(into) {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("%s in version %q cannot be handled as a %s: converting (%s.%s) to (%s.%s): unknown conversion",
			got.Kind, got.Version, kind.Kind, got.Version, got.Kind, internal(kind.Group), kind.Kind))
	}
	object.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{})
	if complaints != nil {
		switch r.query.Get("fieldValidation") {
		case metav1.FieldValidationStrict:
			return nil, apierrors.NewBadRequest(fmt.Sprintf("%s in version %q cannot be handled as a %s: %v", kind.Kind, kind.Version, kind.Kind, complaints))
		case metav1.FieldValidationIgnore:
		default:
			warn(w, complaints)
		}
	}
	return object, nil
}

// internal is the name of the package that an API server keeps a group's types in.
func internal(group string) string {
	name, _, _ := strings.Cut(group, ".")
	if name == "" {
		return "core"
	}
	return name
}

// unreadable says why a body cannot be read.
func unreadable(raw []byte, kind schema.GroupVersionKind, err error) error {
	const most = 30 // of the body that is quoted
	var own metav1.TypeMeta
	if json.Unmarshal(raw, &own) == nil && own.Kind != "" {
		return apierrors.NewBadRequest(fmt.Sprintf("%s in version %q cannot be handled as a %s: %v", own.Kind, own.GroupVersionKind().Version, kind.Kind, err))
	}
	quoted := string(raw)
	if len(quoted) > most {
		quoted = quoted[:most] + " ..."
	}
	return apierrors.NewBadRequest(fmt.Sprintf("the object provided is unrecognized (must be of type %s): %v (%s)", kind.Kind, err, quoted))
}

// warn tells a client what is odd about its request.
func warn(w http.ResponseWriter, complaints error) {
	strict, ok := runtime.AsStrictDecodingError(complaints)
	if !ok {
		return
	}
	for _, c := range strict.Errors() {
		w.Header().Add("Warning", fmt.Sprintf(`299 - %q`, c.Error()))
	}
}

func unsupported() error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusUnsupportedMediaType, Reason: metav1.StatusReasonUnsupportedMediaType,
		Message: "the body of the request was in an unknown format - accepted media types include: application/json, application/yaml, application/vnd.kubernetes.protobuf",
	}}
}

// faultStatus is the error of an injected fault.
func faultStatus(f Fault) error {
	nothing := schema.GroupResource{}
	switch f.Code {
	case http.StatusConflict:
		return apierrors.NewConflict(nothing, "", errors.New("an emulated conflict; please apply your changes to the latest version and try again"))
	case http.StatusGone:
		return apierrors.NewResourceExpired("an emulated loss of history")
	case http.StatusTooManyRequests:
		return apierrors.NewTooManyRequests("an emulated storm, please try again later", f.RetryAfter)
	case http.StatusServiceUnavailable:
		return apierrors.NewServiceUnavailable("an emulated outage")
	case http.StatusGatewayTimeout:
		return apierrors.NewTimeoutError("an emulated time-out", f.RetryAfter)
	case http.StatusForbidden:
		return apierrors.NewForbidden(nothing, "", errors.New("an emulated refusal"))
	}
	return apierrors.NewInternalError(errors.New("an emulated failure"))
}
