package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"

	"github.com/paceline-sched/paceline/hostmanagers/kubernetes/mirror"
)

const (
	// watchSeconds is how long a watch is asked to last; the server ends it then, and it goes on from where it was.
	watchSeconds = 600
	// listTimeout bounds one answer to a list.
	listTimeout = time.Minute
	// maxExpired is how many lists in a row may have expired before their last page; then all is asked for in one answer.
	maxExpired = 3
	// wholeTimeout bounds an answer with everything.
	wholeTimeout = 5 * time.Minute
	// soon is how short a watch must have been to count as a failure.
	soon = time.Second
	// glance is how often a list that comes by a watch is looked at. If nothing came since, or at the last of so many glances, it is given up.
	glance  = time.Minute
	glances = 5
)

// view is one kind of object that is listed and then watched.
type view struct {
	name  string
	begin func()                                                                   // a list begins
	page  func(ctx context.Context, o metav1.ListOptions) (metav1.ListMeta, error) // takes in a part of it
	look  func(ctx context.Context, o object, version string) (sighting, error)    // takes in nothing
	// listed takes in an object of a list that comes by a watch, or what has become of it since the list began.
	listed func(watch.Event)
	end    func() // the list is complete
	watch  func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error)
	event  func(watch.Event)

	paged   bool // lists come in pages
	expired int  // how many lists in a row have expired before their end
	whole   bool // that was too often: instead of pages there is one answer
}

func (d *Driver) watchNodes(ctx context.Context) {
	var list []mirror.Node
	d.follow(ctx, &view{
		name:  "nodes",
		begin: func() { list = nil },
		page: func(ctx context.Context, o metav1.ListOptions) (metav1.ListMeta, error) {
			var nodes corev1.NodeList
			if err := d.get("nodes", &o).Do(ctx).Into(&nodes); err != nil {
				return metav1.ListMeta{}, fmt.Errorf("list the nodes: %w", err)
			}
			for i := range nodes.Items {
				list = append(list, d.cfg.Limits.ReadNode(&nodes.Items[i]))
			}
			return nodes.ListMeta, nil
		},
		look: d.looker("nodes", func() runtime.Object { return &corev1.NodeList{} }),
		listed: func(e watch.Event) {
			n, ok := e.Object.(*corev1.Node)
			switch {
			case !ok:
			case e.Type == watch.Deleted:
				list = slices.DeleteFunc(list, func(o mirror.Node) bool { return o.Name == n.Name })
			default: // of two of a name the later counts
				list = append(list, d.cfg.Limits.ReadNode(n))
			}
		},
		end: func() {
			d.input(func(now int64, out *mirror.Output) { d.machine.Nodes(now, list, out) })
			list = nil
		},
		paged: d.cfg.Paged,
		watch: d.watcher("nodes"),
		event: func(e watch.Event) {
			n, ok := e.Object.(*corev1.Node)
			if !ok {
				return
			}
			record := d.cfg.Limits.ReadNode(n)
			d.input(func(now int64, out *mirror.Output) {
				if e.Type == watch.Deleted {
					d.machine.NodeGone(now, record.Name, out)
				} else {
					d.machine.NodeChanged(now, record, out)
				}
			})
		},
	})
}

func (d *Driver) watchPods(ctx context.Context) {
	l := podList{driver: d}
	d.follow(ctx, &view{
		name: "pods",
		begin: func() {
			l.part, l.rest = l.part[:0], nil
			d.input(func(int64, *mirror.Output) { d.machine.Listing() })
		},
		page: func(ctx context.Context, o metav1.ListOptions) (metav1.ListMeta, error) {
			var pods corev1.PodList
			if err := d.get("pods", &o).Do(ctx).Into(&pods); err != nil {
				return metav1.ListMeta{}, fmt.Errorf("list the pods: %w", err)
			}
			for i := range pods.Items {
				l.add(&pods.Items[i])
			}
			return pods.ListMeta, nil
		},
		look: d.looker("pods", func() runtime.Object { return &corev1.PodList{} }),
		listed: func(e watch.Event) {
			p, ok := e.Object.(*corev1.Pod)
			switch {
			case !ok:
			case e.Type == watch.Deleted:
				l.remove(p)
			default: // of two of a key the later counts
				l.add(p)
			}
		},
		end:   l.end,
		paged: d.cfg.Paged,
		watch: d.watcher("pods"),
		event: func(e watch.Event) {
			p, ok := e.Object.(*corev1.Pod)
			if !ok {
				return
			}
			record := d.cfg.Limits.ReadPod(p)
			d.input(func(now int64, out *mirror.Output) {
				if e.Type == watch.Deleted {
					d.machine.PodGone(now, &record, out)
				} else {
					d.machine.PodChanged(now, &record, out)
				}
			})
		},
	})
}

