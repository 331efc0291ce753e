package emulator

import (
	"errors"
	"net/http"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/paceline-sched/paceline/hostmanagers/kubernetes/emulator/cluster"
	"github.com/paceline-sched/paceline/hostmanagers/kubernetes/emulator/wire"
)

const (
	// batch is how many changes a watch takes at a time.
	batch = 256
	// bookmarkEvery is how often a watch that allows bookmarks gets one.
	bookmarkEvery = time.Minute
)

// watcher is one watch.
type watcher struct {
	emulator  *Emulator
	request   *request
	selection *selection
	w         http.ResponseWriter
	at        int64 // changes up to this revision are sent
	bookmarks bool
	headed    bool // a table's columns were sent
	// Set by start.
	initial []cluster.Object
	marked  bool // the initial objects end with a bookmark
}

// watch streams changes until one side has enough.
func (e *Emulator) watch(w http.ResponseWriter, r *request) error {
	if err := r.checkList(); err != nil {
		return err
	}
	s, err := r.selection()
	if err != nil {
		return err
	}
	one := &watcher{emulator: e, request: r, selection: s, w: w}
	one.bookmarks = r.flag("allowWatchBookmarks")
	if err := one.start(); err != nil {
		if !apierrors.IsResourceExpired(err) && !apierrors.IsTimeout(err) {
			return err
		}
		one.head()
		one.frame(watch.Error, schema.GroupVersion{Version: "v1"}, statusOf(err))
		return nil
	}
	one.head()
	one.stream()
	return nil
}

// start finds where a watch begins, and what it begins with.
func (x *watcher) start() error {
	q := x.request.query
	given := q.Has("sendInitialEvents")
	version := q.Get("resourceVersion")
	unsaid := version == "" || version == "0"
	from, err := strconv.ParseInt(version, 10, 64)
	if !unsaid && err != nil {
		return badVersion(version)
	}
	whole := unsaid
	if given {
		whole = x.request.flag("sendInitialEvents")
	}
	x.emulator.Do(func(c *cluster.Cluster) {
		x.at, err = c.Revision(), nil
		switch {
		case whole && given:
			if _, err = revisionOf(x.request, x.at); err != nil {
				return
			}
			fallthrough
		case whole:
			x.marked = given && x.bookmarks
			x.initial, err = c.List(x.request.resource, x.request.namespace, 0)
		case !unsaid:
			x.at = from
			_, err = c.Changes(x.request.resource, x.at, 1)
		}
	})
	return err
}

func (x *watcher) head() {
	x.w.Header().Set("Content-Type", x.request.form.StreamType())
	x.w.WriteHeader(http.StatusOK)
	x.flush()
}

func (x *watcher) flush() {
	_ = http.NewResponseController(x.w).Flush() // an answer that nobody gets cannot be flushed
}

// stream sends what there is, and then what comes.
func (x *watcher) stream() {
	e, ctx := x.emulator, x.request.Context()
	for _, o := range x.initial {
		if x.selection.matches(o) && !x.send(watch.Added, o) {
			return
		}
	}
	x.initial = nil
	if x.marked && !x.bookmark(map[string]string{metav1.InitialEventsAnnotationKey: "true"}) {
		return
	}
	x.flush()
	over := e.timer(x.request.query.Get("timeoutSeconds"))
	defer over.stop()
	tick := e.after(bookmarkEvery)
	defer func() { tick.stop() }()
	for {
		more, rung, cut, err := x.take()
		if errors.Is(err, errGone) {
			return
		}
		if err != nil {
			x.frame(watch.Error, schema.GroupVersion{Version: "v1"}, statusOf(err))
			return
		}
		if more {
			continue
		}
		select {
		case <-rung:
		case <-tick.due:
			tick = e.after(bookmarkEvery)
			if x.bookmarks && !x.bookmark(nil) {
				return
			}
			x.flush()
		case <-over.due:
			return
		case <-cut:
			panic(http.ErrAbortHandler) // net/http's way to cut a connection
		case <-ctx.Done():
			return
		}
	}
}

// errGone says that whoever watched is gone.
var errGone = errors.New("the watcher is gone")

// take sends the next changes. More says that there may be others; if not, rung and cut tell what comes next.
func (x *watcher) take() (more bool, rung, cut <-chan struct{}, err error) {
	e := x.emulator
	e.mu.Lock()
	changes, err := e.cluster.Changes(x.request.resource, x.at, batch)
	rung, cut = e.bells[x.request.resource].rung, e.cut
	newest := e.cluster.Revision()
	e.mu.Unlock()
	if err != nil {
		return false, nil, nil, err
	}
	for _, c := range changes {
		if !x.change(c) {
			return false, nil, nil, errGone
		}
		x.at = c.Revision
	}
	if len(changes) < batch {
		x.at = max(x.at, newest) // it may have begun with a version that is yet to come
	}
	if len(changes) > 0 {
		x.flush()
	}
	return len(changes) == batch, rung, cut, nil
}

// change sends a change as the watch's selectors see it.
func (x *watcher) change(c cluster.Change) bool {
	was, is := x.selection.matches(c.Before), c.Type != watch.Deleted && x.selection.matches(c.Object)
	switch {
	case is && was:
		return x.send(watch.Modified, c.Object)
	case is:
		return x.send(watch.Added, c.Object)
	case was && c.Type == watch.Deleted:
		return x.send(watch.Deleted, c.Object)
	case was: // it no longer matches; what is told is its last state that did
		last, ok := c.Before.DeepCopyObject().(cluster.Object)
		if !ok {
			return true
		}
		last.SetResourceVersion(c.Object.GetResourceVersion())
		return x.send(watch.Deleted, last)
	}
	return true
}

func (x *watcher) send(kind watch.EventType, o cluster.Object) bool {
	if x.request.form.As == wire.AsTable {
		table, err := x.emulator.table(x.request, []cluster.Object{o}, o.GetResourceVersion(), !x.headed)
		x.headed = true
		return err == nil && x.frame(kind, metav1.SchemeGroupVersion, table)
	}
	object, gv, err := x.emulator.convert(x.request, o)
	return err == nil && x.frame(kind, gv, object)
}

// bookmark says how far a watch has come.
func (x *watcher) bookmark(annotations map[string]string) bool {
	o := x.request.resource.New()
	o.SetResourceVersion(strconv.FormatInt(x.at, 10))
	o.SetAnnotations(annotations)
	return x.send(watch.Bookmark, o)
}

func (x *watcher) frame(kind watch.EventType, gv schema.GroupVersion, o runtime.Object) bool {
	raw, err := wire.Encode(x.request.form.Media, gv, o)
	if err != nil {
		return false
	}
	if raw, err = wire.Frame(x.request.form.Media, string(kind), raw); err != nil {
		return false
	}
	_, err = x.w.Write(raw)
	return err == nil
}

// alarm is a moment to come. One without a time never comes.
type alarm struct {
	due  chan struct{}
	stop func() bool
}

func (e *Emulator) after(d time.Duration) alarm {
	a := alarm{due: make(chan struct{})}
	a.stop = e.clock.AfterFunc(d, func() { close(a.due) })
	return a
}

// timer is an alarm after so many seconds, if there is a number.
func (e *Emulator) timer(seconds string) alarm {
	n, err := strconv.Atoi(seconds)
	if err != nil || n <= 0 {
		return alarm{stop: func() bool { return false }}
	}
	return e.after(time.Duration(n) * time.Second)
}
