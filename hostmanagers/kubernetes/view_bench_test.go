package kubernetes_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"

	"github.com/paceline-sched/paceline/hostmanagers/kubernetes"
	"github.com/paceline-sched/paceline/hostmanagers/kubernetes/emulator/wire"
	"github.com/paceline-sched/paceline/hostmanagers/kubernetes/manifest"
)

// The size of the cluster whose view is taken.
const (
	viewNodes = 10_000
	viewPods  = 200_000
)

// BenchmarkView has a driver take in 10,000 nodes and 200,000 pods of others, each as large as those of a real cluster, in the bytes of a list by a watch
// but without a server. It tells how long that takes, what is kept of each, and, if it runs alone, what is resident at the peak.
func BenchmarkView(b *testing.B) {
	for b.Loop() {
		b.StopTimer()
		s := newSynthetic(b)
		b.ReportMetric(float64(len(s.pod.frame)), "wire-B/pod")
		b.ReportMetric(float64(len(s.node.frame)), "wire-B/node")
		empty := heap()
		s.pods = 0
		stop := s.view(b)
		nodes := heap()
		stop()
		s.pods = viewPods
		b.StartTimer()
		began, used := time.Now(), cpuTime(b)
		stop = s.view(b)
		b.ReportMetric(time.Since(began).Seconds(), "s/view")
		b.ReportMetric((cpuTime(b)-used).Seconds()*1e6/viewPods, "cpu-us/pod")
		b.StopTimer()
		b.ReportMetric(peak(b), "peak-MiB")
		b.ReportMetric((nodes-empty)/viewNodes, "B/node")
		b.ReportMetric((heap()-nodes)/viewPods, "B/pod")
		stop()
		b.StartTimer()
	}
}

// peak is what was resident at most of this process, in MiB.
func peak(b *testing.B) float64 {
	b.Helper()
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		b.Skip(err)
	}
	_, rest, _ := strings.Cut(string(status), "VmHWM:")
	words := strings.Fields(rest)
	if len(words) == 0 {
		b.Skip("the kernel does not tell the peak")
	}
	kib, err := strconv.ParseFloat(words[0], 64)
	if err != nil {
		b.Fatal(err)
	}
	return kib / 1024
}

// synthetic answers as an API server of so many nodes and pods, which it makes as they are read.
type synthetic struct {
	node, pod stamp
	pods      int
}

// view has a driver take in everything. Stop ends it.
func (s *synthetic) view(b *testing.B) (stop func()) {
	b.Helper()
	d, err := kubernetes.New(kubernetes.Config{API: &rest.Config{Host: "http://synthetic", Transport: s}, Pods: manifest.Config{Owner: "bench", Epoch: 1}})
	if err != nil {
		b.Fatal(err)
	}
	sink := &counter{ack: d, hosts: make(chan int, 1), running: make(chan int, 1)}
	ctx, cancel := context.WithCancel(b.Context())
	if err := d.Start(ctx, sink); err != nil {
		b.Fatal(err)
	}
	if hosts, stats := <-sink.hosts, d.Stats(); hosts != viewNodes || stats.Foreign != s.pods {
		b.Fatalf("it knows of %d hosts and %+v", hosts, stats)
	}
	return func() {
		cancel()
		d.Wait()
	}
}

func (*synthetic) CloseIdleConnections() {}

func (s *synthetic) RoundTrip(r *http.Request) (*http.Response, error) {
	if !r.URL.Query().Has("sendInitialEvents") {
		return nil, io.ErrUnexpectedEOF
	}
	body := &stamps{ctx: r.Context(), stamp: &s.node, n: viewNodes, end: &corev1.Node{}}
	if strings.HasSuffix(r.URL.Path, "pods") {
		body = &stamps{ctx: r.Context(), stamp: &s.pod, n: s.pods, end: &corev1.Pod{}}
	}
	answer, err := frames(nil)
	if err == nil {
		answer.Body = io.NopCloser(body)
	}
	return answer, err
}

// stamp is an event in bytes, with places for a number: of the object, and of the node that it is on.
type stamp struct{ frame []byte }

// The places are of so many digits, so that all events are as long.
const (
	own   = "90000000"
	other = "80000000"
)

func newStamp(b *testing.B, o runtime.Object) stamp {
	b.Helper()
	answer, err := frames([]event{{watch.Added, o}})
	if err != nil {
		b.Fatal(err)
	}
	defer answer.Body.Close()
	frame, err := io.ReadAll(answer.Body)
	if err != nil {
		b.Fatal(err)
	}
	return stamp{frame}
}

func (s *stamp) print(out []byte, n int) []byte {
	start := len(out)
	out = append(out, s.frame...)
	for place, number := range map[string]int{own: n, other: n % viewNodes} {
		text := fmt.Sprintf("%08d", number)
		for at := out[start:]; ; {
			i := bytes.Index(at, []byte(place))
			if i < 0 {
				break
			}
			copy(at[i:], text)
			at = at[i+len(text):]
		}
	}
	return out
}

