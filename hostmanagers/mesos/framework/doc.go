// Package framework is what a Mesos framework knows and decides, as a pure machine: it is told the time, what a shard asks and what a master
// says, and answers with calls for the master and news for the shard.
//
// It owns four things. Offers: the fragments of one agent make one host; they are held while work waits, given back otherwise. Runs: the task of
// each, its last state, and the update that waits for its acknowledgement. Doubt: what is reconciled, how often, and what becomes of tasks
// that nobody knows. And the one table that maps a Mesos state and reason to a run's. It knows no connection and no clock.
package framework
