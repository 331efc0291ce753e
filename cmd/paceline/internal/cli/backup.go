package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	pacelinev1 "github.com/paceline-sched/paceline/sdk/gen/paceline/v1"
)

func (a *app) backupCommand() *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use:   "backup FILE",
		Short: "Save a consistent copy of a cell's store",
		Long: `Save a copy of the store, made while work goes on; - is standard output. The file appears under its name only once it is whole and on
stable storage.`,
		Example: `  paceline backup cell-$(date +%F).backup
  paceline backup - | ssh vault 'cat > cell.backup'`,
		Args: args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, names []string) error {
			if names[0] == "-" {
				_, err := a.streamBackup(cmd.Context(), a.Out)
				return err
			}
			return a.saveBackup(cmd.Context(), names[0], force)
		},
	}
	cmd.Flags().BoolVar(&force, "force", false, "replace a file that is there")
	return cmd
}

func (a *app) streamBackup(ctx context.Context, w io.Writer) (int64, error) {
	c, err := a.connect()
	if err != nil {
		return 0, err
	}
	defer c.Close()
	stream, err := c.Admin.Backup(ctx, connect.NewRequest(&pacelinev1.BackupRequest{}))
	if err != nil {
		return 0, err
	}
	defer stream.Close() //nolint:errcheck // the stream's own error says more
	shown := a.progress()
	defer shown.done()
	var written int64
	for stream.Receive() {
		n, err := w.Write(stream.Msg().GetData())
		if written += int64(n); err != nil {
			return written, fmt.Errorf("write the backup: %w", err)
		}
		shown.show(fmt.Sprintf("backup: %d MiB", written>>20))
	}
	return written, stream.Err()
}

// saveBackup writes beside the name and renames at the end: what bears the name is whole.
func (a *app) saveBackup(ctx context.Context, name string, force bool) error {
	if _, err := os.Lstat(name); !force && !errors.Is(err, fs.ErrNotExist) {
		return &failure{code: ExitUsage, err: fmt.Errorf("%s is there already", name), hint: "choose another name, or replace it with --force"}
	}
	temp, err := os.CreateTemp(filepath.Dir(name), "."+filepath.Base(name)+"-*")
	if err != nil {
		return fmt.Errorf("write the backup: %w", err)
	}
	written, err := a.streamBackup(ctx, temp)
	if err == nil {
		err = temp.Sync()
	}
	err = errors.Join(err, temp.Close())
	if err == nil {
		err = os.Rename(temp.Name(), name)
	}
	if err != nil {
		return errors.Join(err, os.Remove(temp.Name()))
	}
	if err := syncFolder(filepath.Dir(name)); err != nil {
		return err
	}
	a.say("%s: %d bytes", name, written)
	return nil
}

// syncFolder makes a rename last.
func syncFolder(name string) error {
	folder, err := os.Open(name)
	if err != nil {
		return fmt.Errorf("write the backup: %w", err)
	}
	if err := errors.Join(folder.Sync(), folder.Close()); err != nil {
		return fmt.Errorf("write the backup: %w", err)
	}
	return nil
}
