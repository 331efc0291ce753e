package emulator

import (
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"

	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/version"

	"github.com/paceline-sched/paceline/hostmanagers/kubernetes/emulator/cluster"
	"github.com/paceline-sched/paceline/hostmanagers/kubernetes/emulator/wire"
)

var reviews = authorizationv1.SchemeGroupVersion

// groupVersions lists what is served, in order.
func groupVersions() []schema.GroupVersion {
	var out []schema.GroupVersion
	for _, r := range cluster.Resources {
		if !slices.Contains(out, r.GroupVersion()) {
			out = append(out, r.GroupVersion())
		}
	}
	return append(out, reviews)
}

// discover answers what asks for no resource.
func (e *Emulator) discover(w http.ResponseWriter, r *http.Request, words []string) {
	path := strings.Join(words, "/")
	switch {
	case path == "version":
		sendJSON(w, version.Info{Major: "1", Minor: "36", GitVersion: cluster.Version, GitTreeState: "clean", Platform: "linux/amd64", GoVersion: "emulated", Compiler: "gc"})
	case path == "healthz" || path == "readyz" || path == "livez":
		_, _ = io.WriteString(w, "ok") // whoever asked may be gone
	case path == "api":
		sendJSON(w, metav1.APIVersions{
			TypeMeta: metav1.TypeMeta{Kind: "APIVersions"}, Versions: []string{"v1"},
			ServerAddressByClientCIDRs: []metav1.ServerAddressByClientCIDR{{ClientCIDR: "0.0.0.0/0", ServerAddress: r.Host}},
		})
	case path == "apis":
		list := metav1.APIGroupList{TypeMeta: metav1.TypeMeta{Kind: "APIGroupList", APIVersion: "v1"}}
		for _, gv := range groupVersions() {
			if gv.Group != "" {
				list.Groups = append(list.Groups, group(gv))
			}
		}
		sendJSON(w, list)
	case path == "openapi/v3" || strings.HasPrefix(path, "openapi/v3/"):
		openapi(w, r, strings.TrimPrefix(strings.TrimPrefix(path, "openapi/v3"), "/"))
	case len(words) == 2 && words[0] == "apis":
		at := slices.IndexFunc(groupVersions(), func(gv schema.GroupVersion) bool { return gv.Group == words[1] })
		if at < 0 {
			http.NotFound(w, r)
			return
		}
		one := group(groupVersions()[at])
		one.TypeMeta = metav1.TypeMeta{Kind: "APIGroup", APIVersion: "v1"}
		sendJSON(w, one)
	default:
		for _, gv := range groupVersions() {
			if path == prefix(gv) {
				sendJSON(w, resources(gv))
				return
			}
		}
		http.NotFound(w, r)
	}
}

func prefix(gv schema.GroupVersion) string {
	if gv.Group == "" {
		return "api/" + gv.Version
	}
	return "apis/" + gv.Group + "/" + gv.Version
}

func group(gv schema.GroupVersion) metav1.APIGroup {
	one := metav1.GroupVersionForDiscovery{GroupVersion: gv.String(), Version: gv.Version}
	return metav1.APIGroup{Name: gv.Group, Versions: []metav1.GroupVersionForDiscovery{one}, PreferredVersion: one}
}

