// Package kubefaults holds a whole cell on a Kubernetes cluster to its promises while everything about the cluster goes wrong and the cell is
// killed again and again. It is tests only.
//
// A cell is a process of its own: store, engine, shard and driver. Beside it stands a witness that reads every change of every pod and node and keeps
// books of its own; at the end they are held against the cell's. The cluster is the emulated one, over real HTTP, or a real API server with etcd and kwok,
// which the cell sees through a proxy that refuses, delays, cuts and loses. No run is judged in which nothing went wrong: until the cell and its API server were
// killed, only half of the pods can be created.
package kubefaults
