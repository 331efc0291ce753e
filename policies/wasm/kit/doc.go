// Package kit judges a policy from outside, whatever language it is written in: what a policy must keep to on any table, or of any pools, jobs or clusters, it is asked about
// random ones.
//
// Run checks and loads a module and tries it. Each scene is a kind of table with batches of requests; it is played twice, by two fresh instances,
// and what they answer is held against books that the kit keeps for itself. The kit says nothing of how good the placement is: a policy passes that places little, with a warning
// when it places nothing at all. The same checks run before a server keeps a module and behind `paceline policy verify`.
//
// Everything follows from the module and Options. Run works on the goroutine of its caller and may be called by many at once.
package kit
