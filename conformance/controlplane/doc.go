// Package controlplane starts a real Kubernetes control plane on this machine for tests: etcd, kube-apiserver, and kwok as the kubelets of
// nodes that do not exist, real kubelets, kube-scheduler to compare with, kube-controller-manager.
//
// It owns the binaries, built once from the nested module conformance/kubernetes into the ignored folder .tools, and the processes of a
// plane with their certificates, ports and directory. It owns no cluster's contents, and decides nothing about tests.
//
// Concurrency: the methods of *Plane may be called from any goroutine. A plane's processes die with the program that started them,
// however that ends.
package controlplane
