package cluster

import (
	"container/heap"
	"encoding/binary"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sort"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
)

// The defaults of a Config.
const (
	DefaultHistory  = 1 << 17
	DefaultNodeGone = 40 * time.Second
	eventTTL        = time.Hour
	maxKubeletEvent = 1 << 14
)

// Config says what is emulated. Zero fields take their defaults.
type Config struct {
	Nodes []NodeConfig
	// Seed is where uids and generated names come from.
	Seed uint64
	// UID is that of the namespace kube-system, by which clusters are told apart. Default: one from Seed.
	UID string
	// History is how many changes of each resource are kept for watches. Default: 131,072.
	History int
	// Behave says what becomes of a container, in virtual time. nil: processes are started by whoever carries out effects.
	Behave func(pod *corev1.Pod, container *corev1.Container) Behaviour
	// NodeGone is how long a node may be silent, or its pods may be without a node, before controllers act. Default: 40 s.
	NodeGone time.Duration
	// Scheduler binds pods that ask for the default scheduler, to the first node that has room.
	Scheduler bool
	// QuietKubelets write no events.
	QuietKubelets bool
}

// Behaviour is what a container does without a process.
type Behaviour struct {
	// Refused, if set, is why its image cannot be had, such as ErrImagePull.
	Refused, Message string
	Start            time.Duration // until it runs
	Ready            time.Duration // from then until its probes pass
	Sick             time.Duration // from its start until its liveness probe fails; 0: never
	Run              time.Duration // from its start until it ends; negative: until it is told to
	Exit             int32
	Reason           string // of its end; "": by its exit code
	Deaf             bool   // a polite signal does nothing
	Polite           bool   // after a polite signal it ends with 0
}

// Key names an object within its resource.
type Key struct{ Namespace, Name string }

// Change is one entry of a resource's log.
type Change struct {
	Revision int64
	Type     watch.EventType
	Object   Object
	Before   Object // nil: it is new
}

// shelf holds one resource.
type shelf struct {
	resource *Resource
	objects  map[Key]Object
	log      []Change // oldest first
	lost     int64    // revision of the newest change that is no longer in log
	// sorted is what was listed last, as of sortedAt. It is never changed: pages of one list share it.
	sorted   []Object
	sortedAt int64
}

// Cluster is one emulated cluster.
type Cluster struct {
	cfg      Config
	now      time.Time
	revision int64
	chance   *rand.Rand
	shelves  map[schema.GroupResource]*shelf
	timers   timers
	timerNo  uint64
	effects  []Effect
	kubelets map[string]*kubelet
	boxes    map[string]*box // by process
	minted   int64           // numbers addresses
	noted    []Key           // events of kubelets, oldest first
	// Reject is asked of each pod that reaches a kubelet; a reason makes the kubelet refuse it. A fault to inject.
	Reject func(*corev1.Pod) (reason, message string)
}

// New builds a cluster at a time.
func New(cfg Config, now time.Time) *Cluster {
	if cfg.History <= 0 {
		cfg.History = DefaultHistory
	}
	if cfg.NodeGone <= 0 {
		cfg.NodeGone = DefaultNodeGone
	}
	c := &Cluster{
		cfg: cfg, now: now.UTC(), revision: 1, chance: rand.New(rand.NewPCG(cfg.Seed, 7)), //nolint:gosec // repeatable on purpose
		shelves: map[schema.GroupResource]*shelf{}, kubelets: map[string]*kubelet{}, boxes: map[string]*box{},
	}
	for _, r := range Resources {
		c.shelves[r.GroupResource()] = &shelf{resource: r, objects: map[Key]Object{}, lost: 1}
	}
	for _, name := range []string{"default", "kube-node-lease", "kube-public", "kube-system"} {
		o, err := c.Create(Namespaces, "", &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, false)
		c.must(o, err)
		if name == metav1.NamespaceSystem && cfg.UID != "" {
			o.SetUID(types.UID(cfg.UID))
		}
	}
	for _, p := range systemPriorities() {
		c.must(c.Create(priorities, "", p, false))
	}
	for _, n := range cfg.Nodes {
		c.AddNode(n)
	}
	return c
}

// must is for requests of our own that cannot be refused.
func (c *Cluster) must(_ Object, err error) {
	if err != nil {
		panic(fmt.Sprintf("the emulated cluster refused its own request: %v", err))
	}
}

// Revision is the newest resource version.
func (c *Cluster) Revision() int64 { return c.revision }

