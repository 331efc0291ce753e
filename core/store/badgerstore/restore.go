package badgerstore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/paceline-sched/paceline/core/store"
)

// Bounds of one write of a restore.
const (
	restoreOps   = 4096
	restoreBytes = 1 << 20
)

// Restore fills config.Dir, which must be absent or empty (ErrNotEmpty), from a backup that any backend wrote, and gives the
// store a new incarnation. config.Cell may be empty; when it is not, a backup of another cell is refused. A restore that fails
// leaves the directory empty; one that was killed leaves a directory that Open refuses.
func Restore(ctx context.Context, config Config, r io.Reader) error {
	config = config.withDefaults()
	if err := restore(ctx, config, r); err != nil {
		return fmt.Errorf("restore into %s: %w", config.Dir, err)
	}
	return nil
}

func restore(ctx context.Context, config Config, r io.Reader) error {
	if err := checkEmpty(config.Dir); err != nil {
		return err
	}
	in, err := store.NewBackupReader(r)
	if err != nil {
		return err
	}
	if config.Cell != "" && config.Cell != in.Keys().Cell() {
		return fmt.Errorf("the backup is of cell %q, not %q", in.Keys().Cell(), config.Cell)
	}
	err = fill(ctx, config, in)
	if err != nil && !errors.Is(err, store.ErrLocked) {
		err = errors.Join(err, empty(config.Dir))
	}
	return err
}

// fill writes the records behind a marker, then takes the marker away in a synced commit.
func fill(ctx context.Context, config Config, in *store.BackupReader) error {
	s, err := open(config, in.Keys(), syncOnClose)
	if err != nil {
		return err
	}
	err = s.copyFrom(ctx, in)
	if err = errors.Join(err, s.Close()); err != nil {
		return err
	}
	if s, err = open(config, in.Keys(), syncEveryCommit); err != nil {
		return err
	}
	last, err := store.EndRestore(in.Keys(), config.Entropy)
	if err == nil {
		err = s.Commit(ctx, []store.Group{last})
	}
	return errors.Join(err, s.Close())
}

func (s *Store) copyFrom(ctx context.Context, in *store.BackupReader) error {
	batch := store.BeginRestore(in.Keys())
	size := 0
	for {
		key, value, err := in.Next()
		ended := errors.Is(err, io.EOF)
		if err != nil && !ended {
			return err
		}
		if ended || size+len(key)+len(value) > restoreBytes || len(batch.Ops) >= restoreOps {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			if err := s.checkRoom(); err != nil {
				return err
			}
			if err := s.commitTogether([]store.Group{batch}); err != nil {
				return err
			}
			batch.Ops, size = batch.Ops[:0], 0
		}
		if ended {
			return nil
		}
		// The reader reuses the value, and an empty one must not read as a delete.
		batch.Ops = append(batch.Ops, store.Op{Key: key, Value: append([]byte{}, value...)})
		size += len(key) + len(value)
	}
}

// checkEmpty overlooks our own lock file, which an earlier failure leaves.
func checkEmpty(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return explainOpen(dir, err)
	}
	for _, e := range entries {
		if e.Name() != lockName {
			return fmt.Errorf("%w: it holds %s; name an empty directory, or move this one away", store.ErrNotEmpty, e.Name())
		}
	}
	return nil
}

// empty removes what a failed restore wrote into a directory that was empty.
func empty(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("remove the partial restore: %w", err)
	}
	for _, e := range entries {
		if err := os.RemoveAll(filepath.Join(dir, e.Name())); err != nil {
			return fmt.Errorf("remove the partial restore: %w", err)
		}
	}
	return nil
}
