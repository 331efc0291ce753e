// Package cluster is an emulated Kubernetes cluster as a state machine: an API server's objects with their history, controllers of nodes
// and pods, and kubelets.
//
// It owns the objects, their resource versions and the bounded log of changes that watches read; what a create, an update, a deletion, a
// binding or an eviction does and refuses; and what kubelets make of pods. Requests and the time go in; objects, errors of the API, and
// orders to start or to signal processes come out. What it does follows a real API server (conformance/kubeapi) and real kubelets. It opens
// no connection, runs no process and reads no clock: the package above it does.
//
// Objects that it hands out are shared and must not be changed. Time enters through Advance alone and must not run backwards.
//
// Concurrency: none; the caller holds a lock.
package cluster
