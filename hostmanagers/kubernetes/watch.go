package kubernetes

import (
	"context"
	"fmt"
	"strconv"
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
)

// view is one kind of object that is listed and then watched.
type view struct {
	name  string
	begin func()                                                                   // a list begins
	page  func(ctx context.Context, o metav1.ListOptions) (metav1.ListMeta, error) // takes in a part of it
	head  func(ctx context.Context, o metav1.ListOptions) (metav1.ListMeta, error) // takes in nothing
	end   func()                                                                   // it is complete
	watch func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error)
	event func(watch.Event)

	expired int  // how many lists in a row have expired before their last page
	whole   bool // that was too often: lists are asked for in one answer
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
		head: func(ctx context.Context, o metav1.ListOptions) (metav1.ListMeta, error) {
			var nodes corev1.NodeList
			if err := d.get("nodes", &o).Do(ctx).Into(&nodes); err != nil {
				return metav1.ListMeta{}, fmt.Errorf("look at the nodes: %w", err)
			}
			return nodes.ListMeta, nil
		},
		end: func() {
			d.input(func(now int64, out *mirror.Output) { d.machine.Nodes(now, list, out) })
			list = nil
		},
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
	var list []mirror.Pod
	d.follow(ctx, &view{
		name: "pods",
		begin: func() {
			list = nil
			d.input(func(int64, *mirror.Output) { d.machine.Listing() })
		},
		page: func(ctx context.Context, o metav1.ListOptions) (metav1.ListMeta, error) {
			var pods corev1.PodList
			if err := d.get("pods", &o).Do(ctx).Into(&pods); err != nil {
				return metav1.ListMeta{}, fmt.Errorf("list the pods: %w", err)
			}
			for i := range pods.Items {
				list = append(list, d.cfg.Limits.ReadPod(&pods.Items[i]))
			}
			return pods.ListMeta, nil
		},
		head: func(ctx context.Context, o metav1.ListOptions) (metav1.ListMeta, error) {
			var pods corev1.PodList
			if err := d.get("pods", &o).Do(ctx).Into(&pods); err != nil {
				return metav1.ListMeta{}, fmt.Errorf("look at the pods: %w", err)
			}
			return pods.ListMeta, nil
		},
		end: func() {
			d.input(func(now int64, out *mirror.Output) { d.machine.Pods(now, list, out) })
			list = nil
		},
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

// follow keeps a view up to date until the context ends. A watch that ends goes on from where it was; only if the server does not remember that
// far, or has not come that far, everything is listed anew.
func (d *Driver) follow(ctx context.Context, v *view) {
	version, pause := "", backoff{cfg: &d.cfg}
	for ctx.Err() == nil {
		var err error
		if version != "" {
			version, err = setBack(ctx, v, version)
		}
		if err == nil && version == "" {
			version, err = d.list(ctx, v)
		}
		if err == nil {
			version, err = d.watch(ctx, v, version, &pause)
		}
		if err != nil && ctx.Err() == nil {
			switch {
			case !gone(err), version == "" && v.whole:
				d.contact(v.name, err)
			case version == "": // a list expired before its last page
				d.expire(v, err)
			}
			if gone(err) {
				version = ""
			}
			d.sleep(ctx, pause.next(err))
		}
	}
}

// setBack returns the version to go on from, or none if the server has less behind it than that: what it kept was restored from a backup, or another stands in
// its place. A watch would hear nothing until it had come that far again.
func setBack(ctx context.Context, v *view, version string) (string, error) {
	now, err := within(ctx, metav1.ListOptions{Limit: 1}, v.head)
	if err != nil {
		return version, err
	}
	seen, errSeen := strconv.ParseUint(version, 10, 64)
	has, errHas := strconv.ParseUint(now.ResourceVersion, 10, 64)
	if errSeen == nil && errHas == nil && has < seen {
		return "", nil
	}
	return version, nil
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

// expire takes in that a list expired before its last page: the server forgets its history faster than the pages come. After some in a row everything is asked
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

// watch follows one watch to its end, and returns the version to go on from.
func (d *Driver) watch(ctx context.Context, v *view, version string, pause *backoff) (string, error) {
	lasts := int64(watchSeconds)
	ctx, cancel := context.WithTimeout(ctx, watchSeconds*time.Second+requestTimeout) // longer than the server would let it
	defer cancel()
	answered := d.cfg.AfterFunc(requestTimeout, cancel)
	w, err := v.watch(ctx, metav1.ListOptions{ResourceVersion: version, AllowWatchBookmarks: true, TimeoutSeconds: &lasts})
	answered()
	if err != nil {
		return version, fmt.Errorf("watch from version %s on: %w", version, err)
	}
	defer w.Stop()
	begun, heard := d.cfg.Now(), false
	d.contact(v.name, nil)
	for e := range w.ResultChan() {
		if e.Type == watch.Error {
			return version, apierrors.FromObject(e.Object)
		}
		if e.Type != watch.Bookmark {
			v.event(e)
		}
		heard = true
		pause.reset()
		version = versionOf(e.Object, version)
	}
	if !heard && d.cfg.Now().Sub(begun) < soon {
		d.sleep(ctx, pause.next(nil))
	}
	return version, nil
}

func versionOf(o runtime.Object, otherwise string) string {
	m, err := meta.Accessor(o)
	if err != nil || m.GetResourceVersion() == "" {
		return otherwise
	}
	return m.GetResourceVersion()
}
