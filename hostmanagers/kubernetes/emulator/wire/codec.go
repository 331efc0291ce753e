package wire

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"mime"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	jsonserializer "k8s.io/apimachinery/pkg/runtime/serializer/json"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	clientscheme "k8s.io/client-go/kubernetes/scheme"
)

// Scheme knows every type of the API, and the ones that describe lists and tables.
var Scheme = newScheme()

var (
	codecs     = serializer.NewCodecFactory(Scheme)
	serialized = codecs.WithoutConversion()
	strictJSON = jsonserializer.NewSerializerWithOptions(jsonserializer.DefaultMetaFactory, Scheme, Scheme, jsonserializer.SerializerOptions{Strict: true})
	strictYAML = jsonserializer.NewSerializerWithOptions(jsonserializer.DefaultMetaFactory, Scheme, Scheme, jsonserializer.SerializerOptions{Strict: true, Yaml: true})
)

func newScheme() *runtime.Scheme {
	s := runtime.NewScheme()
	utilruntime.Must(clientscheme.AddToScheme(s))
	utilruntime.Must(metav1.AddMetaToScheme(s))
	return s
}

// info is how a media type is written.
func info(media string) (runtime.SerializerInfo, bool) {
	return runtime.SerializerInfoForMediaType(codecs.SupportedMediaTypes(), media)
}

// Encode writes an object of a group and version.
func Encode(media string, gv schema.GroupVersion, object runtime.Object) ([]byte, error) {
	i, ok := info(media)
	if !ok {
		return nil, fmt.Errorf("no object is written as %s", media)
	}
	raw, err := runtime.Encode(serialized.EncoderForVersion(i.Serializer, gv), object)
	if err != nil {
		return nil, fmt.Errorf("write %T as %s: %w", object, media, err)
	}
	return raw, nil
}

// Frame writes one event of a watch, ready to be sent.
func Frame(media, kind string, object []byte) ([]byte, error) {
	switch media {
	case JSON:
		raw, err := json.Marshal(struct {
			Type   string          `json:"type"`
			Object json.RawMessage `json:"object"`
		}{kind, object})
		if err != nil {
			return nil, fmt.Errorf("write an event: %w", err)
		}
		return append(raw, '\n'), nil
	case Protobuf:
		event := metav1.WatchEvent{Type: kind, Object: runtime.RawExtension{Raw: object}}
		raw, err := event.Marshal()
		if err != nil {
			return nil, fmt.Errorf("write an event: %w", err)
		}
		return append(binary.BigEndian.AppendUint32(make([]byte, 0, 4+len(raw)), uint32(len(raw))), raw...), nil //nolint:gosec // far below 4 GiB
	}
	return nil, fmt.Errorf("no watch is written as %s", media)
}

// Media is the media type of a body, as its header says. "": no such type is read.
func Media(contentType string) string {
	if contentType == "" {
		return JSON
	}
	media, _, err := mime.ParseMediaType(contentType)
	if err != nil {
		return ""
	}
	if _, ok := info(media); !ok {
		return ""
	}
	return media
}

// Decode reads a body. Kind is what it is if it does not say so itself; into is filled if the body has its type. Complaints are what a strict
// reader does not like and a lenient one skips.
func Decode(media string, body []byte, kind schema.GroupVersionKind, into runtime.Object) (object runtime.Object, complaints error, err error) {
	var reader runtime.Decoder
	switch media {
	case JSON:
		reader = strictJSON
	case YAML:
		reader = strictYAML
	default:
		i, ok := info(media)
		if !ok {
			return nil, nil, fmt.Errorf("no body is read as %s", media)
		}
		reader = i.Serializer
	}
	object, _, err = reader.Decode(body, &kind, into)
	if runtime.IsStrictDecodingError(err) {
		return object, err, nil
	}
	return object, nil, err
}
