package simulated

import (
	"encoding/binary"
	"time"

	"github.com/paceline-sched/paceline/core/workload"
)

// purpose keeps the draws for different questions apart.
type purpose uint64

const (
	forFailure purpose = iota + 1
	forFailureTime
	forLaunch
	forLoss
	forDuplicate
	forDelay
	forDelayTime
	forHostTime
	forHostChoice
	forHostReturn
	forCutTime
	forShape
)

// mix is the finaliser of SplitMix64 (Steele, Lea, Flood, OOPSLA'14): a bijection whose every output bit depends on every input bit.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// draw returns the random number of question n for a purpose.
func draw(seed uint64, p purpose, n uint64) uint64 {
	return mix(mix(mix(seed)^uint64(p)) ^ n)
}

// drawRun returns the random number of a run's n-th question for a purpose.
func drawRun(seed uint64, p purpose, id *workload.RunID, n uint64) uint64 {
	h := draw(seed, p, n)
	h = mix(h ^ binary.LittleEndian.Uint64(id.Job[:8]))
	h = mix(h ^ binary.LittleEndian.Uint64(id.Job[8:]))
	h = mix(h ^ (uint64(id.Instance)<<32 | uint64(id.Generation)))
	return mix(h ^ uint64(id.Run))
}

// happens turns a random number into a yes with a chance in thousandths.
func happens(random uint64, chance int32) bool { return int32(random%perMille) < chance }

// around returns a time between a half and one and a half of mean.
func around(random uint64, mean time.Duration) int64 {
	return int64(mean)/2 + int64(random%uint64(max(mean, 1)))
}
