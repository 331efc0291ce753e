package deploy_test

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/paceline-sched/paceline/conformance/controlplane"
)

// kubectl runs the pinned kubectl with some input. An error fails the test.
func kubectl(t *testing.T, kubeconfig, input string, args ...string) string {
	t.Helper()
	bin, err := controlplane.Build(t.Context(), os.Stderr, controlplane.Kubectl)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), filepath.Join(bin, controlplane.Kubectl), args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+kubeconfig, "HOME="+t.TempDir()) // it keeps a cache
	var stderr bytes.Buffer
	cmd.Stdin, cmd.Stderr = strings.NewReader(input), &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("kubectl %s: %v: %s", strings.Join(args, " "), err, stderr.String())
	}
	return string(out)
}

// TestServerTakesAll: a real API server takes the plain manifests and what the chart renders, and the server's pod where the strictest of the standards
// for pods is enforced.
func TestServerTakesAll(t *testing.T) {
	t.Parallel()
	kubeconfig := os.Getenv("PACELINE_KUBECONFIG")
	if kubeconfig == "" || os.Getenv("PACELINE_CONTROLPLANE") == "" {
		t.Skip("needs a control plane of its own: make conformance-kubernetes")
	}
	for _, space := range []string{"paceline", "paceline-tasks", "batch", "web"} {
		kubectl(t, kubeconfig, namespace(t, space), "apply", "--filename", "-")
	}
	kubectl(t, kubeconfig, "", "apply", "--dry-run=server", "--filename", plain)
	for _, values := range accepted(t) {
		t.Run("values="+nameOf(values), func(t *testing.T) {
			t.Parallel()
			rendered := render(t, values)
			all := decode(t, rendered)
			out := kubectl(t, kubeconfig, string(rendered), "apply", "--dry-run=server", "--filename", "-")
			if got := strings.Count(out, "(server dry run)"); got != len(all) {
				t.Errorf("of %d objects the server took %d:\n%s", len(all), got, out)
			}
			kubectl(t, kubeconfig, podOf(t, one[*appsv1.StatefulSet](t, all)), "create", "--dry-run=server", "--filename", "-")
		})
	}
}

// namespace is one that takes none but restricted pods.
func namespace(t *testing.T, name string) string {
	t.Helper()
	return asJSON(t, &corev1.Namespace{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Namespace"},
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"pod-security.kubernetes.io/enforce": "restricted"}},
	})
}

// podOf is the first pod of a set, as the controller of sets makes it.
func podOf(t *testing.T, set *appsv1.StatefulSet) string {
	t.Helper()
	pod := &corev1.Pod{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}, ObjectMeta: set.Spec.Template.ObjectMeta, Spec: set.Spec.Template.Spec}
	pod.Name, pod.Namespace = set.Name+"-0", set.Namespace
	for _, claim := range set.Spec.VolumeClaimTemplates {
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: claim.Name, VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim.Name + "-" + pod.Name},
		}})
	}
	return asJSON(t, pod)
}

func asJSON(t *testing.T, object any) string {
	t.Helper()
	raw, err := json.Marshal(object)
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}
