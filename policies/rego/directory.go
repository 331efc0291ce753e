package rego

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/paceline-sched/paceline/core/api/admit"
	"github.com/paceline-sched/paceline/core/telemetry"
)

// directory is what was found in the directory of bundles.
type directory struct {
	found map[string]*entry // by name in the directory
	ill   error             // it could not be read; what was found before stays
}

// entry is one bundle of the directory.
type entry struct {
	seen  [32]byte // the state that its files were in when it was last looked at
	taken [32]byte // the state that was read: a state is read once two looks in a row have found it, so that nothing half written is taken
	unit  *unit    // in force; nil: no version could be used yet
	ill   error    // of the newest version
}

// units are the bundles in force.
func (d *directory) units() []*unit {
	var out []*unit
	for _, name := range slices.Sorted(maps.Keys(d.found)) {
		if u := d.found[name].unit; u != nil {
			out = append(out, u)
		}
	}
	return out
}

// broken are those of which no version could be used.
func (d *directory) broken() []admit.Status {
	var out []admit.Status
	for _, name := range slices.Sorted(maps.Keys(d.found)) {
		if e := d.found[name]; e.unit == nil && e.ill != nil {
			bundle, shadow := bundleName(name)
			out = append(out, admit.Status{Name: bundle, Source: name, Shadow: shadow, Error: e.ill.Error()})
		}
	}
	if d.ill != nil {
		out = append(out, admit.Status{Name: "(directory)", Source: ".", Error: d.ill.Error()})
	}
	return out
}

// illness is why the newest version of a unit's files is not in force.
func (d *directory) illness(u *unit) string {
	if e := d.found[u.source]; e != nil && e.unit == u && e.ill != nil {
		return e.ill.Error()
	}
	return ""
}

// bundleName reads an entry's name: NAME or NAME.shadow, as a directory or with .tar.gz after it.
func bundleName(file string) (name string, shadow bool) {
	return strings.CutSuffix(strings.TrimSuffix(file, ".tar.gz"), ".shadow")
}

// Look reads what has changed in the directory. What cannot be used changes nothing but the report.
func (j *Judge) Look() {
	if j.config.Directory == nil {
		return
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	_ = j.readDirectory(false) // it is in the report
}

// readDirectory brings the directory's bundles up to date. The first reading is at once and fails on what cannot be used.
func (j *Judge) readDirectory(first bool) error {
	d := &j.directory
	names, err := bundlesIn(j.config.Directory)
	if err != nil {
		err = fmt.Errorf("read the bundles in %s: %w", j.config.DirectoryName, err)
		if first {
			return err
		}
		if d.ill == nil {
			j.complain(j.config.DirectoryName, err)
			d.ill = err
			j.enforce()
		}
		return err
	}
	changed := first || d.ill != nil
	d.ill = nil
	if d.found == nil {
		d.found = map[string]*entry{}
	}
	for name := range d.found {
		if !slices.Contains(names, name) {
			delete(d.found, name)
			changed = true
			j.config.Log.Info("a bundle of rules is gone from the directory", slog.String(telemetry.KeyBundle, name))
		}
	}
	var ill error
	for _, name := range names {
		moved, err := j.readEntry(name, first)
		changed = changed || moved
		ill = errors.Join(ill, err)
	}
	if changed {
		j.enforce()
	}
	if first {
		return ill
	}
	return nil
}

// readEntry looks at one bundle and reports whether what is in force, or known of it, changed.
func (j *Judge) readEntry(name string, first bool) (bool, error) {
	e := j.directory.found[name]
	if e == nil {
		e = &entry{}
		j.directory.found[name] = e
	}
	state, err := stateOf(j.config.Directory, name)
	if err == nil && !first && state != e.seen {
		e.seen = state
		return false, nil
	}
	if err == nil && state == e.taken {
		return false, nil
	}
	e.seen, e.taken = state, state
	var u *unit
	if err == nil {
		u, err = j.readUnit(name)
	}
	if err != nil {
		err = fmt.Errorf("bundle %s in %s: %w", name, j.config.DirectoryName, err)
		known := e.ill != nil && e.ill.Error() == err.Error()
		e.ill = err
		if !known {
			j.complain(name, err)
		}
		return !known, err
	}
	e.ill = nil
	if e.unit == nil || e.unit.digest != u.digest {
		e.unit = u
		j.config.Log.Info("a bundle of rules is in force", slog.String(telemetry.KeyBundle, name), slog.String(telemetry.KeyVersion, short(u.digest)))
	}
	return true, nil
}

func (j *Judge) readUnit(name string) (*unit, error) {
	archive, err := readArchive(j.config.Directory, name)
	if err != nil {
		return nil, err
	}
	p, err := compile(archive, j.config.Keys)
	if err != nil {
		return nil, err
	}
	bundle, shadow := bundleName(name)
	return &unit{
		name: bundle, source: name, digest: sha256.Sum256(archive), shadow: shadow, since: time.Now(), prog: p, tally: &tally{},
	}, nil
}

func readArchive(dir fs.FS, name string) ([]byte, error) {
	if !strings.HasSuffix(name, ".tar.gz") {
		sub, err := fs.Sub(dir, name)
		if err != nil {
			return nil, err
		}
		return Pack(sub)
	}
	file, err := dir.Open(name)
	if err != nil {
		return nil, err
	}
	defer file.Close() //nolint:errcheck // it is only read
	return io.ReadAll(io.LimitReader(file, MaxArchiveBytes+1))
}

// bundlesIn lists the bundles of a directory. What begins with a dot is none, so that a new version can be written beside the old one.
func bundlesIn(dir fs.FS) ([]string, error) {
	entries, err := fs.ReadDir(dir, ".")
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), ".") {
			continue
		}
		info, err := fs.Stat(dir, e.Name()) // through links: a version may be switched by one
		if err != nil {
			return nil, err
		}
		if info.IsDir() || strings.HasSuffix(e.Name(), ".tar.gz") {
			names = append(names, e.Name())
		}
	}
	if len(names) > MaxBundles {
		return nil, fmt.Errorf("there are %d bundles, at most %d are taken", len(names), MaxBundles)
	}
	return names, nil
}

// stateOf tells two states of a bundle's files apart by names, sizes and times.
func stateOf(dir fs.FS, name string) (state [32]byte, err error) {
	h := sha256.New()
	note := func(name string, info fs.FileInfo) {
		fmt.Fprintf(h, "%q %d %d\n", name, info.Size(), info.ModTime().UnixNano())
	}
	if strings.HasSuffix(name, ".tar.gz") {
		info, err := fs.Stat(dir, name)
		if err != nil {
			return state, err
		}
		note(name, info)
		return [32]byte(h.Sum(nil)), nil
	}
	sub, err := fs.Sub(dir, name)
	if err != nil {
		return state, err
	}
	err = walkBundle(sub, func(file string) error {
		info, err := fs.Stat(sub, file)
		if err == nil {
			note(path.Join(name, file), info)
		}
		return err
	})
	return [32]byte(h.Sum(nil)), err
}
