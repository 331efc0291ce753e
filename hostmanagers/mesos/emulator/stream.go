package emulator

import (
	"sync"

	"github.com/mesos/mesos-go/api/v1/lib/scheduler"

	"github.com/paceline-sched/paceline/hostmanagers/mesos/emulator/wire"
	"github.com/paceline-sched/paceline/hostmanagers/mesos/recordio"
)

// The media types.
const (
	jsonType  = "application/json"
	protoType = "application/x-protobuf"
	textType  = "text/plain; charset=utf-8"
)

// ending is how a stream ends.
type ending uint8

const (
	running ending = iota
	ended          // by the master, with the last chunk
	cut            // in the middle
)

// stream is one subscription's way out: events go in under the emulator's lock, the connection's goroutine takes chunks out.
type stream struct {
	id       string
	protobuf bool
	sent     []*scheduler.Event // updates, the oldest first, for Faults.Repeat; guarded by the emulator's lock

	mu     sync.Mutex
	chunks [][]byte
	state  ending
	news   chan struct{} // holds one, if chunks or state changed
}

func newStream(id string, protobuf bool) *stream {
	return &stream{id: id, protobuf: protobuf, news: make(chan struct{}, 1)}
}

// send queues an event as one record.
func (s *stream) send(event *scheduler.Event) {
	var data []byte
	if s.protobuf {
		var err error
		if data, err = event.Marshal(); err != nil {
			panic("encode an event of our own making: " + err.Error())
		}
	} else {
		data = wire.AppendJSON(nil, event)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state != running {
		return
	}
	if len(s.chunks) >= maxQueued {
		s.state = cut
	} else {
		s.chunks = append(s.chunks, recordio.Append(nil, data))
	}
	s.tell()
}

func (s *stream) end(how ending) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state == running {
		s.state = how
		s.tell()
	}
}

func (s *stream) tell() {
	select {
	case s.news <- struct{}{}:
	default:
	}
}

// take returns what is to be sent, and whether the stream ends after it.
func (s *stream) take() ([][]byte, ending) {
	s.mu.Lock()
	defer s.mu.Unlock()
	chunks := s.chunks
	s.chunks = nil
	return chunks, s.state
}
