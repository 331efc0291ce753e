package cluster

import (
	"container/heap"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"time"

	mesos "github.com/mesos/mesos-go/api/v1/lib"
	"github.com/mesos/mesos-go/api/v1/lib/scheduler"

	"github.com/paceline-sched/paceline/hostmanagers/mesos/emulator/wire"
)

// Cluster is one emulated cluster.
type Cluster struct {
	cfg     Config
	now     time.Time
	chance  *rand.Rand
	timers  timers
	timerNo uint64
	effects []Effect

	frameworks map[string]*framework
	streams    map[string]*framework // by stream id
	order      []*framework          // by age; removed ones are not in it
	agents     map[string]*agent     // by id; gone ones too
	roster     []*agent              // by age
	offers     map[string]*offer
	inverse    map[string]*inverseOffer
	containers map[string]*container
	windows    []window
	down       map[string]bool // machines by hostname

	total         share // of all agents
	nextFramework int
	nextAgent     int
	nextOffer     int
}

// New starts a cluster without agents.
func New(cfg Config, now time.Time) *Cluster {
	cfg.setDefaults()
	c := &Cluster{
		cfg: cfg, now: now, chance: rand.New(rand.NewPCG(cfg.Seed, 0x6d65736f73)), //nolint:gosec // ids, not secrets
		frameworks: map[string]*framework{}, streams: map[string]*framework{}, agents: map[string]*agent{},
		offers: map[string]*offer{}, inverse: map[string]*inverseOffer{}, containers: map[string]*container{}, down: map[string]bool{},
		total: share{}, nextFramework: cfg.FirstFramework, nextOffer: cfg.FirstOffer,
	}
	setDefault(&c.cfg.MasterID, c.uuid())
	c.after(cfg.FirstAllocation, c.tick)
	return c
}

// Advance lets everything happen that is due until now.
func (c *Cluster) Advance(now time.Time) {
	for len(c.timers) > 0 && !c.timers[0].at.After(now) {
		due := heap.Pop(&c.timers).(*timer) //nolint:errcheck // only timers are pushed
		c.now = due.at
		due.do()
	}
	c.now = now
}

// Next is when something happens without a call.
func (c *Cluster) Next() (time.Time, bool) {
	if len(c.timers) == 0 {
		return time.Time{}, false
	}
	return c.timers[0].at, true
}

// TakeEffects returns what is to be done since the last time.
func (c *Cluster) TakeEffects() []Effect {
	taken := c.effects
	c.effects = nil
	return taken
}

// MasterInfo is what the master says of itself.
func (c *Cluster) MasterInfo() mesos.MasterInfo {
	var ip uint32
	if a, err := netip.ParseAddr(c.cfg.IP); err == nil && a.Is4() {
		four := a.As4()
		ip = binary.LittleEndian.Uint32(four[:])
	}
	pid := fmt.Sprintf("master@%s:%d", c.cfg.IP, c.cfg.Port)
	port := uint32(c.cfg.Port) //nolint:gosec // a port
	info := mesos.MasterInfo{
		ID: c.cfg.MasterID, IP: ip, Port: &port, PID: &pid, Hostname: &c.cfg.Hostname, Version: &c.cfg.Version,
		Address: &mesos.Address{Hostname: &c.cfg.Hostname, IP: &c.cfg.IP, Port: int32(c.cfg.Port)}, //nolint:gosec // a port
		Domain:  c.cfg.Domain,
	}
	for _, t := range []mesos.MasterInfo_Capability_Type{
		mesos.MasterInfo_Capability_AGENT_UPDATE, mesos.MasterInfo_Capability_AGENT_DRAINING, wire.CapabilityQuotaV2,
	} {
		info.Capabilities = append(info.Capabilities, mesos.MasterInfo_Capability{Type: t})
	}
	return info
}

// after arranges for something to happen. Negative durations count as zero.
func (c *Cluster) after(d time.Duration, do func()) *timer {
	c.timerNo++
	t := &timer{at: c.now.Add(max(0, d)), seq: c.timerNo, do: do}
	heap.Push(&c.timers, t)
	return t
}

// stop takes a timer back; nil and timers that fired are harmless.
func (c *Cluster) stop(t *timer) {
	if t != nil && t.slot >= 0 {
		heap.Remove(&c.timers, t.slot)
	}
}

func (c *Cluster) emit(e Effect) { c.effects = append(c.effects, e) }

// deliver sends an event to a framework, if it is subscribed.
func (c *Cluster) deliver(f *framework, e *scheduler.Event) {
	if f.stream != "" {
		c.emit(Deliver{Stream: f.stream, Event: e})
	}
}

func (c *Cluster) uuidBytes() []byte {
	var b [16]byte
	binary.BigEndian.PutUint64(b[:8], c.chance.Uint64())
	binary.BigEndian.PutUint64(b[8:], c.chance.Uint64())
	b[6] = b[6]&0x0f | 0x40
	b[8] = b[8]&0x3f | 0x80
	return b[:]
}

func (c *Cluster) uuid() string {
	b := c.uuidBytes()
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

func (c *Cluster) offerID() string {
	id := fmt.Sprintf("%s-O%d", c.cfg.MasterID, c.nextOffer)
	c.nextOffer++
	return id
}

// seconds is a time as a status carries it.
func seconds(t time.Time) float64 { return float64(t.UnixNano()) / 1e9 }

func pointer[T any](v T) *T { return &v }
