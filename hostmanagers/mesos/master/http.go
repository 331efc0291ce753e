package master

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"
)

const (
	mediaType    = "application/x-protobuf"
	streamHeader = "Mesos-Stream-Id"
	// maxWords bounds the text of a refusal.
	maxWords = 4 << 10
	// readBuffer is how much of an answer or stream is read at once.
	readBuffer = 64 << 10
)

// credentials returns the value of the Authorization header, or "".
func (c *Connection) credentials() (string, error) {
	if c.cfg.Secret == nil {
		return "", nil
	}
	secret, err := c.cfg.Secret()
	if err != nil {
		return "", fmt.Errorf("read the secret of Mesos principal %q: %w", c.cfg.Principal, err)
	}
	return "Basic " + base64.StdEncoding.EncodeToString([]byte(c.cfg.Principal+":"+secret)), nil
}

// dial connects to a master, within the time-out.
func (c *Connection) dial(ctx context.Context, t target) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.Timeout)
	defer cancel()
	conn, err := c.cfg.Dial(ctx, "tcp", t.host)
	if err != nil {
		return nil, fmt.Errorf("connect to the Mesos master at %s: %w", t, err)
	}
	if !t.https {
		return conn, nil
	}
	settings := &tls.Config{MinVersion: tls.VersionTLS12}
	if c.cfg.TLS != nil {
		settings = c.cfg.TLS.Clone()
	}
	if settings.ServerName == "" {
		settings.ServerName, _, _ = net.SplitHostPort(t.host) // parseTarget joined it
	}
	settings.NextProtos = []string{"http/1.1"}
	secure := tls.Client(conn, settings)
	if err := secure.HandshakeContext(ctx); err != nil {
		_ = conn.Close() // the handshake has failed
		return nil, fmt.Errorf("connect to the Mesos master at %s by TLS: %w", t, err)
	}
	return secure, nil
}

// head returns a POST's head up to the value of Content-Length, which stands last.
func head(t target, path, authorization, stream string, once bool) string {
	var b strings.Builder
	fmt.Fprintf(&b, "POST %s%s HTTP/1.1\r\nHost: %s\r\nUser-Agent: paceline\r\nAccept: %s\r\nContent-Type: %s\r\n", t.base, path, t.host, mediaType, mediaType)
	if authorization != "" {
		b.WriteString("Authorization: " + authorization + "\r\n")
	}
	if stream != "" {
		b.WriteString(streamHeader + ": " + stream + "\r\n")
	}
	if once {
		b.WriteString("Connection: close\r\n")
	}
	b.WriteString("Content-Length: ")
	return b.String()
}

// exchange is a request on a connection of its own, and its answer.
type exchange struct {
	conn     net.Conn
	response *http.Response
	// grace is how long a read may wait; 0: the deadline that stands counts. Only who reads may change it.
	grace time.Duration
}

// Read reads from the connection; the answer's body comes through it.
func (x *exchange) Read(to []byte) (int, error) {
	if x.grace > 0 {
		_ = x.conn.SetReadDeadline(time.Now().Add(x.grace)) // a connection that is closed fails by itself
	}
	return x.conn.Read(to)
}

func (x *exchange) close() { _ = x.conn.Close() } // nothing is lost with it that was not lost before

// post sends one request on a new connection. The answer's head and, until the caller says otherwise, its body have to come within the time-out.
func (c *Connection) post(ctx context.Context, t target, path string, body []byte) (*exchange, error) {
	authorization, err := c.credentials()
	if err != nil {
		return nil, err
	}
	conn, err := c.dial(ctx, t)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() }) // ends what waits
	defer stop()
	request := append(strconv.AppendInt([]byte(head(t, path, authorization, "", true)), int64(len(body)), 10), "\r\n\r\n"...)
	err = conn.SetDeadline(time.Now().Add(c.cfg.Timeout))
	if err == nil {
		_, err = conn.Write(append(request, body...))
	}
	x := &exchange{conn: conn}
	if err == nil {
		x.response, err = readHead(bufio.NewReaderSize(x, readBuffer)) //nolint:bodyclose // its connection is closed instead
	}
	if err != nil {
		x.close()
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		return nil, fmt.Errorf("ask the Mesos master at %s: %w", t, err)
	}
	return x, nil
}

// readHead reads the head of an answer.
func readHead(from *bufio.Reader) (*http.Response, error) {
	for {
		response, err := http.ReadResponse(from, nil)
		if err != nil {
			if errors.Is(err, io.EOF) {
				return nil, io.ErrUnexpectedEOF
			}
			return nil, fmt.Errorf("read the answer: %w", err)
		}
		if response.StatusCode/100 != 1 { // "go on" is no answer
			return response, nil
		}
	}
}

// refusal reads the words of an answer that is none of success.
func refusal(response *http.Response) *RefusedError {
	words, _ := io.ReadAll(io.LimitReader(response.Body, maxWords)) // what came of them has to do
	return &RefusedError{Code: response.StatusCode, Text: strings.TrimSpace(printable(string(words)))}
}

// printable keeps a peer's words from doing harm in a terminal or a log.
func printable(words string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(words, "?"))
}
