package policyabi

import (
	"encoding/binary"
	"math"
)

// Bits of a request's flags.
const (
	RequestGang      = 1 << iota // all tasks or none: a host gives back what is too little
	RequestExclusive             // its tasks want the host for themselves
	RequestRevocable             // its tasks run on slack, and are the first to make room
	RequestOneHost               // the bitmap names the one host that will do
	RequestDryRun                // nothing of what is answered will be done
	RequestOneEach               // a host takes one of its tasks at most
)

// Request asks for room for Count tasks of a class: 64 bytes.
type Request struct {
	Class  uint64 // equal numbers mean interchangeable tasks, in every call; 0: none
	Count  int32
	Flags  uint32
	Bitmap uint32 // offset: bit r%8 of byte r/8 says that row r meets all that the columns do not say
	Bias   uint32 // offset of an int32 for each row, what preferences take off (negative) or put on the cost, in ScoreSpan/100; 0: none
	// Needs of CPU, memory, disk and GPU, in the units of their columns, rounded up. Those of named resources are in the extension.
	Needs    [4]int32
	Share    int32  // thousandths that a task takes of each of its devices
	Devices  int32  // how many devices it takes
	Priority int32  // comparable within a pool; higher goes first
	Spread   uint32 // the topology column over which the tasks are to be spread; 0: none
	Pool     uint32 // the lower half of Hash of its path, 1 where that is 0; 0: unknown
	// Extension is the offset of what does not fit here (see Extension); 0: nothing.
	Extension uint32
}

// Encode writes the request to the beginning of b, which must have room for RequestBytes.
func (r *Request) Encode(b []byte) {
	le := binary.LittleEndian
	_ = b[RequestBytes-1]
	le.PutUint64(b[RequestClass:], r.Class)
	le.PutUint32(b[RequestCount:], uint32(r.Count))
	le.PutUint32(b[RequestFlags:], r.Flags)
	le.PutUint32(b[RequestBitmap:], r.Bitmap)
	le.PutUint32(b[RequestBias:], r.Bias)
	for i, need := range r.Needs {
		le.PutUint32(b[RequestNeeds+4*i:], uint32(need))
	}
	le.PutUint32(b[RequestShare:], uint32(r.Share))
	le.PutUint32(b[RequestDevices:], uint32(r.Devices))
	le.PutUint32(b[RequestPriority:], uint32(r.Priority))
	le.PutUint32(b[RequestSpread:], r.Spread)
	le.PutUint32(b[RequestPool:], r.Pool)
	le.PutUint32(b[RequestExtension:], r.Extension)
}

// DecodeRequest reads request i of an arena whose header is h, and checks that what it points at lies within.
func DecodeRequest(b []byte, h *Header, i int) (Request, error) {
	part := "request " + itoa(i)
	raw, err := record(b, h, part, h.Requests, i, int(h.RequestCount), RequestBytes)
	if err != nil {
		return Request{}, err
	}
	le := binary.LittleEndian
	r := Request{
		Class: le.Uint64(raw[RequestClass:]), Count: int32(le.Uint32(raw[RequestCount:])), Flags: le.Uint32(raw[RequestFlags:]),
		Bitmap: le.Uint32(raw[RequestBitmap:]), Bias: le.Uint32(raw[RequestBias:]),
		Share: int32(le.Uint32(raw[RequestShare:])), Devices: int32(le.Uint32(raw[RequestDevices:])), Priority: int32(le.Uint32(raw[RequestPriority:])),
		Spread: le.Uint32(raw[RequestSpread:]), Pool: le.Uint32(raw[RequestPool:]), Extension: le.Uint32(raw[RequestExtension:]),
	}
	for k := range r.Needs {
		r.Needs[k] = int32(le.Uint32(raw[RequestNeeds+4*k:]))
		if r.Needs[k] < 0 || r.Needs[k] > MaxNeed {
			return r, fault(part, "needs", RequestNeeds+4*k, itoa(r.Needs[k])+" is not from 0 to "+itoa(MaxNeed))
		}
	}
	switch {
	case r.Count <= 0:
		return r, fault(part, "count", RequestCount, itoa(r.Count)+" tasks: there must be one at least")
	case r.Share < 0 || r.Share > DeviceMilli || r.Devices < 0 || (r.Devices == 0) != (r.Share == 0):
		return r, fault(part, "devices", RequestShare, itoa(r.Devices)+" devices, "+itoa(r.Share)+" thousandths of each: both are 0, or neither, and the share at most "+itoa(DeviceMilli))
	case r.Bitmap == 0 || !h.holds(r.Bitmap, int64(h.Capacity/8), Alignment):
		return r, fault(part, "bitmap", RequestBitmap, "it does not lie within the arena")
	case r.Bias != 0 && !h.holds(r.Bias, 4*int64(h.Capacity), Alignment):
		return r, fault(part, "bias", RequestBias, "it does not lie within the arena")
	case r.Extension != 0 && (r.Extension < h.Extension || uint64(r.Extension) >= uint64(h.Extension)+uint64(h.ExtensionBytes)):
		return r, fault(part, "extension", RequestExtension, "it does not lie within the extension section")
	}
	return r, nil
}

