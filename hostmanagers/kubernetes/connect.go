package kubernetes

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"
)

// maxContextsTold bounds the contexts that an error lists.
const maxContextsTold = 10

// ErrNoContext is returned for a context that a kubeconfig does not have.
var ErrNoContext = errors.New("the kubeconfig has no such context")

// Connect reads how a cluster is reached: from a kubeconfig and one of its contexts ("": its current one), or without a kubeconfig as a pod of
// that cluster. It does all that the file says, as kubectl would; one that somebody else chose is for ReadKubeconfig.
func Connect(kubeconfig, context string) (*rest.Config, error) {
	if kubeconfig == "" {
		c, err := rest.InClusterConfig()
		if err != nil {
			return nil, fmt.Errorf("reach the cluster that this process is a pod of (name a kubeconfig if it is not): %w", err)
		}
		return c, nil
	}
	c, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(
		&clientcmd.ClientConfigLoadingRules{ExplicitPath: kubeconfig}, &clientcmd.ConfigOverrides{CurrentContext: context},
	).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("read the kubeconfig %s: %w", kubeconfig, err)
	}
	return c, nil
}

// ReadKubeconfig reads how a cluster is reached from a kubeconfig that is not trusted with this machine: one that would run a program is refused, and
// each file that it names is what file makes of the name, the path of one that may be read, or an error. Of contexts and users only those that are
// used are looked at. Certificates and tokens that lie in files of their own are read again when they change.
func ReadKubeconfig(raw []byte, context string, file func(name string) (path string, err error)) (*rest.Config, error) {
	all, err := clientcmd.Load(raw)
	if err != nil { // not told: it quotes what it could not read, and that may be a secret
		return nil, errors.New("it is no kubeconfig: 'kubectl config view --kubeconfig FILE' tells why")
	}
	used, err := pick(all, context)
	if err != nil {
		return nil, err
	}
	cluster, user := used.Clusters[usedName], used.AuthInfos[usedName]
	if err := harmless(cluster, user); err != nil {
		return nil, err
	}
	for _, one := range []struct {
		what string
		path *string
	}{
		{"certificate-authority", &cluster.CertificateAuthority},
		{"client-certificate", &user.ClientCertificate},
		{"client-key", &user.ClientKey},
		{"tokenFile", &user.TokenFile},
	} {
		if *one.path == "" {
			continue
		}
		path, err := file(*one.path)
		if err != nil {
			return nil, fmt.Errorf("its %s: %w", one.what, err)
		}
		*one.path = path
	}
	c, err := clientcmd.NewNonInteractiveClientConfig(*used, usedName, &clientcmd.ConfigOverrides{}, nil).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("read the kubeconfig: %w", err)
	}
	return c, nil
}

// CheckCredentials reports what of the certificates that a configuration names, in files or by itself, no client could use.
func CheckCredentials(c *rest.Config) error {
	loaded := rest.CopyConfig(c)
	if err := rest.LoadTLSFiles(loaded); err != nil {
		return fmt.Errorf("read its certificates: %w", err)
	}
	if len(loaded.CAData) > 0 && !x509.NewCertPool().AppendCertsFromPEM(loaded.CAData) {
		return errors.New("its certificate-authority holds no certificate in PEM form")
	}
	if len(loaded.CertData) == 0 && len(loaded.KeyData) == 0 {
		return nil
	}
	if _, err := tls.X509KeyPair(loaded.CertData, loaded.KeyData); err != nil {
		return fmt.Errorf("its client-certificate and client-key: %w", err)
	}
	return nil
}

// usedName is what the context that is used, its cluster and its user are called once they are picked.
const usedName = "used"

// pick returns a kubeconfig with one context, its cluster and its user, and nothing else.
func pick(all *api.Config, context string) (*api.Config, error) {
	name := context
	if name == "" {
		name = all.CurrentContext
	}
	there := slices.Sorted(maps.Keys(all.Contexts))
	if len(there) > maxContextsTold {
		there = append(there[:maxContextsTold:maxContextsTold], "...")
	}
	chosen := all.Contexts[name]
	switch {
	case len(all.Contexts) == 0:
		return nil, errors.New("it is empty, or names no context: 'kubectl config view --minify --flatten' of a working one prints what it wants")
	case name == "":
		return nil, fmt.Errorf("%w as none: it has no current one, and these: %s", ErrNoContext, strings.Join(there, ", "))
	case chosen == nil:
		return nil, fmt.Errorf("%w as %q: it has these: %s", ErrNoContext, name, strings.Join(there, ", "))
	}
	cluster, user := all.Clusters[chosen.Cluster], all.AuthInfos[chosen.AuthInfo]
	if cluster == nil {
		return nil, fmt.Errorf("its context %q names cluster %q, which it does not have", name, chosen.Cluster)
	}
	if user == nil && chosen.AuthInfo != "" {
		return nil, fmt.Errorf("its context %q names user %q, which it does not have", name, chosen.AuthInfo)
	}
	if user == nil {
		user = &api.AuthInfo{}
	}
	used := api.NewConfig()
	used.Contexts[usedName] = &api.Context{Cluster: usedName, AuthInfo: usedName}
	used.Clusters[usedName], used.AuthInfos[usedName] = cluster.DeepCopy(), user.DeepCopy()
	used.CurrentContext = usedName
	return used, nil
}

// harmless reports what of a kubeconfig would do more than speak to an API server, or would show a secret.
func harmless(cluster *api.Cluster, user *api.AuthInfo) error {
	server, err := url.Parse(cluster.Server)
	switch {
	case user.Exec != nil:
		return errors.New("its user runs a program to log in (exec), which the server does not do: give it a token, a tokenFile or a client certificate")
	case user.AuthProvider != nil:
		return errors.New("its user logs in by an auth-provider, which no client does any more: give it a token, a tokenFile or a client certificate")
	case err != nil || cluster.Server == "":
		return errors.New("its cluster has no server, or one that is no address: write https://host:port")
	case server.User != nil: // it would be shown
		return errors.New("the address of its cluster's server holds a name or a secret: write them into its user instead")
	case (server.Scheme != "http" && server.Scheme != "https") || server.Host == "":
		return errors.New("the address of its cluster's server is not https://host:port")
	case !isProxy(cluster.ProxyURL): // else the client's error would quote it
		return errors.New("the proxy-url of its cluster is not http://host:port, nor one of https or socks5")
	}
	return nil
}

// isProxy reports whether a proxy's address is one that a client takes, or none.
func isProxy(address string) bool {
	if address == "" {
		return true
	}
	u, err := url.Parse(address)
	return err == nil && u.Host != "" && slices.Contains([]string{"http", "https", "socks5"}, u.Scheme)
}
