// Package cluster is an emulated Mesos cluster as a state machine: a master with its allocator, its agents and their executors.
//
// It owns the frameworks, offers, tasks, status updates, reservations and maintenance windows of one cluster. Calls and the time go in;
// events for subscribers, answers, and orders to start or to signal processes come out. What it does follows recordings of a real master
// (hostmanagers/mesos/recordings). It opens no connection, runs no process and reads no clock: the package above it does.
//
// Time enters through Advance alone and must not run backwards. Two clusters that are given the same calls at the same times emit the
// same effects, but for what Config.Order and Config.Behave decide.
//
// Concurrency: none; the caller holds a lock.
package cluster
