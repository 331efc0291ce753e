package kubernetes

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// advised adds to an error of the API server, or on the way to it, how to mend it, where that is known and the error does not say so itself.
func advised(err error) error {
	if err == nil {
		return nil
	}
	if how := advice(err); how != "" {
		return fmt.Errorf("%w (%s)", err, how)
	}
	return err
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
	case errors.As(err, &remote) && remote.Op == "remote error" && strings.Contains(remote.Err.Error(), "certificate"): // an alert, of a type of its own
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
