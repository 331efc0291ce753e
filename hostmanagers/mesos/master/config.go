package master

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"slices"
	"time"

	mesos "github.com/mesos/mesos-go/api/v1/lib"
)

// Defaults and bounds of a Config.
const (
	defaultFirstWait   = 200 * time.Millisecond
	defaultLongestWait = 15 * time.Second
	defaultTimeout     = 10 * time.Second
	defaultMissed      = 3
	defaultInFlight    = 512
	maxInFlight        = 1 << 14
	maxMasters         = 64
)

// Config says which master to subscribe to, and as whom.
type Config struct {
	// Framework describes the framework. Its ID is filled in from Identity, its Principal from Principal.
	Framework *mesos.FrameworkInfo
	// Masters are the addresses of one cluster's masters, in any order: "http://host:port", "https://host:port", "host:port" (https if TLS is
	// set), each with a path in front if masters stand behind a gateway; or one "zk://host1:port1,host2:port2/path", with "user:password@" in
	// front if ZooKeeper asks for it. Of several, those that do not lead may redirect to the one that does.
	Masters []string
	// Identity keeps the framework's id.
	Identity Identity
	// Suppressed is asked before every subscription for the roles that want no offers yet. Default: none.
	Suppressed func() []string

	// Principal and Secret authenticate by HTTP basic authentication, if Principal is set. Secret is asked for every connection, so that it
	// may change; what it returns is kept for the connection and never printed.
	Principal string
	Secret    func() (string, error)
	// TLS is for https. Default: the system's authorities.
	TLS *tls.Config

	// Renew says what happens when the master has removed the framework: true subscribes as a new framework, with a new id, false ends Run
	// with ErrRemoved. Tasks of the removed one are gone either way.
	Renew bool
	// Retake says what happens when another process subscribes with this framework's id. 0 ends Run with ErrReplaced. Otherwise the
	// id is taken back after that long, jittered, twice as long each time, so that two processes that both want it do not steal it from one
	// another all the time.
	Retake time.Duration

	// FirstWait and LongestWait bound the waits between attempts to subscribe: random up to FirstWait, then up to twice as much each
	// time. Default: 200 ms and 15 s.
	FirstWait, LongestWait time.Duration
	// Timeout bounds connecting, a call's answer, and the time until a subscription is confirmed. Default: 10 s.
	Timeout time.Duration
	// Missed is how many heartbeats may fail to come before the subscription is given up. Default: 3.
	Missed int
	// InFlight bounds the calls that wait for their answers. 1 sends no call before the one before is answered, for a gateway that cannot take
	// several at once. Default: 512.
	InFlight int

	// Random jitters waits: numbers from 0 to below 1, from any goroutine. Default: math/rand.
	Random func() float64
	// Dial opens connections. Default: net.Dialer.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// Logger hears of subscriptions that begin, fail and end. Default: nobody.
	Logger *slog.Logger
}

// withDefaults checks a Config and fills in what it leaves out.
func (c Config) withDefaults() (Config, error) {
	switch {
	case c.Framework == nil:
		return c, errors.New("the Mesos framework is not described: set Framework")
	case c.Identity == nil:
		return c, errors.New("nothing keeps the Mesos framework's id: set Identity")
	case len(c.Masters) == 0:
		return c, errors.New("no Mesos master is named: give an address such as http://host:5050 or zk://host:2181/mesos")
	case len(c.Masters) > maxMasters:
		return c, fmt.Errorf("%d Mesos masters are named, of at most %d", len(c.Masters), maxMasters)
	case (c.Principal == "") != (c.Secret == nil):
		return c, errors.New("a Mesos principal needs a secret and the other way round: set both or neither")
	case c.InFlight < 0 || c.InFlight > maxInFlight:
		return c, fmt.Errorf("%d Mesos calls in flight are asked for, of 1 to %d", c.InFlight, maxInFlight)
	case c.Missed < 0 || c.FirstWait < 0 || c.LongestWait < 0 || c.Timeout < 0 || c.Retake < 0:
		return c, errors.New("waits and numbers of a Mesos connection must not be negative")
	}
	orDefault(&c.FirstWait, defaultFirstWait)
	orDefault(&c.LongestWait, max(defaultLongestWait, c.FirstWait))
	orDefault(&c.Timeout, defaultTimeout)
	orDefault(&c.Missed, defaultMissed)
	orDefault(&c.InFlight, defaultInFlight)
	c.Masters = slices.Clone(c.Masters)
	if c.Random == nil {
		c.Random = rand.Float64
	}
	if c.Dial == nil {
		c.Dial = (&net.Dialer{}).DialContext
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c, nil
}

func orDefault[T comparable](value *T, otherwise T) {
	var zero T
	if *value == zero {
		*value = otherwise
	}
}