// stamps are so many events and the end of the list, and then nothing until the context ends.
type stamps struct {
	ctx     context.Context //nolint:containedctx // of the request that is answered
	stamp   *stamp
	next, n int
	end     interface {
		runtime.Object
		metav1.Object
	}
	buffer, left []byte
}

func (s *stamps) Read(p []byte) (int, error) {
	if len(s.left) == 0 {
		switch {
		case s.next < s.n:
			s.buffer = s.stamp.print(s.buffer[:0], s.next)
		case s.next == s.n:
			s.end.SetResourceVersion("7")
			s.end.SetAnnotations(map[string]string{metav1.InitialEventsAnnotationKey: "true"})
			raw, err := wire.Encode(wire.Protobuf, corev1.SchemeGroupVersion, s.end)
			if err == nil {
				s.buffer, err = wire.Frame(wire.Protobuf, string(watch.Bookmark), raw)
			}
			if err != nil {
				return 0, err //nolint:wrapcheck // it fails the benchmark
			}
		default:
			<-s.ctx.Done()
			return 0, io.EOF
		}
		s.left = s.buffer
		s.next++
	}
	n := copy(p, s.left)
	s.left = s.left[n:]
	return n, nil
}

// newSynthetic makes objects as those of real clusters: most of what they say is about managed fields, environments, volumes and conditions.
func newSynthetic(b *testing.B) *synthetic {
	b.Helper()
	cpu, memory := resource.MustParse("250m"), resource.MustParse("512Mi")
	needs := corev1.ResourceList{"cpu": cpu, "memory": memory}
	var env []corev1.EnvVar
	var volumes []corev1.Volume
	var conditions []corev1.PodCondition
	for i := range 12 {
		env = append(env, corev1.EnvVar{Name: fmt.Sprint("SETTING_", i), Value: strings.Repeat("value ", 5)})
	}
	for i := range 4 {
		volumes = append(volumes, corev1.Volume{Name: fmt.Sprint("volume-", i), VolumeSource: corev1.VolumeSource{
			ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: fmt.Sprint("config-", i)}},
		}})
		conditions = append(conditions, corev1.PodCondition{Type: corev1.PodConditionType(fmt.Sprint("Condition", i)), Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now()})
	}
	managed := []metav1.ManagedFieldsEntry{
		{Manager: "kube-controller-manager", Operation: "Update", FieldsV1: metav1.NewFieldsV1(strings.Repeat("f:metadata,", 120))},
		{Manager: "kubelet", Operation: "Update", Subresource: "status", FieldsV1: metav1.NewFieldsV1(strings.Repeat("f:status,", 120))},
	}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: "service-" + own, Namespace: "production", UID: types.UID("12345678-1234-1234-1234-0000" + own), ResourceVersion: own,
			Labels: map[string]string{"app": "service", "pod-template-hash": "5f8787eb2a", "team": "search", "tier": "backend"}, ManagedFields: managed,
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "service-5f8787eb2a", UID: "12345678-1234-1234-1234-123456789012"}},
		},
		Spec: corev1.PodSpec{
			NodeName: "node-" + other, Volumes: volumes,
			Containers: []corev1.Container{{Name: "service", Image: "registry.example/search/service:v1.2.3", Env: env, Resources: corev1.ResourceRequirements{Requests: needs, Limits: needs}}},
		},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, Conditions: conditions, ContainerStatuses: []corev1.ContainerStatus{{Name: "service", Ready: true, Image: "registry.example/search/service:v1.2.3"}}},
	}
	has := corev1.ResourceList{"cpu": resource.MustParse("64"), "memory": resource.MustParse("256Gi"), "pods": resource.MustParse("110")}
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: "node-" + own, UID: types.UID("12345678-1234-1234-4321-0000" + own), ResourceVersion: own, ManagedFields: managed,
			Labels: map[string]string{
				corev1.LabelHostname: "node-" + own, corev1.LabelTopologyZone: "zone-1", corev1.LabelTopologyRegion: "region-1", corev1.LabelInstanceTypeStable: "large",
				corev1.LabelOSStable: "linux", corev1.LabelArchStable: "amd64",
			},
		},
		Status: corev1.NodeStatus{
			Capacity: has, Allocatable: has, NodeInfo: corev1.NodeSystemInfo{KubeletVersion: "v1.36.3"},
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady"}},
		},
	}
	for i := range 40 {
		node.Status.Images = append(node.Status.Images, corev1.ContainerImage{Names: []string{fmt.Sprint("registry.example/image:v", i)}, SizeBytes: 1 << 28})
	}
	return &synthetic{node: newStamp(b, node), pod: newStamp(b, pod)}
}
