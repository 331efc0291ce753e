package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/paceline-sched/paceline/core/telemetry"
	"github.com/paceline-sched/paceline/hostmanagers/kubernetes/manifest"
	"github.com/paceline-sched/paceline/hostmanagers/kubernetes/mirror"
)

// requestTimeout bounds one attempt. What became of one that was cut off the next one finds out.
const requestTimeout = 30 * time.Second

// request makes calls, one at a time, until the context ends.
func (d *Driver) request(ctx context.Context) {
	for {
		c := d.take(ctx)
		if c == nil {
			return
		}
		var answer mirror.Answer
		var err error
		if c.Launch != nil {
			answer, err = d.create(ctx, c)
		} else {
			answer, err = d.remove(ctx, c)
		}
		d.mu.Lock()
		d.inFlight--
		if err == nil { // else the context has ended
			d.machine.Answer(d.cfg.Now().UnixNano(), c, answer, &d.out)
			d.absorb()
		}
		d.changed.Broadcast()
		d.mu.Unlock()
	}
}

// take waits for a call; nil: there will be none.
func (d *Driver) take(ctx context.Context) *mirror.Call {
	d.mu.Lock()
	defer d.mu.Unlock()
	for len(d.queue) == 0 && !d.ended {
		d.changed.Wait()
	}
	if d.ended || ctx.Err() != nil {
		return nil
	}
	c := d.queue[0]
	d.queue[0] = nil
	d.queue = d.queue[1:]
	d.inFlight++
	return c
}

// create has a pod created, however often that must be tried. An error means that the context ended.
func (d *Driver) create(ctx context.Context, c *mirror.Call) (mirror.Answer, error) {
	pod, invalid := d.cfg.Pods.Pod(c.Launch, c.GPU)
	if invalid != nil {
		return mirror.Answer{Refused: string(metav1.StatusReasonInvalid), Message: invalid.Error()}, nil //nolint:nilerr // the refusal is the answer
	}
	pause, doubt := backoff{cfg: &d.cfg}, false
	for d.wanted(c) {
		var got corev1.Pod
		err := d.attempt(ctx, func(ctx context.Context) error {
			return d.api.RESTClient().Post().Namespace(pod.Namespace).Resource("pods").MaxRetries(0).Body(pod).Do(ctx).Into(&got)
		})
		if unclear(err) {
			doubt = true
			d.noteUnclear()
		}
		switch {
		case err == nil:
			record := d.cfg.Limits.ReadPod(&got)
			return mirror.Answer{Pod: &record, Doubt: doubt}, nil
		case ctx.Err() != nil:
			return mirror.Answer{}, err
		case apierrors.IsAlreadyExists(err): // if it is gone by now, it has had its time
			return d.lookUp(ctx, pod, doubt)
		case missingNamespace(err):
			err = d.makeNamespace(ctx, pod.Namespace)
			switch {
			case ctx.Err() != nil:
				return mirror.Answer{}, fmt.Errorf("make namespace %s: %w", pod.Namespace, context.Cause(ctx))
			case err != nil && !transient(err):
				return mirror.Answer{Refused: string(metav1.StatusReasonNotFound), Message: err.Error(), Doubt: doubt}, nil
			}
		case !transient(err):
			refused := mirror.Answer{Refused: refusal(err), Message: err.Error(), Doubt: doubt}
			if !doubt {
				return refused, nil
			}
			answer, err := d.lookUp(ctx, pod, doubt) // an attempt whose answer was lost may have made it
			if answer.GivenUp {
				answer = refused
			}
			return answer, err
		}
		d.sleep(ctx, pause.next(err))
	}
	return d.lookUp(ctx, pod, doubt)
}

// unclear reports whether a request that failed may have had its effect, or have it yet. One that found no connection has none.
func unclear(err error) bool {
	var status apierrors.APIStatus
	var network *net.OpError
	switch {
	case err == nil:
		return false
	case errors.As(err, &status):
		code := status.Status().Code
		return code >= http.StatusInternalServerError || code == http.StatusRequestTimeout
	}
	return !errors.As(err, &network) || network.Op != "dial"
}

