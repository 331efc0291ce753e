package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/paceline-sched/paceline/core/driver"
)

// Rehearse has the API server go through a launch without making it: its admission, its quotas, its checks of the pod.
func (d *Driver) Rehearse(ctx context.Context, l *driver.Launch) (driver.Rehearsal, error) {
	if d.ctx == nil {
		return driver.Rehearsal{}, errors.New("the Kubernetes cluster has not started")
	}
	pod, invalid := d.cfg.Pods.Pod(l, d.gpuOf(l.Host))
	if invalid != nil {
		return driver.Rehearsal{Refused: invalid.Error()}, nil //nolint:nilerr // the refusal is the answer
	}
	pause := backoff{cfg: &d.cfg}
	for {
		var warnings []string
		err := d.attempt(ctx, func(ctx context.Context) error {
			result := d.api.RESTClient().Post().Namespace(pod.Namespace).Resource("pods").Param("dryRun", metav1.DryRunAll).MaxRetries(0).Body(pod).Do(ctx)
			for _, w := range result.Warnings() {
				warnings = append(warnings, w.Text)
			}
			return result.Error()
		})
		switch {
		case err == nil:
			return driver.Rehearsal{Warnings: warnings}, nil
		case missingNamespace(err) && d.cfg.CreateNamespaces:
			return driver.Rehearsal{Warnings: []string{fmt.Sprintf("namespace %q would be created; what its rules say of the pod is not known before", pod.Namespace)}}, nil
		case missingNamespace(err):
			return driver.Rehearsal{Refused: d.noNamespace(pod.Namespace).Error(), Warnings: warnings}, nil
		case apierrors.IsBadRequest(err) && strings.Contains(err.Error(), "does not support dry run"):
			return driver.Rehearsal{}, fmt.Errorf("the API server does not say without a real pod: %w", err)
		case !transient(err):
			return driver.Rehearsal{Refused: err.Error(), Warnings: warnings}, nil
		case ctx.Err() != nil || d.ctx.Err() != nil:
			return driver.Rehearsal{}, fmt.Errorf("ask the API server whether it would take a pod: %w", err)
		}
		d.sleep(ctx, pause.next(err))
	}
}

// gpuOf is the resource that GPUs of a node are; of none, the first that is known.
func (d *Driver) gpuOf(node string) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	if node == "" {
		return d.cfg.Limits.GPUs[0]
	}
	return d.machine.GPU(node)
}
