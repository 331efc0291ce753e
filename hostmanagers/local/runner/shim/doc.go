// Package shim is the small process that stands beside one run: it starts the run's task, captures its output, carries out kill
// requests, and writes down how it ended. It also defines the files through which a runner and its shims talk, because these
// outlive both.
//
// A shim is the runner's own binary executed again under the name Name. The package's init recognises that and never
// returns, so a program that links the runner needs no hook in its main; and because the package imports little, a shim is at
// work before the rest of a large binary has initialised. That is worth a surprising init: every live run costs one shim.
//
// What makes the bookkeeping safe:
//   - A living shim holds a lock (flock) on its run's lock file. The runner takes the lock before it starts the shim and the
//     shim inherits it, so that whoever gets the lock later knows that no shim of that run lives or will.
//   - The shim writes into the lock file before it starts the task. An empty lock file that can be locked proves that
//     the task never began.
//   - A process is named by boot id, pid and start time together, so that a reused pid is never mistaken for it.
//   - The task dies with its shim (PR_SET_PDEATHSIG); a task that nobody watches cannot go on.
//   - Every record is written to a temporary file, synced and renamed.
//
// The shim never talks to the server: no socket, no pipe after the start. It survives the server's death because it has a
// session of its own and none of its files.
//
// Concurrency: the main goroutine starts and reaps; one goroutine serves kill requests and two copy output. A mutex orders kills
// against the reaping, so that a signal never reaches a pid that is not the task's any more.
package shim
