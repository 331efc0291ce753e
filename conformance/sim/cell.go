package sim

import (
	"context"
	"hash/fnv"
	"io"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/scheduler"
	"github.com/paceline-sched/paceline/core/shard"
	"github.com/paceline-sched/paceline/core/store"
	"github.com/paceline-sched/paceline/core/store/memstore"
	"github.com/paceline-sched/paceline/core/store/record"
	"github.com/paceline-sched/paceline/core/workload"
)

const cellName = "sim"

// checkStoreEvery is how many commits pass between two comparisons of the disk with what was written to it.
const checkStoreEvery = 100

// cell is the core's process with its disk: what core/engine does, in one goroutine, at the mercy of the world.
type cell struct {
	w    *world
	disk *memstore.Disk
	keys store.Keyspace
	cfg  scheduler.Config

	jitter random

	// What dies with the process. life tells the appointments of a dead one.
	life      int
	state     *scheduler.State // nil: the process is down
	store     *memstore.Store
	codec     *record.Codec
	events    []scheduler.Event
	stepping  bool
	pending   []commit // Steps that are not durable, in order
	writing   bool
	wakes     int                  // arming of the timer that counts
	followed  *scheduler.Image     // what the groups that Step returned amount to
	idle      int                  // Steps since the books were looked at
	pools     []scheduler.PoolView // as they were then
	jobs      []scheduler.JobView
	sinceFull int                         // Steps since the whole state was compared with followed
	stale     bool                        // some of them wrote
	before    map[workload.PoolID]books   // after the last Step
	parties   map[partyOf]resource.Vector // as before
	charged   charges                     // after the last Step

	skew int64 // of the wall clock; it outlives the process
}

// commit is what one Step wants made durable, and what may happen then.
type commit struct {
	groups   []scheduler.Group
	external []scheduler.Effect
}

func newCell(w *world) *cell {
	keys, err := store.NewKeyspace(cellName)
	w.must(err)
	return &cell{
		w: w, disk: &memstore.Disk{}, keys: keys, jitter: newJitter(w.opts.Seed, "core"),
		cfg: scheduler.Config{
			Cell: cellName, Seed: w.opts.Seed, LaunchTimeout: 20 * time.Second, KillResend: 5 * time.Second, JobRetention: 3 * time.Minute,
			IdempotencyWindow: 4 * time.Minute, PreemptionsPerSecond: w.opts.PreemptionsPerSecond,
		}.WithDefaults(),
	}
}

// clock is the wall clock of the core's machine.
func (c *cell) clock() int64 { return c.w.now + c.skew }

// start brings the process up on what its disk holds.
func (c *cell) start() {
	w := c.w
	w.report.Starts++
	ctx := context.Background()
	entropy := rand.NewChaCha8([32]byte{0: byte(w.opts.Seed)})
	opened, err := memstore.Open(ctx, c.disk, memstore.Config{Cell: cellName, Entropy: io.Reader(entropy)})
	w.must(err)
	c.store, c.codec = opened, record.NewCodec(c.keys)
	image := c.load()
	w.judge.recovered(image)
	if hook := w.opts.Interpose; hook != nil && hook.Recover != nil {
		hook.Recover(image)
	}
	state, groups, err := scheduler.Start(c.cfg, image, image.Cell.Epoch+1, c.clock())
	w.must(err)
	w.trace("core starts under epoch %d", image.Cell.Epoch+1)
	c.followed = c.load()
	c.follow(groups)
	if !c.write(groups) {
		return
	}
	c.state, c.sinceFull = state, 0
	w.rooms.forget()
	jobs, _ := state.Reader().Jobs(0, 1<<20, scheduler.JobFilter{})
	held := heldBy(state.Reader(), jobs)
	sums, charged := c.addUp(jobs, held)
	c.before, c.charged = byPool(state.Reader().Pools("/"), sums), charged
	c.parties = ofLeaves(state.Reader().Pools("/"), countParties(jobs, held))
	for _, cl := range w.clusters {
		cl.attach()
	}
	w.policies.started()
	c.armStep()
}

func (c *cell) load() *scheduler.Image {
	snap, err := c.store.Snapshot()
	c.w.must(err)
	defer snap.Close()
	image, err := c.codec.LoadImage(context.Background(), snap)
	c.w.must(err)
	return image
}