// ResourceRevision is the resource version of a resource's newest change.
func (c *Cluster) ResourceRevision(r *Resource) int64 {
	s := c.shelves[r.GroupResource()]
	if len(s.log) == 0 {
		return s.lost
	}
	return s.log[len(s.log)-1].Revision
}

// Get finds an object.
func (c *Cluster) Get(r *Resource, key Key) (Object, error) {
	if o := c.shelves[r.GroupResource()].objects[key]; o != nil {
		return o, nil
	}
	return nil, apierrors.NewNotFound(r.GroupResource(), key.Name)
}

// List returns the objects of a namespace, or of all ("") in order of their keys, as they were at a revision. Zero: now. The list must not be
// changed.
func (c *Cluster) List(r *Resource, namespace string, revision int64) ([]Object, error) {
	s := c.shelves[r.GroupResource()]
	if revision == 0 || revision > c.revision {
		revision = c.revision
	}
	if revision < c.revision && revision < s.lost {
		return nil, expired(revision, s.lost)
	}
	all := s.list(revision)
	if namespace == "" {
		return all, nil
	}
	from := sort.Search(len(all), func(i int) bool { return compareNamespaces(all[i].GetNamespace(), namespace) >= 0 })
	to := sort.Search(len(all), func(i int) bool { return compareNamespaces(all[i].GetNamespace(), namespace) > 0 })
	return all[from:to:to], nil
}

// list sorts the objects as of a revision, unless that was done already.
func (s *shelf) list(revision int64) []Object {
	if s.sorted != nil && s.sortedAt <= revision && s.sortedAt >= s.lost {
		if next := s.after(s.sortedAt); next == len(s.log) || s.log[next].Revision > revision {
			return s.sorted
		}
	}
	objects := s.at(revision)
	keys := make([]Key, 0, len(objects))
	for k := range objects {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, compareKeys)
	s.sorted, s.sortedAt = make([]Object, len(keys)), s.lost
	if i := s.after(revision); i > 0 {
		s.sortedAt = s.log[i-1].Revision
	}
	for i, k := range keys {
		s.sorted[i] = objects[k]
	}
	return s.sorted
}

// after is where the changes after a revision begin in the log.
func (s *shelf) after(revision int64) int {
	i, _ := slices.BinarySearchFunc(s.log, revision+1, func(ch Change, rev int64) int { return int(ch.Revision - rev) })
	return i
}

// at undoes the changes after a revision in a copy.
func (s *shelf) at(revision int64) map[Key]Object {
	objects := s.objects
	copied := false
	for _, change := range slices.Backward(s.log) {
		if change.Revision <= revision {
			break
		}
		if !copied {
			objects, copied = maps.Clone(s.objects), true
		}
		k := keyOf(change.Object)
		if change.Before == nil {
			delete(objects, k)
		} else {
			objects[k] = change.Before
		}
	}
	return objects
}

// Changes returns what happened to a resource after a revision, at most n of it.
func (c *Cluster) Changes(r *Resource, after int64, n int) ([]Change, error) {
	s := c.shelves[r.GroupResource()]
	if after < s.lost {
		return nil, expired(after, s.lost)
	}
	i := s.after(after)
	return s.log[i:min(len(s.log), i+n):min(len(s.log), i+n)], nil
}

// Compact forgets all history, as an API server does in time: who watches from an older revision is told to list again.
func (c *Cluster) Compact() {
	for _, s := range c.shelves {
		s.log, s.lost, s.sorted = nil, c.revision, nil
	}
}

func expired(asked, oldest int64) error {
	return apierrors.NewResourceExpired(fmt.Sprintf("too old resource version: %d (%d)", asked, oldest))
}

// commit stores an object under a new revision, logs the change and lets those act whom it concerns.
func (c *Cluster) commit(s *shelf, o Object) Object {
	c.revision++
	o.SetResourceVersion(strconv.FormatInt(c.revision, 10))
	k := keyOf(o)
	before := s.objects[k]
	s.objects[k] = o
	change := Change{Revision: c.revision, Type: watch.Modified, Object: o, Before: before}
	if before == nil {
		change.Type = watch.Added
	}
	c.record(s, change)
	return o
}

// remove takes an object away; what is left is its last state, under the revision of its end.
func (c *Cluster) remove(s *shelf, o Object) Object {
	c.revision++
	last := metaCopy(o)
	last.SetResourceVersion(strconv.FormatInt(c.revision, 10))
	k := keyOf(o)
	before := s.objects[k]
	delete(s.objects, k)
	c.record(s, Change{Revision: c.revision, Type: watch.Deleted, Object: last, Before: before})
	return last
}

