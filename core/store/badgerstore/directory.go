package badgerstore

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/paceline-sched/paceline/core/store"
)

// lockName is our own lock, taken before any file is read; Badger takes its own on the directory after it.
const lockName = "paceline.lock"

type dirLock struct{ file *os.File }

// lockDir makes the directory when it is absent and locks it. The kernel gives the lock up when the process dies.
func lockDir(dir string) (*dirLock, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, explainOpen(dir, err)
	}
	file, err := os.OpenFile(filepath.Join(dir, lockName), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, explainOpen(dir, err)
	}
	if err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		holder := readHolder(file)
		_ = file.Close() // nothing was written
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, locked(holder)
		}
		return nil, explainOpen(dir, err)
	}
	// The number is for the message of the next who comes; the lock does not rest on it.
	err = file.Truncate(0)
	if err == nil {
		_, err = file.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	}
	if err != nil {
		_ = file.Close() // the write's error is the one to report
		return nil, explainOpen(dir, err)
	}
	return &dirLock{file}, nil
}

func readHolder(file *os.File) string {
	var buf [16]byte
	n, _ := file.ReadAt(buf[:], 0) // a short or failed read is an unknown holder
	pid, err := strconv.Atoi(strings.TrimSpace(string(buf[:n])))
	if err != nil {
		return "another process"
	}
	return "process " + strconv.Itoa(pid)
}

func (l *dirLock) release() error {
	if err := l.file.Close(); err != nil {
		return fmt.Errorf("release the lock %s: %w", l.file.Name(), err)
	}
	return nil
}

// freeBytes is what an unprivileged process may still write to the disk that holds dir.
func freeBytes(dir string) (uint64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0, fmt.Errorf("ask for the free space of %s: %w", dir, err)
	}
	return st.Bavail * uint64(st.Bsize), nil
}

// checkRoom refuses to write into the reserve.
func (s *Store) checkRoom() error {
	free, err := s.free(s.dir)
	if err != nil {
		return err
	}
	if free < s.reserve {
		return full(s.dir, fmt.Sprintf("%d MiB are free and %d MiB must stay so", free>>20, s.reserve>>20))
	}
	return nil
}

// The errors that tell the reader what to do.

func locked(holder string) error {
	return fmt.Errorf("%w: %s has it open; stop it, or give this one a data directory of its own", store.ErrLocked, holder)
}

func full(dir, detail string) error {
	return fmt.Errorf("%w: %s: %s; make room and start again, all that was acknowledged is there", store.ErrFull, dir, detail)
}

func sick(dir string, err error) error {
	return fmt.Errorf("the disk fails under %s: %s; look for its errors in the kernel's log, mend it or copy the directory to another, and start again: "+
		"all that was acknowledged is there", dir, oneLine(err))
}

// sickAtStart promises less: what cannot be synced may be what cannot be read.
func sickAtStart(path string, err error) error {
	return fmt.Errorf("the disk fails under %s: %s; look for its errors in the kernel's log, copy the directory to a good disk and start there; "+
		"if it cannot be read any more, %s", path, oneLine(err), restoreHint)
}

// oneLine takes out the line ends that some of Badger's messages have.
func oneLine(err error) string { return strings.Join(strings.Fields(err.Error()), " ") }

func corrupt(path string, detail any) error {
	if err, ok := detail.(error); ok {
		return fmt.Errorf("%w: %s: %w; %s", store.ErrCorrupt, path, err, restoreHint)
	}
	return fmt.Errorf("%w: %s: %v; %s", store.ErrCorrupt, path, detail, restoreHint)
}

const restoreHint = "move the data directory away and restore the last backup into an empty one with: paceline server restore --data-dir <dir> <file>"

// explainOpen sorts an error of opening. Badger flattens most causes into text, so text is what there is to go by.
func explainOpen(dir string, err error) error {
	text := err.Error()
	switch {
	case strings.Contains(text, "Cannot acquire directory lock"):
		return locked("another process")
	case errors.Is(err, fs.ErrPermission) || strings.Contains(text, "permission denied"):
		return fmt.Errorf("it may not be read and written by user %d; change its owner or mode: %w", os.Geteuid(), asPermission(err))
	case errors.Is(err, unix.ENOSPC) || strings.Contains(text, unix.ENOSPC.Error()):
		return full(dir, text)
	case isOne(err, unix.EIO):
		return sickAtStart(dir, err)
	case isSystem(err, text):
		return err
	default:
		return corrupt(dir, err)
	}
}

func asPermission(err error) error {
	if errors.Is(err, fs.ErrPermission) {
		return err
	}
	return fmt.Errorf("%w: %w", fs.ErrPermission, err)
}

// isSystem tells a refusal of the machine from damaged files.
func isSystem(err error, text string) bool {
	var number unix.Errno
	if errors.As(err, &number) {
		return true
	}
	for _, number := range []unix.Errno{unix.EMFILE, unix.ENFILE, unix.ENOMEM, unix.EROFS, unix.EFBIG, unix.EDQUOT, unix.ENOTDIR} {
		if strings.Contains(text, number.Error()) {
			return true
		}
	}
	return false
}

// isOne reports whether an error is, or speaks of, one of some errors of the machine.
func isOne(err error, numbers ...unix.Errno) bool {
	text := err.Error()
	for _, number := range numbers {
		if errors.Is(err, number) || strings.Contains(text, number.Error()) {
			return true
		}
	}
	return false
}

func explainWrite(dir string, err error) error {
	switch {
	case isOne(err, unix.ENOSPC, unix.EDQUOT, unix.EFBIG):
		return full(dir, err.Error())
	case isOne(err, unix.EIO):
		return sick(dir, err)
	}
	return err
}

// explainBroken explains what failed behind Badger's back.
func explainBroken(dir string, err error) error {
	if isOne(err, unix.ENOSPC, unix.EDQUOT, unix.EFBIG) {
		return full(dir, err.Error())
	}
	return sick(dir, err)
}
