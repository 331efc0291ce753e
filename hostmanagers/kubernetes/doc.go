// Package kubernetes makes a Kubernetes cluster a cluster of a cell: the driver that the shard calls, on a real API server.
//
// Three parts, each with one thing to own. Package mirror is a pure machine that knows nodes, runs and what others take. Package manifest writes
// pods. This package joins the two with an API server: it owns the two watches, the requests with their retries and their throttle, and the order
// in which the sink hears of things.
//
// A run is a pod of the run's name that is created already bound to its node. The pod's end is kept by the cluster: a pod is deleted once its end
// was acknowledged, or when the run is to be killed. Nothing is written to disk.
//
// Concurrency: as core/driver says. One goroutine calls the sink, two watch, and some make requests.
package kubernetes
