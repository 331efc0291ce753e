// Package members keeps a cell connected to its clusters: those that its server's flags name, and those that were added and stand in its store.
//
// It owns the connections: when each begins and ends, how long it waits after one that failed, and what is known of them. The records of clusters
// are the cell's; what a connection is made of is in the drivers. A cluster that fails touches no other.
//
// Concurrency: each connection has a goroutine, and one more for each of its shards; Close waits for all. Edits are made one at a time, and everything may be called from
// any goroutine.
package members

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/paceline-sched/paceline/core/api"
	"github.com/paceline-sched/paceline/core/cluster"
	"github.com/paceline-sched/paceline/core/driver"
	"github.com/paceline-sched/paceline/core/engine"
	"github.com/paceline-sched/paceline/core/scheduler"
	"github.com/paceline-sched/paceline/core/shard"
	"github.com/paceline-sched/paceline/core/telemetry"
)

const (
	// leaveTimeout bounds how long a cluster that is removed may take to hear it.
	leaveTimeout = 10 * time.Second
	// storeTimeout bounds how long an edit waits for the cell to keep it, and a driver for it to tell or keep an identity.
	storeTimeout = 30 * time.Second
)

// Config is what a Manager is made of.
type Config struct {
	Cell *engine.Engine
	// Flags are the clusters that the server's flags name.
	Flags []Member
	// Prepare checks the settings of a cluster that was or is to be added, as far as can be done without speaking to it, and says how to connect. id keeps what
	// the cluster knows the cell by.
	Prepare func(s *cluster.Spec, id *Identity) (func() (driver.Driver, error), error)
	// Serve runs a shard until its driver or ctx ends.
	Serve func(ctx context.Context, s Shard) error
	Log   *slog.Logger
}

// Shard is one part of a cluster that is to be served.
type Shard struct {
	ID      shard.ID
	Cluster string
	Parts   int // into how many the cluster is cut
	Driver  driver.Driver
}

// Manager keeps the connections of a cell.
type Manager struct {
	config Config
	edit   sync.Mutex // held by who changes what there is

	mu          sync.Mutex
	base        context.Context // of all connections; nil: not open
	cancel      context.CancelFunc
	connections map[string]*connection
	closed      bool
}

var _ api.Clusters = (*Manager)(nil)

// New returns a Manager without connections.
func New(config Config) *Manager {
	return &Manager{config: config, connections: map[string]*connection{}}
}

// Open begins to connect to every cluster. The cell must be running. A cluster that cannot be connected to is tried again for ever; an error says
// that two clusters have one name.
func (m *Manager) Open(ctx context.Context) error {
	m.edit.Lock()
	defer m.edit.Unlock()
	var added []scheduler.ClusterRecord
	if err := m.config.Cell.Read(ctx, func(r scheduler.Reader) {
		for _, v := range r.Clusters() {
			if v.Record != nil {
				added = append(added, *v.Record)
			}
		}
	}); err != nil {
		return err
	}
	for i := range added {
		for _, f := range m.config.Flags {
			if f.Name == added[i].Spec.Name {
				return fmt.Errorf("cluster %s was added to the cell, and the flags name another: start without them and remove it first", f.Name)
			}
		}
	}
	m.mu.Lock()
	m.base, m.cancel = context.WithCancel(context.WithoutCancel(ctx))
	m.mu.Unlock()
	for _, f := range m.config.Flags {
		m.start(f, true)
	}
	for i := range added {
		m.start(m.member(&added[i].Spec), false)
	}
	return nil
}

// Close ends all connections. Runs go on.
func (m *Manager) Close() {
	m.edit.Lock()
	defer m.edit.Unlock()
	m.mu.Lock()
	m.closed = true
	if m.cancel != nil {
		m.cancel()
	}
	open := m.connections
	m.connections = map[string]*connection{}
	m.mu.Unlock()
	for _, c := range open {
		c.end()
	}
}

