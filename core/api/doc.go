// Package api is the edge of a cell: the Connect handlers of paceline.v1 and what stands before them.
//
// Every call passes, in this order: containment of panics, a request id, metrics and the access log, authentication, the role that its
// method needs, and the rules of its messages. A handler then finds the pool of the object that is meant, asks whether the caller has
// the role there, and only then looks or acts; a handler that forgets to ask has its answer withheld. Errors of the domain become RPC
// codes in one place (fault.go).
//
// The package owns no state of the cell: it asks the engine, which answers with what is durable. It never decides about work.
//
// Concurrency: a Server and its handlers may be used from any goroutine. Serve runs on its caller's; each watch runs on the goroutine
// of its call and holds at most one page of events.
package api
