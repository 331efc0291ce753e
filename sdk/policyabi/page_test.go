package policyabi_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	abi "github.com/paceline-sched/paceline/sdk/policyabi"
)

// field is one line of a table: a name with its size in bytes, at an offset.
type field struct {
	name   string
	offset int
	size   int
}

// records are the fixed records, complete: fields follow one another without gaps.
var records = map[string]struct {
	size   int
	fields []field
}{
	"header": {abi.HeaderBytes, []field{
		{"magic, the bytes PACE", abi.HeaderMagic, 4},
		{"major version", abi.HeaderMajor, 2},
		{"minor version", abi.HeaderMinor, 2},
		{"epoch", abi.HeaderEpoch, 8},
		{"base epoch", abi.HeaderBaseEpoch, 8},
		{"generation", abi.HeaderGeneration, 8},
		{"seed", abi.HeaderSeed, 8},
		{"time", abi.HeaderTime, 8},
		{"rows", abi.HeaderRows, 4},
		{"capacity", abi.HeaderCapacity, 4},
		{"offset of the directory", abi.HeaderDirectory, 4},
		{"columns", abi.HeaderColumns, 4},
		{"offset of the requests, or candidates", abi.HeaderRequests, 4},
		{"requests", abi.HeaderRequestCount, 4},
		{"offset of the results", abi.HeaderResults, 4},
		{"results that there is room for", abi.HeaderResultCapacity, 4},
		{"offset of the configuration", abi.HeaderConfig, 4},
		{"bytes of it", abi.HeaderConfigBytes, 4},
		{"offset of the class mix", abi.HeaderMix, 4},
		{"classes in it", abi.HeaderMixCount, 4},
		{"offset of the dirty list", abi.HeaderDirty, 4},
		{"rows in it", abi.HeaderDirtyCount, 4},
		{"offset of the extensions", abi.HeaderExtension, 4},
		{"bytes of them", abi.HeaderExtensionBytes, 4},
		{"offset of the scratch", abi.HeaderScratch, 4},
		{"bytes of it", abi.HeaderScratchBytes, 4},
		{"kind", abi.HeaderKind, 4},
		{"bytes of the arena", abi.HeaderTotal, 4},
	}},
	"entry": {abi.EntryBytes, []field{
		{"id", abi.EntryID, 4},
		{"type", abi.EntryType, 1},
		{"lanes", abi.EntryLanes, 1},
		{"shift", abi.EntryShift, 1},
		{"flags", abi.EntryFlags, 1},
		{"offset", abi.EntryOffset, 4},
		{"stride", abi.EntryStride, 4},
		{"rows, as the capacity", abi.EntryRows, 4},
		{"zero", abi.EntryPad, 4},
		{"key", abi.EntryKey, 8},
	}},
	"request": {abi.RequestBytes, []field{
		{"class", abi.RequestClass, 8},
		{"count", abi.RequestCount, 4},
		{"flags", abi.RequestFlags, 4},
		{"offset of the bitmap", abi.RequestBitmap, 4},
		{"offset of the bias, or 0", abi.RequestBias, 4},
		{"needs of CPU, memory, disk, GPU, int32 each", abi.RequestNeeds, 16},
		{"share", abi.RequestShare, 4},
		{"devices", abi.RequestDevices, 4},
		{"priority, int32", abi.RequestPriority, 4},
		{"topology column to spread over, or 0", abi.RequestSpread, 4},
		{"pool, the same number for the same pool, 0 unknown", abi.RequestPool, 4},
		{"offset of the extension, or 0", abi.RequestExtension, 4},
	}},
	"result": {abi.ResultBytes, []field{
		{"request", abi.ResultRequest, 2},
		{"count", abi.ResultCount, 2},
		{"host: the row", abi.ResultHost, 4},
		{"score, float32", abi.ResultScore, 4},
		{"devices, or 0", abi.ResultDevices, 2},
		{"reason, the policy's own", abi.ResultReason, 2},
	}},
	"candidate": {abi.CandidateBytes, []field{
		{"job", abi.CandidateJob, 8},
		{"pool", abi.CandidatePool, 8},
		{"over, int64", abi.CandidateOver, 8},
		{"work, int64", abi.CandidateWork, 8},
		{"priority, int32, comparable within a pool", abi.CandidatePriority, 4},
		{"flags", abi.CandidateFlags, 4},
		{"live runs", abi.CandidateRuns, 4},
		{"members of the gang, or 0", abi.CandidateMembers, 4},
		{"use of CPU, memory, disk, GPU, int32 each", abi.CandidateUse, 16},
	}},
	"mix": {abi.MixBytes, []field{
		{"class", abi.MixClass, 8},
		{"weight", abi.MixWeight, 8},
		{"needs of CPU, memory, disk, GPU, int32 each", abi.MixNeeds, 16},
		{"share", abi.MixShare, 4},
		{"devices", abi.MixDevices, 4},
		{"models", abi.MixModels, 8},
		{"zero", abi.MixPad, 16},
	}},
}

