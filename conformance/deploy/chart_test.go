package deploy_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// helm runs the pinned helm, as if for the Kubernetes of the conformance tests.
func helm(t *testing.T, args ...string) (out []byte, failure string) {
	t.Helper()
	program, err := filepath.Abs(root + "/.tools/helm")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(program); err != nil {
		t.Skip("needs helm: make lint installs it")
	}
	readAll(t, chart)
	cmd := exec.CommandContext(t.Context(), program, args...)
	home := t.TempDir() // it keeps a cache
	cmd.Env = append(os.Environ(), "HELM_CACHE_HOME="+home, "HELM_CONFIG_HOME="+home, "HELM_DATA_HOME="+home)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err = cmd.Output()
	if err != nil {
		return out, err.Error() + ": " + stderr.String()
	}
	return out, ""
}

// render renders the chart with a file of values; "": with its own.
func render(t *testing.T, values string) []byte {
	t.Helper()
	args := []string{"template", "paceline", chart, "--namespace", "paceline", "--kube-version", kubeVersion}
	if values != "" {
		args = append(args, "--values", values)
	}
	out, failure := helm(t, args...)
	if failure != "" {
		t.Fatal(failure)
	}
	return out
}

// kubeVersion is what charts are rendered for.
const kubeVersion = "1.36.3"

// accepted lists the files of values that the chart takes, besides none.
func accepted(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob("testdata/values/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no files of values: %v", err)
	}
	return append(files, "")
}

func nameOf(values string) string {
	if values == "" {
		return "none"
	}
	return strings.TrimSuffix(filepath.Base(values), ".yaml")
}

// TestChart lints and renders the chart, and looks at what comes out.
func TestChart(t *testing.T) {
	t.Parallel()
	for _, values := range accepted(t) {
		t.Run("values="+nameOf(values), func(t *testing.T) {
			t.Parallel()
			args := []string{"lint", "--strict", "--quiet", "--kube-version", kubeVersion, chart}
			if values != "" {
				read(t, values)
				args = append(args, "--values", values)
			}
			if out, failure := helm(t, args...); failure != "" {
				t.Errorf("lint: %s\n%s", failure, out)
			}
			all := decode(t, render(t, values))
			if t.Failed() {
				return
			}
			checkPod(t, all)
			checkReferences(t, all)
		})
	}
}

// TestChartRefuses: values that cannot work fail before anything is installed, in words. The first line of each file says which.
func TestChartRefuses(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/values/refused/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no files of values: %v", err)
	}
	for _, values := range files {
		t.Run("values="+nameOf(values), func(t *testing.T) {
			t.Parallel()
			first, _, _ := strings.Cut(string(read(t, values)), "\n")
			want := strings.TrimPrefix(first, "# want: ")
			_, failure := helm(t, "template", "paceline", chart, "--namespace", "paceline", "--kube-version", kubeVersion, "--values", values)
			if want == first || !strings.Contains(failure, want) {
				t.Errorf("want %q, got %q", want, failure)
			}
		})
	}
}

// TestChartHasAll: with everything switched on each kind is there, so none of the templates is dead.
func TestChartHasAll(t *testing.T) {
	t.Parallel()
	all := decode(t, render(t, "testdata/values/everything.yaml"))
	for _, n := range []int{
		len(every[*corev1.ServiceAccount](all)), len(every[*corev1.Service](all)), len(every[*appsv1.StatefulSet](all)), len(every[*rbacv1.ClusterRole](all)),
		len(every[*rbacv1.ClusterRoleBinding](all)), len(every[*networkingv1.NetworkPolicy](all)), len(every[*policyv1.PodDisruptionBudget](all)),
	} {
		if n != 1 {
			t.Errorf("one of the kinds is there %d times", n)
		}
	}
	if r, b, n := len(every[*rbacv1.Role](all)), len(every[*rbacv1.RoleBinding](all)), len(every[*corev1.Namespace](all)); r != 2 || b != 2 || n != 2 {
		t.Errorf("two namespaces have %d roles, %d bindings, %d namespaces", r, b, n)
	}
	outside := decode(t, render(t, "testdata/values/outside.yaml"))
	if r, c := every[*rbacv1.Role](outside), every[*rbacv1.ClusterRole](outside); len(r)+len(c) > 0 || *one[*appsv1.StatefulSet](t, outside).Spec.Template.Spec.AutomountServiceAccountToken {
		t.Errorf("without rbac.create there are rights: %v %v", r, c)
	}
}

