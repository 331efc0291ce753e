package mirror_test

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"pgregory.net/rapid"
	"sigs.k8s.io/randfill"

	"github.com/paceline-sched/paceline/hostmanagers/kubernetes/mirror"
)

// message is an object that has a form in protobuf.
type message interface {
	Marshal() ([]byte, error)
	Unmarshal(raw []byte) error
}

// wrapped is an object as an API server sends it.
func wrapped(t testing.TB, kind string, object message) []byte {
	t.Helper()
	raw, err := object.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	envelope := runtime.Unknown{TypeMeta: runtime.TypeMeta{APIVersion: "v1", Kind: kind}, Raw: raw}
	out, err := envelope.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	return append([]byte("k8s\x00"), out...)
}

func unwrap(raw []byte, into message) error {
	if len(raw) < 4 {
		return fmt.Errorf("there are %d bytes", len(raw))
	}
	var envelope runtime.Unknown
	if err := envelope.Unmarshal(raw[4:]); err != nil {
		return err
	}
	return into.Unmarshal(envelope.Raw)
}

// filler fills in every field of an object there may be, or leaves it out.
func filler(seed int64) *randfill.Filler {
	return randfill.NewWithSeed(seed).NilChance(0.4).NumElements(0, 3).MaxDepth(12).Funcs(
		func(q *resource.Quantity, c randfill.Continue) {
			*q = *resource.NewMilliQuantity(c.Int63n(1<<40), resource.DecimalSI)
		},
		func(at *metav1.Time, c randfill.Continue) { *at = metav1.Unix(c.Int63n(1<<32), 0) },
		func(at *metav1.MicroTime, c randfill.Continue) {
			*at = metav1.MicroTime{Time: time.Unix(c.Int63n(1<<32), 0)}
		},
		func(v *intstr.IntOrString, c randfill.Continue) { *v = intstr.FromInt32(c.Int31()) },
		func(f *metav1.FieldsV1, _ randfill.Continue) { f.SetRawBytes([]byte(`{"f:metadata":{}}`)) },
		func(l *corev1.ResourceList, c randfill.Continue) {
			*l = corev1.ResourceList{}
			for _, name := range []corev1.ResourceName{"cpu", "memory", "ephemeral-storage", "pods", "nvidia.com/gpu", "example.com/device"} {
				if c.Bool() {
					(*l)[name] = *resource.NewQuantity(c.Int63n(1<<30), resource.DecimalSI)
				}
			}
		},
		func(p *corev1.PodPhase, c randfill.Continue) {
			*p = [...]corev1.PodPhase{"", "Pending", "Running", "Succeeded", "Failed", "Unknown"}[c.Intn(6)]
		},
		func(s *corev1.ConditionStatus, c randfill.Continue) {
			*s = [...]corev1.ConditionStatus{"True", "False", "Unknown"}[c.Intn(3)]
		},
		func(y *corev1.PodConditionType, c randfill.Continue) {
			*y = [...]corev1.PodConditionType{corev1.DisruptionTarget, corev1.PodReady}[c.Intn(2)]
		},
		func(y *corev1.NodeConditionType, c randfill.Continue) {
			*y = [...]corev1.NodeConditionType{corev1.NodeReady, corev1.NodeNetworkUnavailable, corev1.NodeDiskPressure}[c.Intn(3)]
		},
		func(p *corev1.ContainerRestartPolicy, c randfill.Continue) {
			*p = [...]corev1.ContainerRestartPolicy{corev1.ContainerRestartPolicyAlways, corev1.ContainerRestartPolicyNever}[c.Intn(2)]
		},
	)
}

// randomPod is any pod; every other one is a run, and every other container the main one.
func randomPod(seed int64) *corev1.Pod {
	p := &corev1.Pod{}
	f := filler(seed)
	f.Fill(p)
	dice := rand.New(rand.NewPCG(uint64(seed), 1))
	if dice.IntN(2) == 0 {
		p.Name, p.Labels = run(uint32(dice.IntN(100))).String(), map[string]string{mirror.LabelOwner: mirrorConfig.Owner}
		p.Annotations = map[string]string{mirror.AnnotationDevices: "0,2"}
	}
	if dice.IntN(2) == 0 {
		p.UID = types.UID(fmt.Sprintf("00000000-0000-0000-0000-%012d", dice.IntN(1000)))
	}
	for i := range p.Spec.Containers {
		if dice.IntN(2) == 0 {
			p.Spec.Containers[i].Name = mirror.MainContainer
		}
	}
	for i := range p.Status.ContainerStatuses {
		if dice.IntN(2) == 0 {
			p.Status.ContainerStatuses[i].Name = mirror.MainContainer
		}
	}
	return p
}

