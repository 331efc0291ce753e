// Package emulator serves an emulated Mesos cluster over HTTP, so that a framework cannot tell it from a real master.
//
// It owns connections: requests and their order of checks, both codecs, one RecordIO record in one chunk, stream ids, and the answers'
// headers and texts as a real master writes them. What a call does is decided by package cluster; this one gives it the time of a clock,
// sends what it emits, and runs processes if it asks for them. It serves /api/v1/scheduler, a part of the operator API below /api/v1, and
// the older endpoints that tools read. It authenticates nobody: it is for tests and development.
//
// Concurrency: all methods of *Emulator may be called from any goroutine. Serve owns one goroutine per connection and one more per
// subscription; Close ends them all and waits.
package emulator
