package badgerstore

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	badger "github.com/dgraph-io/badger/v4"
	"github.com/dgraph-io/badger/v4/table"
	"github.com/dgraph-io/badger/v4/y"
	"github.com/dgraph-io/ristretto/v2/z"
)

// When the sync of the manifest fails, Badger takes back what the change was about: it removes the new tables, and keeps the log or the
// tables that they were made of. But the change stands in the manifest, as far as this machine can read it, and names tables that
// are not there. undoUnsynced takes the last change out of the manifest if that explains what is missing and if it can show that the
// state before has everything. Any other missing table is damage, and none of its business.

// manifestHead is what stands before the first change: magic and versions. A change is its length, its checksum, and so many bytes.
const manifestHead, changeHead = 8, 8

// undoUnsynced reports whether it changed the manifest.
func undoUnsynced(dir string, now badger.Manifest, logs []string) (bool, error) {
	missing, err := missingTables(dir, now)
	if err != nil || len(missing) == 0 {
		return false, err
	}
	path := filepath.Join(dir, badger.ManifestFilename)
	end, err := lastChange(path)
	if err != nil || end == 0 {
		return false, err
	}
	before, err := replayUpTo(dir, end)
	if err != nil {
		return false, err
	}
	for _, id := range missing {
		if _, ok := before.Tables[id]; ok {
			return false, nil
		}
	}
	whole, err := isWhole(dir, before, now, logs)
	if err != nil || !whole {
		return false, err
	}
	return true, cutManifest(path, end)
}

func missingTables(dir string, m badger.Manifest) (ids []uint64, err error) {
	for id := range m.Tables {
		_, err := os.Stat(table.NewFilename(id, dir))
		if errors.Is(err, fs.ErrNotExist) {
			ids = append(ids, id)
		} else if err != nil {
			return nil, explainOpen(dir, err)
		}
	}
	return ids, nil
}

// lastChange returns where the last whole change in a manifest begins; 0: there is none.
func lastChange(path string) (int64, error) {
	raw, err := os.ReadFile(path) // Badger rewrites it before it is large
	if err != nil {
		return 0, explainFile(path, err)
	}
	last, at := 0, manifestHead
	for len(raw)-at >= changeHead {
		next := at + changeHead + int(binary.BigEndian.Uint32(raw[at:]))
		if next > len(raw) {
			break
		}
		last, at = at, next
	}
	return int64(last), nil
}

// replayUpTo reads the manifest as it was when it ended at a byte.
func replayUpTo(dir string, end int64) (m badger.Manifest, err error) {
	raw, err := os.ReadFile(filepath.Join(dir, badger.ManifestFilename))
	if err != nil {
		return m, explainOpen(dir, err)
	}
	file, err := os.CreateTemp(dir, "manifest-*.tmp")
	if err != nil {
		return m, explainOpen(dir, err)
	}
	defer func() { err = errors.Join(err, file.Close(), os.Remove(file.Name())) }()
	if _, err := file.WriteAt(raw[:end], 0); err != nil {
		return m, explainOpen(dir, err)
	}
	m, _, err = badger.ReplayManifestFile(file, 0, badgerOptions(dir))
	if err != nil {
		return m, explainFile(file.Name(), err)
	}
	return m, nil
}

// isWhole reports whether a manifest without its last change has all records. Its tables must be there. That is enough if the change was to
// put new tables in the place of some of them. If it was to add a table, the log of that must be there still: every commit has the
// version after that of the one before it, and logs are flushed in order, so there is no gap between the newest version in the tables and
// the first in the oldest log.
func isWhole(dir string, before, now badger.Manifest, logs []string) (bool, error) {
	var newest uint64
	replaces := false
	for id, entry := range before.Tables {
		path := table.NewFilename(id, dir)
		version, err := verifyTable(path, entry.Compression)
		if err != nil {
			return false, explainFile(path, err)
		}
		newest = max(newest, version)
		if _, ok := now.Tables[id]; !ok {
			replaces = true
		}
	}
	if replaces || len(logs) == 0 {
		return replaces, nil
	}
	first, err := firstVersion(filepath.Join(dir, logs[0]))
	return first > 0 && first <= newest+1, err
}

// firstVersion is the version of the first record in a log, 0 when it has none.
func firstVersion(path string) (uint64, error) {
	info, err := os.Stat(path)
	if err != nil || info.Size() < logHeaderBytes {
		return 0, err
	}
	file, err := z.OpenMmapFile(path, os.O_RDONLY, 0)
	if err != nil {
		return 0, explainFile(path, err)
	}
	var version uint64
	if n, key := logRecord(file.Data[logHeaderBytes:]); n > 0 {
		version = y.ParseTs(key)
	}
	if err := file.Close(-1); err != nil {
		return 0, explainFile(path, err)
	}
	return version, nil
}

func cutManifest(path string, end int64) error {
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return explainFile(path, err)
	}
	err = file.Truncate(end)
	if err == nil {
		err = file.Sync()
	}
	if err = errors.Join(err, file.Close()); err != nil {
		return explainFile(path, fmt.Errorf("take back a change that a failed sync left: %w", err))
	}
	return nil
}
