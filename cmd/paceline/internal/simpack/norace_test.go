//go:build !race

package simpack_test

const raceEnabled = false
