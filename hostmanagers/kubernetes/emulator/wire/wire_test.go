package wire_test

import (
	"bytes"
	"io"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/serializer/streaming"
	clientscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest/watch"

	"github.com/paceline-sched/paceline/hostmanagers/kubernetes/emulator/wire"
)

func pod() *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "a", Namespace: "n", Labels: map[string]string{"x": "y"}},
		Spec:       corev1.PodSpec{NodeName: "host", Containers: []corev1.Container{{Name: "c", Image: "i"}}},
	}
}

// What is written is read by client-go, whole and in streams.
func TestClientReadsWhatIsWritten(t *testing.T) {
	t.Parallel()
	for _, media := range []string{wire.JSON, wire.YAML, wire.Protobuf} {
		raw, err := wire.Encode(media, corev1.SchemeGroupVersion, pod())
		if err != nil {
			t.Fatal(err)
		}
		got, complaints, err := wire.Decode(media, raw, corev1.SchemeGroupVersion.WithKind("Pod"), &corev1.Pod{})
		if err != nil || complaints != nil {
			t.Fatalf("%s: %v, %v", media, err, complaints)
		}
		want := pod()
		want.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Pod"))
		got.GetObjectKind().SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Pod"))
		if !equality.Semantic.DeepEqual(got, want) {
			t.Errorf("%s: read %+v", media, got)
		}
	}
	for _, form := range []wire.Form{{Media: wire.JSON}, {Media: wire.Protobuf}} {
		var stream bytes.Buffer
		for _, kind := range []string{"ADDED", "DELETED"} {
			raw, err := wire.Encode(form.Media, corev1.SchemeGroupVersion, pod())
			if err != nil {
				t.Fatal(err)
			}
			frame, err := wire.Frame(form.Media, kind, raw)
			if err != nil {
				t.Fatal(err)
			}
			stream.Write(frame)
		}
		for _, i := range clientscheme.Codecs.SupportedMediaTypes() {
			if i.MediaType != form.Media {
				continue
			}
			frames := i.StreamSerializer.NewFrameReader(io.NopCloser(&stream))
			events := watch.NewDecoder(streaming.NewDecoder(frames, i.StreamSerializer.Serializer), clientscheme.Codecs.UniversalDeserializer())
			for _, kind := range []string{"ADDED", "DELETED"} {
				action, object, err := events.Decode()
				if err != nil {
					t.Fatalf("%s: %v", form.Media, err)
				}
				if p, ok := object.(*corev1.Pod); !ok || string(action) != kind || p.Spec.NodeName != "host" {
					t.Errorf("%s: %s of %+v", form.Media, action, object)
				}
			}
		}
	}
}

func TestComplaints(t *testing.T) {
	t.Parallel()
	const body = `{"kind":"Pod","apiVersion":"v1","metadata":{"name":"a"},"spec":{"colour":"red"}}`
	object, complaints, err := wire.Decode(wire.JSON, []byte(body), corev1.SchemeGroupVersion.WithKind("Pod"), &corev1.Pod{})
	if err != nil || complaints == nil {
		t.Fatalf("an unknown field: %v, %v", complaints, err)
	}
	if p, ok := object.(*corev1.Pod); !ok || p.Name != "a" {
		t.Errorf("a lenient reader has %+v", object)
	}
	if _, _, err := wire.Decode(wire.JSON, []byte("{"), corev1.SchemeGroupVersion.WithKind("Pod"), &corev1.Pod{}); err == nil {
		t.Error("half a body is read")
	}
}

func TestChoose(t *testing.T) {
	t.Parallel()
	for accept, want := range map[string]wire.Form{
		"":                              {Media: wire.JSON},
		"*/*":                           {Media: wire.JSON},
		"text/html, */*;q=0.1":          {Media: wire.JSON},
		wire.Protobuf + "," + wire.JSON: {Media: wire.Protobuf},
		"application/json;q=0.5, " + wire.Protobuf:                      {Media: wire.Protobuf},
		"application/json;as=Table;v=v1;g=meta.k8s.io,application/json": {Media: wire.JSON, As: wire.AsTable, Group: "meta.k8s.io"},
	} {
		got, ok := wire.Choose(accept, func(wire.Form) bool { return true })
		if !ok || got != want {
			t.Errorf("%q chooses %+v, %v; want %+v", accept, got, ok, want)
		}
	}
	if got, ok := wire.Choose("text/html", func(wire.Form) bool { return true }); ok {
		t.Errorf("text is written as %+v", got)
	}
	got, ok := wire.Choose("application/json;as=Table;g=meta.k8s.io;v=v1,application/json", func(f wire.Form) bool { return f.As == "" })
	if want := (wire.Form{Media: wire.JSON}); !ok || got != want {
		t.Errorf("without tables the choice is %+v", got)
	}
}

// FuzzDecode: no body makes the reader panic, and what was read can be written.
func FuzzDecode(f *testing.F) {
	for i, media := range []string{wire.JSON, wire.YAML, wire.Protobuf} {
		raw, err := wire.Encode(media, corev1.SchemeGroupVersion, pod())
		if err != nil {
			f.Fatal(err)
		}
		f.Add(uint8(i), raw) //nolint:gosec // three
	}
	f.Fuzz(func(t *testing.T, form uint8, body []byte) {
		media := []string{wire.JSON, wire.YAML, wire.Protobuf}[form%3]
		object, _, err := wire.Decode(media, body, corev1.SchemeGroupVersion.WithKind("Pod"), &corev1.Pod{})
		if err != nil {
			return
		}
		if _, ok := object.(*corev1.Pod); !ok {
			return
		}
		if _, err := wire.Encode(wire.JSON, corev1.SchemeGroupVersion, object); err != nil {
			t.Fatal(err)
		}
	})
}