// What is read of an object is the same after it was pruned, whatever the object holds.
func TestPrunedReadsTheSame(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		seed := rapid.Int64().Draw(t, "seed")
		pod, node := randomPod(seed), &corev1.Node{}
		filler(seed).Fill(node)
		sameAfterPruning(t, "Pod", pod, &corev1.Pod{}, &corev1.Pod{}, func(p *corev1.Pod) any { return mirrorConfig.ReadPod(p) })
		sameAfterPruning(t, "Node", node, &corev1.Node{}, &corev1.Node{}, func(n *corev1.Node) any { return mirrorConfig.ReadNode(n) })
		pods := &corev1.PodList{ListMeta: metav1.ListMeta{ResourceVersion: "7", Continue: "more"}, Items: []corev1.Pod{*pod, *randomPod(seed + 1)}}
		sameAfterPruning(t, "PodList", pods, &corev1.PodList{}, &corev1.PodList{}, func(l *corev1.PodList) any {
			return []any{l.ListMeta, mirrorConfig.ReadPod(&l.Items[0]), mirrorConfig.ReadPod(&l.Items[1]), len(l.Items), l.Items[0].ResourceVersion}
		})
		nodes := &corev1.NodeList{ListMeta: metav1.ListMeta{ResourceVersion: "7"}, Items: []corev1.Node{*node}}
		sameAfterPruning(t, "NodeList", nodes, &corev1.NodeList{}, &corev1.NodeList{}, func(l *corev1.NodeList) any {
			return []any{l.ListMeta, mirrorConfig.ReadNode(&l.Items[0]), len(l.Items)}
		})
	})
}

func sameAfterPruning[M message](t *rapid.T, kind string, object, before, after M, read func(M) any) {
	t.Helper()
	raw, err := object.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	envelope := runtime.Unknown{TypeMeta: runtime.TypeMeta{APIVersion: "v1", Kind: kind}, Raw: raw}
	sent, err := envelope.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	sent = append([]byte("k8s\x00"), sent...)
	pruned := mirror.Prune([]byte("before"), sent)
	if string(pruned[:6]) != "before" {
		t.Fatal("what was there is no more")
	}
	pruned = pruned[6:]
	if err := unwrap(sent, before); err != nil {
		t.Fatal(err)
	}
	if err := unwrap(pruned, after); err != nil {
		t.Fatalf("a pruned %s cannot be read: %v", kind, err)
	}
	if want, got := read(before), read(after); !reflect.DeepEqual(want, got) {
		t.Fatalf("of a %s is read\n%+v\nand after it was pruned\n%+v", kind, want, got)
	}
}

// What is not known is left as it is, and what is large and of no use is gone.
func TestPruneKeepsAndDrops(t *testing.T) {
	t.Parallel()
	pod := randomPod(1)
	pod.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "somebody", FieldsV1: metav1.NewFieldsV1(strings.Repeat("x", 100_000))}}
	if pruned := mirror.Prune(nil, wrapped(t, "Pod", pod)); len(pruned) > 50_000 {
		t.Errorf("a pruned pod has %d bytes", len(pruned))
	}
	for name, object := range map[string][]byte{
		"status": wrapped(t, "Status", &metav1.Status{Reason: metav1.StatusReasonExpired}), "text": []byte("{}"), "nothing": nil,
		"a broken pod": wrapped(t, "Pod", pod)[:1000],
	} {
		if pruned := mirror.Prune(nil, object); string(pruned) != string(object) {
			t.Errorf("%s is changed", name)
		}
	}
}

// FuzzPrune: what can be read can be read after it was pruned, and says the same.
func FuzzPrune(f *testing.F) {
	for seed := range int64(4) {
		f.Add(wrapped(f, "Pod", randomPod(seed)))
	}
	f.Add(wrapped(f, "Node", aNode("a")))
	f.Add(binary.AppendUvarint([]byte("k8s\x00"), 1<<63))
	f.Fuzz(func(t *testing.T, object []byte) {
		pruned := mirror.Prune(nil, object)
		var before, after corev1.Pod
		if unwrap(object, &before) != nil {
			return
		}
		if err := unwrap(pruned, &after); err != nil {
			t.Fatalf("it cannot be read any more: %v", err)
		}
		if want, got := mirrorConfig.ReadPod(&before), mirrorConfig.ReadPod(&after); !reflect.DeepEqual(want, got) {
			t.Fatalf("%+v became %+v", want, got)
		}
	})
}
