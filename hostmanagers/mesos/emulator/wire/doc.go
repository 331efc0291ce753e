// Package wire is how a Mesos master writes and reads messages: the JSON form of its protocol buffers.
//
// It owns the JSON that a master of Mesos 1.11 and later speaks, with its field names, its numbers, the capability that mesos-go does not
// know, and the texts of its refusals. The protobuf form is mesos-go's own. It knows no calls and no HTTP.
//
// Concurrency: all functions may be called from any goroutine.
package wire