func recordTable(name string) (string, error) {
	r, next := records[name], 0
	out := "| offset | bytes | field |\n| --- | --- | --- |\n"
	for _, f := range r.fields {
		if f.offset != next {
			return "", fmt.Errorf("%s: %s stands at %d, the field before it ends at %d", name, f.name, f.offset, next)
		}
		next = f.offset + f.size
		out += fmt.Sprintf("| %d | %d | %s |\n", f.offset, f.size, f.name)
	}
	if next != r.size {
		return "", fmt.Errorf("%s has %d bytes, its fields end at %d", name, r.size, next)
	}
	return out, nil
}

func columnTable() string {
	typeNames := map[abi.ElementType]string{abi.Int16: "int16", abi.Int32: "int32", abi.Int64: "int64", abi.Float32: "float32"}
	out := "| id | name | type | holds |\n| --- | --- | --- | --- |\n"
	for _, c := range []struct {
		id    abi.ColumnID
		count int
		holds string
	}{
		{abi.ColumnFree, 16, "what is free; also of clusters, together"},
		{abi.ColumnTotal, 16, "what there is; also of clusters, together"},
		{abi.ColumnInverse, 16, "1 / total, 0 where there is none"},
		{abi.ColumnDeviceFree, 1, "thousandths of each GPU that are free"},
		{abi.ColumnDeviceTotal, 1, "thousandths of each GPU"},
		{abi.ColumnDeviceModel, 1, "the model of each GPU"},
		{abi.ColumnDeviceWhole, 1, "GPUs wholly free"},
		{abi.ColumnDeviceLargest, 1, "the largest free share of a GPU"},
		{abi.ColumnFlags, 1, "flags"},
		{abi.ColumnTasks, 1, "tasks on the host"},
		{abi.ColumnLeftover, 1, "free room as a share of the largest host's: what best-fit minimises"},
		{abi.ColumnFreeShare, 1, "free room as a share of the host's own: what pack minimises and spread maximises"},
		{abi.ColumnPorts, 1, "ports free"},
		{abi.ColumnVersion, 1, "grows when the row changes, also to another host"},
		{abi.ColumnHost, 1, "identity of the host, 0 for none"},
		{abi.ColumnSlack, 16, "room for revocable work"},
		{abi.ColumnUsage, 16, "measured use"},
		{abi.ColumnTopology, 16, "domain of the host, 0 for none"},
		{abi.ColumnPool, 1, "identity of the pool"},
		{abi.ColumnParent, 1, "row of the parent"},
		{abi.ColumnReservation, 16, "what the pool is guaranteed"},
		{abi.ColumnLimit, 16, "the most that it may be entitled to"},
		{abi.ColumnShare, 16, "its weight"},
		{abi.ColumnDemand, 16, "use and waiting work together"},
		{abi.ColumnPoolUsage, 16, "use"},
		{abi.ColumnEntitlement, 16, "written by the guest"},
		{abi.ColumnCapacity, 16, "what there is to hand out"},
		{abi.ColumnCluster, 1, "identity of the cluster"},
		{abi.ColumnPlaceable, 1, "tasks of the first request's class that find room now"},
		{abi.ColumnWaiting, 1, "tasks waiting for the cluster"},
		{abi.ColumnPrice, 1, "price of its room, comparable among clusters; 0 unknown"},
	} {
		typ, lanes := c.id.Type()
		id, name := fmt.Sprint(c.id), strings.TrimSuffix(abi.Want{Column: c.id}.String(), ".cpu")
		if c.count > 1 {
			id = fmt.Sprintf("%d-%d", c.id, int(c.id)+c.count-1)
		}
		typeName := typeNames[typ]
		if lanes > 1 {
			typeName = fmt.Sprintf("%d x %s", lanes, typeName)
		}
		out += fmt.Sprintf("| %s | `%s` | %s | %s |\n", id, name, typeName, c.holds)
	}
	return out + fmt.Sprintf("| %d and up | `extension:` | as the entry says | columns given out by name |\n", abi.ColumnExtension)
}

