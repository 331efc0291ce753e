package emulator

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"

	"github.com/paceline-sched/paceline/hostmanagers/mesos/emulator/cluster"
)

const (
	// maxHead and maxBody bound a request.
	maxHead = 64 << 10
	maxBody = 64 << 20
	// worthGzip is the length from which a body is compressed for who asks.
	worthGzip = 1024
)

// answer is what one request gets.
type answer struct {
	code    int
	headers []string // "Name: value", between Date and the end, without the length
	body    []byte
	lengthy bool    // the length stands before the other headers
	stream  *stream // instead of a body
}

// text answers with words.
func text(code int, words string) *answer {
	return &answer{code: code, headers: []string{"Content-Type: " + textType}, body: []byte(words)}
}

// request is one request with its body.
type request struct {
	*http.Request
	path string // without "/master" and a slash at the end
	body []byte
}

// converse serves one connection.
func (e *Emulator) converse(conn net.Conn) {
	defer e.unregister(conn)
	limited := &io.LimitedReader{R: conn, N: maxHead}
	in := bufio.NewReader(limited)
	for {
		limited.N = maxHead
		r, err := http.ReadRequest(in)
		if err != nil {
			return
		}
		limited.N = maxBody
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		path := strings.TrimSuffix(strings.TrimPrefix(r.URL.Path, "/master"), "/")
		a := e.answer(&request{Request: r, path: path, body: body})
		if a.stream != nil {
			limited.N = maxBody
			e.pour(conn, in, a)
			return
		}
		if err := e.write(conn, r, a); err != nil || r.Close || !r.ProtoAtLeast(1, 1) {
			return
		}
	}
}

// write sends an answer with its headers in a master's order.
func (e *Emulator) write(conn io.Writer, r *http.Request, a *answer) error {
	var out bytes.Buffer
	e.head(&out, a.code)
	body, headers := a.body, a.headers
	if len(body) >= worthGzip && strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
		var packed bytes.Buffer
		w := gzip.NewWriter(&packed)
		_, _ = w.Write(body) // a buffer takes everything
		_ = w.Close()
		body, headers = packed.Bytes(), append([]string{"Content-Encoding: gzip"}, headers...)
	}
	length := fmt.Sprintf("Content-Length: %d", len(body))
	if a.lengthy {
		headers = append([]string{length}, headers...)
	} else {
		headers = append(headers[:len(headers):len(headers)], length)
	}
	for _, h := range headers {
		out.WriteString(h + "\r\n")
	}
	out.WriteString("\r\n")
	out.Write(body)
	_, err := conn.Write(out.Bytes())
	if err != nil {
		return fmt.Errorf("answer a request: %w", err)
	}
	return nil
}

func (e *Emulator) head(out *bytes.Buffer, code int) {
	fmt.Fprintf(out, "HTTP/1.1 %d %s\r\nDate: %s\r\n", code, http.StatusText(code), e.clock.Now().UTC().Format(http.TimeFormat))
}

// pour sends a subscription's events until it ends or the subscriber goes away.
func (e *Emulator) pour(conn net.Conn, in io.Reader, a *answer) {
	s := a.stream
	gone := make(chan struct{})
	var watch sync.WaitGroup
	watch.Add(1)
	go func() { // ends with the connection
		defer watch.Done()
		_, _ = io.Copy(io.Discard, in) // a subscriber has nothing more to say; the end is what counts
		close(gone)
	}()
	defer func() {
		_ = conn.Close() // ends the watch
		watch.Wait()
		e.mu.Lock()
		defer e.mu.Unlock()
		if e.streams[s.id] == s {
			delete(e.streams, s.id)
			e.do(func(c *cluster.Cluster) { c.Disconnect(s.id) })
		}
	}()
	var out bytes.Buffer
	e.head(&out, http.StatusOK)
	out.WriteString("Transfer-Encoding: chunked\r\n")
	for _, h := range a.headers {
		out.WriteString(h + "\r\n")
	}
	out.WriteString("\r\n")
	for {
		chunks, state := s.take()
		if len(chunks) > 0 && !e.holdBack(gone) {
			return
		}
		for _, chunk := range chunks {
			fmt.Fprintf(&out, "%x\r\n%s\r\n", len(chunk), chunk)
		}
		switch state {
		case ended:
			out.WriteString("0\r\n\r\n")
		case cut:
			out.Truncate(out.Len() * 2 / 3) // a connection breaks in the middle of a record
		case running:
		}
		if _, err := conn.Write(out.Bytes()); err != nil || state != running {
			return
		}
		out.Reset()
		select {
		case <-s.news:
		case <-gone:
			return
		}
	}
}

// holdBack waits as long as events are to be delayed; false: the subscriber is gone meanwhile.
func (e *Emulator) holdBack(gone <-chan struct{}) bool {
	if e.faults.Delay <= 0 {
		return true
	}
	due := make(chan struct{})
	stop := e.clock.AfterFunc(e.faults.Delay, func() { close(due) })
	select {
	case <-due:
		return true
	case <-gone:
		stop()
		return false
	}
}

// answer is what a request gets: first who leads is asked, then the path.
func (e *Emulator) answer(r *request) *answer {
	e.mu.Lock()
	lead := e.lead
	e.mu.Unlock()
	switch r.path {
	case "/health", "/version", "/metrics/snapshot":
		return e.older(r)
	case "/redirect":
		if lead.none {
			return text(http.StatusServiceUnavailable, "No leader elected")
		}
		return &answer{code: http.StatusTemporaryRedirect, headers: []string{"Location: //" + leader(lead, e.advertise)}}
	}
	switch {
	case lead.none:
		return text(http.StatusServiceUnavailable, "No leader elected")
	case lead.other != "":
		return &answer{code: http.StatusTemporaryRedirect, headers: []string{"Location: //" + lead.other + "/master" + r.path}}
	case r.path == "/api/v1/scheduler":
		return e.scheduler(r)
	case r.path == "/api/v1" || strings.HasPrefix(r.path, "/api/v1/"):
		return e.operator(r)
	default:
		return e.older(r)
	}
}

func leader(lead leadership, self string) string {
	if lead.other != "" {
		return lead.other
	}
	return self
}
