package api

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"time"

	"github.com/paceline-sched/paceline/core/api/auth"
	"github.com/paceline-sched/paceline/core/api/gate"
)

// DefaultAddress is where a server listens unless told otherwise.
const DefaultAddress = "127.0.0.1:7411"

// Config is how a cell is served. Zero fields take the defaults.
type Config struct {
	// Address is host:port; port 0 takes a free one. Default: DefaultAddress. One that is not loopback wants TLS.
	Address string
	// TLSCert and TLSKey are PEM files. Default: plain text, on loopback only.
	TLSCert, TLSKey string
	// TokenFile names who may call; see package auth. It is required; on a loopback address it is made when it is missing.
	TokenFile string
	// Cell is the cell's name. Default: default.
	Cell  string
	Build Build
	// Roles are what the process does, shown to users.
	Roles []string
	// Grace is how long a stop waits for calls to end. Default: 10 s. Longer keeps slow callers happy and restarts slow.
	Grace time.Duration
	// Limits are how much may be under way at once, see gate.Limits.
	Limits gate.Limits
	// MaxConnections are open at once; what comes then is closed. Default: half of the process's limit of open files, at most 16384.
	MaxConnections int
	// Stuck is how long a client may take nothing of an answer or a stream before it is cut off. Default: 30 s. Longer is patient with poor
	// lines, and keeps a page of events in memory for each client that hangs.
	Stuck time.Duration
}

// Build says what the process was built from.
type Build struct{ Version, Commit string }

// WithDefaults fills zero fields.
func (c Config) WithDefaults() Config {
	if c.Address == "" {
		c.Address = DefaultAddress
	}
	if c.Cell == "" {
		c.Cell = "default"
	}
	if c.Grace == 0 {
		c.Grace = 10 * time.Second
	}
	if c.MaxConnections == 0 {
		c.MaxConnections = defaultConnections()
	}
	if c.Stuck == 0 {
		c.Stuck = 30 * time.Second
	}
	c.Limits = c.Limits.WithDefaults()
	return c
}

// Validate refuses settings that do not work or that would leave the cell open.
func (c Config) Validate() error {
	host, _, err := net.SplitHostPort(c.Address)
	switch {
	case err != nil:
		return fmt.Errorf("listen address %q must be host:port, for example %s", c.Address, DefaultAddress)
	case (c.TLSCert == "") != (c.TLSKey == ""):
		return fmt.Errorf("a TLS certificate needs its key: give both files or neither")
	case c.TokenFile == "":
		return fmt.Errorf("a token file is required: name one, and on a loopback address it is made if it is missing")
	case !isLoopback(host) && c.TLSCert == "":
		return fmt.Errorf("refusing to listen on %s without TLS, where others could read tokens: give a certificate and key, or listen on %s", c.Address, DefaultAddress)
	case c.Grace < 0:
		return fmt.Errorf("grace %v is negative", c.Grace)
	case c.Stuck < 0:
		return fmt.Errorf("a time of %v after which clients are cut off is negative", c.Stuck)
	case c.MaxConnections < 1:
		return fmt.Errorf("%d connections are too few: use 1 or more", c.MaxConnections)
	case c.Limits.Bytes < 2*MaxRequestBytes:
		return fmt.Errorf("%d bytes of requests are too few: one principal gets half, and a request may have %d", c.Limits.Bytes, MaxRequestBytes)
	}
	return c.Limits.Validate()
}

// Check is Validate, and reads the certificate and the tokens as a start would; zero fields must have been filled. A start that fails at them later has changed the store
// already.
func (c Config) Check() error {
	if err := c.Validate(); err != nil {
		return err
	}
	if c.TLSCert != "" {
		if _, err := c.certificate(); err != nil {
			return err
		}
	}
	if c.makesTokens() {
		if _, err := os.Lstat(c.TokenFile); errors.Is(err, fs.ErrNotExist) {
			return nil
		}
	}
	_, err := auth.Open(c.TokenFile, time.Now, nil)
	return err
}

func (c *Config) certificate() (tls.Certificate, error) {
	pair, err := tls.LoadX509KeyPair(c.TLSCert, c.TLSKey)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("load the TLS certificate %s and key %s, which must be PEM files and belong together: %w", c.TLSCert, c.TLSKey, err)
	}
	return pair, nil
}

// makesTokens reports whether a missing token file is made.
func (c *Config) makesTokens() bool {
	host, _, err := net.SplitHostPort(c.Address)
	return err == nil && isLoopback(host)
}

func isLoopback(host string) bool {
	if host == "localhost" {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}
