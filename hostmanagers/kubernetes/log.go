package kubernetes

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/paceline-sched/paceline/core/driver"
	"github.com/paceline-sched/paceline/core/workload"
	"github.com/paceline-sched/paceline/hostmanagers/kubernetes/mirror"
)

// ReadLog reads what a run's main container wrote, by way of the API server from its kubelet. Both outputs are one stream, which is read as
// stdout; stderr is empty.
func (d *Driver) ReadLog(ctx context.Context, run workload.RunID, request driver.LogRequest) (io.ReadCloser, error) {
	if d.ctx == nil {
		return nil, errors.New("the Kubernetes cluster has not started")
	}
	namespace, ok := d.where(run)
	if !ok {
		return nil, driver.ErrUnknownRun
	}
	if request.Stream != driver.Stdout {
		return io.NopCloser(bytes.NewReader(nil)), nil
	}
	start := request.Offset
	if start < 0 {
		all, err := d.openLog(ctx, namespace, run, false)
		if err != nil {
			return nil, err
		}
		length, err := io.Copy(io.Discard, all)
		if err := errors.Join(err, all.Close()); err != nil {
			return nil, fmt.Errorf("measure the output of run %s: %w", run, err)
		}
		start = max(0, length+start)
	}
	r, err := d.openLog(ctx, namespace, run, request.Follow)
	if err != nil {
		return nil, err
	}
	if _, err := io.CopyN(io.Discard, r, start); err != nil && !errors.Is(err, io.EOF) {
		return nil, errors.Join(fmt.Errorf("read the output of run %s from byte %d on: %w", run, start, err), r.Close())
	}
	return r, nil
}

func (d *Driver) where(run workload.RunID) (namespace string, ok bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.machine.Where(run)
}

// openLog opens a log from its beginning. One that is followed is waited for.
func (d *Driver) openLog(ctx context.Context, namespace string, run workload.RunID, follow bool) (io.ReadCloser, error) {
	pause := backoff{cfg: &d.cfg}
	for {
		r, err := d.api.Pods(namespace).GetLogs(run.String(), &corev1.PodLogOptions{Container: mirror.MainContainer, Follow: follow}).Stream(ctx)
		switch {
		case err == nil:
			return r, nil
		case apierrors.IsNotFound(err):
			if _, ok := d.where(run); !ok || !follow {
				return nil, driver.ErrUnknownRun
			}
		case !apierrors.IsBadRequest(err): // which says that the container has not started
			return nil, fmt.Errorf("read the output of run %s: %w", run, err)
		case !follow:
			return io.NopCloser(bytes.NewReader(nil)), nil
		}
		if ctx.Err() != nil || d.ctx.Err() != nil {
			return nil, fmt.Errorf("wait for the output of run %s: %w", run, errors.Join(ctx.Err(), d.ctx.Err()))
		}
		d.sleep(ctx, pause.next(err))
	}
}
