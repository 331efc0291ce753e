package policyabi

// Sizes and offsets of the fixed records, in bytes. A 32-bit number stands at each offset that does not say otherwise.
const (
	// Sizes of the fixed records.

	HeaderBytes    = 128
	EntryBytes     = 32
	RequestBytes   = 64
	CandidateBytes = 64
	ResultBytes    = 16
	MixBytes       = 64

	// Offsets of the header's fields.

	HeaderMagic          = 0
	HeaderMajor          = 4  // 16 bits
	HeaderMinor          = 6  // 16 bits
	HeaderEpoch          = 8  // 64 bits
	HeaderBaseEpoch      = 16 // 64 bits
	HeaderGeneration     = 24 // 64 bits
	HeaderSeed           = 32 // 64 bits
	HeaderTime           = 40 // 64 bits
	HeaderRows           = 48
	HeaderCapacity       = 52
	HeaderDirectory      = 56
	HeaderColumns        = 60
	HeaderRequests       = 64
	HeaderRequestCount   = 68
	HeaderResults        = 72
	HeaderResultCapacity = 76
	HeaderConfig         = 80
	HeaderConfigBytes    = 84
	HeaderMix            = 88
	HeaderMixCount       = 92
	HeaderDirty          = 96
	HeaderDirtyCount     = 100
	HeaderExtension      = 104
	HeaderExtensionBytes = 108
	HeaderScratch        = 112
	HeaderScratchBytes   = 116
	HeaderKind           = 120
	HeaderTotal          = 124

	// Offsets within a directory entry.

	EntryID     = 0
	EntryType   = 4 // 8 bits
	EntryLanes  = 5 // 8 bits
	EntryShift  = 6 // 8 bits
	EntryFlags  = 7 // 8 bits
	EntryOffset = 8
	EntryStride = 12
	EntryRows   = 16
	EntryPad    = 20
	EntryKey    = 24 // 64 bits

	// Offsets within a request.

	RequestClass     = 0 // 64 bits
	RequestCount     = 8
	RequestFlags     = 12
	RequestBitmap    = 16
	RequestBias      = 20
	RequestNeeds     = 24 // 4 numbers
	RequestShare     = 40
	RequestDevices   = 44
	RequestPriority  = 48
	RequestSpread    = 52
	RequestPool      = 56
	RequestExtension = 60

	// Offsets within a result.

	ResultRequest = 0 // 16 bits
	ResultCount   = 2 // 16 bits
	ResultHost    = 4
	ResultScore   = 8  // float32
	ResultDevices = 12 // 16 bits
	ResultReason  = 14 // 16 bits

	// Offsets within a candidate.

	CandidateJob      = 0  // 64 bits
	CandidatePool     = 8  // 64 bits
	CandidateOver     = 16 // 64 bits
	CandidateWork     = 24 // 64 bits
	CandidatePriority = 32
	CandidateFlags    = 36
	CandidateRuns     = 40
	CandidateMembers  = 44
	CandidateUse      = 48 // 4 numbers

	// Offsets within an entry of the class mix.

	MixClass   = 0  // 64 bits
	MixWeight  = 8  // float64
	MixNeeds   = 16 // 4 numbers
	MixShare   = 32
	MixDevices = 36
	MixModels  = 40 // 64 bits
	MixPad     = 48 // 16 bytes of zeros
)
