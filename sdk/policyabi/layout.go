package policyabi

// Column names a column of a layout: its id and, of a named thing, the Hash of its name. Shift is the unit of quantities.
type Column struct {
	ID    ColumnID
	Key   uint64
	Shift uint8
	// Type and Lanes of an extension column; those of others follow from the id.
	Type  ElementType
	Lanes uint8
}

// Shape is what an arena has to hold.
type Shape struct {
	Kind      Kind
	Rows      int // capacity wanted; it is rounded up to a multiple of Alignment
	Columns   []Column
	Requests  int // at most, in one call; candidates likewise
	Results   int
	Bitmaps   int // distinct ones in one call
	Biases    int // distinct ones in one call
	Config    int // bytes
	Mix       int
	Dirty     int // rows in the dirty list
	Extension int // bytes
	Scratch   int // bytes
}

// Layout says where everything is. Header has the offsets and capacities; its counts are those of the shape and are for the caller to lower with each call.
type Layout struct {
	Header  Header
	Entries []Entry
	// Bitmaps and Biases are the offsets of the first bitmap and bias; the others follow every BitmapBytes and BiasBytes.
	Bitmaps, BitmapBytes uint32
	Biases, BiasBytes    uint32
	// Written is the end of what the host writes; behind it stand results, then scratch, which are the guest's.
	Written uint32
}

// Plan computes the layout of an arena: the header, then the directory, the configuration, the mix, the columns in the order given, the dirty list, the requests,
// their extensions, the bitmaps, the biases, the results, and the scratch.
func Plan(s Shape) (Layout, error) {
	if err := s.check(); err != nil {
		return Layout{}, err
	}
	var l Layout
	h := &l.Header
	next := int64(HeaderBytes)
	section := func(bytes int64) uint32 {
		at := next
		next = (at + bytes + Alignment - 1) &^ (Alignment - 1)
		return uint32(at) // what does not fit is found at the end
	}
	capacity := int64(s.Rows+Alignment-1) &^ (Alignment - 1)
	*h = Header{
		Major: Major, Minor: Minor, Kind: s.Kind, Rows: uint32(s.Rows), Capacity: uint32(capacity), Columns: uint32(len(s.Columns)), RequestCount: uint32(s.Requests),
		ResultCapacity: uint32(s.Results), ConfigBytes: uint32(s.Config), MixCount: uint32(s.Mix), DirtyCount: AllDirty, ExtensionBytes: uint32(s.Extension), ScratchBytes: uint32(s.Scratch),
	}
	h.Directory = section(int64(len(s.Columns)) * EntryBytes)
	h.Config = section(int64(s.Config))
	h.Mix = section(int64(s.Mix) * MixBytes)
	l.Entries = make([]Entry, len(s.Columns))
	for i, c := range s.Columns {
		e := Entry{ID: c.ID, Type: c.Type, Lanes: c.Lanes, Shift: c.Shift, Rows: h.Capacity, Key: c.Key}
		if f := familyOf(c.ID); f != nil {
			e.Type, e.Lanes, e.Flags = f.typ, uint8(f.lanes), f.flags
		}
		e.Stride = uint32(e.Type.Size() * int(e.Lanes))
		e.Offset = section(capacity * int64(e.Stride))
		l.Entries[i] = e
	}
	h.Dirty = section(4 * int64(s.Dirty))
	h.Requests = section(int64(s.Requests) * RequestBytes)
	h.Extension = section(int64(s.Extension))
	l.BitmapBytes = uint32(capacity/8+Alignment-1) &^ (Alignment - 1)
	l.Bitmaps = section(int64(s.Bitmaps) * int64(l.BitmapBytes))
	l.BiasBytes = uint32(4 * capacity)
	l.Biases = section(int64(s.Biases) * int64(l.BiasBytes))
	l.Written = uint32(next)
	h.Results = section(int64(s.Results) * ResultBytes)
	h.Scratch = section(int64(s.Scratch))
	if next > MaxArena {
		return Layout{}, fault("layout", "", -1, itoa(next)+" bytes for "+itoa(s.Rows)+" rows of "+itoa(len(s.Columns))+" columns, an arena has at most "+itoa(MaxArena)+": want fewer columns or less scratch")
	}
	h.Total = uint32(next)
	return l, nil
}

func (s *Shape) check() error {
	if s.Kind < Place || s.Kind > Route {
		return fault("layout", "kind", -1, itoa(s.Kind)+" is no kind of policy")
	}
	for _, n := range []struct {
		name     string
		got, max int
	}{
		{"rows", s.Rows, MaxRows},
		{"columns", len(s.Columns), MaxColumns},
		{"requests", s.Requests, MaxRequests},
		{"results", s.Results, MaxResults},
		{"bitmaps", s.Bitmaps, MaxRequests},
		{"biases", s.Biases, MaxRequests},
		{"bytes of configuration", s.Config, MaxConfig},
		{"mix entries", s.Mix, MaxMix},
		{"dirty rows", s.Dirty, MaxDirty},
		{"bytes of extensions", s.Extension, MaxExtension},
		{"bytes of scratch", s.Scratch, MaxScratch},
	} {
		if n.got < 0 || n.got > n.max {
			return fault("layout", n.name, -1, itoa(n.got)+" are not from 0 to "+itoa(n.max))
		}
	}
	for _, c := range s.Columns {
		typ, lanes := c.ID.Type()
		switch {
		case typ == 0 && (c.ID < ColumnExtension || c.Type.Size() == 0 || c.Lanes == 0 || c.Lanes > MaxDevices):
			return fault("layout", "column "+itoa(c.ID), -1, "this version does not know it; an extension from "+itoa(ColumnExtension)+" on needs a type and 1 to "+itoa(MaxDevices)+" lanes")
		case typ != 0 && (c.Type != 0 && c.Type != typ || c.Lanes != 0 && int(c.Lanes) != lanes):
			return fault("layout", "column "+itoa(c.ID), -1, "it has a type of its own: leave Type and Lanes at 0")
		case c.Shift > maxShift:
			return fault("layout", "column "+itoa(c.ID), -1, "a shift of "+itoa(int(c.Shift))+" is more than "+itoa(maxShift))
		}
	}
	return nil
}

// Find returns the entry of a column, nil when the layout has none. A key of 0 matches any.
func Find(entries []Entry, id ColumnID, key uint64) *Entry {
	for i := range entries {
		if e := &entries[i]; e.ID == id && (key == 0 || e.Key == key) {
			return e
		}
	}
	return nil
}
