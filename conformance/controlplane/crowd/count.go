package crowd

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
)

// Tally is how many pods are where.
type Tally struct{ Created, Bound, Running, Ended int }

// Moment is when something was first, and when it was last.
type Moment struct{ First, Last time.Time }

// Count watches all pods and counts them. It reads of each no more than it counts, so that it takes little of the time of whom it measures.
type Count struct {
	mu      sync.Mutex
	changed *sync.Cond
	stages  map[string]stage // by uid
	tally   Tally
	bound   Moment
	running Moment
	err     error
	done    sync.WaitGroup
	version string // of the last event; the goroutine's own
}

type stage struct{ bound, running, ended bool }

// Count begins to count pods from now on; there must be none yet. It ends with ctx; then Wait.
func (c *Crowd) Count(ctx context.Context) (*Count, error) {
	pods, err := c.api.Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{Limit: 1})
	if err != nil {
		return nil, fmt.Errorf("look for pods: %w", err)
	}
	if len(pods.Items) > 0 {
		return nil, errors.New("there are pods already, which cannot be counted")
	}
	client, err := rest.HTTPClientFor(c.cfg) // its own connection: beside thousands of requests a watch would fall behind, and be ended
	if err != nil {
		return nil, fmt.Errorf("watch the pods: %w", err)
	}
	n := &Count{stages: map[string]stage{}, version: pods.ResourceVersion}
	n.changed = sync.NewCond(&n.mu)
	n.done.Go(func() {
		defer client.CloseIdleConnections()
		err := error(nil)
		for err == nil { // a watch that the API server ends goes on from where it was
			err = n.watch(ctx, client, c.cfg.Host)
		}
		n.mu.Lock()
		defer n.mu.Unlock()
		n.err = fmt.Errorf("the watch of the pods ended: %w", err)
		n.changed.Broadcast()
	})
	return n, nil
}

// watch takes in events until the API server ends the watch.
func (n *Count) watch(ctx context.Context, client *http.Client, host string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, host+"/api/v1/pods?watch=1&resourceVersion="+n.version, http.NoBody)
	if err != nil {
		return fmt.Errorf("watch the pods: %w", err)
	}
	request.Header.Set("Accept", runtime.ContentTypeProtobuf)
	answer, err := client.Do(request)
	if err != nil {
		return fmt.Errorf("watch the pods: %w", err)
	}
	defer answer.Body.Close() //nolint:errcheck // it is only read
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("watch the pods: the API server answers %s", answer.Status)
	}
	err = n.read(answer.Body)
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return nil
	}
	return err
}

// Wait waits for the end of the goroutine.
func (n *Count) Wait() { n.done.Wait() }

// Await waits until the tally is as wanted, or the watch has ended.
func (n *Count) Await(reached func(Tally) bool) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	for !reached(n.tally) {
		if n.err != nil {
			return fmt.Errorf("of the pods %+v were counted: %w", n.tally, n.err)
		}
		n.changed.Wait()
	}
	return nil
}

// Bound and Running are when the first and the last pod so far came there.
func (n *Count) Bound() Moment { return n.moment(&n.bound) }

// Running is Bound for pods that run.
func (n *Count) Running() Moment { return n.moment(&n.running) }

func (n *Count) moment(m *Moment) Moment {
	n.mu.Lock()
	defer n.mu.Unlock()
	return *m
}

const maxFrame = 16 << 20

// read takes in events: each is its length in four bytes, and a message.
func (n *Count) read(from io.Reader) error {
	r := bufio.NewReaderSize(from, 64<<10)
	var frame []byte
	for {
		var head [4]byte
		if _, err := io.ReadFull(r, head[:]); err != nil {
			return fmt.Errorf("read an event: %w", err)
		}
		length := binary.BigEndian.Uint32(head[:])
		if length > maxFrame {
			return fmt.Errorf("an event has %d bytes, more than %d", length, maxFrame)
		}
		if cap(frame) < int(length) {
			frame = make([]byte, length)
		}
		frame = frame[:length]
		if _, err := io.ReadFull(r, frame); err != nil {
			return fmt.Errorf("read an event: %w", err)
		}
		if err := n.take(frame); err != nil {
			return err
		}
	}
}

// The numbers of fields, as the messages of Kubernetes have them.
const (
	eventType, eventObject          = 1, 2 // of WatchEvent
	rawBytes                        = 1    // of RawExtension
	unknownRaw                      = 2    // of Unknown
	podMeta, podSpec, podStatus     = 1, 2, 3
	metaUID, metaVersion            = 5, 6
	specNode, statusPhase           = 10, 1
	magic                           = "k8s\x00"
	varint, fixed64, bytes, fixed32 = 0, 1, 2, 5 // kinds of fields
)

func (n *Count) take(event []byte) error {
	now := time.Now()
	kind := string(field(event, eventType))
	raw := field(field(event, eventObject), rawBytes)
	if kind == "" || len(raw) < len(magic) || string(raw[:len(magic)]) != magic {
		return errors.New("an event is not as they should be")
	}
	pod := field(raw[len(magic):], unknownRaw)
	meta, phase := field(pod, podMeta), string(field(field(pod, podStatus), statusPhase))
	uid, version := field(meta, metaUID), field(meta, metaVersion)
	if kind == "ERROR" || len(version) == 0 {
		return fmt.Errorf("the API server sends an event %s without a version", kind)
	}
	n.version = string(version)
	if kind != "ADDED" && kind != "MODIFIED" {
		return nil
	}
	is := stage{bound: len(field(field(pod, podSpec), specNode)) > 0, running: phase == "Running", ended: phase == "Succeeded" || phase == "Failed"}
	n.mu.Lock()
	defer n.mu.Unlock()
	was, known := n.stages[string(uid)]
	if !known {
		n.tally.Created++
	}
	if is.bound && !was.bound {
		n.tally.Bound++
		n.bound.note(now)
	}
	if is.running && !was.running {
		n.tally.Running++
		n.running.note(now)
	}
	if is.ended && !was.ended {
		n.tally.Ended++
	}
	n.stages[string(uid)] = is
	n.changed.Broadcast()
	return nil
}

func (m *Moment) note(now time.Time) {
	if m.First.IsZero() {
		m.First = now
	}
	m.Last = now
}

// field finds the first field of a number that holds bytes; nil: there is none, or the message is broken before it.
func field(message []byte, number uint64) []byte {
	for len(message) > 0 {
		key, n := binary.Uvarint(message)
		if n <= 0 {
			return nil
		}
		message = message[n:]
		var skip uint64
		switch key & 7 {
		case varint:
			_, n := binary.Uvarint(message)
			if n <= 0 {
				return nil
			}
			skip = uint64(n)
		case fixed64:
			skip = 8
		case fixed32:
			skip = 4
		case bytes:
			length, n := binary.Uvarint(message)
			if n <= 0 || length > uint64(len(message)-n) {
				return nil
			}
			message = message[n:]
			if key>>3 == number {
				return message[:length]
			}
			skip = length
		default:
			return nil
		}
		if skip > uint64(len(message)) {
			return nil
		}
		message = message[skip:]
	}
	return nil
}