// member is an added cluster to connect to. Whether its settings work is found out at each attempt: a missing file may come.
func (m *Manager) member(s *cluster.Spec) Member {
	return Member{Name: s.Name, Kind: s.Kind(), Shards: s.Parts(), spec: s, Connect: func() (driver.Driver, error) {
		connect, err := m.config.Prepare(s, &Identity{cell: m.config.Cell, cluster: s.Name})
		if err != nil {
			return nil, err
		}
		return connect()
	}}
}

func (m *Manager) start(member Member, byFlags bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed || m.base == nil {
		return
	}
	ctx, cancel := context.WithCancel(m.base)
	c := &connection{member: member, byFlags: byFlags, manager: m, cancel: cancel, ended: make(chan struct{})}
	m.connections[member.Name] = c
	go c.run(ctx)
}

// take ends a connection and forgets it; the cell is told nothing.
func (m *Manager) take(c *connection) {
	c.end()
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.connections, c.member.Name)
}

func (m *Manager) connection(name string) *connection {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.connections[name]
}

// Connections implements api.Clusters.
func (m *Manager) Connections() map[string]api.Connection {
	m.mu.Lock()
	list := make([]*connection, 0, len(m.connections))
	for _, c := range m.connections {
		list = append(list, c)
	}
	m.mu.Unlock()
	out := make(map[string]api.Connection, len(list))
	for _, c := range list {
		out[c.member.Name] = c.tell()
	}
	return out
}

func refused(kind scheduler.ErrorKind, field, hint, format string, args ...any) error {
	return &scheduler.Error{Kind: kind, Field: field, Hint: hint, Message: fmt.Sprintf(format, args...)}
}

// check finds what is wrong with a spec before anything is kept.
func (m *Manager) check(s *cluster.Spec) error {
	if c := m.connection(s.Name); c != nil && c.byFlags {
		return refused(scheduler.FailedPrecondition, "spec.name", "choose another name, or change the flags", "the server's flags name a cluster %s", s.Name)
	}
	err := s.Validate()
	if err == nil {
		_, err = m.config.Prepare(s, &Identity{cell: m.config.Cell, cluster: s.Name})
	}
	var field *cluster.FieldError
	switch {
	case errors.As(err, &field):
		return refused(scheduler.InvalidArgument, "spec."+field.Field, field.Hint, "%s", field.Message)
	case err != nil:
		return refused(scheduler.InvalidArgument, "spec", "mend the settings, or what they name on the server's machine", "%v", err)
	}
	return nil
}

// do has the cell carry out a command. Who asked for it may be gone meanwhile: what becomes of the connection hangs on the answer all the same.
func (m *Manager) do(ctx context.Context, by scheduler.Caller, command scheduler.Command) (scheduler.Answer, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), storeTimeout)
	defer cancel()
	answer, err := m.config.Cell.Do(ctx, by, command)
	switch {
	case err != nil:
		return answer, err
	case answer.Err != nil:
		return answer, answer.Err
	}
	return answer, nil
}

// Add implements api.Clusters.
func (m *Manager) Add(ctx context.Context, by scheduler.Caller, s cluster.Spec) (existed bool, err error) {
	m.edit.Lock()
	defer m.edit.Unlock()
	if err := m.check(&s); err != nil {
		return false, err
	}
	answer, err := m.do(ctx, by, scheduler.AddCluster{Spec: s})
	if err != nil {
		return false, err
	}
	if m.connection(s.Name) == nil { // also if an earlier Add was kept and not answered
		m.start(m.member(&answer.Cluster.Spec), false)
	}
	return answer.Existed, nil
}

