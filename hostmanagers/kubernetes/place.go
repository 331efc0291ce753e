package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/paceline-sched/paceline/core/telemetry"
)

// ErrOtherCluster says that an API server does not speak for the cluster that the cell knows.
var ErrOtherCluster = errors.New("the API server is that of another cluster")

// Place keeps which cluster a driver speaks to. It is called from several goroutines.
type Place interface {
	// Known returns what Recognize was told; "": nothing yet.
	Known() (uid string, err error)
	// Recognize makes durable which cluster it is, before anything is started there.
	Recognize(uid string) error
}

// recognize asks which cluster the API server speaks for: the UID of the namespace that all of them have, and that lasts as long as the cluster. An error
// says that it is another one than the cell knows, or that there was no answer. One that may not be asked is taken for the one it was.
func (d *Driver) recognize(ctx context.Context) error {
	if d.cfg.Place == nil {
		return nil
	}
	var got corev1.Namespace
	err := d.attempt(ctx, func(ctx context.Context) error {
		return d.api.RESTClient().Get().Resource("namespaces").Name(metav1.NamespaceSystem).MaxRetries(0).Do(ctx).Into(&got)
	})
	switch {
	case apierrors.IsForbidden(err), apierrors.IsNotFound(err):
		d.notePlace(fmt.Sprintf("not known: %v", err), err)
		return nil
	case err != nil:
		return fmt.Errorf("ask which cluster it is: %w", err)
	}
	uid := string(got.UID)
	known, err := d.cfg.Place.Known()
	if err == nil && known == "" {
		known, err = uid, d.cfg.Place.Recognize(uid)
	}
	if err != nil {
		return err //nolint:wrapcheck // it says what was tried
	}
	if uid != known {
		return fmt.Errorf("%w: at %s the namespace %s has the UID %s, and it had %s when the cell came to know the cluster; "+
			"update the cluster with a kubeconfig of that one, or, if it is gone for good, remove it with --force and add this one anew",
			ErrOtherCluster, d.cfg.API.Host, metav1.NamespaceSystem, uid, known)
	}
	d.notePlace(uid, nil)
	return nil
}

// notePlace keeps what Describe tells. Why it is not known is logged once.
func (d *Driver) notePlace(text string, err error) {
	d.mu.Lock()
	was := d.place
	d.place = text
	d.mu.Unlock()
	if err != nil && was != text {
		d.cfg.Logger.Warn("another cluster in this one's place would not be noticed", slog.Any(telemetry.KeyError, err))
	}
}
