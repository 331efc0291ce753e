package mirror_test

import (
	"fmt"
	"runtime"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// BenchmarkMemory tells what 10,000 nodes with 200,000 pods of others cost to keep.
func BenchmarkMemory(b *testing.B) {
	const nodes, pods = 10_000, 200_000
	for b.Loop() {
		w := bareWorld(b)
		heap := func() uint64 {
			var s runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&s)
			return s.HeapAlloc
		}
		before := heap()
		for i := range nodes {
			w.m.NodeChanged(0, mirrorConfig.ReadNode(aNode(fmt.Sprint("node-", i))), &w.out)
		}
		between := heap()
		for i := range pods {
			p := mirrorConfig.ReadPod(&corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("pod-", i), UID: types.UID(fmt.Sprintf("00000000-0000-0000-0000-%012d", i))},
				Spec: corev1.PodSpec{NodeName: fmt.Sprint("node-", i%nodes), Containers: []corev1.Container{{
					Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{"cpu": resource.MustParse("100m"), "memory": resource.MustParse("64Mi")}},
				}}},
			})
			w.m.PodChanged(0, &p, &w.out)
		}
		after := heap()
		runtime.KeepAlive(w)
		b.ReportMetric(float64(between-before)/nodes, "B/node")
		b.ReportMetric(float64(after-between)/pods, "B/pod")
	}
}
