// Package mesos makes a Mesos cluster a cluster of a cell: the driver that the shard calls, on a real master.
//
// Three parts, each with one thing to own. Package master keeps a subscription up: leaders, codecs, stream ids, heartbeats, back-off.
// Package framework is a pure machine that knows agents, offers, runs and updates, and turns what a shard asks and a master says into calls
// for the master and news for the shard. This package joins the two: it owns the goroutines and the order of effects.
//
// What a master cannot be asked for is kept by nobody: a run's truth is the master's, a host's capacity is what its agent's offers and
// its tasks add up to, and a framework id is the only thing written to disk.
//
// Concurrency: all methods of a Driver may be called from any goroutine once Start has returned. Start owns five goroutines, which Wait waits for: one
// hears the master, one makes the machine's calls in order, one calls the sink, one asks the operator API, and one ends the others. The machine is used
// under one lock, which is never held while anything is waited for.
package mesos
