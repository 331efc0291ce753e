// Package sim runs a whole cell from a seed: the real decision core, shard machines, record codec and simulated clusters, on a store
// that crashes, with everything that can go wrong between them going wrong, in virtual time and in one goroutine.
//
// A run has three phases. In the first, users submit, stop, restart and delete work of every kind and edit pools, while machines die,
// messages are late, disks fail and clocks jump; checkers hold what must never happen against what the clusters really run and what the disk
// really holds (truth.go, durable.go, state.go). In the second nothing goes wrong any more, and what can run must run. In the third
// all work is stopped, and nothing may be left: no run, no charge, no lease, no unread change.
//
// The checkers keep books of their own. They never ask the core what it believes where they can look at the clusters, the disk or the
// groups that a Step returned.
//
// The package owns the world around the core and decides nothing in its place. Everything random comes from one seed, so a failure is
// replayed by its number. An Interposer lets a test put a fault of the program, not of the world, between the parts: a checker that lets one
// pass is no checker.
//
// Nothing here is safe for concurrent use; runs of different Options may go on side by side.
package sim