// noteUnclear notes that a creation had no answer; see Leave.
func (d *Driver) noteUnclear() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.clearAt = d.cfg.Now().Add(d.cfg.Limits.LateCreation)
}

// missingNamespace reports whether a pod was refused because its namespace is not there.
func missingNamespace(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) || !apierrors.IsNotFound(err) {
		return false
	}
	details := status.Status().Details
	return details != nil && details.Kind == "namespaces"
}

// makeNamespace makes a namespace that a pod misses, if that is allowed. An error that is not transient is the user's to mend.
func (d *Driver) makeNamespace(ctx context.Context, name string) error {
	if !d.cfg.CreateNamespaces {
		return d.noNamespace(name)
	}
	err := d.attempt(ctx, func(ctx context.Context) error {
		namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
			manifest.LabelManager: manifest.Manager, mirror.LabelOwner: d.cfg.Pods.Owner,
		}}}
		return d.api.RESTClient().Post().Resource("namespaces").MaxRetries(0).Body(namespace).Do(ctx).Error()
	})
	switch {
	case err == nil, apierrors.IsAlreadyExists(err):
		return nil
	case transient(err):
		return err
	}
	return &unmendable{fmt.Errorf("the cluster has no namespace %q, and it cannot be created: create it (kubectl create namespace %s), or let the server's account create namespaces: %w", name, name, err)}
}

func (d *Driver) noNamespace(name string) error {
	return &unmendable{fmt.Errorf("the cluster has no namespace %q: create it (kubectl create namespace %s), or allow in the cluster's settings that missing namespaces are created", name, name)}
}

// unmendable is an error that making the request again does not mend.
type unmendable struct{ error }

func (u *unmendable) Unwrap() error { return u.error }

func (d *Driver) wanted(c *mirror.Call) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return !d.left && d.machine.Wanted(c)
}

// lookUp asks for the pod that has a run's name. An error means that the context ended.
func (d *Driver) lookUp(ctx context.Context, pod *corev1.Pod, doubt bool) (mirror.Answer, error) {
	pause := backoff{cfg: &d.cfg}
	for {
		var got *corev1.Pod
		err := d.attempt(ctx, func(ctx context.Context) error {
			got = &corev1.Pod{}
			return d.api.RESTClient().Get().Namespace(pod.Namespace).Resource("pods").Name(pod.Name).MaxRetries(0).Do(ctx).Into(got)
		})
		switch {
		case err == nil:
			record := d.cfg.Limits.ReadPod(got)
			if !record.Own {
				return mirror.Answer{
					Refused: string(metav1.StatusReasonAlreadyExists),
					Message: fmt.Sprintf("namespace %q has a pod of the run's name that is not this cell's", pod.Namespace), Doubt: doubt,
				}, nil
			}
			return mirror.Answer{Pod: &record, Doubt: doubt}, nil
		case ctx.Err() != nil:
			return mirror.Answer{}, err
		case apierrors.IsNotFound(err):
			return mirror.Answer{GivenUp: true, Doubt: doubt}, nil
		case !transient(err):
			return mirror.Answer{Refused: refusal(err), Message: err.Error(), Doubt: doubt}, nil
		}
		d.sleep(ctx, pause.next(err))
	}
}

// remove has a pod deleted. An error means that the context ended.
func (d *Driver) remove(ctx context.Context, c *mirror.Call) (mirror.Answer, error) {
	pause, uid := backoff{cfg: &d.cfg}, types.UID(c.UID)
	options := metav1.DeleteOptions{GracePeriodSeconds: &c.Grace, Preconditions: &metav1.Preconditions{UID: &uid}}
	for {
		err := d.attempt(ctx, func(ctx context.Context) error {
			return d.api.RESTClient().Delete().Namespace(c.Namespace).Resource("pods").Name(c.Run.String()).MaxRetries(0).Body(&options).Do(ctx).Error()
		})
		replaced := false
		if apierrors.IsConflict(err) {
			replaced, err = d.replaced(ctx, c, err)
		}
		switch {
		case err == nil, replaced, apierrors.IsNotFound(err):
			return mirror.Answer{}, nil
		case ctx.Err() != nil:
			return mirror.Answer{}, err
		case !transient(err):
			d.cfg.Logger.Warn("a pod cannot be deleted", slog.String(telemetry.KeyRun, c.Run.String()), slog.Any(telemetry.KeyError, err))
			return mirror.Answer{Refused: refusal(err), Message: err.Error()}, nil
		}
		d.sleep(ctx, pause.next(err))
	}
}

