package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/paceline-sched/paceline/core/driver"
	"github.com/paceline-sched/paceline/hostmanagers/kubernetes/mirror"
)

var _ driver.Leaver = (*Driver)(nil)

const (
	// leaveGrace bounds the grace of pods that end because the cell leaves: their successors are not to wait for long.
	leaveGrace = 5 // seconds
	// leavePause is between two looks at what is still there.
	leavePause = 100 * time.Millisecond
)

var errLeft = errors.New("the cell has taken leave of the Kubernetes cluster")

// Leave has all pods of the owner deleted, in every namespace, and waits until they are gone, and until no creation without an answer can make another. From its beginning on no pod is created, and the sink hears
// of a loss of contact and of nothing else: what becomes of the runs is known to who leaves. An error says that pods may still be there.
func (d *Driver) Leave(ctx context.Context) error {
	if d.ctx == nil || d.ctx.Err() != nil {
		return errors.New("there is no connection to the Kubernetes cluster")
	}
	if err := d.part(ctx); err != nil {
		return d.stays(err)
	}
	pause := backoff{cfg: &d.cfg}
	for err := d.recognize(ctx); err != nil; err = d.recognize(ctx) {
		if ctx.Err() != nil || errors.Is(err, ErrOtherCluster) || !transient(err) {
			return d.stays(err)
		}
		d.sleep(ctx, pause.next(err))
	}
	for {
		late := d.mayCome() // before the list: what comes after it is clear
		pods, err := d.owned(ctx)
		if err == nil && len(pods) == 0 && late == 0 {
			return nil
		}
		if err == nil {
			err = d.removeAll(ctx, pods)
		}
		switch {
		case ctx.Err() != nil && err == nil:
			return d.stays(fmt.Errorf("%d of its pods do not end", len(pods)))
		case ctx.Err() != nil, err != nil && !transient(err):
			return d.stays(err)
		case err != nil:
			d.sleep(ctx, pause.next(err))
		case len(pods) == 0:
			if d.sleep(ctx, late); ctx.Err() != nil {
				return d.stays(fmt.Errorf("the API server left a request to create one without an answer, and may still carry it out: %w", ctx.Err()))
			}
		default:
			d.sleep(ctx, leavePause)
		}
	}
}

// mayCome says for how long a creation without an answer may still make a pod.
func (d *Driver) mayCome() time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	return max(0, d.clearAt.Sub(d.cfg.Now()))
}

// stays says what somebody has to do.
func (d *Driver) stays(err error) error {
	return fmt.Errorf("delete the cell's pods, which are labelled %s=%s: %w", mirror.LabelOwner, d.cfg.Pods.Owner, err)
}

// part ends what the driver does of its own, and waits for the requests that are under way.
func (d *Driver) part(ctx context.Context) error {
	stop := context.AfterFunc(ctx, d.changed.Broadcast)
	defer stop()
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.left {
		d.left = true
		d.queue = nil
		d.machine.Lost(d.cfg.Now().UnixNano(), errLeft, &d.out)
		d.absorb()
	}
	for d.inFlight > 0 && ctx.Err() == nil {
		d.changed.Wait()
	}
	if d.inFlight > 0 {
		return fmt.Errorf("wait for %d requests: %w", d.inFlight, ctx.Err())
	}
	return nil
}

// owned lists all pods of the owner.
func (d *Driver) owned(ctx context.Context) ([]corev1.Pod, error) {
	var all []corev1.Pod
	o := metav1.ListOptions{LabelSelector: mirror.LabelOwner + "=" + d.cfg.Pods.Owner, Limit: int64(d.cfg.Page)}
	for {
		var part *corev1.PodList
		err := d.attempt(ctx, func(ctx context.Context) error {
			var err error
			part, err = d.api.Pods(metav1.NamespaceAll).List(ctx, o)
			return err //nolint:wrapcheck // the caller looks at it
		})
		if err != nil {
			return nil, fmt.Errorf("list the cell's pods: %w", err)
		}
		all = append(all, part.Items...)
		if o.Continue = part.Continue; o.Continue == "" {
			return all, nil
		}
	}
}

// removeAll has pods deleted that nobody has told to end yet, many at once. It returns the first error, if there was one, after all were tried.
func (d *Driver) removeAll(ctx context.Context, pods []corev1.Pod) error {
	work := make(chan *corev1.Pod)
	var group sync.WaitGroup
	var once sync.Once
	var first error
	for range min(d.cfg.Requests, len(pods)) {
		group.Go(func() {
			for p := range work {
				if err := d.removeOwned(ctx, p); err != nil {
					once.Do(func() { first = err })
				}
			}
		})
	}
	for i := range pods {
		if pods[i].DeletionTimestamp == nil {
			work <- &pods[i]
		}
	}
	close(work)
	group.Wait()
	return first
}

func (d *Driver) removeOwned(ctx context.Context, p *corev1.Pod) error {
	grace := int64(leaveGrace)
	if g := p.Spec.TerminationGracePeriodSeconds; g != nil {
		grace = min(grace, max(*g, 1)) // a deletion without any would not wait for the kubelet
	}
	if p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
		grace = 0
	}
	uid := p.UID
	err := d.attempt(ctx, func(ctx context.Context) error {
		return d.api.Pods(p.Namespace).Delete(ctx, p.Name, metav1.DeleteOptions{GracePeriodSeconds: &grace, Preconditions: &metav1.Preconditions{UID: &uid}})
	})
	if err == nil || apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return fmt.Errorf("delete pod %s in namespace %s: %w", p.Name, p.Namespace, err)
}
