package master

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/paceline-sched/paceline/core/telemetry"
)

const (
	zkSession = 10 * time.Second
	// zkNode is what the names of the nodes begin with that masters register, in JSON; what follows is their number, the lowest leads.
	zkNode = "json.info_"
	// maxZKBytes bounds one answer of ZooKeeper.
	maxZKBytes = 4 << 20
)

// ensemble is a locator that asks ZooKeeper.
type ensemble struct {
	cfg     *Config
	servers []string
	path    string
	login   []byte // "user:password", or nil

	session *session // nil: there is none
	gone    <-chan zk.Event
}

// session is one client of the ensemble, with what ends it.
type session struct {
	*zk.Conn
	events <-chan zk.Event // closed when the client's goroutines have ended
	known  bool            // who asks was told

	mu     sync.Mutex
	socket net.Conn
	closed bool
}

// parseEnsemble reads "zk://user:password@host1:port1,host2:port2/path". Errors do not print what may be a password.
func parseEnsemble(address string, cfg *Config) (*ensemble, error) {
	e := &ensemble{cfg: cfg}
	rest := strings.TrimPrefix(address, zkScheme)
	if at := strings.LastIndex(rest, "@"); at >= 0 {
		e.login, rest = []byte(rest[:at]), rest[at+1:]
		if !strings.Contains(string(e.login), ":") {
			return nil, errors.New("the ZooKeeper address of the Mesos masters has a user without a password: write zk://user:password@host:2181/mesos")
		}
	}
	hosts, path, _ := strings.Cut(rest, "/")
	e.path = "/" + strings.Trim(path, "/")
	for host := range strings.SplitSeq(hosts, ",") {
		if _, _, err := net.SplitHostPort(host); err != nil && host != "" {
			host = net.JoinHostPort(strings.Trim(host, "[]"), strconv.Itoa(zk.DefaultPort))
		}
		name, port, err := net.SplitHostPort(host)
		if _, bad := strconv.ParseUint(port, 10, 16); err != nil || name == "" || bad != nil {
			return nil, errors.New("the ZooKeeper address of the Mesos masters is not one such as zk://host1:2181,host2:2181/mesos")
		}
		e.servers = append(e.servers, host)
	}
	if e.path == "/" || len(e.servers) > maxMasters {
		return nil, fmt.Errorf("the ZooKeeper address of the Mesos masters needs a path, such as /mesos, and at most %d servers", maxMasters)
	}
	return e, nil
}

func (e *ensemble) String() string { return zkScheme + strings.Join(e.servers, ",") + e.path }