func limitTable() string {
	out := "| what | at most |\n| --- | --- |\n"
	for _, l := range []struct {
		what string
		most int
	}{
		{"rows", abi.MaxRows},
		{"columns", abi.MaxColumns},
		{"requests or candidates in a call", abi.MaxRequests},
		{"results of a call", abi.MaxResults},
		{"k of `scan_topk`", abi.MaxScan},
		{"classes in the mix", abi.MaxMix},
		{"rows in the dirty list", abi.MaxDirty},
		{"bytes of configuration", abi.MaxConfig},
		{"values in it", abi.MaxConfigKeys},
		{"bytes of a text in it", abi.MaxText},
		{"bytes of extensions in a call", abi.MaxExtension},
		{"bytes of scratch", abi.MaxScratch},
		{"bytes of the arena", abi.MaxArena},
		{"bytes of the custom section", abi.MaxCapability},
		{"bytes of a name", abi.MaxName},
		{"bytes of a log line", abi.MaxLog},
	} {
		out += fmt.Sprintf("| %s | %d |\n", l.what, l.most)
	}
	return out
}

// TestPageSaysWhatIsSo holds the tables of docs/policy-abi.md against the constants.
func TestPageSaysWhatIsSo(t *testing.T) {
	tables := map[string]string{"columns": columnTable(), "limits": limitTable()}
	for name := range records {
		table, err := recordTable(name)
		if err != nil {
			t.Fatal(err)
		}
		tables[name] = table
	}
	path := filepath.Join("..", "..", "docs", "policy-abi.md")
	page, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	rest, found := string(page), 0
	for {
		before, after, ok := strings.Cut(rest, "<!-- table ")
		out.WriteString(before)
		if !ok {
			break
		}
		name, after, _ := strings.Cut(after, " -->\n\n")
		if strings.HasPrefix(after, "|") {
			_, after, _ = strings.Cut(after, "\n\n")
			after = "\n" + after
		} else {
			after = "\n" + after
		}
		if tables[name] == "" {
			t.Fatalf("the page has a table %q that nobody knows", name)
		}
		out.WriteString("<!-- table " + name + " -->\n\n" + tables[name])
		rest = after
		found++
	}
	if found != len(tables) {
		t.Errorf("the page has %d tables, there are %d", found, len(tables))
	}
	if out.String() == string(page) {
		return
	}
	if !*update {
		t.Errorf("%s differs from the constants: run the test with -update", path)
		return
	}
	if err := os.WriteFile(path, []byte(out.String()), 0o644); err != nil {
		t.Fatal(err)
	}
}
