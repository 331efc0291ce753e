// Package emulator serves an emulated Kubernetes cluster over HTTP, so that client-go and kubectl cannot tell it from a real API server.
//
// It owns connections: paths and verbs, forms and codecs, lists in pages, watches with bookmarks, patches, tables, discovery, and faults on
// the way. What a request does is decided by package cluster; this one gives it the time of a clock and runs processes if it asks for them.
// It serves the part of the API that its discovery lists; server-side apply, exec and port forwarding are not in it. It authenticates
// nobody: it is for tests and development.
//
// Concurrency: all methods of *Emulator may be called from any goroutine. Serve owns the goroutines of its connections; Close ends them all
// and waits.
package emulator
