// Package host is the columnar host table: what every host of one shard has, what of it is free, and who is on it.
//
// The table is a struct of arrays over rows. Placement scans columns; nothing per host is allocated on that path. Beside the
// plain columns it keeps what placement would else recompute: GPU devices as lanes with their whole-free count and largest free
// share, the two score columns Leftover and FreeShare, interned attributes, free ports, and counters of tasks by (selector,
// topology domain).
//
// A Table never decides: it takes room where it is told, even beyond capacity, because a run that a cluster reports is there
// in truth. It is pure and has one writer; readers may share it only while nobody writes. Nothing in it depends on map order:
// equal calls make equal tables.
//
// Rows are numbers from 0 to Rows()-1. The row of a removed host is given to a later one; its version goes on growing, so a
// cache that compares versions never takes one host for the other. A caller that keeps rows over removals looks them up again by
// HostID.
package host
