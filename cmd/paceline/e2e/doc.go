// Package e2e tests the binary from outside: servers are real processes on real directories, commands are run as a user runs them, and
// what they claim is checked on the processes, files and marks that they leave.
//
// It owns the binary that it builds, once per test run and without the race detector, and everything below one scratch folder. No
// process of that folder may be left when the tests end. It holds no code for others: there are only tests.
//
// Tests run in parallel, each with cells of its own.
package e2e
