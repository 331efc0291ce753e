//go:build race

package simpack_test

const raceEnabled = true
