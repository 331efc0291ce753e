package rego_test

import (
	"io/fs"
	"sync"
	"testing/fstest"
)

// lockedFS is a directory that somebody writes to while it is read.
type lockedFS struct {
	mu  *sync.Mutex
	dir fstest.MapFS
}

func (l lockedFS) Open(name string) (fs.File, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.dir.Open(name)
}
