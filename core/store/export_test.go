package store

// PrepareWith is Prepare with migrations of the test's own.
var PrepareWith = prepare
