// Package policyabi is the boundary between a scheduler and its policies: the layouts of the memory they share, the names of the functions they
// call, the versions, the limits. Hosts and guests are both written against it; docs/policy-abi.md says the same for other languages.
//
// A policy is a WebAssembly module. The host lays out one region of the guest's memory, the arena, and writes a table into it column by column: hosts
// for placement, pools for quota, clusters for routing. A call names a number of requests that stand in the arena, and returns a number of results
// that the guest has put there. Nothing in the arena is a pointer, every offset is from its beginning, every number is little-endian, every section
// begins at a multiple of Alignment. Plan is the one place where offsets come from.
//
// A host believes nothing that it reads: decoders here check form, the host checks every row against its own table. A guest may believe the arena.
//
// The package imports nothing of the scheduler and is pure. Values may be read by any number of readers.
package policyabi