// resources lists what a group and version has.
func resources(gv schema.GroupVersion) metav1.APIResourceList {
	list := metav1.APIResourceList{TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: gv.String(), APIResources: []metav1.APIResource{}}
	if gv == reviews {
		list.APIResources = append(list.APIResources, metav1.APIResource{
			Name: "selfsubjectaccessreviews", SingularName: "selfsubjectaccessreview", Kind: "SelfSubjectAccessReview", Verbs: metav1.Verbs{"create"},
		})
		return list
	}
	for _, r := range cluster.Resources {
		if r.GroupVersion() != gv {
			continue
		}
		verbs := metav1.Verbs{"create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"}
		list.APIResources = append(list.APIResources, metav1.APIResource{
			Name: r.Resource, SingularName: r.Singular, Namespaced: r.Namespaced, Kind: r.Kind, Verbs: verbs, ShortNames: r.Short, Categories: r.Categories,
		})
		for _, part := range parts(r) {
			one := metav1.APIResource{Name: r.Resource + "/" + part, SingularName: r.Singular, Namespaced: r.Namespaced, Kind: r.Kind, Verbs: metav1.Verbs{"get", "patch", "update"}}
			switch part {
			case "binding":
				one.Kind, one.Verbs = "Binding", metav1.Verbs{"create"}
			case "eviction":
				one.Kind, one.Group, one.Version, one.Verbs = "Eviction", "policy", "v1", metav1.Verbs{"create"}
			case "log":
				one.Verbs = metav1.Verbs{"get"}
			case "finalize":
				one.Verbs = metav1.Verbs{"update"}
			}
			list.APIResources = append(list.APIResources, one)
		}
	}
	return list
}

// openapi says just enough for kubectl to leave the validation of fields to the server.
func openapi(w http.ResponseWriter, r *http.Request, path string) {
	if path == "" {
		paths := map[string]any{}
		for _, gv := range groupVersions() {
			paths[prefix(gv)] = map[string]string{"serverRelativeURL": "/openapi/v3/" + prefix(gv)}
		}
		sendJSON(w, map[string]any{"paths": paths})
		return
	}
	for _, gv := range groupVersions() {
		if prefix(gv) != path {
			continue
		}
		paths := map[string]any{}
		for _, res := range cluster.Resources {
			if res.GroupVersion() == gv {
				paths[pathOf(res)] = operations(res)
			}
		}
		sendJSON(w, map[string]any{"openapi": "3.0.0", "info": map[string]string{"title": "Kubernetes", "version": cluster.Version}, "paths": paths})
		return
	}
	http.NotFound(w, r)
}

func pathOf(r *cluster.Resource) string {
	at := "/" + prefix(r.GroupVersion())
	if r.Namespaced {
		at += "/namespaces/{namespace}"
	}
	return fmt.Sprintf("%s/%s/{name}", at, r.Resource)
}

// operations describes what can be done with one object of a resource.
func operations(r *cluster.Resource) map[string]any {
	gvk := map[string]string{"group": r.Group, "version": r.Version, "kind": r.Kind}
	query := func(name string) map[string]any {
		return map[string]any{"name": name, "in": "query", "schema": map[string]any{"type": "string", "uniqueItems": true}}
	}
	operation := func(verb string) map[string]any {
		return map[string]any{
			"parameters":                      []any{query("dryRun"), query("fieldManager"), query("fieldValidation")},
			"responses":                       map[string]any{"200": map[string]string{"description": "OK"}},
			"x-kubernetes-action":             verb,
			"x-kubernetes-group-version-kind": gvk,
		}
	}
	return map[string]any{"get": operation("get"), "put": operation("put"), "patch": operation("patch"), "delete": operation("delete")}
}

// review says that everybody may do everything.
func (e *Emulator) review(w http.ResponseWriter, hr *http.Request) {
	r := &request{Request: hr, query: hr.URL.Query()}
	form, ok := wire.Choose(hr.Header.Get("Accept"), func(f wire.Form) bool { return f.As == "" })
	if !ok {
		e.refuse(w, hr, notAcceptable())
		return
	}
	object, err := e.body(w, r, &authorizationv1.SelfSubjectAccessReview{}, reviews.WithKind("SelfSubjectAccessReview"))
	if err != nil {
		e.refuse(w, hr, err)
		return
	}
	if review, ok := object.(*authorizationv1.SelfSubjectAccessReview); ok {
		review.Status = authorizationv1.SubjectAccessReviewStatus{Allowed: true}
	}
	e.send(w, form, http.StatusCreated, reviews, object)
}
