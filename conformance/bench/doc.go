// Package bench measures a whole cell in one process: the real engine on the store on disk, with every commit synced, real shards, and
// simulated clusters that launch at once.
//
// It owns the rig and the rows that only a whole cell can show: how soon a job is acknowledged, tasks a second to RUNNING and to SUCCEEDED,
// jobs accepted a second, what watchers cost, and what a million live tasks take. It judges nothing: figures are for `make bench` and
// benchstat, and one test makes sure that the rig works. Packages keep the benchmarks of their own parts.
//
// The million takes minutes and gigabytes, so it is left out unless asked for:
//
//	make bench PKG=./conformance/bench BENCH=none MILLION=1
//
// It runs under the limit on garbage that a server gives itself, unless GOGC says otherwise. What is asked of each figure is in the command
// bars below this folder, and what bounds it in docs/performance.md.
//
// Concurrency: a rig belongs to one benchmark, which stops it and waits for its goroutines.
package bench
