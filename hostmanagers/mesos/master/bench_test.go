package master_test

import (
	"bufio"
	"bytes"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"

	mesos "github.com/mesos/mesos-go/api/v1/lib"
	"github.com/mesos/mesos-go/api/v1/lib/scheduler"

	"github.com/paceline-sched/paceline/hostmanagers/mesos/master"
)

// answering is a master over real sockets that confirms a subscription, sends the stream it is given, and takes every call without a look.
func answering(b *testing.B, stream []byte) string {
	b.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	var work sync.WaitGroup
	var mu sync.Mutex
	var conns []net.Conn
	work.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			conns = append(conns, conn)
			mu.Unlock()
			work.Go(func() {
				defer conn.Close()
				in := bufio.NewReaderSize(conn, 1<<16)
				for out := make([]byte, 0, 1<<16); ; {
					r, err := http.ReadRequest(in)
					if err != nil {
						return
					}
					_, _ = io.Copy(io.Discard, r.Body)
					if r.Header.Get("Mesos-Stream-Id") == "" {
						_, _ = conn.Write(stream)
						_, _ = io.Copy(io.Discard, in)
						return
					}
					if out = append(out, taken...); in.Buffered() == 0 || len(out) > 1<<15 {
						_, _ = conn.Write(out)
						out = out[:0]
					}
				}
			})
		}
	})
	b.Cleanup(func() {
		_ = l.Close()
		mu.Lock()
		for _, conn := range conns {
			_ = conn.Close()
		}
		mu.Unlock()
		work.Wait()
	})
	return l.Addr().String()
}

// BenchmarkCalls sends acknowledgements over one connection, from one goroutine in batches or from many one by one. The time is that of both
// ends.
func BenchmarkCalls(b *testing.B) {
	for name, batch := range map[string]int{"batches-of-100": 100, "64-callers": 0} {
		b.Run(name, func(b *testing.B) {
			f := start(b, master.Config{Masters: []string{answering(b, []byte(streamHead+chunk(subscribed())))}})
			eventually(b, "no subscription", func() bool { return f.Status().Subscribed })
			call := &scheduler.Call{Type: scheduler.Call_ACKNOWLEDGE, Acknowledge: &scheduler.Call_Acknowledge{
				AgentID: mesos.AgentID{Value: strings.Repeat("a", 40)}, TaskID: mesos.TaskID{Value: strings.Repeat("t", 40)}, UUID: make([]byte, 16),
			}}
			b.ReportAllocs()
			if batch == 0 {
				b.SetParallelism(32)
				b.RunParallel(func(pb *testing.PB) {
					for pb.Next() {
						if err := f.Call(b.Context(), call); err != nil {
							b.Error(err)
						}
					}
				})
				return
			}
			calls := make([]*scheduler.Call, batch)
			for i := range calls {
				calls[i] = call
			}
			for sent := 0; sent < b.N; sent += batch {
				if errs := f.Send(b.Context(), calls[:min(batch, b.N-sent)]...); errs != nil {
					b.Fatal(errs)
				}
			}
		})
	}
}

// BenchmarkUpdates hears the updates of a real master's tasks, again and again, over a real socket.
func BenchmarkUpdates(b *testing.B) {
	recorded, err := archive()
	if err != nil {
		b.Fatal(err)
	}
	lines, _, err := recorded.Events("protobuf/02-launch")
	if err != nil {
		b.Fatal(err)
	}
	var updates []*scheduler.Event
	for _, line := range lines {
		if bytes.Contains(line.JSON, []byte(`"UPDATE"`)) {
			updates = append(updates, decoded(b, "02-launch", line.JSON))
		}
	}
	stream := bytes.NewBufferString(streamHead + chunk(subscribed()))
	for i := range b.N {
		stream.WriteString(chunk(updates[i%len(updates)]))
	}
	heard := 0
	f := &framework{on: func(*scheduler.Event) { heard++ }, forget: true}
	b.ReportAllocs()
	b.SetBytes(int64(stream.Len()) / int64(b.N))
	b.ResetTimer()
	f.start(b, master.Config{Masters: []string{answering(b, append(stream.Bytes(), "0\r\n\r\n"...))}})
	eventually(b, "the stream did not end", func() bool { _, over := f.subscriptions(); return over > 0 })
	if heard < b.N {
		b.Fatalf("%d updates of %d were heard", heard, b.N)
	}
}
