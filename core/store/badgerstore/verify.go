package badgerstore

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"

	badger "github.com/dgraph-io/badger/v4"
	"github.com/dgraph-io/badger/v4/options"
	"github.com/dgraph-io/badger/v4/table"
	"github.com/dgraph-io/ristretto/v2/z"

	"github.com/paceline-sched/paceline/core/store"
)

// verifyDir reads every file before Badger does, because on damage Badger may end the process (a cut table), go on without the
// records (a table with a wrong checksum, a log cut in its middle), or delete what no manifest names. An empty directory passes.
func verifyDir(dir string) (err error) {
	at := dir
	defer func() {
		if r := recover(); r != nil {
			err = panicked(at, r)
		}
	}()
	entries, err := os.ReadDir(dir)
	if err != nil {
		return explainOpen(dir, err)
	}
	var tables, logs []string
	manifest := false
	for _, e := range entries {
		switch name := e.Name(); {
		case name == badger.ManifestFilename:
			manifest = true
		case filepath.Ext(name) == ".sst":
			tables = append(tables, name)
		case filepath.Ext(name) == ".mem":
			logs = append(logs, name)
		case filepath.Ext(name) == ".vlog":
			if err := removeUnborn(filepath.Join(dir, name)); err != nil {
				return err
			}
		}
	}
	at = filepath.Join(dir, badger.ManifestFilename)
	if !manifest {
		if len(tables)+len(logs) > 0 {
			return corrupt(at, "the file is missing")
		}
		return nil
	}
	slices.Sort(logs) // oldest first: the names are numbers of one width
	if err := verifyTables(dir, logs, &at); err != nil {
		return err
	}
	at = filepath.Join(dir, badger.KeyRegistryFileName)
	if err := verifyKeyRegistry(dir); err != nil {
		return explainFile(at, err)
	}
	for i, name := range logs {
		at = filepath.Join(dir, name)
		if err := verifyLog(at, i == len(logs)-1); err != nil {
			return err
		}
	}
	return nil
}

// verifyTables checks every table that the manifest names; at is kept at the file in hand.
func verifyTables(dir string, logs []string, at *string) error {
	manifest, err := readManifest(dir, *at)
	if err != nil {
		return err
	}
	undone, err := undoUnsynced(dir, manifest, logs)
	if err != nil {
		return err
	}
	if undone {
		if manifest, err = readManifest(dir, *at); err != nil {
			return err
		}
	}
	for id, entry := range manifest.Tables {
		*at = table.NewFilename(id, dir)
		if _, err := verifyTable(*at, entry.Compression); err != nil {
			return explainFile(*at, err)
		}
	}
	return nil
}

func readManifest(dir, path string) (badger.Manifest, error) {
	file, err := os.Open(path)
	if err != nil {
		return badger.Manifest{}, explainOpen(dir, err)
	}
	defer func() { _ = file.Close() }() // only read
	manifest, _, err := badger.ReplayManifestFile(file, 0, badgerOptions(dir))
	if err != nil {
		return badger.Manifest{}, explainFile(path, err)
	}
	return manifest, nil
}

// verifyKeyRegistry reads the file that would hold keys if Badger encrypted. Badger makes an absent one anew.
func verifyKeyRegistry(dir string) error {
	registry, err := badger.OpenKeyRegistry(badger.KeyRegistryOptions{Dir: dir, ReadOnly: true})
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return registry.Close()
}

// footerBytes are the two lengths at a table's end: of its index and of the index's checksum.
const footerBytes = 8

var errCut = errors.New("the table is cut off or overwritten")

// verifyTable checks the footer first, since Badger ends the process over a wrong one, then lets Badger read all blocks. It returns the newest
// version in the table.
func verifyTable(path string, compression options.CompressionType) (uint64, error) {
	if err := verifyFooter(path); err != nil {
		return 0, err
	}
	file, err := z.OpenMmapFile(path, os.O_RDONLY, 0)
	if err != nil {
		return 0, err
	}
	t, err := table.OpenTable(file, table.Options{
		ReadOnly: true, Compression: compression, BlockSize: 4 << 10, ChkMode: options.OnTableRead,
	})
	if err != nil {
		return 0, err // OpenTable has closed the file
	}
	return t.MaxVersion(), t.Close(-1)
}