// replaced reports whether the name of a pod whose deletion met a conflict has another pod now, or none. If it has not, the error says why the pod is still
// there: because of the conflict, which may pass, or because nobody may see what it is about.
func (d *Driver) replaced(ctx context.Context, c *mirror.Call, conflict error) (bool, error) {
	var got corev1.Pod
	err := d.attempt(ctx, func(ctx context.Context) error {
		return d.api.RESTClient().Get().Namespace(c.Namespace).Resource("pods").Name(c.Run.String()).MaxRetries(0).Do(ctx).Into(&got)
	})
	switch {
	case apierrors.IsNotFound(err), err == nil && string(got.UID) != c.UID:
		return true, nil
	case err != nil && !transient(err):
		return false, fmt.Errorf("see why its deletion met a conflict (the server's account needs get on pods): %w", err)
	}
	return false, conflict
}

// attempt makes one request, once the throttle lets it.
func (d *Driver) attempt(ctx context.Context, f func(ctx context.Context) error) error {
	for wait := d.throttle.wait(); wait > 0; wait = d.throttle.wait() {
		d.sleep(ctx, wait)
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("wait for the API server's leave: %w", err)
		}
	}
	limited, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	err := f(limited)
	d.throttle.heed(err)
	return err
}

// sleep waits, or returns when the context ends.
func (d *Driver) sleep(ctx context.Context, wait time.Duration) {
	over := make(chan struct{})
	stop := d.cfg.AfterFunc(wait, func() { close(over) })
	defer stop()
	select {
	case <-over:
	case <-ctx.Done():
	}
}

// throttle holds all requests back when the API server asks for it.
type throttle struct {
	cfg   *Config
	mu    sync.Mutex
	until time.Time
}

func (t *throttle) wait() time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.until.Sub(t.cfg.Now())
}

// heed takes in an answer. Only 429 speaks of the server as a whole.
func (t *throttle) heed(err error) {
	if !apierrors.IsTooManyRequests(err) {
		return
	}
	seconds, _ := apierrors.SuggestsClientDelay(err)
	wait := min(max(time.Duration(seconds)*time.Second, t.cfg.FirstWait), longestAdvice)
	t.mu.Lock()
	defer t.mu.Unlock()
	if until := t.cfg.Now().Add(wait + rand.N(wait/2+1)); until.After(t.until) { //nolint:gosec // spreads attempts
		t.until = until
	}
}

// backoff is the wait between attempts: twice as long each time, and drawn, so that many do not come at once.
type backoff struct {
	cfg   *Config
	bound time.Duration
}

func (b *backoff) reset() { b.bound = 0 }

func (b *backoff) next(err error) time.Duration {
	b.bound = min(max(2*b.bound, b.cfg.FirstWait), b.cfg.LongestWait)
	wait := rand.N(b.bound + 1) //nolint:gosec // spreads attempts
	if seconds, ok := apierrors.SuggestsClientDelay(err); ok {
		wait += min(time.Duration(seconds)*time.Second, longestAdvice)
	}
	return wait
}

// transient reports whether a request may succeed when it is made again as it is.
func transient(err error) bool {
	if u := (*unmendable)(nil); errors.As(err, &u) {
		return false
	}
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return true // of the network
	}
	code := status.Status().Code
	switch code {
	case http.StatusUnauthorized, http.StatusRequestTimeout, http.StatusConflict, http.StatusTooManyRequests:
		return !apierrors.IsAlreadyExists(err)
	}
	return code < http.StatusBadRequest || code >= http.StatusInternalServerError
}

// refusal is the word of the machine's table for why the API server does not take a request.
func refusal(err error) string {
	switch {
	case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		return mirror.RefusedNamespaceEnds
	case apierrors.IsForbidden(err) && strings.Contains(err.Error(), "exceeded quota"):
		return mirror.RefusedByQuota
	}
	return string(apierrors.ReasonForError(err))
}
