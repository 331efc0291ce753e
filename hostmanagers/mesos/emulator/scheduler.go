package emulator

import (
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/mesos/mesos-go/api/v1/lib/scheduler"

	"github.com/paceline-sched/paceline/hostmanagers/mesos/emulator/cluster"
	"github.com/paceline-sched/paceline/hostmanagers/mesos/emulator/wire"
)

// streamHeader carries a subscription's id.
const streamHeader = "Mesos-Stream-Id"

// message is one that both codecs know.
type message interface{ Unmarshal(data []byte) error }

// decode reads a POST's body into a call, or says why not.
func decode(r *request, call message) *answer {
	if r.Method != http.MethodPost {
		a := text(http.StatusMethodNotAllowed, "405 Method Not Allowed. Expecting one of { 'POST' }, but received '"+r.Method+"'.")
		a.headers = append([]string{"Allow: POST"}, a.headers...)
		return a
	}
	switch kind := r.Header.Values("Content-Type"); {
	case len(kind) == 0:
		return text(http.StatusBadRequest, "Expecting 'Content-Type' to be present")
	case kind[0] == protoType:
		// A field of another wire type counts as unknown to a master, where mesos-go's decoder gives up.
		err := call.Unmarshal(r.body)
		if err != nil && (!strings.Contains(err.Error(), "wrong wireType") || !wire.WellFormed(r.body)) {
			return text(http.StatusBadRequest, "Failed to parse body into Call protobuf")
		}
		return nil
	case kind[0] == jsonType:
		parsed, err := wire.ParseJSON(r.body)
		if err != nil {
			return text(http.StatusBadRequest, "Failed to parse body into JSON: "+err.Error())
		}
		if err := wire.Assign(call, parsed); err != nil {
			return text(http.StatusBadRequest, "Failed to convert JSON into Call protobuf: "+err.Error())
		}
		return nil
	default:
		return text(http.StatusUnsupportedMediaType, "Expecting 'Content-Type' of "+jsonType+" or "+protoType)
	}
}

// accepts says in which form a caller wants to be answered: JSON whenever he allows it at all.
func accepts(r *request) (protobuf, ok bool) {
	values := r.Header.Values("Accept")
	if len(values) == 0 {
		return false, true
	}
	for item := range strings.SplitSeq(strings.Join(values, ","), ",") {
		kind, _, _ := strings.Cut(item, ";")
		switch strings.TrimSpace(kind) {
		case jsonType, "*/*", "application/*":
			return false, true
		case protoType:
			protobuf = true
		}
	}
	return protobuf, protobuf
}

func notAcceptable() *answer {
	return text(http.StatusNotAcceptable, "Expecting 'Accept' to allow '"+protoType+"' or '"+jsonType+"'")
}

// scheduler serves /api/v1/scheduler.
func (e *Emulator) scheduler(r *request) *answer {
	call := &scheduler.Call{}
	if a := decode(r, call); a != nil {
		return a
	}
	if refused := cluster.Validate(call); refused != nil {
		return text(refused.Code, refused.Text)
	}
	if call.Type == scheduler.Call_SUBSCRIBE {
		return e.subscribe(r, call)
	}
	if call.Type == scheduler.Call_ACKNOWLEDGE && e.refuses() {
		return text(http.StatusServiceUnavailable, "Service Unavailable")
	}
	var refused *cluster.Refusal
	e.Do(func(c *cluster.Cluster) { refused = c.Call(r.Header.Get(streamHeader), call) })
	switch {
	case refused != nil:
		return text(refused.Code, refused.Text)
	case call.Type == scheduler.Call_UPDATE_FRAMEWORK:
		return &answer{code: http.StatusOK}
	default:
		return &answer{code: http.StatusAccepted}
	}
}

func (e *Emulator) refuses() bool {
	if e.faults.Refuse == nil {
		return false
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.faults.Refuse()
}

func (e *Emulator) subscribe(r *request, call *scheduler.Call) *answer {
	protobuf, ok := accepts(r)
	if !ok {
		return notAcceptable()
	}
	if r.Header.Get(streamHeader) != "" {
		return text(http.StatusBadRequest, "Subscribe calls should not include the 'Mesos-Stream-Id' header")
	}
	s := newStream(streamID(), protobuf)
	kind := jsonType
	if protobuf {
		kind = protoType
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.streams[s.id] = s
	e.do(func(c *cluster.Cluster) { c.Subscribe(s.id, call) })
	return &answer{code: http.StatusOK, headers: []string{streamHeader + ": " + s.id, "Content-Type: " + kind}, stream: s}
}

// streamID is a UUID of version 4.
func streamID() string {
	var b [16]byte
	if _, err := rand.Read(b[:]); err != nil {
		panic(errors.New("read random bytes: " + err.Error()))
	}
	b[6] = b[6]&0x0f | 0x40
	b[8] = b[8]&0x3f | 0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}
