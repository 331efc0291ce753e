// Package local is the driver for a cluster of this one machine: its processes, dealt out over one or more virtual hosts.
//
// It owns the translation between core/driver and the runner: what a launch means as a process, what the end of a process means as a
// status, tokens, health checks, and which statuses were acknowledged. The runner keeps the runs; nothing here remembers
// anything that a restart would miss. It decides nothing, and never restarts a run.
//
// Virtual hosts share the machine: their capacities are parts of it, their port ranges are disjoint, and nothing else keeps their
// runs apart.
//
// Concurrency: as core/driver demands. One goroutine delivers to the sink; one goroutine per run with a health check works in
// health.Watch. Both end with the context of Start; Wait waits for them and for the runner's.
package local
