// Package bench measures a whole cell in one process: the real engine on the store on disk, with every commit synced, real shards, and
// simulated clusters that launch at once.
//
// It owns the rig and the rows that only a whole cell can show: how soon a job is acknowledged, tasks a second to RUNNING and to SUCCEEDED,
// jobs accepted a second, what watchers cost, and what a million live tasks take. It judges nothing: figures are for `make bench` and
// benchstat, and one test makes sure that the rig works. Packages keep the benchmarks of their own parts.
//
// The million takes minutes and gigabytes, so it is left out unless asked for:
//
//	GOGC=50 go test ./conformance/bench -run '^$' -bench Million -benchtime 1x -million
//
// GOGC=50 is how a cell of that size is best run: half of what it holds as room for garbage, instead of as much again.
//
// Concurrency: a rig belongs to one benchmark, which stops it and waits for its goroutines.
package bench
