// Package scenarios tells the behaviour of a cell as text: each file in testdata is a story of commands and what came of them,
// run on the real scheduler and the real shard machine against a cluster that does what the story says, in virtual time.
//
// The package owns the language of the stories and the checks that hold after every step of any of them: following the groups
// gives the state, nothing is placed twice, pools are charged for exactly what is live. It is tests only and starts no goroutine.
package scenarios
