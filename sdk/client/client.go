// Package client is the Go client of Paceline's API.
//
// A Client joins the generated service clients with what every caller wants: a token, TLS, time-outs, retries of calls that may
// safely be repeated, and a watch that resumes by itself. It keeps no state of the server and never caches.
//
// Concurrency: a Client may be used from any number of goroutines. It starts none of its own; Watch works on its caller's.
package client

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"connectrpc.com/connect"

	"github.com/paceline-sched/paceline/sdk/gen/paceline/v1/pacelinev1connect"
)

// MaxMessageBytes bounds one message that the client sends or accepts.
const MaxMessageBytes = 16 << 20

// Client speaks to one server.
type Client struct {
	Jobs      pacelinev1connect.JobServiceClient
	Tasks     pacelinev1connect.TaskServiceClient
	Pools     pacelinev1connect.PoolServiceClient
	Admission pacelinev1connect.AdmissionServiceClient
	Policies  pacelinev1connect.PolicyServiceClient
	Clusters  pacelinev1connect.ClusterServiceClient
	Usage     pacelinev1connect.UsageServiceClient
	Hosts     pacelinev1connect.HostServiceClient
	Events    pacelinev1connect.EventServiceClient
	Admin     pacelinev1connect.AdminServiceClient

	address string
	idle    func()
	backoff backoff
}

// Option changes how New sets up a Client.
type Option func(*settings) error

type settings struct {
	token      string
	tls        *tls.Config
	timeout    time.Duration
	attempts   int
	backoff    backoff
	httpClient connect.HTTPClient
	userAgent  string
	options    []connect.ClientOption
}

// WithToken authenticates every call with a bearer token.
func WithToken(token string) Option {
	return func(s *settings) error {
		if strings.ContainsAny(token, "\r\n\x00 ") {
			return errors.New("the token contains white space: give it without a line break")
		}
		s.token = token
		return nil
	}
}

// WithTokenFile authenticates every call with the token that a file holds, read once.
func WithTokenFile(path string) Option {
	return func(s *settings) error {
		raw, err := os.ReadFile(path)
		if err != nil {
			return fmt.Errorf("read the token file: %w", err)
		}
		return WithToken(strings.TrimSpace(string(raw)))(s)
	}
}

// WithCAFile trusts the certificates in a PEM file instead of the system's.
func WithCAFile(path string) Option {
	return func(s *settings) error {
		raw, err := os.ReadFile(path)
		if err != nil {
			return fmt.Errorf("read the CA file: %w", err)
		}
		pool := x509.NewCertPool()
		if !pool.AppendCertsFromPEM(raw) {
			return fmt.Errorf("the CA file %s holds no PEM certificate", path)
		}
		s.tls = &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS13}
		return nil
	}
}

// WithTLS replaces the TLS settings altogether.
func WithTLS(config *tls.Config) Option {
	return func(s *settings) error {
		s.tls = config.Clone()
		return nil
	}
}

// WithTimeout bounds each unary call, all its tries included, unless its context ends earlier. Default 30 s; 0: no bound. Streams
// are bounded by their context alone.
func WithTimeout(timeout time.Duration) Option {
	return func(s *settings) error {
		if timeout < 0 {
			return fmt.Errorf("time-out %v is negative", timeout)
		}
		s.timeout = timeout
		return nil
	}
}

// WithAttempts bounds the tries of a unary call that may be repeated and that found the server unavailable or overloaded. Default 4; 1: none
// is repeated.
func WithAttempts(attempts int) Option {
	return func(s *settings) error {
		if attempts < 1 || attempts > maxAttempts {
			return fmt.Errorf("%d attempts are out of range: use 1 to %d", attempts, maxAttempts)
		}
		s.attempts = attempts
		return nil
	}
}

// WithHTTPClient sends requests through another HTTP client. WithCAFile and WithTLS have no effect then.
func WithHTTPClient(client connect.HTTPClient) Option {
	return func(s *settings) error {
		s.httpClient = client
		return nil
	}
}

// WithUserAgent names the program that calls. Default: paceline-go.
func WithUserAgent(agent string) Option {
	return func(s *settings) error {
		s.userAgent = agent
		return nil
	}
}

// WithGRPC speaks gRPC instead of Connect.
func WithGRPC() Option {
	return func(s *settings) error {
		s.options = append(s.options, connect.WithGRPC())
		return nil
	}
}

