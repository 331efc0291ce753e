package api

import (
	"fmt"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

// strictJSON is the codec of JSON requests. Unlike Connect's own it refuses fields that it does not know: a misspelt limit that
// is silently left out is worse than an error.
type strictJSON struct{}

var _ connect.Codec = strictJSON{}

func (strictJSON) Name() string { return "json" }

func (strictJSON) Marshal(message any) ([]byte, error) {
	m, ok := message.(proto.Message)
	if !ok {
		return nil, fmt.Errorf("%T is no protocol buffer message", message)
	}
	return protojson.MarshalOptions{UseProtoNames: true}.Marshal(m)
}

func (strictJSON) Unmarshal(raw []byte, message any) error {
	m, ok := message.(proto.Message)
	if !ok {
		return fmt.Errorf("%T is no protocol buffer message", message)
	}
	if len(raw) == 0 {
		return fmt.Errorf("an empty request is no JSON: send {} for a message without fields")
	}
	return protojson.Unmarshal(raw, m)
}
