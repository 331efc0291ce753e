package api

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"connectrpc.com/connect"
	"connectrpc.com/grpchealth"
	"connectrpc.com/grpcreflect"

	"github.com/paceline-sched/paceline/core/api/admit"
	"github.com/paceline-sched/paceline/core/api/auth"
	"github.com/paceline-sched/paceline/core/api/gate"
	"github.com/paceline-sched/paceline/core/engine"
	"github.com/paceline-sched/paceline/core/telemetry"
	"github.com/paceline-sched/paceline/sdk/gen/paceline/v1/pacelinev1connect"
)

// The bounds of a server.
const (
	// MaxRequestBytes bounds one message that comes in. A spec of spec.MaxBytes takes up to some three times as much in JSON.
	MaxRequestBytes = 4 << 20
	// MaxResponseBytes bounds one message that goes out.
	MaxResponseBytes = 16 << 20
	// minCompressed is the size of an answer from which it is compressed for clients that take that. What streams send never is: a compressor holds
	// a megabyte, and a thousand watches of a busy cell spent more on compression than on everything else.
	minCompressed  = 16 << 10
	maxSmallBytes  = 64 << 10 // of a request that only names things; a stream keeps its own for as long as it lasts
	maxHeaderBytes = 64 << 10
	maxStreams     = 1000 // of one HTTP/2 connection
	headerTimeout  = 10 * time.Second
	idleTimeout    = 2 * time.Minute
	healthTimeout  = 2 * time.Second
)

// Parts are what a Server is made of beside its settings.
type Parts struct {
	Engine   *engine.Engine
	Judge    admit.Judge        // default: no job is judged by rules
	Policies Policies           // default: there are the built-in policies only
	Clusters Clusters           // default: clusters are shown, and none can be added
	Metrics  *telemetry.Metrics // default: /metrics is not served
	Log      *slog.Logger       // default: nothing is logged
	Trace    *telemetry.Trace   // default: nobody looks
}

// Server answers the API of one cell: Connect, gRPC and gRPC-Web, reflection, health and metrics, all on one port.
type Server struct {
	config   Config
	log      *slog.Logger
	handler  http.Handler
	tls      *tls.Config
	stopping context.Context
	stop     context.CancelFunc
}

// NewServer makes a Server; nothing listens yet. On a loopback address it makes the token file when it is missing.
func NewServer(config Config, parts Parts) (*Server, error) {
	config = config.WithDefaults()
	if err := config.Validate(); err != nil {
		return nil, err
	}
	if parts.Log == nil {
		parts.Log = slog.New(slog.DiscardHandler)
	}
	parts.Trace = parts.Trace.Complete()
	s := &Server{config: config, log: parts.Log}
	if config.TLSCert != "" {
		pair, err := config.certificate()
		if err != nil {
			return nil, err
		}
		s.tls = &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"}}
	}
	tokens, err := s.openTokens(parts.Trace)
	if err != nil {
		return nil, err
	}
	s.stopping, s.stop = context.WithCancel(context.Background())
	e := &edge{tokens: tokens, log: parts.Log, trace: parts.Trace, stopping: s.stopping}
	front := &entrance{edge: e, gate: gate.New(config.Limits), writer: connect.NewErrorWriter(), stuck: config.Stuck}
	mux := http.NewServeMux()
	mux.Handle("GET /healthz", &pulse{ask: (&health{engine: parts.Engine}).ask, now: time.Now})
	mux.Handle("/", front.wrap(s.routes(e, parts)))
	s.handler = s.guard(mux)
	return s, nil
}

func (s *Server) openTokens(trace *telemetry.Trace) (*auth.Tokens, error) {
	if s.config.makesTokens() {
		if err := auth.Create(s.config.TokenFile); err != nil {
			return nil, err
		}
	}
	return auth.Open(s.config.TokenFile, time.Now, func(err error) {
		trace.TokensLoaded(err)
		if err != nil {
			s.log.Error("the token file was not read again; the former tokens hold",
				slog.String(telemetry.KeyPath, s.config.TokenFile), slog.Any(telemetry.KeyError, err))
			return
		}
		s.log.Info("token file read again", slog.String(telemetry.KeyPath, s.config.TokenFile))
	})
}

func (s *Server) routes(e *edge, parts Parts) http.Handler {
	c := &cell{engine: parts.Engine, name: s.config.Cell, policies: parts.Policies, clusters: parts.Clusters}
	c.bench.judge, c.bench.log = parts.Judge, parts.Log
	options := []connect.HandlerOption{
		connect.WithInterceptors(e), connect.WithReadMaxBytes(MaxRequestBytes), connect.WithSendMaxBytes(MaxResponseBytes),
		connect.WithCodec(strictJSON{}), connect.WithCompressMinBytes(minCompressed),
	}
	mux := http.NewServeMux()
	mux.Handle(pacelinev1connect.NewJobServiceHandler(&jobService{c}, options...))
	mux.Handle(pacelinev1connect.NewAdmissionServiceHandler(&admissionService{c}, options...))
	mux.Handle(pacelinev1connect.NewPolicyServiceHandler(&policyService{c}, options...))
	small := append(options[:len(options):len(options)], connect.WithReadMaxBytes(maxSmallBytes))
	streams := append(small[:len(small):len(small)], connect.WithCompressMinBytes(math.MaxInt))
	mux.Handle(pacelinev1connect.NewTaskServiceHandler(&taskService{c}, streams...))
	mux.Handle(pacelinev1connect.NewPoolServiceHandler(&poolService{c}, options...))
	mux.Handle(pacelinev1connect.NewUsageServiceHandler(&usageService{c}, options...))
	mux.Handle(pacelinev1connect.NewHostServiceHandler(&hostService{c}, options...))
	mux.Handle(pacelinev1connect.NewClusterServiceHandler(&clusterService{c}, small...))
	mux.Handle(pacelinev1connect.NewEventServiceHandler(&eventService{c}, streams...))
	mux.Handle(pacelinev1connect.NewAdminServiceHandler(&adminService{
		cell: c, build: s.config.Build, roles: s.config.Roles, started: time.Now(),
	}, streams...))
	reflector := grpcreflect.NewStaticReflector(serviceNames...)
	mux.Handle(grpcreflect.NewHandlerV1(reflector, connect.WithInterceptors(e), connect.WithReadMaxBytes(MaxRequestBytes)))
	mux.Handle(grpcreflect.NewHandlerV1Alpha(reflector, connect.WithInterceptors(e), connect.WithReadMaxBytes(MaxRequestBytes)))
	// Health is open to all: what asks for it is often a load balancer without a token, and it says yes or no only.
	mux.Handle(grpchealth.NewHandler(&health{engine: parts.Engine}, connect.WithReadMaxBytes(4<<10)))
	if parts.Metrics != nil {
		mux.Handle("GET /metrics", e.authenticated(parts.Metrics.Handler()))
	}
	return mux
}

