// Package runner runs real processes so that they outlive the program that started them.
//
// It owns a directory with one sub-directory per run, starts a shim for each (package shim), watches the shims' ends, and after
// a restart finds every run again: it re-attaches to what lives, reports what ended meanwhile, starts what was accepted but
// provably never begun, and says of the rest that it is lost. It keeps the output of forgotten runs within bounds.
//
// It never decides what to run, where, or again; never restarts a run; never polls for an end; and knows nothing of jobs.
//
//	<root>/lock           held by the one runner that serves the root
//	<root>/new, trash     directories coming into being and being removed; each is moved whole
//	<root>/runs/<id>/     spec.json start.json kill.json exit.json, shim.log, stdout.N stderr.N, work/, acknowledged, mark
//
// A supervisor that ends a service with its whole process group or cgroup ends the runs too: under systemd use KillMode=process.
//
// Concurrency: all methods of *Runner may be called from any goroutine. Start owns one goroutine per concurrent start, one per
// living run, which sleeps in the network poller on the shim's pidfd, one that calls the observer, and one that
// removes old directories. Close ends them all and leaves the runs alone.
package runner