// crash ends the process wherever it is. What it had under way is lost, but for what other machines have already been sent.
func (c *cell) crash() bool {
	if c.state == nil {
		return false
	}
	c.w.fault(coreCrash, "")
	c.compareNow()
	c.die()
	return true
}

func (c *cell) die() {
	c.disk.Kill()
	c.life++
	c.state, c.events, c.pending = nil, nil, nil
	c.stepping, c.writing = false, false
	c.w.judge.forgetUndurable()
	c.w.users.cut()
	for _, cl := range c.w.clusters {
		cl.coreDied()
	}
	down := c.jitter.between(0, 3*time.Second)
	if c.jitter.IntN(5) == 0 && !c.w.calm {
		down = c.jitter.between(0, 40*time.Second)
	}
	c.w.after(down, c.start)
}

// during has something happen in this life of the process.
func (c *cell) during(d time.Duration, do func()) {
	life := c.life
	c.w.after(d, func() {
		if c.life == life {
			do()
		}
	})
}

// deliver takes an event in. While the process is down it is lost.
func (c *cell) deliver(e scheduler.Event) {
	if c.state == nil {
		return
	}
	c.events = append(c.events, e)
	c.armStep()
}

func (c *cell) armStep() {
	if !c.stepping {
		c.stepping = true
		c.during(c.jitter.between(time.Microsecond, time.Millisecond), c.step)
	}
}

// step runs one Step over what has come in, or over a part of it.
func (c *cell) step() {
	w := c.w
	c.stepping = false
	events := c.events
	c.events = nil
	n := len(events)
	if n > 1 && c.jitter.IntN(4) == 0 {
		n = 1 + c.jitter.IntN(n-1)
	}
	if at := firstPledge(events[:n]); at > 0 && c.jitter.IntN(4) > 0 {
		n = at // what is decided on it is judged the more sharply
	}
	if n < len(events) {
		c.events = append(c.events, events[n:]...)
		events = events[:n]
		c.armStep()
	}
	if len(events) == 0 {
		events = append(events, scheduler.Woken{})
	}
	w.rooms.before(events)
	out := c.state.Step(c.clock(), events)
	w.report.Steps++
	w.report.Events += len(events)
	w.rooms.scan(out.Groups)
	c.follow(out.Groups)
	w.rooms.after(events, &out)
	c.compare(n == 0 && len(out.Groups)+len(out.Internal)+len(out.External) == 0, len(out.Groups) > 0)
	for _, e := range out.Internal {
		c.carryOut(e)
	}
	c.hold(out)
	c.armWake(out.Wake)
}

// hold keeps the groups and what hangs on them for the next commit.
func (c *cell) hold(out scheduler.Output) {
	external := out.External
	if hook := c.w.opts.Interpose; hook != nil && hook.Early != nil {
		external = nil
		for _, e := range out.External {
			if hook.Early(e) {
				c.carryOut(e)
			} else {
				external = append(external, e)
			}
		}
	}
	if len(out.Groups)+len(external) == 0 {
		return
	}
	c.pending = append(c.pending, commit{out.Groups, external})
	c.armCommit()
}

// armWake sets the timer as the engine does: by how long it is from now on the wall clock, which may jump meanwhile.
func (c *cell) armWake(wake int64) {
	c.wakes++
	if wake == 0 {
		return
	}
	armed := c.wakes
	c.during(time.Duration(max(wake-c.clock(), 0)), func() {
		if c.wakes == armed {
			c.armStep()
		}
	})
}

func (c *cell) armCommit() {
	if c.writing {
		return
	}
	c.writing = true
	took := c.jitter.between(50*time.Microsecond, 5*time.Millisecond)
	slow, is := c.w.strikes(place{what: slowCommit}, c.w.opts.Faults.SlowCommit, func() int64 {
		return int64(c.w.random.between(time.Second, pick(c.w.random, 3*time.Second, 45*time.Second)))
	})
	if is {
		took = time.Duration(slow)
	}
	c.during(took, c.commit)
}

// commit makes some Steps durable at once and lets happen what hung on them.
func (c *cell) commit() {
	c.writing = false
	n := 1 + c.jitter.IntN(len(c.pending))
	batch := c.pending[:n]
	c.pending = c.pending[n:]
	var groups []scheduler.Group
	for _, b := range batch {
		groups = append(groups, b.groups...)
	}
	if !c.write(groups) {
		return
	}
	for _, b := range batch {
		for _, e := range b.external {
			c.carryOut(e)
		}
	}
	if len(c.pending) > 0 {
		c.armCommit()
	}
}

