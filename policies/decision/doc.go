// Package decision keeps what placers decided, with all that they saw, and runs it again with other policies; and what policies of quota and preemption were asked.
//
// A Log is a directory. A Recorder wraps the placers of one shard: it listens to the shard's table through host.Journal and writes what happened there, and
// every batch with its answer, into segments. Replay reads them: it has the recorded cell and any number of other policies live through the same batches, each on a table
// of its own, and counts where they differ.
//
// # What is promised
//
// The table of a replay equals the recorded one at every batch: rows, ties between domains and all (host.State). The built-in placers are functions of table and request, so that they answer
// as they did, byte by byte. A policy in a sandbox does, too, when it is given what else it saw: into which calls a batch was cut, with the seed, the
// time and the work to come that each was told, is recorded (placement.Served). What a guest keeps between calls is its own.
// Recording delays nobody: when the writer lags or the disk is full, decisions are dropped and counted, and a later segment says that there is a gap before it. What
// was not written when a machine dies, up to FlushEvery, is missing.
//
// # Format, version 3
//
// A segment is one file, SHARD/NUMBER.decisions, and stands alone. It begins with the eight bytes "PLDECLG" 0x03. Records follow: a length and the CRC-32C of the
// payload, 4 bytes each, little-endian, then the payload, whose first byte is its kind:
//
//	1 header    JSON of Header; the first record
//	2 state     deflated JSON of the host table; the second record
//	3 text      a string; the n-th one is called n-1 afterwards
//	4 class     JSON of a class of tasks, likewise
//	5 occupant  JSON of what a task holds, less devices and ports, likewise
//	6 changes   what happened to the table outside of decisions
//	7 decision  a batch: what was asked and what was answered
//	8 end       the segment was closed in order
//	9 mix       JSON of the work to come as a policy was told; the n-th one is called n afterwards, 0 is none
//	10 question deflated JSON of what a policy of quota or preemption was asked, and its answer
//
// Numbers in 6 and 7 are varints as in encoding/binary; times are nanoseconds since the record before that has one, the header first. A reader stops at the first record that is cut
// off or fails its sum: everything before it is good. Kinds and fields come in later versions, never other meanings:
// version 2 has the priority of requests, and which of them are revocable; version 3 has questions, in segments of their own below questions, whose table is empty. Segments of all versions are read.
//
// # Concurrency
//
// A Recorder's Placer and the placers that it returns belong to the owner of the shard's table. Each Recorder, and Asked, starts one goroutine, which Close waits for. A Log may be used
// from any number of goroutines, and read while it is written.
package decision
