// Package scheduler is a cell's decision core: a deterministic state machine over jobs, instances, runs, pools and hosts.
//
// Step takes what happened and the time. It returns groups of records to make durable, effects to carry out, and when it wants
// to be woken. It never looks at a clock, draws randomness, blocks, logs or starts a goroutine, and the order of a map never
// shows in what it returns; the same calls give the same answers, byte for byte.
//
// # One Step
//
//  1. timers that are due: ends of back-off, launch and kill time-outs, deadlines, expiry (timer.go)
//  2. events: calls of users (call_job.go, call_pool.go), replies of shards (reply.go, run.go)
//  3. sweeps: bounded slices of work over many instances, such as stopping a job of a million (sweep.go)
//  4. the cycle: demand, entitlement, admission, placement requests (cycle.go, place.go); gangs (gang.go), and those that no shard can take alone
//     (gather.go)
//  5. what changed becomes records in ordered groups (group.go)
//
// # Durability
//
// The records are the truth; memory is a view of them. Apply rebuilds it, on recovery and on a standby alike. ADMITTED and
// everything else about queues and placement in flight is not stored: a restart finds the instance PENDING. Effects that reach beyond the
// core and its shards' tables wait until every group of their Step is durable.
//
// # Concurrency
//
// A State has one owner. Records, views and effects that it handed out are never changed afterwards and may be read anywhere.
package scheduler
