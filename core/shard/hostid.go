package shard

import (
	"crypto/sha256"

	"github.com/paceline-sched/paceline/core/workload"
)

// HostID is the identity of a host: a hash of its cluster's and its own name. A host that leaves and returns under the same name is the
// same host, on every shard and after every restart, without a record to remember it by.
func HostID(cluster, name string) workload.HostID {
	b := make([]byte, 0, 320)
	b = append(b, "paceline host\x00"...)
	b = append(b, cluster...)
	b = append(b, 0) // neither name may contain it, so no two pairs read alike
	b = append(b, name...)
	sum := sha256.Sum256(b)
	return workload.HostID(sum[:len(workload.HostID{})])
}