func (c *Cluster) record(s *shelf, change Change) {
	s.log = append(s.log, change)
	if over := len(s.log) - c.cfg.History; over > c.cfg.History/4 {
		s.lost = s.log[over-1].Revision
		s.log = slices.Clone(s.log[over:])
	}
	switch s.resource {
	case Pods:
		c.podChanged(change)
	case Nodes:
		c.nodeChanged(change)
	}
}

// Advance lets time pass and does what was due.
func (c *Cluster) Advance(now time.Time) {
	for len(c.timers) > 0 && !c.timers[0].at.After(now) {
		t, ok := heap.Pop(&c.timers).(*timer)
		if !ok {
			continue
		}
		if t.at.After(c.now) {
			c.now = t.at
		}
		t.do()
	}
	if now.After(c.now) {
		c.now = now.UTC()
	}
}

// Next says when the cluster has something to do.
func (c *Cluster) Next() (time.Time, bool) {
	if len(c.timers) == 0 {
		return time.Time{}, false
	}
	return c.timers[0].at, true
}

// Now is the cluster's time.
func (c *Cluster) Now() time.Time { return c.now }

// TakeEffects returns what is to be done since the last call.
func (c *Cluster) TakeEffects() []Effect {
	out := c.effects
	c.effects = nil
	return out
}

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

func (c *Cluster) stamp() metav1.Time { return metav1.NewTime(c.now.Truncate(time.Second)) }

func (c *Cluster) uid() types.UID {
	var b [16]byte
	binary.BigEndian.PutUint64(b[:8], c.chance.Uint64())
	binary.BigEndian.PutUint64(b[8:], c.chance.Uint64())
	b[6] = b[6]&0x0f | 0x40
	b[8] = b[8]&0x3f | 0x80
	return types.UID(fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:]))
}

// suffix ends a generated name. The letters are those of the API server, which avoid words.
func (c *Cluster) suffix() string {
	const letters = "bcdfghjklmnpqrstvwxz2456789"
	var b [5]byte
	for i := range b {
		b[i] = letters[c.chance.IntN(len(letters))]
	}
	return string(b[:])
}

func keyOf(o Object) Key { return Key{Namespace: o.GetNamespace(), Name: o.GetName()} }

// compareKeys orders keys as an API server's storage does, by "namespace/name".
func compareKeys(a, b Key) int {
	if order := compareNamespaces(a.Namespace, b.Namespace); order != 0 {
		return order
	}
	return strings.Compare(a.Name, b.Name)
}

// compareNamespaces orders namespaces as if each ended with a slash.
func compareNamespaces(a, b string) int {
	n := min(len(a), len(b))
	switch order := strings.Compare(a[:n], b[:n]); {
	case order != 0 || len(a) == len(b):
		return order
	case len(a) == n:
		return int('/') - int(b[n])
	}
	return int(a[n]) - int('/')
}

// copyOf is an object of its own.
func copyOf(o Object) Object {
	c, ok := o.DeepCopyObject().(Object)
	if !ok {
		panic(fmt.Sprintf("a copy of %T is no object", o))
	}
	return c
}

// metaCopy is an object whose metadata can be set anew; the rest it may share with the other, as nothing that is stored is ever changed.
func metaCopy(o Object) Object {
	p, ok := o.(*corev1.Pod)
	if !ok {
		return copyOf(o)
	}
	own := *p
	return &own
}

// copyFor is an object of which one part can be changed.
func copyFor(part string, o Object) Object {
	p, ok := o.(*corev1.Pod)
	if !ok || part != "status" {
		return copyOf(o)
	}
	own := *p
	own.Status = *p.Status.DeepCopy()
	return &own
}

// timer is something that is due.
type timer struct {
	at   time.Time
	seq  uint64
	do   func()
	slot int // in the heap; -1: it is out
}

type timers []*timer

func (t timers) Len() int { return len(t) }
func (t timers) Less(i, j int) bool {
	if !t[i].at.Equal(t[j].at) {
		return t[i].at.Before(t[j].at)
	}
	return t[i].seq < t[j].seq
}
func (t timers) Swap(i, j int) { t[i], t[j] = t[j], t[i]; t[i].slot, t[j].slot = i, j }

func (t *timers) Push(x any) {
	if one, ok := x.(*timer); ok {
		one.slot = len(*t)
		*t = append(*t, one)
	}
}

func (t *timers) Pop() any {
	old := *t
	last := old[len(old)-1]
	last.slot = -1
	old[len(old)-1] = nil
	*t = old[:len(old)-1]
	return last
}