// New returns a client of the server at an address: a URL, or host:port, which means http on loopback and https elsewhere. It does
// not connect yet.
func New(address string, options ...Option) (*Client, error) {
	base, err := baseURL(address)
	if err != nil {
		return nil, err
	}
	s := settings{timeout: 30 * time.Second, attempts: 4, backoff: defaultBackoff, userAgent: "paceline-go"}
	for _, option := range options {
		if err := option(&s); err != nil {
			return nil, err
		}
	}
	if s.token != "" && base.Scheme == "http" && !isLoopback(base.Hostname()) {
		return nil, fmt.Errorf("refusing to send a token to %s in plain text: use https", base.Host)
	}
	c := &Client{address: base.String(), backoff: s.backoff, idle: func() {}}
	if s.httpClient == nil {
		transport := newTransport(s.tls)
		s.httpClient = &http.Client{Transport: transport, CheckRedirect: refuseRedirect}
		c.idle = transport.CloseIdleConnections
	}
	opts := append([]connect.ClientOption{
		connect.WithReadMaxBytes(MaxMessageBytes),
		connect.WithSendMaxBytes(MaxMessageBytes),
		connect.WithInterceptors(&caller{settings: s}),
	}, s.options...)
	c.Jobs = pacelinev1connect.NewJobServiceClient(s.httpClient, c.address, opts...)
	c.Tasks = pacelinev1connect.NewTaskServiceClient(s.httpClient, c.address, opts...)
	c.Pools = pacelinev1connect.NewPoolServiceClient(s.httpClient, c.address, opts...)
	c.Admission = pacelinev1connect.NewAdmissionServiceClient(s.httpClient, c.address, opts...)
	c.Policies = pacelinev1connect.NewPolicyServiceClient(s.httpClient, c.address, opts...)
	c.Clusters = pacelinev1connect.NewClusterServiceClient(s.httpClient, c.address, opts...)
	c.Usage = pacelinev1connect.NewUsageServiceClient(s.httpClient, c.address, opts...)
	c.Hosts = pacelinev1connect.NewHostServiceClient(s.httpClient, c.address, opts...)
	c.Events = pacelinev1connect.NewEventServiceClient(s.httpClient, c.address, opts...)
	c.Admin = pacelinev1connect.NewAdminServiceClient(s.httpClient, c.address, opts...)
	return c, nil
}

// Address is the URL that the client sends to.
func (c *Client) Address() string { return c.address }

// Close drops connections that are not in use.
func (c *Client) Close() { c.idle() }

func baseURL(address string) (*url.URL, error) {
	if !strings.Contains(address, "://") {
		host, _, err := net.SplitHostPort(address)
		if err != nil {
			return nil, fmt.Errorf("server address %q must be a URL or host:port", address)
		}
		if isLoopback(host) {
			address = "http://" + address
		} else {
			address = "https://" + address
		}
	}
	u, err := url.Parse(address)
	if err != nil {
		return nil, fmt.Errorf("server address: %w", err)
	}
	if (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" || u.RawQuery != "" || u.Fragment != "" || u.User != nil {
		return nil, fmt.Errorf("server address %q must be http://host:port or https://host:port", address)
	}
	u.Path = strings.TrimSuffix(u.Path, "/")
	return u, nil
}

func isLoopback(host string) bool {
	if host == "localhost" {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}

// newTransport speaks HTTP/2 with and without TLS, so that any number of streams share one connection, and notices a dead peer.
func newTransport(config *tls.Config) *http.Transport {
	protocols := new(http.Protocols)
	protocols.SetHTTP2(true)
	protocols.SetUnencryptedHTTP2(true)
	if config == nil {
		config = &tls.Config{MinVersion: tls.VersionTLS13}
	}
	return &http.Transport{
		Proxy:               http.ProxyFromEnvironment,
		DialContext:         (&net.Dialer{Timeout: 10 * time.Second}).DialContext,
		TLSClientConfig:     config,
		TLSHandshakeTimeout: 10 * time.Second,
		IdleConnTimeout:     90 * time.Second,
		Protocols:           protocols,
		HTTP2:               &http.HTTP2Config{SendPingTimeout: 20 * time.Second, PingTimeout: 10 * time.Second},
	}
}

func refuseRedirect(request *http.Request, _ []*http.Request) error {
	return fmt.Errorf("the server redirects to %s: give the client its final address", request.URL.Redacted())
}

// sleep waits unless the context ends first.
func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
