//go:build !race

package simrun_test

const raceEnabled = false
