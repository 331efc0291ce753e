package master

import (
	"context"
	"errors"
	"slices"
	"strings"
)

// locator says where the master that leads may be. Run's goroutine calls it, but for moved, during which it calls nothing else.
type locator interface {
	// locate returns addresses to try, in this order.
	locate(ctx context.Context) ([]target, error)
	// found says which master led.
	found(at target)
	// moved waits until the master that led leads no more, and returns false if ctx ends first or it cannot tell.
	moved(ctx context.Context) bool
	// close ends it.
	close()
}

func newLocator(cfg *Config) (locator, error) {
	l := &addresses{}
	for _, address := range cfg.Masters {
		if strings.HasPrefix(address, zkScheme) {
			if len(cfg.Masters) > 1 {
				return nil, errors.New("ZooKeeper knows all Mesos masters: its address has to be the only one, with its servers separated by commas")
			}
			return parseEnsemble(address, cfg)
		}
		t, err := parseTarget(strings.TrimSpace(address), cfg.TLS != nil)
		if err != nil {
			return nil, err
		}
		l.given = append(l.given, t)
	}
	return l, nil
}

// addresses is a locator that was told.
type addresses struct {
	given []target
	last  target // that led, until it is tried again
}

func (l *addresses) locate(context.Context) ([]target, error) {
	last := l.last
	if l.last = (target{}); last == (target{}) {
		return l.given, nil
	}
	others := slices.DeleteFunc(slices.Clone(l.given), func(t target) bool { return t == last })
	return append([]target{last}, others...), nil
}

func (l *addresses) found(at target) { l.last = at }

func (l *addresses) moved(context.Context) bool { return false }

func (l *addresses) close() {}
