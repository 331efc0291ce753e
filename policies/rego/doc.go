// Package rego judges jobs by rules in Rego, which come in OPA's bundle format.
//
// It owns how bundles are read, checked, signed for and evaluated, and what their answers may be; it is the one home of OPA. It never
// stores a bundle, never decides who may bring one, and gives rules neither network, clock, randomness nor files. What a rule answers is
// checked before anybody acts on it.
//
// Concurrency: a Judge may be used from any goroutine. What is in force hangs on one atomic pointer, so a job is judged by one set of
// bundles from beginning to end. Judge.Run owns the only goroutine, which evaluates shadow bundles and watches a directory; everything
// else runs on its caller's.
package rego

import "time"

// The bounds of rules.
const (
	// MaxArchiveBytes bounds a bundle as it is pushed and stored, in one record of one group.
	MaxArchiveBytes = 768 << 10
	// maxUnpackedBytes and maxFileBytes bound what an archive unpacks to, altogether and each file.
	maxUnpackedBytes = 8 << 20
	maxFileBytes     = 2 << 20
	// maxFiles and maxNameBytes bound its entries.
	maxFiles     = 1024
	maxNameBytes = 256
	// MaxBundles bounds what is in force from one source: the store, or a directory.
	MaxBundles = 16
	// TimeLimit bounds the evaluation of all bundles in force for one job. A bundle gets an equal part of what is left when its turn comes,
	// so none lives at another's cost; leastPart is left in any case. Only time in which this process computes counts: on a busy machine
	// good rules may wait for a processor.
	TimeLimit = 50 * time.Millisecond
	leastPart = time.Millisecond
	// maxMessages and maxMessageBytes bound what a bundle says of one job.
	maxMessages     = 32
	maxMessageBytes = 1024
	// maxMutations bounds the entries of mutate, maxMutationBytes what is in them as JSON.
	maxMutations     = 64
	maxMutationBytes = 16 << 10
	// maxMemo bounds the answers that are remembered, maxMemoKey what one of them is found by.
	maxMemo    = 4096
	maxMemoKey = 4 << 10
	// maxDecisions bounds the decisions that are kept, maxDecisionInput the job in one of them.
	maxDecisions     = 256
	maxDecisionInput = 4 << 10
	// maxShadows bounds the jobs that wait for shadow bundles; one more is not watched, and counted.
	maxShadows = 256
)
