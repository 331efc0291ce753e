//go:build race

package simrun_test

const raceEnabled = true