// Update implements api.Clusters. The connection is made anew unless nothing but labels changed.
func (m *Manager) Update(ctx context.Context, by scheduler.Caller, s cluster.Spec, version uint64) error {
	m.edit.Lock()
	defer m.edit.Unlock()
	if err := m.check(&s); err != nil {
		return err
	}
	answer, err := m.do(ctx, by, scheduler.UpdateCluster{Spec: s, ExpectedVersion: version})
	if err != nil {
		return err
	}
	if c := m.connection(s.Name); c != nil {
		if c.member.connectsBy(&s) {
			return nil
		}
		m.take(c)
	}
	m.start(m.member(&answer.Cluster.Spec), false)
	return nil
}

// Remove implements api.Clusters. A cluster that is in contact is told to end what runs there and to forget the cell, before the cell counts that as lost: so
// nothing that is tried again elsewhere goes on there.
func (m *Manager) Remove(ctx context.Context, by scheduler.Caller, name string, version uint64, force bool) (lost int, warnings []string, err error) {
	m.edit.Lock()
	defer m.edit.Unlock()
	c := m.connection(name)
	if c != nil && c.byFlags {
		return 0, nil, refused(scheduler.FailedPrecondition, "name", "start the server without the flags that name it", "the server's flags name cluster %s", name)
	}
	if err := m.mayRemove(ctx, name, version, force); err != nil {
		return 0, nil, err
	}
	ctx = context.WithoutCancel(ctx) // a leave that was begun is carried through
	if c != nil {
		warnings = m.takeLeave(ctx, c)
		m.config.Cell.Detach(c.member.shardIDs()...)
	}
	answer, err := m.do(ctx, by, scheduler.RemoveCluster{Name: name, ExpectedVersion: version, Force: force})
	if err != nil {
		if c != nil && !errors.Is(err, context.DeadlineExceeded) { // else it may be removed yet
			m.start(c.member, false)
		}
		return 0, nil, err
	}
	return answer.Lost, warnings, nil
}

// mayRemove finds what is in the way before the cluster is told anything.
func (m *Manager) mayRemove(ctx context.Context, name string, version uint64, force bool) error {
	var refusal *scheduler.Error
	if err := m.config.Cell.Read(ctx, func(r scheduler.Reader) { refusal = r.MayRemoveCluster(name, version, force) }); err != nil {
		return err
	}
	if refusal != nil {
		return refusal
	}
	return nil
}

// takeLeave ends a connection for good.
func (m *Manager) takeLeave(ctx context.Context, c *connection) (warnings []string) {
	if c.member.Kind == cluster.KindKubernetes && !m.hadHosts(ctx, c.member.Name) {
		m.take(c) // no pod was ever created there
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, leaveTimeout)
	defer cancel()
	keeps, err := c.leave(ctx)
	if err != nil && keeps {
		m.config.Log.Warn("a cluster was removed that could not be told", slog.String(telemetry.KeyCluster, c.member.Name), slog.Any(telemetry.KeyError, err))
		warnings = append(warnings, fmt.Sprintf("cluster %s could not be told (%v): what still runs there goes on until %s", c.member.Name, err, m.goesOnUntil(c)))
	}
	m.take(c)
	return warnings
}

// goesOnUntil says when runs end on a cluster that could not be told.
func (m *Manager) goesOnUntil(c *connection) string {
	if c.member.Kind != cluster.KindKubernetes {
		return "the cluster gives up on the cell"
	}
	owner, err := (&Identity{cell: m.config.Cell, cluster: c.member.Name}).Load()
	if err != nil || owner == "" {
		return "somebody deletes the cell's pods there"
	}
	return "somebody deletes the pods of owner " + owner + " there"
}

// hadHosts reports whether the cell knows hosts of a cluster, so that runs may be there; true, too, if it does not answer.
func (m *Manager) hadHosts(ctx context.Context, name string) bool {
	had := false
	err := m.config.Cell.Read(ctx, func(r scheduler.Reader) {
		for _, v := range r.Clusters() {
			had = had || v.Name == name && v.Hosts+v.Runs > 0
		}
	})
	return had || err != nil
}
