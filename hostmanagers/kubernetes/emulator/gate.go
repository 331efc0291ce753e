package emulator

import (
	"net"
	"sync"
)

// gate is the connections of a server, which can be cut and kept out.
type gate struct {
	mu   sync.Mutex
	down bool
	open map[*gated]struct{}
}

// gatedListener lets connections in through a gate.
type gatedListener struct {
	net.Listener
	gate *gate
}

// gated is one connection that is in.
type gated struct {
	net.Conn
	gate *gate
}

// Accept waits for the next connection that is let in. While the gate is down none is: who dials sees his connection end at once.
func (l *gatedListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err //nolint:wrapcheck // net/http tells some of them apart
		}
		if one := l.gate.admit(conn); one != nil {
			return one, nil
		}
		_ = conn.Close() // nobody is served
	}
}

func (g *gate) admit(conn net.Conn) net.Conn {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.down {
		return nil
	}
	one := &gated{Conn: conn, gate: g}
	g.open[one] = struct{}{}
	return one
}

func (g *gate) set(down bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.down = down
	if !down {
		return
	}
	for one := range g.open {
		_ = one.Conn.Close() // some have been closed before
	}
	clear(g.open)
}

// Close ends the connection.
func (c *gated) Close() error {
	c.gate.mu.Lock()
	delete(c.gate.open, c)
	c.gate.mu.Unlock()
	return c.Conn.Close() //nolint:wrapcheck // as of a connection
}