// podList is a list of pods that is under way. The machine takes it in by parts, and leaves what must be told together.
type podList struct {
	driver *Driver
	part   []mirror.Pod
	rest   []mirror.Pod
}

// maxPart is how many pods the machine is told of at once.
const maxPart = 256

func (l *podList) add(p *corev1.Pod) {
	if l.part = append(l.part, l.driver.cfg.Limits.ReadPod(p)); len(l.part) == maxPart {
		l.flush()
	}
}

func (l *podList) flush() {
	l.driver.input(func(now int64, out *mirror.Output) {
		l.rest = append(l.rest, l.driver.machine.Listed(now, l.part, out)...)
	})
	clear(l.part)
	l.part = l.part[:0]
}

// remove takes in that a pod is gone, with the last that was known of it.
func (l *podList) remove(p *corev1.Pod) {
	l.flush()
	record := l.driver.cfg.Limits.ReadPod(p)
	l.rest = slices.DeleteFunc(l.rest, func(o mirror.Pod) bool { return o.Key == record.Key })
	l.driver.input(func(now int64, out *mirror.Output) { l.driver.machine.PodGone(now, &record, out) })
}

func (l *podList) end() {
	l.flush()
	l.driver.input(func(now int64, out *mirror.Output) { l.driver.machine.Pods(now, l.rest, out) })
	l.rest = nil
}

// get asks for all objects of a resource. A request that fails is not made again by the client: that is for follow to do.
func (d *Driver) get(resource string, o *metav1.ListOptions) *rest.Request {
	return d.api.RESTClient().Get().Resource(resource).VersionedParams(o, scheme.ParameterCodec).MaxRetries(0)
}

func (d *Driver) watcher(resource string) func(context.Context, metav1.ListOptions) (watch.Interface, error) {
	return func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
		o.Watch = true
		return d.get(resource, &o).Watch(ctx)
	}
}

// follow keeps a view up to date until the context ends. A watch that ends goes on from where it was, if that is still a part of the server's history; if it is
// not, or the server does not remember that far, everything is listed anew: by the watch that follows on the list, or in pages where that failed or is not to be had.
func (d *Driver) follow(ctx context.Context, v *view) {
	var at point
	failed, pause := false, backoff{cfg: &d.cfg}
	for ctx.Err() == nil {
		err := d.recognize(ctx)
		known := err == nil
		if err == nil && at.version != "" {
			var ok bool
			if ok, err = continues(ctx, v, at); err == nil && !ok {
				at = point{}
			}
		}
		if err == nil && at.version == "" && (v.paged || failed) {
			at.version, err = d.list(ctx, v)
		}
		if err == nil {
			at, err = d.watch(ctx, v, at, &pause)
		}
		if known {
			failed = err != nil && at.version == ""
		}
		switch {
		case err == nil || ctx.Err() != nil:
			continue
		case errors.Is(err, errRefused):
			v.paged = true
			continue
		case !gone(err), failed && v.whole:
			d.contact(v.name, err)
		case failed:
			d.expire(v, err)
		}
		if gone(err) || errors.Is(err, ErrOtherCluster) {
			at = point{}
		}
		d.sleep(ctx, pause.next(err))
	}
}

// gone reports whether a version is too old to go on from.
func gone(err error) bool { return apierrors.IsResourceExpired(err) || apierrors.IsGone(err) }

func (d *Driver) list(ctx context.Context, v *view) (string, error) {
	v.begin()
	o := metav1.ListOptions{Limit: int64(d.cfg.Page)}
	if v.whole {
		o.Limit = 0
	}
	for {
		part, err := within(ctx, o, v.page)
		if err != nil {
			return "", err
		}
		if o.Continue = part.Continue; o.Continue == "" {
			v.expired = 0
			v.end()
			return part.ResourceVersion, nil
		}
	}
}

