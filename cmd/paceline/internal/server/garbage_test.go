package server

import (
	"errors"
	"runtime/debug"
	"testing"
)

func TestLimitGarbage(t *testing.T) {
	const before = 77
	defer debug.SetGCPercent(debug.SetGCPercent(before))
	for _, c := range []struct {
		name string
		flag int
		gogc string
		want int // 0: refused
	}{
		{"default", 0, "", defaultGCPercent},
		{"environment", 0, "200", before}, // the runtime has read it
		{"flag", 300, "", 300},
		{"flag over environment", 300, "200", 300},
		{"too little", leastGCPercent - 1, "", 0},
		{"too much", mostGCPercent + 1, "200", 0},
		{"negative", -1, "", 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			debug.SetGCPercent(before)
			err := limitGarbage(c.flag, c.gogc)
			got := debug.SetGCPercent(before)
			var mistake *MistakeError
			if c.want == 0 {
				if !errors.As(err, &mistake) || got != before {
					t.Fatalf("got %v and %d percent, want a mistake and no change", err, got)
				}
				return
			}
			if err != nil || got != c.want {
				t.Fatalf("got %v and %d percent, want %d", err, got, c.want)
			}
		})
	}
}
