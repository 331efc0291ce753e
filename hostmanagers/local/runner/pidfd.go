package runner

import (
	"errors"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// pidfd is a handle on one process that stays true when the pid is used again. Waiting on it costs a parked goroutine and no thread.
type pidfd struct {
	pid  int
	file *os.File
	conn syscall.RawConn
}

// newPidfd takes over a file descriptor of process pid.
func newPidfd(fd, pid int) (*pidfd, error) {
	// Non-blocking descriptors are handed to the network poller.
	if err := unix.SetNonblock(fd, true); err != nil {
		_ = unix.Close(fd) // the error that counts is reported
		return nil, err
	}
	file := os.NewFile(uintptr(fd), "pidfd")
	conn, err := file.SyscallConn()
	if err != nil {
		_ = file.Close() // the error that counts is reported
		return nil, err
	}
	return &pidfd{pid: pid, file: file, conn: conn}, nil
}

func openPidfd(pid int) (*pidfd, error) {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return nil, err
	}
	return newPidfd(fd, pid)
}

// wait blocks until the process has ended, and reports false if the pidfd was closed before. It reaps the process if it is a child.
func (p *pidfd) wait() bool {
	ended := false
	err := p.conn.Read(func(fd uintptr) bool {
		ended = readable(int(fd))
		return ended
	})
	if err != nil && !ended {
		return false
	}
	// The pid is a zombie of ours until this, or it is no child and the call does nothing.
	_, _ = syscall.Wait4(p.pid, nil, syscall.WNOHANG, nil)
	return true
}

func readable(fd int) bool {
	fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	for {
		n, err := unix.Poll(fds, 0)
		if !errors.Is(err, unix.EINTR) {
			return n > 0
		}
	}
}

func (p *pidfd) signal(s syscall.Signal) error {
	var sent error
	if err := p.conn.Control(func(fd uintptr) { sent = unix.PidfdSendSignal(int(fd), s, nil, 0) }); err != nil {
		return err
	}
	return sent
}

func (p *pidfd) close() { _ = p.file.Close() } // a pidfd holds nothing that could fail to be written
