package drivertest

import (
	"context"
	"errors"
	"net"
	"sync"
)

// Network is a driver's way to its cluster, which a test can break: Cut and Mend are those of a Cluster. The zero value is whole. It is safe for
// concurrent use.
type Network struct {
	mu    sync.Mutex
	down  bool
	conns []net.Conn
}

// Dial connects, unless the network is cut.
func (n *Network) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
	n.mu.Lock()
	defer n.mu.Unlock()
	if err == nil && n.down {
		_ = conn.Close() // as if it had not come about
		err = errors.New("the network is down")
	}
	if err != nil {
		return nil, err
	}
	n.conns = append(n.conns, conn)
	return conn, nil
}

// Cut breaks all connections, and lets none come about.
func (n *Network) Cut() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.down = true
	for _, conn := range n.conns {
		_ = conn.Close() // some have been closed before
	}
	n.conns = nil
}

// Mend lets connections come about again.
func (n *Network) Mend() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.down = false
}