// record is record i of n that begin at offset.
func record(b []byte, h *Header, part string, offset uint32, i, n, size int) ([]byte, error) {
	at := int64(offset) + int64(i)*int64(size)
	if i < 0 || i >= n || h.Total > MaxArena || int(h.Total) > len(b) || at+int64(size) > int64(h.Total) {
		return nil, fault(part, "", -1, "there are "+itoa(n)+" in the arena")
	}
	return b[at : at+int64(size)], nil
}

// holds reports whether size bytes at offset lie within the arena, behind the header.
func (h *Header) holds(offset uint32, size int64, align uint32) bool {
	return offset >= HeaderBytes && offset%align == 0 && int64(offset)+size <= int64(h.Total)
}

// Result is one answer: 16 bytes. Results stand in the order of their requests, those of one request in the order in which they are to be taken.
type Result struct {
	Request uint16 // its place among the requests, or candidates
	// Count tasks go to the row, 1 or more. It is 0 with NoRow and for ranks.
	Count uint16
	// Host is the row; NoRow: no more tasks of this request can be placed, for Reason. For a candidate it is its rank, lower goes first, up to
	// 1<<31 - 1; one that is not named goes last.
	Host  uint32
	Score float32 // for people; a number
	// Devices is the set of devices that each task takes, bit by lane; 0: the host chooses. With devices, Count is 1.
	Devices uint16
	Reason  uint16 // a policy's own; for people
}

// Encode writes the result to the beginning of b, which must have room for ResultBytes.
func (r *Result) Encode(b []byte) {
	le := binary.LittleEndian
	_ = b[ResultBytes-1]
	le.PutUint16(b[ResultRequest:], r.Request)
	le.PutUint16(b[ResultCount:], r.Count)
	le.PutUint32(b[ResultHost:], r.Host)
	le.PutUint32(b[ResultScore:], math.Float32bits(r.Score))
	le.PutUint16(b[ResultDevices:], r.Devices)
	le.PutUint16(b[ResultReason:], r.Reason)
}

// DecodeResult reads a result from the beginning of b, which must hold ResultBytes. It checks nothing but the score.
func DecodeResult(b []byte) (Result, error) {
	le := binary.LittleEndian
	_ = b[ResultBytes-1]
	r := Result{
		Request: le.Uint16(b[ResultRequest:]), Count: le.Uint16(b[ResultCount:]), Host: le.Uint32(b[ResultHost:]),
		Score: math.Float32frombits(le.Uint32(b[ResultScore:])), Devices: le.Uint16(b[ResultDevices:]), Reason: le.Uint16(b[ResultReason:]),
	}
	if r.Score-r.Score != 0 { // neither NaN nor infinite
		return r, fault("result", "score", ResultScore, "it is no finite number")
	}
	return r, nil
}

// Bits of a candidate's flags.
const (
	CandidateRevocable = 1 << iota // runs on slack; goes before all others whatever its rank
	CandidateGang                  // its runs go together
)

// Candidate is a job whose work may have to make room: 64 bytes.
type Candidate struct {
	Job      uint64
	Pool     uint64
	Over     int64 // how far its pool is above its entitlement, in millionths of it
	Work     int64 // milliseconds that its runs have run, together
	Priority int32 // comparable within one pool
	Flags    uint32
	Runs     int32    // live ones
	Members  int32    // of a gang; 0: none
	Use      [4]int32 // CPU, memory, disk and GPU that its runs use, together, at most MaxQuantity
}

