package master

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
)

const (
	schedulerPath = "/api/v1/scheduler"
	operatorPath  = "/api/v1"
	defaultPort   = "5050"
	zkScheme      = "zk://"
)

// target is one master's address.
type target struct {
	https bool
	host  string // host:port
	base  string // what stands before /api/v1 in a path: "" or "/master"
}

func (t target) String() string {
	scheme := "http"
	if t.https {
		scheme = "https"
	}
	return scheme + "://" + t.host + t.base
}

// parseTarget reads a master's address.
func parseTarget(address string, https bool) (target, error) {
	whole := address
	if !strings.Contains(address, "://") {
		whole = "http://" + address
		if https {
			whole = "https://" + address
		}
	}
	u, err := url.Parse(whole)
	switch {
	case err != nil:
		return target{}, errors.New("the address of a Mesos master is not a URL such as http://host:5050") // url's error would print a password in it
	case u.User != nil:
		return target{}, errors.New("the address of a Mesos master must hold no name or password: give them as principal and secret")
	case u.Scheme != "http" && u.Scheme != "https", u.Hostname() == "", u.RawQuery != "" || u.Fragment != "":
		return target{}, fmt.Errorf("the address of a Mesos master, %q, is not one such as http://host:5050, or zk://host:2181/mesos as the only one", address)
	}
	port := u.Port()
	if port == "" {
		port = defaultPort
	}
	base := strings.TrimSuffix(strings.TrimSuffix(u.Path, "/"), schedulerPath)
	return target{https: u.Scheme == "https", host: net.JoinHostPort(u.Hostname(), port), base: base}, nil
}

// redirected is where a master that does not lead says that its leader is: "//host:port/master/api/v1/scheduler", without a scheme.
func (t target) redirected(location, path string) (target, error) {
	u, err := url.Parse(location)
	if err != nil || u.Host == "" {
		return target{}, fmt.Errorf("%s redirects to %q, which is no address", t, location)
	}
	https := t.https
	if u.Scheme != "" {
		https = u.Scheme == "https"
	}
	if t.https && !https {
		return target{}, fmt.Errorf("%s redirects to %q, which is not encrypted", t, location)
	}
	host := u.Host
	if u.Port() == "" {
		host = net.JoinHostPort(u.Hostname(), defaultPort)
	}
	return target{https: https, host: host, base: strings.TrimSuffix(strings.TrimSuffix(u.Path, "/"), path)}, nil
}