// locate asks which master leads. A client that does not answer in time is given up, and with it the addresses that its names had.
func (e *ensemble) locate(ctx context.Context) ([]target, error) {
	if e.session == nil {
		if err := e.open(); err != nil {
			return nil, fmt.Errorf("ask %s for the Mesos master that leads: %w", e, err)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, e.cfg.Timeout)
	defer cancel()
	stop := context.AfterFunc(ctx, e.session.end)
	targets, err := e.ask()
	if stop() && (err == nil || errors.Is(err, errNoLeader)) {
		return targets, err
	}
	e.close()
	if err == nil || errors.Is(ctx.Err(), context.DeadlineExceeded) {
		err = fmt.Errorf("no answer within %v", e.cfg.Timeout)
	}
	return nil, fmt.Errorf("ask %s for the Mesos master that leads: %w", e, err)
}

var errNoLeader = errors.New("no Mesos master leads")

// open starts a client; it connects by itself.
func (e *ensemble) open() error {
	s := &session{}
	conn, events, err := zk.Connect(e.servers, zkSession, zk.WithLogger(zkLog{e.cfg.Logger}), zk.WithLogInfo(false), zk.WithMaxBufferSize(maxZKBytes),
		zk.WithDialer(func(network, address string, timeout time.Duration) (net.Conn, error) {
			ctx, cancel := context.WithTimeout(context.Background(), timeout)
			defer cancel()
			socket, err := e.cfg.Dial(ctx, network, address)
			if err != nil {
				return nil, err
			}
			return s.opened(socket)
		}))
	if err != nil {
		return fmt.Errorf("start a client: %w", err)
	}
	s.Conn, s.events = conn, events
	e.session = s
	return nil
}

// ask reads the leader's node, and watches it.
func (e *ensemble) ask() ([]target, error) {
	if e.login != nil && !e.session.known {
		if err := e.session.AddAuth("digest", e.login); err != nil {
			return nil, fmt.Errorf("log in: %w", err)
		}
		e.session.known = true
	}
	names, _, err := e.session.Children(e.path)
	if errors.Is(err, zk.ErrNoNode) {
		return nil, fmt.Errorf("%w: there is no %s", errNoLeader, e)
	}
	if err != nil {
		return nil, err
	}
	leader := ""
	for _, name := range names {
		if strings.HasPrefix(name, zkNode) && (leader == "" || name < leader) {
			leader = name
		}
	}
	if leader == "" {
		return nil, fmt.Errorf("%w: %s has none registered", errNoLeader, e)
	}
	data, _, gone, err := e.session.GetW(e.path + "/" + leader)
	if errors.Is(err, zk.ErrNoNode) {
		return nil, fmt.Errorf("%w: the one that led has just left %s", errNoLeader, e)
	}
	if err != nil {
		return nil, err
	}
	e.gone = gone
	return parseLeader(data, e.cfg.TLS != nil)
}

// parseLeader reads what a master registers: a MasterInfo in JSON. It is to be reached by its name or, where that is not known, by its IP address.
func parseLeader(data []byte, https bool) ([]target, error) {
	var info struct {
		Address struct {
			Hostname string `json:"hostname"`
			IP       string `json:"ip"`
			Port     int    `json:"port"`
		} `json:"address"`
	}
	if err := json.Unmarshal(data, &info); err != nil {
		return nil, fmt.Errorf("read what the Mesos master registered: %w", err)
	}
	var targets []target
	for _, host := range []string{info.Address.Hostname, info.Address.IP} {
		if host != "" && info.Address.Port > 0 && info.Address.Port < 1<<16 && (len(targets) == 0 || host != info.Address.Hostname) {
			targets = append(targets, target{https: https, host: net.JoinHostPort(host, strconv.Itoa(info.Address.Port))})
		}
	}
	if len(targets) == 0 {
		return nil, errors.New("the Mesos master registered no address")
	}
	return targets, nil
}

func (e *ensemble) found(target) {}

// moved waits for the node of the master that led to go. A session that is lost meanwhile is not replaced: heartbeats tell, too.
func (e *ensemble) moved(ctx context.Context) bool {
	select {
	case event := <-e.gone:
		return event.Type == zk.EventNodeDeleted
	case <-ctx.Done():
		return false
	}
}

// close ends the client and waits for it.
func (e *ensemble) close() {
	if e.session == nil {
		return
	}
	e.session.end()
	for range e.session.events {
	}
	e.session, e.gone = nil, nil
}

// opened notes the socket that the client uses, of which there is one at a time.
func (s *session) opened(socket net.Conn) (net.Conn, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		_ = socket.Close() // nobody wants it any more
		return nil, net.ErrClosed
	}
	s.socket = socket
	return socket, nil
}

// end makes the client fail whatever it does. It may be called twice.
func (s *session) end() {
	s.Close() // which asks the server to forget the session, and waits for a second
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	if s.socket != nil {
		_ = s.socket.Close() // or a server that says nothing would be waited for
	}
}

// zkLog passes on what the client has to say.
type zkLog struct{ log *slog.Logger }

func (l zkLog) Printf(format string, args ...any) {
	l.log.Debug("ZooKeeper", slog.String(telemetry.KeyText, fmt.Sprintf(format, args...)))
}