// checkPod holds the server's pod to what it needs to run without rights on its node.
func checkPod(t *testing.T, all []runtime.Object) {
	t.Helper()
	set := one[*appsv1.StatefulSet](t, all)
	pod := &set.Spec.Template.Spec
	if set.Spec.Replicas == nil || *set.Spec.Replicas != 1 {
		t.Error("a cell has one server")
	}
	if s := pod.SecurityContext; s == nil || s.RunAsNonRoot == nil || !*s.RunAsNonRoot || s.RunAsUser == nil || *s.RunAsUser == 0 || s.FSGroup == nil ||
		s.SeccompProfile == nil || s.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault {
		t.Errorf("the pod's security context is %+v", s)
	}
	if len(pod.Containers) != 1 || len(pod.InitContainers) != 0 {
		t.Fatalf("the pod has containers %+v", pod.Containers)
	}
	c := &pod.Containers[0]
	if s := c.SecurityContext; s == nil || s.AllowPrivilegeEscalation == nil || *s.AllowPrivilegeEscalation || s.ReadOnlyRootFilesystem == nil || !*s.ReadOnlyRootFilesystem ||
		s.Capabilities == nil || !slices.Equal(s.Capabilities.Drop, []corev1.Capability{"ALL"}) || len(s.Capabilities.Add) > 0 {
		t.Errorf("the container's security context is %+v", s)
	}
	for name, probe := range map[string]*corev1.Probe{"startup": c.StartupProbe, "readiness": c.ReadinessProbe, "liveness": c.LivenessProbe} {
		if probe == nil || probe.HTTPGet == nil || probe.HTTPGet.Path != "/healthz" || probe.HTTPGet.Scheme != corev1.URISchemeHTTPS {
			t.Errorf("the %s probe is %+v", name, probe)
		}
	}
	if c.Resources.Requests.Cpu().IsZero() || c.Resources.Requests.Memory().IsZero() {
		t.Errorf("it requests %v", c.Resources.Requests)
	}
	checkFiles(t, pod, c, set.Spec.VolumeClaimTemplates)
}

// checkFiles: each file and directory that the flags name is on a volume, and each volume is one that there is.
func checkFiles(t *testing.T, pod *corev1.PodSpec, c *corev1.Container, claims []corev1.PersistentVolumeClaim) {
	t.Helper()
	for _, arg := range c.Args {
		flag, path, _ := strings.Cut(arg, "=")
		if strings.HasPrefix(path, "/") && !slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool {
			return strings.HasPrefix(path, m.MountPath+"/") || path == m.MountPath
		}) {
			t.Errorf("%s names %s, which is on no volume", flag, path)
		}
	}
	for _, m := range c.VolumeMounts {
		if !slices.ContainsFunc(pod.Volumes, func(v corev1.Volume) bool { return v.Name == m.Name }) &&
			!slices.ContainsFunc(claims, func(v corev1.PersistentVolumeClaim) bool { return v.Name == m.Name }) {
			t.Errorf("volume %s is mounted, and there is none", m.Name)
		}
	}
}

// checkReferences: services select the pod, and roles are bound to its service account.
func checkReferences(t *testing.T, all []runtime.Object) {
	t.Helper()
	set, account := one[*appsv1.StatefulSet](t, all), one[*corev1.ServiceAccount](t, all)
	service := one[*corev1.Service](t, all)
	labels := set.Spec.Template.Labels
	for key, value := range service.Spec.Selector {
		if labels[key] != value || set.Spec.Selector.MatchLabels[key] != value {
			t.Errorf("the service selects %s=%s, the pod has %q", key, value, labels[key])
		}
	}
	if set.Spec.ServiceName != service.Name || set.Spec.Template.Spec.ServiceAccountName != account.Name {
		t.Errorf("the set names service %q and account %q", set.Spec.ServiceName, set.Spec.Template.Spec.ServiceAccountName)
	}
	subject := []rbacv1.Subject{{Kind: "ServiceAccount", Name: account.Name, Namespace: account.Namespace}}
	for _, b := range every[*rbacv1.ClusterRoleBinding](all) {
		if !reflect.DeepEqual(b.Subjects, subject) || b.RoleRef.Name != one[*rbacv1.ClusterRole](t, all).Name {
			t.Errorf("%s binds %+v to %+v", b.Name, b.Subjects, b.RoleRef)
		}
	}
	for _, b := range every[*rbacv1.RoleBinding](all) {
		if !reflect.DeepEqual(b.Subjects, subject) || b.Namespace == account.Namespace ||
			!slices.ContainsFunc(every[*rbacv1.Role](all), func(r *rbacv1.Role) bool { return r.Name == b.RoleRef.Name && r.Namespace == b.Namespace }) {
			t.Errorf("%s/%s binds %+v to %+v", b.Namespace, b.Name, b.Subjects, b.RoleRef)
		}
	}
}

// TestSameRights: the chart asks for what the plain manifests do.
func TestSameRights(t *testing.T) {
	t.Parallel()
	flat := decode(t, read(t, plain))
	view, tasks := one[*rbacv1.ClusterRole](t, flat).Rules, one[*rbacv1.Role](t, flat).Rules
	for _, values := range []string{"", "testdata/values/everything.yaml"} {
		all := decode(t, render(t, values))
		if got := one[*rbacv1.ClusterRole](t, all).Rules; !reflect.DeepEqual(got, view) {
			t.Errorf("%s: the chart's rights in the cluster are %v, those of rbac.yaml %v", values, got, view)
		}
		for _, r := range every[*rbacv1.Role](all) {
			if !reflect.DeepEqual(r.Rules, tasks) {
				t.Errorf("%s: the chart's rights in namespace %s are %v, those of rbac.yaml %v", values, r.Namespace, r.Rules, tasks)
			}
		}
	}
}
