package kubernetes

import (
	"fmt"
	"net/http"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"
	typed "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"

	"github.com/paceline-sched/paceline/hostmanagers/kubernetes/mirror"
)

// newClient makes the driver's client. Of pods and nodes that come in protobuf it reads what package mirror looks at, and nothing else: to decode
// all of every event would be most of the driver's work.
func newClient(cfg *rest.Config, client *http.Client) (*typed.CoreV1Client, error) {
	cfg = rest.CopyConfig(cfg)
	cfg.GroupVersion, cfg.APIPath = &corev1.SchemeGroupVersion, "/api"
	plain := rest.CodecFactoryForGeneratedClient(scheme.Scheme, scheme.Codecs).WithoutConversion()
	media := slices.Clone(plain.SupportedMediaTypes())
	for i := range media {
		if media[i].MediaType == runtime.ContentTypeProtobuf {
			media[i].Serializer = &pruning{Serializer: media[i].Serializer}
		}
	}
	cfg.NegotiatedSerializer = &negotiated{plain, media}
	api, err := rest.RESTClientForConfigAndClient(cfg, client)
	if err != nil {
		return nil, fmt.Errorf("make a client of the API server: %w", err)
	}
	return typed.New(api), nil
}

// negotiated has media types of its own.
type negotiated struct {
	runtime.NegotiatedSerializer
	media []runtime.SerializerInfo
}

func (n *negotiated) SupportedMediaTypes() []runtime.SerializerInfo { return n.media }

// pruning decodes what mirror looks at. It may be used by many goroutines at once.
type pruning struct {
	runtime.Serializer
	buffers sync.Pool // of *[]byte: what is decoded keeps nothing of its source
}

// maxBuffer bounds what is kept for the next object; a page of a list is larger, and rare.
const maxBuffer = 64 << 10

func (p *pruning) Decode(data []byte, kind *schema.GroupVersionKind, into runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
	buffer, ok := p.buffers.Get().(*[]byte)
	if !ok {
		buffer = new([]byte)
	}
	pruned := mirror.Prune((*buffer)[:0], data)
	object, actual, err := p.Serializer.Decode(pruned, kind, into)
	if cap(pruned) <= maxBuffer {
		*buffer = pruned
		p.buffers.Put(buffer)
	}
	return object, actual, err //nolint:wrapcheck // it stands for the one inside
}
