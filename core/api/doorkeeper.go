package api

import (
	"errors"
	"log/slog"
	"net"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/paceline-sched/paceline/core/telemetry"
)

// mostConnections bounds the default of Config.MaxConnections.
const mostConnections = 16384

// defaultConnections leaves half of the process's file descriptors to the store and to tasks: a cell that cannot open a file of its store
// stops.
func defaultConnections() int {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil || limit.Cur/2 > mostConnections {
		return mostConnections
	}
	return int(limit.Cur / 2) //nolint:gosec // it is small
}

// doorkeeper is a listener that closes connections beyond a limit at once: one that were left waiting would not know what for.
type doorkeeper struct {
	net.Listener
	most int
	log  *slog.Logger
	full complaint

	mu   sync.Mutex
	open int
}

func (d *doorkeeper) Accept() (net.Conn, error) {
	for {
		conn, err := d.Listener.Accept()
		if err != nil {
			if errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) { // net/http tries again by itself
				d.complain("connections wait: no file descriptors are left; raise the limit (ulimit -n) or lower --max-connections", slog.Any(telemetry.KeyError, err))
			}
			return nil, err
		}
		if d.take() {
			return &countedConn{Conn: conn, leave: sync.OnceFunc(d.leave)}, nil
		}
		_ = conn.Close()
		d.complain("connections are refused: as many are open as may be (--max-connections)", slog.Int(telemetry.KeyLimit, d.most))
	}
}

func (d *doorkeeper) complain(message string, why slog.Attr) {
	if count, due := d.full.add(time.Now()); due {
		d.log.Warn(message, slog.Int(telemetry.KeyCount, count), why) //nolint:sloglint // one of two constants
	}
}

func (d *doorkeeper) take() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.open >= d.most {
		return false
	}
	d.open++
	return true
}

func (d *doorkeeper) leave() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.open--
}

// countedConn gives its place back when it is closed.
type countedConn struct {
	net.Conn
	leave func()
}

func (c *countedConn) Close() error {
	defer c.leave()
	return c.Conn.Close()
}
