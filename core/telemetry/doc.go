// Package telemetry owns how a server tells of itself: the keys of structured logs, the hooks of a trace, and the Prometheus metrics that
// subscribe to it.
//
// Code that has something to tell calls the hooks of a *Trace that it was given and knows nothing of who listens. Pure packages do
// not even do that: their shell tells for them. The package never decides anything, keeps no history and does no I/O but answering a
// scrape.
//
// Concurrency: a Trace is immutable once handed out and its hooks may be called from any goroutine. Metrics may be used likewise.
package telemetry
