// Package registry keeps the policies of a cell: it verifies what is pushed, brings versions into force in the order that core/rollout decides, and takes them out again
// when they misbehave.
//
// A Registry owns the loaded versions and the book of what is known of them, which the cell's store keeps. A Source is one shard's view of it: it implements
// placement.PlacerSource, so that every batch is placed by whatever is in force under the name that its work chose, and by the built-in placer where that fails. What a
// version does is counted, and what breaks a gate is rolled back.
//
// # Order
//
// A version is loaded and tried before it comes into force, and comes into force once that is durable. One that breaks a gate goes out of force first and is written down
// afterwards. So a start finds every version that anybody was told of, and nothing waits for the store to be rid of a bad one.
//
// # Concurrency
//
// A Registry may be used from any number of goroutines. A Source has one owner, as the table that it serves. Run judges what the sources counted, on the goroutine of its caller;
// the package starts none.
package registry
