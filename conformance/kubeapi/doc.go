// Package kubeapi holds an API server of Kubernetes to what a real one answers: scenarios of requests with their recorded answers, which
// the emulator and a real kube-apiserver must both give.
//
// It owns the form of scenarios, their execution over HTTP, and what of an answer is not compared: ids, versions, times, field managers,
// and the tails of long messages. It judges no scheduler and no kubelet.
//
// Concurrency: scenarios run side by side; each has its own namespace.
package kubeapi
