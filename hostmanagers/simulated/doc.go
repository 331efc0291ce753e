// Package simulated is a cluster without machines: hosts from an inventory or a generator, and runs that end when their launch says.
//
// A Cluster is the world: hosts, runs, what time it is, what goes wrong. It outlives any scheduler; Driver returns a connection to
// it, and the newest connection that started is the one that is served. Everything that happens by chance is a function of the seed and of names
// (the run's id, the number of the event), never of the order of calls, so that a history can be had again.
//
// Time is the wall clock's, or virtual: then nothing happens until Advance is called, and the sink is called from within Advance and
// nowhere else, without any goroutine.
//
// The cluster decides nothing and keeps no books of resources: what it is asked to run, it runs.
//
// Concurrency: all methods of Cluster and Driver may be called from any goroutine; a mutex guards the world and is not held while the sink
// is called. Advance must not be called twice at once. In wall time, a started Driver owns one goroutine, which ends with its context.
package simulated