// write commits groups. It reports false when the process did not survive that.
func (c *cell) write(groups []scheduler.Group) bool {
	w := c.w
	if len(groups) == 0 {
		return true
	}
	written := groups
	if hook := w.opts.Interpose; hook != nil && hook.Commit != nil {
		written = hook.Commit(groups)
	}
	encoded, writes := make([]store.Group, 0, len(written)), 0
	for _, g := range written {
		raw, err := c.codec.EncodeGroup(g)
		w.must(err)
		encoded = append(encoded, raw)
		writes += len(raw.Ops)
	}
	c.hinder(len(encoded), writes)
	before := c.disk.Groups()
	err := c.store.Commit(context.Background(), encoded)
	w.judge.durable(int(c.disk.Groups() - before))
	w.report.Commits++
	if err != nil {
		w.trace("core stops: %v", err)
		c.die()
		return false
	}
	if w.report.Commits%checkStoreEvery == 0 {
		c.compareStore()
	}
	return true
}

// hinder has the disk crash or fail in the next commit, when it is time for that. A crash in the place of the write behind the last comes
// when all is durable and nobody knows.
func (c *cell) hinder(groups, writes int) {
	w := c.w
	if at, crash := w.strikes(place{what: commitCrash}, w.opts.Faults.CommitCrash, func() int64 { return int64(1 + w.random.IntN(writes+1)) }); crash {
		if at > int64(writes) {
			c.disk.CrashAfter(uint64(groups))
		} else {
			c.disk.CrashAtWrite(uint64(at))
		}
		return
	}
	if _, fails := w.strikes(place{what: commitFailure}, w.opts.Faults.CommitFailure, nothing); fails {
		c.disk.FailCommit(1, io.ErrShortWrite)
	}
}

// follow keeps the books of what the groups of this life amount to.
func (c *cell) follow(groups []scheduler.Group) {
	w := c.w
	digest := fnv.New64a()
	for _, g := range groups {
		if g.Sequence != c.followed.Sequence+1 {
			w.fail(CheckRecords, "group %d follows group %d", g.Sequence, c.followed.Sequence)
		}
		c.followed.ApplyGroup(g)
		raw, err := c.codec.EncodeGroup(g)
		w.must(err)
		w.must(raw.Check())
		for _, op := range raw.Ops {
			_, _ = digest.Write(op.Key)
			_, _ = digest.Write(op.Value)
		}
		w.judge.await(g)
	}
	w.report.Groups += len(groups)
	w.report.Digest = w.report.Digest*31 + digest.Sum64()
}

// carryOut does what an effect asks.
func (c *cell) carryOut(e scheduler.Effect) {
	switch e := e.(type) {
	case scheduler.Reply:
		c.w.users.answered(e.Answer)
	case scheduler.AskQuota:
		c.w.policies.quota(e)
	case scheduler.AskRanks:
		c.w.policies.ranks(e)
	case scheduler.ToShard:
		name, _, _ := strings.Cut(string(e.Shard), "/")
		for _, cl := range c.w.clusters {
			if cl.name == name {
				cl.send(e.Message)
			}
		}
	}
}

// replied takes what a shard says.
func (c *cell) replied(r scheduler.ShardReplied) {
	if hook := c.w.opts.Interpose; hook != nil && hook.Reply != nil {
		hook.Reply(&r, c.epochOf(r.Shard))
	}
	if now := c.epochOf(r.Shard); r.Epoch.Less(now) && c.state != nil {
		c.w.fault("stale-epoch-to-core", "%s: %T under %v, now %v", r.Shard, r.Reply, r.Epoch, now)
	}
	c.deliver(r)
}

// epochOf is the newest assignment of a shard that the world has seen leave the core.
func (c *cell) epochOf(id shard.ID) shard.Epoch {
	for _, cl := range c.w.clusters {
		if cl.id == id {
			return cl.assigned
		}
	}
	return shard.Epoch{}
}

// jump sets the wall clock of the core's machine, to so much off.
func (c *cell) jump(skew int64) bool {
	way := "forward"
	if skew < c.skew {
		way = "back"
	}
	c.skew = skew
	c.w.fault(clockJump+"-"+way, "to %v off", time.Duration(c.skew))
	return true
}

func (c *cell) mend() { c.skew = 0 }
