package policyabi

// The version of the ABI. A host and a guest of one major version understand each other; a minor version only adds.
const (
	Major   = 1
	Minor   = 0
	Version = Major<<16 | Minor // what ExportABI returns
)

// What a module exports. The calls are optional but one of them must be there. Each takes the number of records that stand at the header's request
// offset and returns Return(status, count).
const (
	ExportMemory     = "memory"
	ExportInitialize = "_initialize"      // () -> (); optional, called once before all others
	ExportABI        = "paceline_abi"     // () -> i32 version
	ExportArena      = "paceline_arena"   // (bytes i32) -> i32 address; a multiple of Alignment, never moved, 0: no room
	ExportConfig     = "paceline_config"  // (bytes i32) -> i32 status; the configuration stands at the header's config offset
	ExportPlace      = "paceline_place"   // (requests i32) -> i64; rows are hosts, records are Requests
	ExportPreempt    = "paceline_preempt" // (candidates i32) -> i64; no table, records are Candidates
	ExportQuota      = "paceline_quota"   // (pools i32) -> i64; rows are pools, no records; the guest fills the columns with FlagOut
	ExportRoute      = "paceline_route"   // (requests i32) -> i64; rows are clusters, records are Requests
	ExportIdle       = "paceline_idle"    // () -> (); optional: time to tidy up, between calls
	// ExportDescribe is () -> i64: the address << 32 | the length of the text that belongs into the custom section. It is for the tools that build a module.
	ExportDescribe = "paceline_describe"

	// What a module may import beside the calls of WASI that toolchains need, which answer deterministically or refuse.

	ImportModule = "paceline"
	ImportLog    = "log" // (level i32, address i32, bytes i32) -> ()
	// ImportScan is (request i32, column i32, k i32, address i32) -> i32: the host puts the k cheapest rows with room for one task of the
	// request at the address, each a row i32 and a cost i32, ascending by cost, then row, and returns how many there are, or -1 for arguments
	// that make no sense. The cost is the row's value in an int32 column plus the request's bias; with the column's id negated the largest value
	// is cheapest.
	ImportScan = "scan_topk"

	// SectionName is the custom section that holds a Capability, FeatureScan the feature of a policy that imports ImportScan.

	SectionName = "paceline.policy"
	FeatureScan = "scan_topk"

	// FuelGlobal is the name under which the host exports the counter that it adds to a module. A module must not have such an export.

	FuelGlobal = "paceline.fuel"
)

// Levels of ImportLog.
const (
	LogDebug = iota
	LogInfo
	LogWarn
	LogError
)

// Limits. A host refuses what is beyond them; a guest may rely on them.
const (
	MaxRows       = 16384   // rows of a table
	MaxKinds      = 16      // kinds of resources
	MaxDevices    = 16      // GPUs of a host: lanes of a row
	MaxColumns    = 256     // entries of the directory
	MaxTopologies = 16      // topology columns
	MaxScan       = 4096    // k of ImportScan
	MaxRequests   = 1024    // records of a call
	MaxResults    = 16384   // results of a call
	MaxMix        = 256     // entries of the class mix
	MaxDirty      = 4096    // rows in the dirty list
	MaxConfig     = 65536   // bytes of configuration
	MaxConfigKeys = 256     // values in it
	MaxExtension  = 262144  // bytes of requests' extensions in a call
	MaxScratch    = 1 << 22 // bytes of scratch
	MaxArena      = 1 << 26 // bytes of an arena
	MaxCapability = 8192    // bytes of the custom section
	MaxName       = 63      // bytes of a policy's, a column's or a configuration key's name
	MaxText       = 4096    // bytes of a text in a configuration
	MaxLog        = 1024    // bytes of one log line
	MaxQuantity   = 1<<30 - 1
	MaxNeed       = 1 << 30 // of a request; no row has as much, and free - need stays inside int32
	DeviceMilli   = 1000    // a whole device
	NoRow         = 1<<32 - 1
	AllDirty      = 1<<32 - 1 // as the number of dirty rows: look at every row
	Alignment     = 64
	Magic         = 0x45434150 // "PACE"
	ScoreSpan     = 1 << 30    // of the columns leftover and free_share, and the scale of biases
)

// Kind is what a policy decides.
type Kind uint32

// The kinds of policies.
const (
	Place Kind = iota + 1
	Preempt
	Quota
	Route
)

var kindNames = [...]string{Place: "place", Preempt: "preempt", Quota: "quota", Route: "route"}

func (k Kind) String() string {
	if k == 0 || int(k) >= len(kindNames) {
		return "unknown"
	}
	return kindNames[k]
}

// Export is the function that a policy of the kind exports, "" for a kind that is none.
func (k Kind) Export() string {
	if k == 0 || int(k) >= len(kindNames) {
		return ""
	}
	return "paceline_" + kindNames[k]
}

// Status is the first half of what a call returns. Negative ones refuse the whole call: nothing was decided and the guest is well.
type Status int32

// Statuses. Those from StatusPolicy down are a policy's own reasons.
const (
	StatusOK          Status = 0
	StatusUnsupported Status = -1 // this kind of call, or what a request asks for
	StatusHeader      Status = -2 // the header is not one that the guest understands
	StatusConfig      Status = -3 // the configuration is wrong; the log says how
	StatusMemory      Status = -4 // no memory left
	StatusInternal    Status = -5 // the policy found itself broken
	StatusPolicy      Status = -1000
)

var statusNames = [...]string{"ok", "unsupported", "header not understood", "configuration refused", "out of memory", "internal error"}

func (s Status) String() string {
	if s <= 0 && int(-s) < len(statusNames) {
		return statusNames[-s]
	}
	if s <= StatusPolicy {
		return "refused by the policy for its reason " + itoa(int64(StatusPolicy-s))
	}
	return "unknown status " + itoa(int64(s))
}

// Return packs what a call returns: the number of results, or of pools that were given an entitlement, counts when the status is StatusOK.
func Return(status Status, count uint32) uint64 { return uint64(uint32(status))<<32 | uint64(count) }

// SplitReturn is the inverse of Return.
func SplitReturn(v uint64) (Status, uint32) { return Status(int32(uint32(v >> 32))), uint32(v) }

// Hash is the 64-bit FNV-1a of a name: how columns of named things say what they are about. It is never 0.
func Hash(name string) uint64 {
	h := uint64(0xcbf29ce484222325)
	for i := range len(name) {
		h = (h ^ uint64(name[i])) * 0x100000001b3
	}
	return max(h, 1)
}
