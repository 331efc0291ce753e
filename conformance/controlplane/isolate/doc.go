// Package isolate runs a program in namespaces of its own, so that what it starts, mounts and configures is gone when it ends, however it ends.
//
// The program has its own processes, mounts, network and host name, an empty /run, and private changes to /var/lib and /var/log. When it ends, or
// whoever started it is killed, the kernel ends every process in there and takes mounts and network away. Only cgroups outlive their
// processes: Run removes them, also those of an earlier run that was killed. It needs root and a cgroup tree that may be written; where either
// is missing, Run says so. One run at a time: a second one waits.
//
// Who calls Run calls Main first thing in its own main: the program is started again inside, as the first process there.
//
// Concurrency: Run may be called from one goroutine at a time.
package isolate
