// Package wasm runs policies that are WebAssembly modules, in a sandbox, beside a shard's host table.
//
// Check looks at a module before anything of it runs: its form, its limits, what it imports and exports, what it says of itself; and rewrites it so that it counts
// fuel. Load compiles it and tries it out. A Version is a loaded policy in a runtime of its own; a Slot holds the one that is in force, and
// Swap puts another in its place between two batches: whoever is at work with the old one finishes, then it is closed. A Placer is a shard's
// view of a Slot: it keeps one instance with the table in its memory, and answers batches as core/placement's own placer does.
//
// # What a guest can do
//
// Compute, on its own memory, for as long as its fuel lasts. It has no clock but the scheduler's, no randomness but the seed it is given, no files, no network. What it writes into the
// shared table harms itself alone: the host decides by its own table and checks every row that it is given. A call that traps, runs out of fuel or returns what is
// not true leaves the table as it was; its instance is thrown away, the fault is counted and told, and the batch is served by the Placer's fallback.
//
// # Concurrency
//
// Check, Load, Slot and Version may be used from any number of goroutines. A Placer has one owner, like the table that it serves, and is not safe for
// concurrent use. The package starts no goroutines of its own; Compile waits for the process that it starts.
package wasm
