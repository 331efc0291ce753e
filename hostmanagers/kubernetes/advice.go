package kubernetes

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"
)

// advised adds to an error of the API server, or on the way to it, how to mend it, where that is known and the error does not say so itself.
func (d *Driver) advised(err error) error {
	if err == nil {
		return nil
	}
	how := advice(err)
	if refusesClient(err) {
		if ended := endedCertificate(d.cfg.API, d.cfg.Now()); ended != "" {
			how = ended
		}
	}
	if how != "" {
		return fmt.Errorf("%w (%s)", err, how)
	}
	return err
}

// refusesClient reports whether an API server does not take who speaks to it.
func refusesClient(err error) bool {
	var remote *net.OpError
	return apierrors.IsUnauthorized(err) || errors.As(err, &remote) && isAlert(remote)
}

// isAlert reports whether an error is the other side's word on a certificate: an alert, of a type of its own.
func isAlert(remote *net.OpError) bool {
	return remote.Op == "remote error" && strings.Contains(remote.Err.Error(), "certificate")
}

// endedCertificate says what to do about a client certificate whose time is over; "": there is none.
func endedCertificate(c *rest.Config, now time.Time) string {
	loaded := rest.CopyConfig(c)
	if err := rest.LoadTLSFiles(loaded); err != nil || len(loaded.CertData) == 0 {
		return ""
	}
	pair, err := tls.X509KeyPair(loaded.CertData, loaded.KeyData)
	if err != nil || pair.Leaf == nil || !now.After(pair.Leaf.NotAfter) {
		return ""
	}
	how := "update the cluster with a kubeconfig that has a new one"
	if c.CertFile != "" && c.KeyFile != "" {
		how = "write a new one, and its key, into " + c.CertFile + " and " + c.KeyFile + ": they are read again every five minutes"
	}
	return "the kubeconfig's client certificate ended at " + pair.Leaf.NotAfter.UTC().Format(time.RFC3339) + ": " + how
}

func advice(err error) string {
	var (
		stranger x509.UnknownAuthorityError
		name     x509.HostnameError
		invalid  x509.CertificateInvalidError
		record   tls.RecordHeaderError
		remote   *net.OpError
		lookup   *net.DNSError
	)
	switch {
	case errors.As(err, &stranger):
		return "the kubeconfig's certificate-authority did not sign the API server's certificate: take the cluster's own, and look whether the address is the cluster's"
	case errors.As(err, &name):
		return "the API server's certificate is for other names: use one of them as the kubeconfig's server, or as its tls-server-name"
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return "renew the API server's certificate, and compare the clocks of both machines"
	case errors.As(err, &remote) && isAlert(remote):
		return "the API server refuses the kubeconfig's client certificate: renew it, and look whether this cluster's authority signed it"
	case errors.As(err, &record), errors.Is(err, http.ErrSchemeMismatch):
		return "what listens there speaks no TLS: look at the address, and at whether it is https or http"
	case errors.As(err, &lookup) && lookup.IsNotFound:
		return "look at the address in the kubeconfig, and at whether the server's machine can resolve it"
	case apierrors.IsUnauthorized(err):
		return "the API server does not take the kubeconfig's token or client certificate: it may have expired, or be of another cluster"
	case apierrors.IsForbidden(err):
		return "give its account the rights that docs/kubernetes.md lists, as deploy/kubernetes/rbac.yaml does"
	case apierrors.IsNotFound(err), apierrors.IsMethodNotSupported(err), apierrors.IsNotAcceptable(err):
		return "what answers there is no Kubernetes API server: look at the address and at its path"
	}
	return ""
}
