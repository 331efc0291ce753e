package api

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"hash/fnv"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// Page tokens and watch cursors are opaque to users. Both are base64url of a version byte, fields, and for which filters they were made; neither
// is a secret or gives a right, so neither is signed.

const tokenVersion = 1

// filterHash tells requests apart by everything but the fields that move a list or watch along.
func filterHash(request proto.Message, leaveOut ...protoreflect.Name) uint64 {
	copied := proto.Clone(request).ProtoReflect()
	for _, name := range leaveOut {
		if field := copied.Descriptor().Fields().ByName(name); field != nil {
			copied.Clear(field)
		}
	}
	raw, err := proto.MarshalOptions{Deterministic: true}.Marshal(copied.Interface())
	if err != nil {
		return 0 // it came off the wire, so it can go back
	}
	h := fnv.New64a()
	h.Write(raw)
	return max(h.Sum64(), 1) // 0 stands for any filter
}

var errOpaque = errors.New("damaged")

// decodeOpaque reads what base64.RawURLEncoding writes, and nothing that differs from it: the decoder itself skips line breaks.
func decodeOpaque(text string) ([]byte, error) {
	raw, err := base64.RawURLEncoding.Strict().DecodeString(text)
	if err != nil || base64.RawURLEncoding.EncodedLen(len(raw)) != len(text) {
		return nil, errOpaque
	}
	return raw, nil
}

// encodePage writes where a list goes on.
func encodePage(filters uint64, position []byte) string {
	b := append([]byte{tokenVersion}, binary.BigEndian.AppendUint64(nil, filters)...)
	return base64.RawURLEncoding.EncodeToString(append(b, position...))
}

// decodePage reads a page token made by the same request; none is the beginning.
func decodePage(token string, filters uint64) ([]byte, error) {
	if token == "" {
		return nil, nil
	}
	raw, err := decodeOpaque(token)
	if err != nil || len(raw) < 9 || raw[0] != tokenVersion {
		return nil, refuseField("page_token", "leave it out to begin at the first page", "the page token is damaged")
	}
	if binary.BigEndian.Uint64(raw[1:9]) != filters {
		return nil, refuseField("page_token", "repeat the request of the page before, or leave the token out", "the page token belongs to another request")
	}
	return raw[9:], nil
}

func encodeNumber(n uint64) []byte { return binary.AppendUvarint(nil, n) }

func decodeNumber(position []byte) (uint64, error) {
	if len(position) == 0 {
		return 0, nil
	}
	n, size := binary.Uvarint(position)
	if size != len(position) {
		return 0, refuseField("page_token", "leave it out to begin at the first page", "the page token is damaged")
	}
	return n, nil
}

// cursor is a place in a cell's history.
type cursor struct {
	cell        uint64
	incarnation [16]byte // of the store: a restore makes a new one
	revision    uint64
	filters     uint64 // 0: any
}

func cellHash(cell string) uint64 {
	sum := sha256.Sum256([]byte(cell))
	return binary.BigEndian.Uint64(sum[:8])
}

const cursorBytes = 1 + 8 + 16 + 8 + 8

func (c cursor) String() string {
	b := make([]byte, 0, cursorBytes)
	b = append(b, tokenVersion)
	b = binary.BigEndian.AppendUint64(b, c.cell)
	b = append(b, c.incarnation[:]...)
	b = binary.BigEndian.AppendUint64(b, c.revision)
	b = binary.BigEndian.AppendUint64(b, c.filters)
	return base64.RawURLEncoding.EncodeToString(b)
}

var errCursor = errors.New("the cursor is damaged")

func parseCursor(s string) (cursor, error) {
	raw, err := decodeOpaque(s)
	if err != nil || len(raw) != cursorBytes || raw[0] != tokenVersion {
		return cursor{}, errCursor
	}
	return cursor{
		cell: binary.BigEndian.Uint64(raw[1:9]), incarnation: [16]byte(raw[9:25]), revision: binary.BigEndian.Uint64(raw[25:33]),
		filters: binary.BigEndian.Uint64(raw[33:41]),
	}, nil
}

// resume reads a cursor and says after which revision a watch with these filters goes on.
func (c cursor) resume(text string) (uint64, error) {
	from, err := parseCursor(text)
	switch {
	case err != nil:
		return 0, refuseField("cursor", "leave it out to watch from now on", "%v", err)
	case from.cell != c.cell:
		return 0, refuseField("cursor", "list again here and watch from the list's cursor", "the cursor belongs to another cell")
	case from.filters != 0 && from.filters != c.filters:
		return 0, refuseField("cursor", "resume with the filters that it came with, or watch from a list's cursor", "the cursor belongs to a watch with other filters")
	case from.incarnation != c.incarnation:
		return 0, refuse(connect.CodeOutOfRange, "list again and watch from the list's cursor",
			"the cursor is of a time before this cell was restored from a backup")
	}
	return from.revision, nil
}