// expire takes in that a list expired before its end: the server forgets its history faster than the pages come. After some in a row everything is asked
// for in one answer, of what the server has now; what a cache of it has may be older than what is known here, and runs would seem to be lost.
func (d *Driver) expire(v *view, err error) {
	v.expired++
	v.whole = v.expired >= maxExpired
	d.mu.Lock()
	defer d.mu.Unlock()
	if v.whole {
		d.whole = append(d.whole, v.name)
	}
	if d.down[v.name] != nil {
		d.down[v.name] = err
		d.failure.Err, d.failure.ErrAt = fmt.Errorf("read a list before it expires: %w", err), d.cfg.Now()
		d.failure.Attempts++
	}
}

// within bounds the time of one answer to a list.
func within(ctx context.Context, o metav1.ListOptions, page func(context.Context, metav1.ListOptions) (metav1.ListMeta, error)) (metav1.ListMeta, error) {
	limit := listTimeout
	if o.Limit == 0 {
		limit = wholeTimeout
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return page(ctx, o)
}

// errRefused is returned for a list by a watch that the server does not give. Asked again it would not either.
var errRefused = errors.New("the API server does not list by watches")

// watch follows one watch to its end, and returns the point to go on from. Without a version it begins with a list.
func (d *Driver) watch(ctx context.Context, v *view, at point, pause *backoff) (point, error) {
	lasts := int64(watchSeconds)
	o := metav1.ListOptions{ResourceVersion: at.version, AllowWatchBookmarks: true, TimeoutSeconds: &lasts}
	listing := at.version == ""
	if listing {
		o.SendInitialEvents, o.ResourceVersionMatch = &listing, metav1.ResourceVersionMatchNotOlderThan
		v.begin()
	}
	ctx, cancel := context.WithTimeout(ctx, watchSeconds*time.Second+requestTimeout) // longer than the server would let it
	defer cancel()
	answered := d.cfg.AfterFunc(requestTimeout, cancel)
	w, err := v.watch(ctx, o)
	answered()
	switch {
	case err != nil && listing && (apierrors.IsInvalid(err) || apierrors.IsBadRequest(err)): // it is older, or was told not to
		return point{}, fmt.Errorf("%w: %w", errRefused, err)
	case err != nil && listing:
		return point{}, fmt.Errorf("list by a watch: %w", err)
	case err != nil:
		return at, fmt.Errorf("watch from version %s on: %w", at.version, err)
	}
	defer w.Stop()
	if listing {
		if at.version, err = d.stream(v, w); err != nil {
			return point{}, err
		}
	}
	begun, heard := d.cfg.Now(), false
	d.contact(v.name, nil)
	for e := range w.ResultChan() {
		if e.Type == watch.Error {
			return at, apierrors.FromObject(e.Object)
		}
		if e.Type != watch.Bookmark {
			v.event(e)
			heard = true
		}
		pause.reset()
		at.heard(e)
	}
	if !heard && d.cfg.Now().Sub(begun) < soon {
		d.sleep(ctx, pause.next(nil))
	}
	return at, nil
}

// stream takes in the list that a watch begins with, and returns its version. What changes meanwhile may be told before its end.
func (d *Driver) stream(v *view, w watch.Interface) (string, error) {
	look := make(chan struct{}, 1)
	ring := func() { look <- struct{}{} }
	stop := d.cfg.AfterFunc(glance, ring)
	defer func() { stop() }()
	n, seen, looks := 0, 0, 0
	for {
		select {
		case e, ok := <-w.ResultChan():
			switch {
			case !ok:
				return "", fmt.Errorf("list by a watch: it was cut after %d objects, before its end", n)
			case e.Type == watch.Error:
				return "", apierrors.FromObject(e.Object)
			case e.Type != watch.Bookmark:
				n++
				v.listed(e)
			case isEnd(e.Object):
				v.expired = 0
				v.end()
				return versionOf(e.Object), nil
			}
		case <-look:
			if looks++; n == seen || looks == glances { // a server that skips what it does not know never says where the list ends
				return "", fmt.Errorf("%w: after %d objects its end has not come within %s", errRefused, n, glance*time.Duration(looks))
			}
			seen = n
			stop = d.cfg.AfterFunc(glance, ring)
		}
	}
}

// isEnd reports whether a bookmark ends a list.
func isEnd(o runtime.Object) bool {
	m, err := meta.Accessor(o)
	return err == nil && m.GetAnnotations()[metav1.InitialEventsAnnotationKey] == "true"
}

func versionOf(o runtime.Object) string {
	m, err := meta.Accessor(o)
	if err != nil {
		return ""
	}
	return m.GetResourceVersion()
}
