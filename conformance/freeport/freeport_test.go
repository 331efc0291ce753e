package freeport

import (
	"net"
	"os"
	"path/filepath"
	"strconv"
	"testing"
)

// A port can be listened on, and one that is taken is not given.
func TestFind(t *testing.T) {
	for range 20 {
		port, err := Find()
		if err != nil {
			t.Fatal(err)
		}
		l, err := net.Listen("tcp", "127.0.0.1:"+strconv.Itoa(port))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close() })
	}
}

func TestEphemeral(t *testing.T) {
	file := filepath.Join(t.TempDir(), "range")
	for text, want := range map[string]int{"32768\t60999\n": 32768, "1024 65535": 1024, "": 0, "all": 0} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := ephemeral(file); got != want || (err == nil) != (want > 0) {
			t.Errorf("%q: got %d, %v, want %d", text, got, err, want)
		}
	}
	if got, err := ephemeral(file + ".none"); got == 0 || err != nil {
		t.Errorf("of a kernel that says nothing: %d, %v", got, err)
	}
}
