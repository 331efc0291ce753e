package wire

import (
	"cmp"
	"mime"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
)

// The media types that are spoken.
const (
	JSON     = runtime.ContentTypeJSON
	YAML     = runtime.ContentTypeYAML
	Protobuf = runtime.ContentTypeProtobuf
)

// The forms of an object that are made for clients that do not want all of it.
const (
	AsTable    = "Table"
	AsPartial  = "PartialObjectMetadata"
	AsPartials = "PartialObjectMetadataList"
)

// Form is how an answer is written.
type Form struct {
	Media string
	As    string // AsTable, AsPartial, AsPartials; "": the object itself
	Group string // of As
}

// maxAccepts bounds the alternatives that are looked at in an Accept header.
const maxAccepts = 32

// Choose picks the first form that an Accept header asks for and ok approves. False: none of them.
func Choose(accept string, ok func(Form) bool) (Form, bool) {
	if strings.TrimSpace(accept) == "" {
		accept = JSON
	}
	type offer struct {
		form Form
		q    float64
	}
	var offers []offer
	for part := range strings.SplitSeq(accept, ",") {
		if len(offers) == maxAccepts {
			break
		}
		media, params, err := mime.ParseMediaType(strings.TrimSpace(part))
		if err != nil {
			continue
		}
		switch media {
		case "*/*", "application/*":
			media = JSON
		case JSON, YAML, Protobuf:
		default:
			continue
		}
		o := offer{Form{Media: media, As: params["as"], Group: params["g"]}, 1}
		if q, err := strconv.ParseFloat(params["q"], 64); err == nil {
			o.q = q
		}
		offers = append(offers, o)
	}
	slices.SortStableFunc(offers, func(a, b offer) int { return cmp.Compare(b.q, a.q) })
	for _, o := range offers {
		if ok(o.form) {
			return o.form, true
		}
	}
	return Form{}, false
}

// ContentType is the header of an answer in a form.
func (f Form) ContentType() string { return f.Media }

// StreamType is the header of a watch in a form.
func (f Form) StreamType() string {
	if f.Media == JSON {
		return f.Media
	}
	return f.Media + ";stream=watch"
}

// Streams says whether a watch can be written in a form.
func (f Form) Streams() bool { return f.Media == JSON || f.Media == Protobuf }