func verifyFooter(path string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }() // only read
	info, err := file.Stat()
	if err != nil {
		return err
	}
	end := info.Size()
	for range 2 { // the checksum, then the index, each before its length
		var length [4]byte
		if end < footerBytes {
			return errCut
		}
		if _, err := file.ReadAt(length[:], end-4); err != nil {
			return err
		}
		end -= 4 + int64(binary.BigEndian.Uint32(length[:]))
		if end <= 0 {
			return errCut
		}
	}
	return nil
}

const (
	logHeaderBytes = 20 // of a log file: key id, base of the nonce
	maxLogKey      = 1 << 16
)

// txnEnd begins the key of the record that ends a transaction in the log.
var txnEnd = []byte("!badger!txn")

// verifyLog tells a torn end, which a crash leaves and replay rightly drops, from damage to what was acknowledged. The next
// transaction is written only after the last is on disk, so whatever a crash tore holds at most one transaction's end; more
// after the first bad record, or any in a log that is not the newest, are transactions that replay would drop. An empty log, from a
// crash at its creation, is removed, since Badger stumbles over it.
func verifyLog(path string, newest bool) error {
	info, err := os.Stat(path)
	if err != nil {
		return explainFile(path, err)
	}
	switch {
	case info.Size() == 0:
		return os.Remove(path)
	case info.Size() < logHeaderBytes:
		return corrupt(path, "the log has no header")
	}
	file, err := z.OpenMmapFile(path, os.O_RDONLY, 0)
	if err != nil {
		return explainFile(path, err)
	}
	err = verifyLogData(path, file.Data, newest)
	if closed := file.Close(-1); closed != nil {
		err = errors.Join(err, explainFile(path, closed))
	}
	return err
}

// removeUnborn removes a value log that a crash left empty at its creation, over which Badger stumbles. No value of ours is ever in one.
func removeUnborn(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return explainFile(path, err)
	}
	if info.Size() == 0 {
		return os.Remove(path)
	}
	return nil
}

func verifyLogData(path string, data []byte, newest bool) error {
	rest := data[logHeaderBytes:]
	for {
		n, _ := logRecord(rest)
		if n == 0 {
			break
		}
		rest = rest[n:]
	}
	torn := 0
	if newest {
		torn = 1
	}
	if lost := bytes.Count(rest, txnEnd); lost > torn {
		return corrupt(path, fmt.Sprintf("damage at byte %d hides %d later commits", len(data)-len(rest), lost))
	}
	return nil
}

// logRecord returns the length of the valid record at the start of data, 0 when there is none, and its key. A record is: two bytes of flags,
// varints with the lengths of key and value and the expiry, key, value, CRC-32C of all that.
func logRecord(data []byte) (length int, found []byte) {
	at := 2
	var fields [3]uint64
	for i := range fields {
		if at > len(data) {
			return 0, nil
		}
		v, n := binary.Uvarint(data[at:])
		if n <= 0 {
			return 0, nil
		}
		fields[i], at = v, at+n
	}
	key, value := fields[0], fields[1]
	if key == 0 || key > maxLogKey || value > uint64(len(data)) || uint64(at)+key+value+crc32.Size > uint64(len(data)) {
		return 0, nil
	}
	end := at + int(key+value)
	if crc32.Checksum(data[:end], castagnoli) != binary.BigEndian.Uint32(data[end:]) {
		return 0, nil
	}
	return end + crc32.Size, data[at : at+int(key)]
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// explainFile sorts the error of reading one file: what the machine refused is not damage.
func explainFile(path string, err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return corrupt(path, "the file is missing")
	}
	if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) {
		return corrupt(path, "the file is cut off")
	}
	explained := explainOpen(path, err)
	if errors.Is(explained, store.ErrCorrupt) && !strings.Contains(explained.Error(), path) {
		return corrupt(path, err)
	}
	return explained
}

// panicked turns a panic over a file's contents into an error with the stack, which is what a bug report needs.
func panicked(path string, r any) error {
	return corrupt(path, fmt.Sprintf("reading it panicked: %v\n%s", r, debug.Stack()))
}
