package policyabi

import "encoding/binary"

// Header is the beginning of an arena. Offsets are from the beginning of the arena.
type Header struct {
	Major, Minor uint16
	// Epoch grows with every call. The dirty list names the rows that changed since BaseEpoch; a guest that last saw another epoch looks at
	// every row.
	Epoch, BaseEpoch uint64
	// Generation changes when rows, columns or the numbers of models and domains take another meaning: whatever a guest remembers is void.
	Generation uint64
	Seed       uint64 // the only randomness there is
	Time       int64  // milliseconds of the scheduler's time, the only clock there is

	Rows      uint32 // rows in use are below it
	Capacity  uint32 // rows that columns and bitmaps have room for, a multiple of Alignment
	Directory uint32
	Columns   uint32
	Requests  uint32 // or Candidates
	// RequestCount is what the call is told.
	RequestCount   uint32
	Results        uint32
	ResultCapacity uint32
	Config         uint32
	ConfigBytes    uint32
	Mix            uint32
	MixCount       uint32
	Dirty          uint32
	DirtyCount     uint32 // or AllDirty
	Extension      uint32
	ExtensionBytes uint32
	Scratch        uint32 // the guest's own: zero at first, then as it left it
	ScratchBytes   uint32
	Kind           Kind   // of the call
	Total          uint32 // bytes of the arena
}

// Encode writes the header to the beginning of b, which must have room for HeaderBytes.
func (h *Header) Encode(b []byte) {
	le := binary.LittleEndian
	_ = b[HeaderBytes-1]
	le.PutUint32(b[HeaderMagic:], Magic)
	le.PutUint16(b[HeaderMajor:], h.Major)
	le.PutUint16(b[HeaderMinor:], h.Minor)
	le.PutUint64(b[HeaderEpoch:], h.Epoch)
	le.PutUint64(b[HeaderBaseEpoch:], h.BaseEpoch)
	le.PutUint64(b[HeaderGeneration:], h.Generation)
	le.PutUint64(b[HeaderSeed:], h.Seed)
	le.PutUint64(b[HeaderTime:], uint64(h.Time))
	for i, field := range h.words() {
		le.PutUint32(b[HeaderRows+4*i:], *field)
	}
}

// words lists the 32-bit fields in their order.
func (h *Header) words() [20]*uint32 {
	return [...]*uint32{
		&h.Rows, &h.Capacity, &h.Directory, &h.Columns, &h.Requests, &h.RequestCount, &h.Results, &h.ResultCapacity,
		&h.Config, &h.ConfigBytes, &h.Mix, &h.MixCount, &h.Dirty, &h.DirtyCount, &h.Extension, &h.ExtensionBytes,
		&h.Scratch, &h.ScratchBytes, (*uint32)(&h.Kind), &h.Total,
	}
}

// DecodeHeader reads the header of an arena and checks that every section lies within b. What the sections hold is for their own decoders.
func DecodeHeader(b []byte) (Header, error) {
	var h Header
	if len(b) < HeaderBytes {
		return h, fault("header", "", 0, "an arena begins with "+itoa(HeaderBytes)+" bytes, here are "+itoa(len(b)))
	}
	le := binary.LittleEndian
	if le.Uint32(b[HeaderMagic:]) != Magic {
		return h, fault("header", "magic", HeaderMagic, `an arena begins with the bytes "PACE"`)
	}
	h.Major, h.Minor = le.Uint16(b[HeaderMajor:]), le.Uint16(b[HeaderMinor:])
	if h.Major != Major {
		return h, fault("header", "major", HeaderMajor, "version "+itoa(h.Major)+"."+itoa(h.Minor)+" is not one that version "+itoa(Major)+" understands: rebuild the older side")
	}
	h.Epoch, h.BaseEpoch = le.Uint64(b[HeaderEpoch:]), le.Uint64(b[HeaderBaseEpoch:])
	h.Generation, h.Seed = le.Uint64(b[HeaderGeneration:]), le.Uint64(b[HeaderSeed:])
	h.Time = int64(le.Uint64(b[HeaderTime:]))
	for i, field := range h.words() {
		*field = le.Uint32(b[HeaderRows+4*i:])
	}
	return h, h.check(len(b))
}

