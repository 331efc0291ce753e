package store

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"io"
)

// The backup format, version 1; integers are unsigned varints unless a width is given:
//
//	magic "PLBACKUP" | format version, 4 bytes big-endian | schema version | length of cell | cell
//	per record, in ascending order of keys: length of key (never 0) | key | length of value | value
//	0 | count of records | SHA-256 of all bytes before it, 32 bytes
//
// The end tells a whole file from a cut one, and nothing may follow it.
const (
	backupMagic   = "PLBACKUP"
	backupVersion = 1
	backupBuffer  = 256 << 10
)

// BackupWriter writes the records of one consistent cut. It is not safe for concurrent use.
type BackupWriter struct {
	out     *bufio.Writer
	digest  hash.Hash
	count   uint64
	last    []byte
	scratch []byte
}

// NewBackupWriter writes the head.
func NewBackupWriter(w io.Writer, keys Keyspace) (*BackupWriter, error) {
	b := &BackupWriter{out: bufio.NewWriterSize(w, backupBuffer), digest: sha256.New()}
	head := binary.BigEndian.AppendUint32([]byte(backupMagic), backupVersion)
	head = binary.AppendUvarint(head, SchemaVersion())
	head = binary.AppendUvarint(head, uint64(len(keys.cell)))
	return b, b.write(append(head, keys.cell...))
}

func (b *BackupWriter) write(p []byte) error {
	b.digest.Write(p)
	if _, err := b.out.Write(p); err != nil {
		return fmt.Errorf("write the backup: %w", err)
	}
	return nil
}

// Add writes one record; keys must ascend.
func (b *BackupWriter) Add(key, value []byte) error {
	if bytes.Compare(key, b.last) <= 0 {
		return fmt.Errorf("write the backup: key %.80q does not follow %.80q", key, b.last)
	}
	b.last = append(b.last[:0], key...)
	b.count++
	b.scratch = binary.AppendUvarint(b.scratch[:0], uint64(len(key)))
	b.scratch = append(b.scratch, key...)
	b.scratch = binary.AppendUvarint(b.scratch, uint64(len(value)))
	if err := b.write(b.scratch); err != nil {
		return err
	}
	return b.write(value)
}

// Finish writes the end. A backup without it is refused by BackupReader.
func (b *BackupWriter) Finish() error {
	if err := b.write(binary.AppendUvarint([]byte{0}, b.count)); err != nil {
		return err
	}
	if err := b.write(b.digest.Sum(nil)); err != nil {
		return err
	}
	if err := b.out.Flush(); err != nil {
		return fmt.Errorf("write the backup: %w", err)
	}
	return nil
}

// checkEvery is how many records pass between two looks at a context.
const checkEvery = 256

// WriteBackup writes a snapshot as a backup, holding one record in memory at a time.
func WriteBackup(ctx context.Context, w io.Writer, keys Keyspace, snap Snapshot) error {
	b, err := NewBackupWriter(w, keys)
	if err != nil {
		return err
	}
	if err := snap.Scan(nil, nil, func(key, value []byte) (bool, error) {
		if b.count%checkEvery == 0 && ctx.Err() != nil {
			return false, context.Cause(ctx)
		}
		return true, b.Add(key, value)
	}); err != nil {
		return err
	}
	return b.Finish()
}

// BackupReader reads what BackupWriter wrote, one record at a time. Everything that it returns is provisional until Next answered
// io.EOF. It is not safe for concurrent use.
type BackupReader struct {
	in     *bufio.Reader
	digest hash.Hash
	keys   Keyspace
	count  uint64
	last   []byte
	value  []byte
	failed error
}

