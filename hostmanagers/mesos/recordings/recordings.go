// Package recordings holds what a real Mesos master and its agents said on the wire, for tests.
//
// The archive is data: apache/mesos c1b42f79d157 (1.12.0), recorded on 20 Nov 2026 over loopback, stage by stage, once in JSON and once in
// protobuf. README.md describes the files and what was observed. The package reads them and judges nothing; only tests import it.
//
// Concurrency: an Archive is never changed after Load; all methods may be called from any goroutine.
package recordings

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	_ "embed" // the archive
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"
)

//go:embed recordings.tar.gz
var packed []byte

// Archive is the recordings by file name, as "json/02-launch.events.jsonl".
type Archive struct {
	files map[string][]byte
}

// Load unpacks the recordings.
func Load() (*Archive, error) {
	unzipped, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		return nil, fmt.Errorf("unpack the recordings: %w", err)
	}
	a := &Archive{files: map[string][]byte{}}
	for files := tar.NewReader(unzipped); ; {
		head, err := files.Next()
		if errors.Is(err, io.EOF) {
			return a, nil
		}
		if err != nil {
			return nil, fmt.Errorf("unpack the recordings: %w", err)
		}
		data, err := io.ReadAll(files)
		if err != nil {
			return nil, fmt.Errorf("unpack %s: %w", head.Name, err)
		}
		a.files[path.Clean(head.Name)] = data
	}
}

// File returns a file's bytes, not to be changed; nil: there is none.
func (a *Archive) File(name string) []byte { return a.files[name] }

// Names returns the names of all files with a prefix, sorted.
func (a *Archive) Names(prefix string) []string {
	var names []string
	for name := range a.files {
		if strings.HasPrefix(name, prefix) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// Event is one event of a subscription.
type Event struct {
	Seconds float64         `json:"t"` // since the connection was opened
	JSON    json.RawMessage `json:"event"`
	// Connection says how the stream ended, in the last line.
	Connection string `json:"connection"`
}

// Call is one call that a framework made.
type Call struct {
	Seconds float64 `json:"t"`
	Type    string  `json:"call"`
	Label   string  `json:"label"`
}

// Events returns the events of a stage's subscription, as "json/02-launch", and whether the master ended it.
func (a *Archive) Events(stage string) (events []Event, closed bool, err error) {
	err = lines(a.File(stage+".events.jsonl"), func(e Event) {
		if e.Connection != "" {
			closed = true
			return
		}
		events = append(events, e)
	})
	return events, closed, err
}

// Calls returns the calls of a stage, in order.
func (a *Archive) Calls(stage string) (calls []Call, err error) {
	err = lines(a.File(stage+".calls.jsonl"), func(c Call) { calls = append(calls, c) })
	return calls, err
}

func lines[T any](text []byte, each func(T)) error {
	for line := range bytes.Lines(text) {
		var item T
		if err := json.Unmarshal(line, &item); err != nil {
			return fmt.Errorf("read a line of the recordings: %w", err)
		}
		each(item)
	}
	return nil
}