var serviceNames = []string{
	pacelinev1connect.JobServiceName, pacelinev1connect.TaskServiceName, pacelinev1connect.PoolServiceName, pacelinev1connect.UsageServiceName,
	pacelinev1connect.HostServiceName, pacelinev1connect.EventServiceName, pacelinev1connect.AdminServiceName,
	pacelinev1connect.AdmissionServiceName, pacelinev1connect.PolicyServiceName, pacelinev1connect.ClusterServiceName,
}

// authenticated lets holders of any token through to a plain HTTP handler.
func (e *edge) authenticated(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		token, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		if _, ok := e.tokens.Authenticate(token); !ok {
			w.Header().Set("WWW-Authenticate", "Bearer")
			http.Error(w, errUnauthenticated.message+": "+errUnauthenticated.hint, http.StatusUnauthorized)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// guard keeps web pages of other sites from speaking to the server through a user's browser: requests with a foreign Origin are
// refused, and on plain-text loopback also those for a foreign Host, which a rebound DNS name would bring.
func (s *Server) guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Content-Type-Options", "nosniff")
		if s.tls == nil && !isLoopback(hostOnly(r.Host)) {
			http.Error(w, "this server answers to loopback names only: use 127.0.0.1, [::1] or localhost", http.StatusForbidden)
			return
		}
		if origin := r.Header.Get("Origin"); origin != "" && !sameOrigin(origin, r.Host) {
			http.Error(w, "requests from pages of other sites are refused", http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, r)
	})
}

func hostOnly(hostport string) string {
	if host, _, err := net.SplitHostPort(hostport); err == nil {
		return host
	}
	return strings.Trim(hostport, "[]")
}

func sameOrigin(origin, host string) bool {
	u, err := url.Parse(origin)
	return err == nil && u.Host != "" && u.Host == host
}

// Handler is the server's HTTP handler, for listeners of other kinds.
func (s *Server) Handler() http.Handler { return s.handler }

// Listen opens the configured address.
func (s *Server) Listen() (net.Listener, error) {
	listener, err := (&net.ListenConfig{}).Listen(s.stopping, "tcp", s.config.Address)
	if err != nil {
		return nil, fmt.Errorf("listen for API calls: %w; is another server running there? choose another address", err)
	}
	return &doorkeeper{Listener: listener, most: s.config.MaxConnections, log: s.log}, nil
}

// Serve answers calls until ctx ends, then lets those in progress end within the grace period. It closes the listener.
func (s *Server) Serve(ctx context.Context, listener net.Listener) error {
	if host := hostOnly(listener.Addr().String()); s.tls == nil && listener.Addr().Network() == "tcp" && !isLoopback(host) {
		return errors.Join(fmt.Errorf("refusing to serve %s without TLS", listener.Addr()), listener.Close())
	}
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(true)
	protocols.SetUnencryptedHTTP2(s.tls == nil)
	server := &http.Server{
		Handler: s.handler, Protocols: protocols, ReadHeaderTimeout: headerTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeaderBytes,
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams: maxStreams, SendPingTimeout: 30 * time.Second, PingTimeout: 15 * time.Second, WriteByteTimeout: s.config.Stuck,
		},
		ErrorLog: slog.NewLogLogger(s.log.Handler(), slog.LevelDebug), TLSConfig: s.tls,
	}
	stopped := make(chan error, 1)
	cancel := context.AfterFunc(ctx, func() { stopped <- s.shutDown(server) })
	defer s.stop()
	s.log.Info("serving the API", slog.String(telemetry.KeyAddress, listener.Addr().String()))
	var err error
	if s.tls != nil {
		err = server.ServeTLS(listener, "", "")
	} else {
		err = server.Serve(listener)
	}
	if cancel() { // it failed by itself
		return fmt.Errorf("serve the API: %w", errors.Join(err, server.Close()))
	}
	return <-stopped
}

// shutDown ends streams at once, so that their callers go elsewhere, and gives other calls the grace period.
func (s *Server) shutDown(server *http.Server) error {
	s.stop()
	ctx, cancel := context.WithTimeout(context.Background(), s.config.Grace)
	defer cancel()
	if err := server.Shutdown(ctx); err != nil {
		return errors.Join(fmt.Errorf("calls were cut off after %v: %w", s.config.Grace, err), server.Close())
	}
	return nil
}
