package server

import (
	"fmt"
	"runtime/debug"
)

const (
	// defaultGCPercent is half of what Go's runtime takes by default. A cell of a million tasks then peaks at 1.2 to 1.35 GiB instead of 1.5, for a
	// tenth more processor time at full speed.
	defaultGCPercent = 50
	// The range of --gc-percent: below it collecting is most of the work, above it a large cell outgrows its machine.
	leastGCPercent, mostGCPercent = 10, 1000
)

// limitGarbage says how much garbage may gather before it is collected, in percent of what is in use: what the flag says, else what GOGC says,
// which the runtime has read by itself, else the default.
func limitGarbage(flag int, gogc string) error {
	switch {
	case flag != 0 && (flag < leastGCPercent || flag > mostGCPercent):
		return &MistakeError{fmt.Errorf("--gc-percent %d is out of range: use %d to %d", flag, leastGCPercent, mostGCPercent)}
	case flag != 0:
		debug.SetGCPercent(flag)
	case gogc == "":
		debug.SetGCPercent(defaultGCPercent)
	}
	return nil
}
