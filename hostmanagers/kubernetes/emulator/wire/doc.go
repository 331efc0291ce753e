// Package wire is how a Kubernetes API server writes and reads messages: JSON, YAML and protobuf, whole and as streams of a watch.
//
// It owns the choice of a form from a request's headers, the decoding of bodies with their strictness, and the frames of watches. The
// codecs are those of apimachinery. It knows no resources and no HTTP.
//
// Concurrency: all functions may be called from any goroutine.
package wire