// Encode writes the candidate to the beginning of b, which must have room for CandidateBytes.
func (c *Candidate) Encode(b []byte) {
	le := binary.LittleEndian
	_ = b[CandidateBytes-1]
	le.PutUint64(b[CandidateJob:], c.Job)
	le.PutUint64(b[CandidatePool:], c.Pool)
	le.PutUint64(b[CandidateOver:], uint64(c.Over))
	le.PutUint64(b[CandidateWork:], uint64(c.Work))
	le.PutUint32(b[CandidatePriority:], uint32(c.Priority))
	le.PutUint32(b[CandidateFlags:], c.Flags)
	le.PutUint32(b[CandidateRuns:], uint32(c.Runs))
	le.PutUint32(b[CandidateMembers:], uint32(c.Members))
	for i, use := range c.Use {
		le.PutUint32(b[CandidateUse+4*i:], uint32(use))
	}
}

// DecodeCandidate reads candidate i of an arena whose header is h.
func DecodeCandidate(b []byte, h *Header, i int) (Candidate, error) {
	raw, err := record(b, h, "candidate "+itoa(i), h.Requests, i, int(h.RequestCount), CandidateBytes)
	if err != nil {
		return Candidate{}, err
	}
	le := binary.LittleEndian
	c := Candidate{
		Job: le.Uint64(raw[CandidateJob:]), Pool: le.Uint64(raw[CandidatePool:]),
		Over: int64(le.Uint64(raw[CandidateOver:])), Work: int64(le.Uint64(raw[CandidateWork:])),
		Priority: int32(le.Uint32(raw[CandidatePriority:])), Flags: le.Uint32(raw[CandidateFlags:]),
		Runs: int32(le.Uint32(raw[CandidateRuns:])), Members: int32(le.Uint32(raw[CandidateMembers:])),
	}
	for k := range c.Use {
		c.Use[k] = int32(le.Uint32(raw[CandidateUse+4*k:]))
	}
	return c, nil
}

// Mix is one class of the work that the scheduler expects: 64 bytes. Weights of all entries sum to 1; the heaviest stands first.
type Mix struct {
	Class   uint64
	Weight  float64
	Needs   [4]int32 // as in a Request
	Share   int32
	Devices int32
	Models  uint64 // allowed models, bit by number; 0: all
}

// Encode writes the entry to the beginning of b, which must have room for MixBytes.
func (m *Mix) Encode(b []byte) {
	le := binary.LittleEndian
	clear(b[:MixBytes])
	le.PutUint64(b[MixClass:], m.Class)
	le.PutUint64(b[MixWeight:], math.Float64bits(m.Weight))
	for i, need := range m.Needs {
		le.PutUint32(b[MixNeeds+4*i:], uint32(need))
	}
	le.PutUint32(b[MixShare:], uint32(m.Share))
	le.PutUint32(b[MixDevices:], uint32(m.Devices))
	le.PutUint64(b[MixModels:], m.Models)
}

// DecodeMix reads entry i of the class mix of an arena whose header is h.
func DecodeMix(b []byte, h *Header, i int) (Mix, error) {
	part := "mix entry " + itoa(i)
	raw, err := record(b, h, part, h.Mix, i, int(h.MixCount), MixBytes)
	if err != nil {
		return Mix{}, err
	}
	le := binary.LittleEndian
	m := Mix{
		Class: le.Uint64(raw[MixClass:]), Weight: math.Float64frombits(le.Uint64(raw[MixWeight:])),
		Share: int32(le.Uint32(raw[MixShare:])), Devices: int32(le.Uint32(raw[MixDevices:])), Models: le.Uint64(raw[MixModels:]),
	}
	for k := range m.Needs {
		m.Needs[k] = int32(le.Uint32(raw[MixNeeds+4*k:]))
	}
	if !(m.Weight >= 0 && m.Weight <= 1) {
		return m, fault(part, "weight", MixWeight, "it must be from 0 to 1")
	}
	return m, nil
}