func (h *Header) check(size int) error {
	switch {
	case h.Kind < Place || h.Kind > Route:
		return fault("header", "kind", HeaderKind, itoa(h.Kind)+" is no kind of policy")
	case h.Total > MaxArena || int(h.Total) > size:
		return fault("header", "total", HeaderTotal, itoa(h.Total)+" bytes are more than the memory or the limit of "+itoa(MaxArena)+" allow")
	case h.Capacity > MaxRows || h.Capacity%Alignment != 0 || h.Rows > h.Capacity:
		return fault("header", "rows", HeaderRows, itoa(h.Rows)+" of "+itoa(h.Capacity)+" rows: the capacity must be a multiple of "+itoa(Alignment)+", at most "+itoa(MaxRows)+", and cover the rows")
	case h.DirtyCount > MaxDirty && h.DirtyCount != AllDirty:
		return fault("header", "dirty rows", HeaderDirtyCount, itoa(h.DirtyCount)+" are more than "+itoa(MaxDirty))
	}
	dirty := h.DirtyCount
	if dirty == AllDirty {
		dirty = 0
	}
	for _, s := range []struct {
		name            string
		at              int
		offset          uint32
		count, max, per int64
	}{
		{"directory", HeaderDirectory, h.Directory, int64(h.Columns), MaxColumns, EntryBytes},
		{"requests", HeaderRequests, h.Requests, int64(h.RequestCount), MaxRequests, RequestBytes},
		{"results", HeaderResults, h.Results, int64(h.ResultCapacity), MaxResults, ResultBytes},
		{"config", HeaderConfig, h.Config, int64(h.ConfigBytes), MaxConfig, 1},
		{"mix", HeaderMix, h.Mix, int64(h.MixCount), MaxMix, MixBytes},
		{"dirty rows", HeaderDirty, h.Dirty, int64(dirty), MaxDirty, 4},
		{"extension", HeaderExtension, h.Extension, int64(h.ExtensionBytes), MaxExtension, 1},
		{"scratch", HeaderScratch, h.Scratch, int64(h.ScratchBytes), MaxScratch, 1},
	} {
		if s.count > s.max {
			return fault("header", s.name, s.at, itoa(s.count)+" are more than "+itoa(s.max))
		}
		if s.count > 0 && (s.offset%Alignment != 0 || s.offset < HeaderBytes || int64(s.offset)+s.count*s.per > int64(h.Total)) {
			return fault("header", s.name, s.at, itoa(s.count*s.per)+" bytes at "+itoa(s.offset)+" do not lie within the arena, from a multiple of "+itoa(Alignment))
		}
	}
	return nil
}

// Entry describes one column. Element l of row r stands at Offset + r*Stride + l*Type.Size().
type Entry struct {
	ID     ColumnID
	Type   ElementType
	Lanes  uint8
	Shift  uint8 // the unit is 1 << Shift of the kind's own: what is free is rounded down, needs are rounded up
	Flags  uint8
	Offset uint32
	Stride uint32
	Rows   uint32
	Key    uint64 // Hash of the name of a named resource, topology attribute or extension; 0: there is none
}

// Encode writes the entry to the beginning of b, which must have room for EntryBytes.
func (e *Entry) Encode(b []byte) {
	le := binary.LittleEndian
	_ = b[EntryBytes-1]
	le.PutUint32(b[EntryID:], uint32(e.ID))
	b[EntryType], b[EntryLanes], b[EntryShift], b[EntryFlags] = byte(e.Type), e.Lanes, e.Shift, e.Flags
	le.PutUint32(b[EntryOffset:], e.Offset)
	le.PutUint32(b[EntryStride:], e.Stride)
	le.PutUint32(b[EntryRows:], e.Rows)
	le.PutUint32(b[EntryPad:], 0)
	le.PutUint64(b[EntryKey:], e.Key)
}

// DecodeDirectory reads the entries of an arena whose header is h and checks that every column lies within it.
func DecodeDirectory(b []byte, h *Header) ([]Entry, error) {
	if h.Total > MaxArena || int(h.Total) > len(b) || h.Columns > MaxColumns || uint64(h.Directory)+uint64(h.Columns)*EntryBytes > uint64(h.Total) {
		return nil, fault("directory", "", int(h.Directory), "it does not lie within the arena")
	}
	entries := make([]Entry, h.Columns)
	le := binary.LittleEndian
	for i := range entries {
		at := int(h.Directory) + i*EntryBytes
		raw, e := b[at:at+EntryBytes], &entries[i]
		*e = Entry{
			ID: ColumnID(le.Uint32(raw[EntryID:])), Type: ElementType(raw[EntryType]), Lanes: raw[EntryLanes], Shift: raw[EntryShift], Flags: raw[EntryFlags],
			Offset: le.Uint32(raw[EntryOffset:]), Stride: le.Uint32(raw[EntryStride:]), Rows: le.Uint32(raw[EntryRows:]), Key: le.Uint64(raw[EntryKey:]),
		}
		if err := e.check(h); err != nil {
			return nil, err
		}
	}
	return entries, nil
}

// maxShift keeps a shifted quantity meaningful.
const maxShift = 32

func (e *Entry) check(h *Header) error {
	part := "directory entry of column " + itoa(e.ID)
	size := e.Type.Size()
	width := size * int(e.Lanes)
	switch {
	case size == 0 || e.Lanes == 0 || e.Lanes > MaxDevices:
		return fault(part, "type", EntryType, itoa(int(e.Lanes))+" lanes of type "+itoa(int(e.Type))+" are nothing known")
	case e.Shift > maxShift:
		return fault(part, "shift", EntryShift, itoa(int(e.Shift))+" is more than "+itoa(maxShift))
	case e.Rows != h.Capacity:
		return fault(part, "rows", EntryRows, "a column has as many rows as the header's capacity says, "+itoa(h.Capacity))
	case int64(e.Stride) < int64(width) || int(e.Stride)%size != 0 || e.Stride > MaxArena:
		return fault(part, "stride", EntryStride, itoa(e.Stride)+" bytes between rows of "+itoa(width))
	case e.Offset < HeaderBytes || e.Offset%Alignment != 0 || int64(e.Offset)+int64(e.Rows)*int64(e.Stride) > int64(h.Total):
		return fault(part, "offset", EntryOffset, "the column does not lie within the arena, from a multiple of "+itoa(Alignment))
	}
	if typ, lanes := e.ID.Type(); typ != 0 && (typ != e.Type || lanes != int(e.Lanes)) {
		return fault(part, "type", EntryType, "this column has "+itoa(lanes)+" lanes of type "+itoa(int(typ)))
	}
	return nil
}