// NewBackupReader reads the head. It refuses a newer format or schema with ErrUnsupported and all else that is wrong with ErrCorrupt.
func NewBackupReader(r io.Reader) (*BackupReader, error) {
	b := &BackupReader{in: bufio.NewReaderSize(r, backupBuffer), digest: sha256.New()}
	var head [len(backupMagic) + 4]byte
	if err := b.full(head[:]); err != nil {
		return nil, err
	}
	if string(head[:len(backupMagic)]) != backupMagic {
		return nil, fmt.Errorf("%w: the file is not a backup", ErrCorrupt)
	}
	if v := binary.BigEndian.Uint32(head[len(backupMagic):]); v != backupVersion {
		return nil, fmt.Errorf("%w: the backup has format %d, this build reads %d", ErrUnsupported, v, backupVersion)
	}
	schema, err := b.number("schema version", 1<<32)
	if err != nil {
		return nil, err
	}
	if schema > SchemaVersion() {
		return nil, fmt.Errorf("%w: the backup has schema %d, this build knows up to %d", ErrUnsupported, schema, SchemaVersion())
	}
	length, err := b.number("length of the cell name", maxCellLength)
	if err != nil {
		return nil, err
	}
	cell := make([]byte, length)
	if err := b.full(cell); err != nil {
		return nil, err
	}
	if b.keys, err = NewKeyspace(string(cell)); err != nil {
		return nil, fmt.Errorf("%w: the backup: %w", ErrCorrupt, err)
	}
	return b, nil
}

// Keys is the keyspace of the cell that was backed up.
func (b *BackupReader) Keys() Keyspace { return b.keys }

// Next returns the next record, valid until the call after it, or io.EOF when the backup ended whole.
func (b *BackupReader) Next() (key, value []byte, err error) {
	if b.failed == nil {
		key, value, b.failed = b.next()
	}
	if b.failed != nil {
		return nil, nil, b.failed
	}
	return key, value, nil
}

func (b *BackupReader) next() (key, value []byte, err error) {
	length, err := b.number("length of a key", MaxKeyBytes)
	if err != nil {
		return nil, nil, err
	}
	if length == 0 {
		return nil, nil, b.end()
	}
	key = make([]byte, length)
	if err := b.full(key); err != nil {
		return nil, nil, err
	}
	if !bytes.HasPrefix(key, b.keys.root) || bytes.Compare(key, b.last) <= 0 {
		return nil, nil, fmt.Errorf("%w: record %d of the backup has the misplaced key %.80q", ErrCorrupt, b.count, key)
	}
	if length, err = b.number("length of a value", MaxGroupBytes); err != nil {
		return nil, nil, err
	}
	if uint64(cap(b.value)) < length {
		b.value = make([]byte, length)
	}
	value = b.value[:length:length]
	if err := b.full(value); err != nil {
		return nil, nil, err
	}
	b.last = key
	b.count++
	return key, value, nil
}

// end checks count and digest and returns io.EOF when they are right and nothing follows.
func (b *BackupReader) end() error {
	count, err := b.number("count of records", 1<<62)
	if err != nil {
		return err
	}
	if count != b.count {
		return fmt.Errorf("%w: the backup names %d records and has %d", ErrCorrupt, count, b.count)
	}
	want := b.digest.Sum(nil)
	got := make([]byte, len(want))
	if err := b.full(got); err != nil {
		return err
	}
	if !bytes.Equal(want, got) {
		return fmt.Errorf("%w: the checksum of the backup is wrong; take another copy of the file", ErrCorrupt)
	}
	if _, err := b.in.ReadByte(); !errors.Is(err, io.EOF) {
		return fmt.Errorf("%w: bytes follow the end of the backup", ErrCorrupt)
	}
	return io.EOF
}

func (b *BackupReader) full(p []byte) error {
	if _, err := io.ReadFull(b.in, p); err != nil {
		return b.cut(err)
	}
	b.digest.Write(p)
	return nil
}

func (b *BackupReader) cut(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("%w: the backup is cut off after %d records; take another copy of the file", ErrCorrupt, b.count)
	}
	return fmt.Errorf("read the backup: %w", err)
}

// number reads a varint of at most limit.
func (b *BackupReader) number(what string, limit uint64) (uint64, error) {
	var n uint64
	for shift := 0; shift < 64; shift += 7 {
		c, err := b.in.ReadByte()
		if err != nil {
			return 0, b.cut(err)
		}
		b.digest.Write([]byte{c})
		n |= uint64(c&0x7f) << shift
		if c < 0x80 {
			if n > limit {
				break
			}
			return n, nil
		}
	}
	return 0, fmt.Errorf("%w: record %d of the backup: the %s is over %d", ErrCorrupt, b.count, what, limit)
}
