package master

import (
	"context"
	"slices"
	"strings"
)

// locator says where the master that leads may be.
type locator interface {
	// locate returns addresses to try, in this order.
	locate(ctx context.Context) ([]target, error)
	// found says which master led.
	found(at target)
	// close forgets everything.
	close()
}

func newLocator(cfg *Config) (locator, error) {
	l := &addresses{}
	for _, address := range cfg.Masters {
		t, err := parseTarget(strings.TrimSpace(address), cfg.TLS != nil)
		if err != nil {
			return nil, err
		}
		l.given = append(l.given, t)
	}
	return l, nil
}

// addresses is a locator that was told. Run's goroutine owns it.
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

func (l *addresses) close() {}
