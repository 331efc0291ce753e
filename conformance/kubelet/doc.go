// Package kubelet holds the Kubernetes driver, and the emulator beside it, to what real kubelets do with pods.
//
// It owns scenarios of runs, and the accounts of what became of them: the status that the driver told, and the pod as its kubelet left it,
// without what differs from one machine or moment to the next. An account was recorded on real kubelets; real ones and emulated ones
// must both give it. make conformance-kubelet asks the real ones again; the emulated ones are asked by every test run.
//
// It judges no API server: that is kubeapi's. Concurrency: scenarios run side by side, each in a namespace of its own.
package kubelet
