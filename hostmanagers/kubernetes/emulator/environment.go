package emulator

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/paceline-sched/paceline/hostmanagers/kubernetes/emulator/cluster"
)

// basePath is where a container finds its programs, unless it brings a PATH.
const basePath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// environment is what a container's process finds.
type environment struct{ values map[string]string }

// newEnvironment collects a container's variables. Later ones win, and may name earlier ones.
func newEnvironment(s cluster.Start) (*environment, error) {
	e := &environment{values: map[string]string{"PATH": basePath, "HOSTNAME": s.Pod.Name}}
	for _, from := range s.Container.EnvFrom {
		var data map[string]string
		var optional *bool
		var name string
		switch {
		case from.ConfigMapRef != nil:
			name, optional = "config map "+from.ConfigMapRef.Name, from.ConfigMapRef.Optional
			data = dataOf(s, "configmaps", from.ConfigMapRef.Name)
		case from.SecretRef != nil:
			name, optional = "secret "+from.SecretRef.Name, from.SecretRef.Optional
			data = dataOf(s, "secrets", from.SecretRef.Name)
		}
		if data == nil && (optional == nil || !*optional) {
			return nil, fmt.Errorf("%s is not there", name)
		}
		for key, value := range data {
			e.values[from.Prefix+key] = value
		}
	}
	for _, v := range s.Container.Env {
		if v.ValueFrom == nil {
			e.values[v.Name] = e.expand(v.Value)
			continue
		}
		value, found, err := valueFrom(s, v.ValueFrom)
		if err != nil {
			return nil, fmt.Errorf("variable %s: %w", v.Name, err)
		}
		if found {
			e.values[v.Name] = value
		}
	}
	return e, nil
}

// dataOf is what a config map or a secret holds. nil: it is not there.
func dataOf(s cluster.Start, resource, name string) map[string]string {
	switch o := s.Refs[cluster.Ref{Resource: resource, Name: name}].(type) {
	case *corev1.ConfigMap:
		data := map[string]string{}
		maps.Copy(data, o.Data)
		return data
	case *corev1.Secret:
		data := map[string]string{}
		for key, value := range o.Data {
			data[key] = string(value)
		}
		return data
	}
	return nil
}

func valueFrom(s cluster.Start, from *corev1.EnvVarSource) (value string, found bool, err error) {
	var optional *bool
	var where string
	switch {
	case from.FieldRef != nil:
		return fieldOf(s, from.FieldRef.FieldPath)
	case from.ResourceFieldRef != nil:
		return resourceOf(s, from.ResourceFieldRef)
	case from.ConfigMapKeyRef != nil:
		ref := from.ConfigMapKeyRef
		value, found = dataOf(s, "configmaps", ref.Name)[ref.Key]
		optional, where = ref.Optional, fmt.Sprintf("config map %s has no key %s", ref.Name, ref.Key)
	case from.SecretKeyRef != nil:
		ref := from.SecretKeyRef
		value, found = dataOf(s, "secrets", ref.Name)[ref.Key]
		optional, where = ref.Optional, fmt.Sprintf("secret %s has no key %s", ref.Name, ref.Key)
	}
	if !found && (optional == nil || !*optional) {
		return "", false, errors.New(where)
	}
	return value, found, nil
}

func fieldOf(s cluster.Start, path string) (string, bool, error) {
	p := s.Pod
	switch path {
	case "metadata.name":
		return p.Name, true, nil
	case "metadata.namespace":
		return p.Namespace, true, nil
	case "metadata.uid":
		return string(p.UID), true, nil
	case "spec.nodeName":
		return p.Spec.NodeName, true, nil
	case "spec.serviceAccountName":
		return p.Spec.ServiceAccountName, true, nil
	case "status.hostIP", "status.podIP":
		return "127.0.0.1", true, nil // processes share the machine's network
	}
	for prefix, of := range map[string]map[string]string{"metadata.labels['": p.Labels, "metadata.annotations['": p.Annotations} {
		if key, is := strings.CutPrefix(path, prefix); is {
			return of[strings.TrimSuffix(key, "']")], true, nil
		}
	}
	return "", false, fmt.Errorf("the emulator knows no field %s", path)
}

func resourceOf(s cluster.Start, ref *corev1.ResourceFieldSelector) (string, bool, error) {
	kind, name, _ := strings.Cut(ref.Resource, ".")
	list := s.Container.Resources.Limits
	if kind == "requests" {
		list = s.Container.Resources.Requests
	}
	q := list[corev1.ResourceName(name)]
	value := q.Value()
	if d := ref.Divisor.MilliValue(); d > 0 {
		value = (q.MilliValue() + d - 1) / d
	}
	return strconv.FormatInt(value, 10), true, nil
}

// expand replaces $(NAME) by a variable's value; $$ is a dollar; what is unknown stays.
func (e *environment) expand(s string) string {
	var out strings.Builder
	for {
		at := strings.IndexByte(s, '$')
		if at < 0 || at+1 == len(s) {
			out.WriteString(s)
			return out.String()
		}
		out.WriteString(s[:at])
		rest := s[at+1:]
		switch end := strings.IndexByte(rest, ')'); {
		case rest[0] == '$':
			out.WriteByte('$')
			s = rest[1:]
		case rest[0] == '(' && end > 0:
			if value, known := e.values[rest[1:end]]; known {
				out.WriteString(value)
			} else {
				out.WriteString("$" + rest[:end+1])
			}
			s = rest[end+1:]
		default:
			out.WriteByte('$')
			s = rest
		}
	}
}

func (e *environment) expandAll(words []string) []string {
	out := make([]string, len(words))
	for i, w := range words {
		out[i] = e.expand(w)
	}
	return out
}

func (e *environment) list() []string {
	out := make([]string, 0, len(e.values))
	for _, name := range slices.Sorted(maps.Keys(e.values)) {
		out = append(out, name+"="+e.values[name])
	}
	return out
}
