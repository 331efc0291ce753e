package e2e_test

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A disk stands between a server and the kernel where the server makes files durable: every fsync, fdatasync and msync of the process is
// held by a seccomp filter until the test has said what becomes of it. So the real store in the real server meets failing and slow disks
// on any machine, without a file system or a block device of the test's own.
type disk struct {
	t       *testing.T
	stop    chan struct{}
	serving sync.WaitGroup

	mu      sync.Mutex
	fate    func(file string) fate
	refused []string // files whose sync was refused, in order
	delayed int
}

// fate is what becomes of one sync: it waits, and then goes through or is refused without reaching the kernel.
type fate struct {
	delay time.Duration
	errno syscall.Errno
}

func healthy(string) fate { return fate{} }

const (
	// onDiskVariable makes the test's own binary the program that installs the filter in itself and then becomes the server.
	onDiskVariable = "PACELINE_E2E_ON_DISK"
	onDiskSocket   = 3
)

// notification and notificationAnswer are seccomp_notif and seccomp_notif_resp of linux/seccomp.h.
type notification struct {
	id         uint64
	pid, flags uint32
	number     int32
	arch       uint32
	ip         uint64
	args       [6]uint64
}

type notificationAnswer struct {
	id    uint64
	value int64
	error int32
	flags uint32
}

// becomeServer runs in the child: it installs the filter, hands its listener to the test, and executes the server in its own place.
func becomeServer(arguments []string) error {
	runtime.LockOSThread() // the filter is of a thread, and the thread that executes takes it along
	load := func(k uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: k}
	}
	back := func(k uint32) unix.SockFilter { return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: k} }
	program := []unix.SockFilter{load(0)}
	held := []uint32{unix.SYS_FSYNC, unix.SYS_FDATASYNC, unix.SYS_MSYNC}
	for i, number := range held {
		program = append(program, unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jt: uint8(len(held) - i), K: number})
	}
	program = append(program, back(unix.SECCOMP_RET_ALLOW), back(unix.SECCOMP_RET_USER_NOTIF))
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("give up new privileges: %w", err)
	}
	filter := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	const flags = unix.SECCOMP_FILTER_FLAG_NEW_LISTENER | unix.SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV
	listener, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, flags, uintptr(unsafe.Pointer(&filter)))
	if errno != 0 {
		return fmt.Errorf("install a seccomp filter: %w", errno)
	}
	if err := unix.Sendmsg(onDiskSocket, []byte{1}, unix.UnixRights(int(listener)), nil, 0); err != nil {
		return fmt.Errorf("hand over the listener: %w", err)
	}
	unix.CloseOnExec(onDiskSocket)
	return syscall.Exec(arguments[0], arguments, os.Environ())
}

// onDisk puts a disk under the next server of the cell. Where the kernel has no such filters, the test is skipped.
func (c *cell) onDisk() *disk {
	c.t.Helper()
	d := &disk{t: c.t, stop: make(chan struct{}), fate: healthy}
	c.t.Cleanup(func() {
		close(d.stop)
		d.serving.Wait()
	})
	c.disk = d
	return d
}

// run starts a command with its syncs in the test's hand. It returns an error where the kernel does not allow that.
func (d *disk) run(cmd *exec.Cmd) error {
	d.t.Helper()
	self, err := os.Executable()
	if err != nil {
		d.t.Fatal(err)
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		d.t.Fatal(err)
	}
	ours, theirs := os.NewFile(uintptr(pair[0]), "ours"), os.NewFile(uintptr(pair[1]), "theirs")
	defer ours.Close()
	cmd.Args = append([]string{self}, cmd.Args...)
	cmd.Path = self
	cmd.Env = append(cmd.Env[:len(cmd.Env):len(cmd.Env)], onDiskVariable+"=1")
	cmd.ExtraFiles = []*os.File{theirs}
	if err := cmd.Start(); err != nil {
		d.t.Fatal(err)
	}
	_ = theirs.Close() // the child has its own; when that goes without a word, so does what is read here
	data, rights := make([]byte, 1), make([]byte, unix.CmsgSpace(4))
	n, m, _, _, err := unix.Recvmsg(int(ours.Fd()), data, rights, unix.MSG_CMSG_CLOEXEC)
	if err != nil || n == 0 {
		_ = cmd.Wait()
		return errors.Join(errors.New(cmd.ProcessState.String()), err)
	}
	messages, err := unix.ParseSocketControlMessage(rights[:m])
	if err != nil {
		d.t.Fatal(err)
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil {
		d.t.Fatal(err)
	}
	d.serving.Go(func() { d.serve(fds[0]) })
	return nil
}

// serve decides on one sync after another, each in its own time, until the test ends or nobody is left who could sync.
func (d *disk) serve(listener int) {
	var held sync.WaitGroup
	defer func() {
		held.Wait()
		_ = unix.Close(listener) // who syncs after that is told that there is no such call
	}()
	for {
		select {
		case <-d.stop:
			return
		default:
		}
		poll := []unix.PollFd{{Fd: int32(listener), Events: unix.POLLIN}}
		if n, err := unix.Poll(poll, int(pause/time.Millisecond)); n == 0 || errors.Is(err, unix.EINTR) {
			continue
		}
		if poll[0].Revents&unix.POLLIN == 0 {
			return
		}
		var note notification
		if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(listener), unix.SECCOMP_IOCTL_NOTIF_RECV, uintptr(unsafe.Pointer(&note))); errno != 0 {
			continue // whoever asked is gone
		}
		held.Go(func() { d.decide(listener, note) })
	}
}

func (d *disk) decide(listener int, note notification) {
	file := syncedFile(note)
	d.mu.Lock()
	f := d.fate(file)
	if f.errno != 0 {
		d.refused = append(d.refused, file)
	}
	if f.delay > 0 {
		d.delayed++
	}
	d.mu.Unlock()
	if f.delay > 0 {
		select {
		case <-time.After(f.delay):
		case <-d.stop:
		}
	}
	answer := notificationAnswer{id: note.id, flags: unix.SECCOMP_USER_NOTIF_FLAG_CONTINUE}
	if f.errno != 0 {
		answer.flags, answer.error = 0, -int32(f.errno)
	}
	// Fails when the caller was killed while it waited.
	_, _, _ = unix.Syscall(unix.SYS_IOCTL, uintptr(listener), unix.SECCOMP_IOCTL_NOTIF_SEND, uintptr(unsafe.Pointer(&answer)))
}

// set says what becomes of syncs from now on.
func (d *disk) set(f func(file string) fate) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.fate = f
}

// tally returns the files whose sync was refused, and how many syncs were delayed.
func (d *disk) tally() (refused []string, delayed int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.refused), d.delayed
}

// syncedFile finds the file that a call syncs: by its descriptor, or by the mapping at its address.
func syncedFile(note notification) string {
	proc := "/proc/" + strconv.FormatUint(uint64(note.pid), 10)
	if note.number != unix.SYS_MSYNC {
		name, _ := os.Readlink(filepath.Join(proc, "fd", strconv.FormatUint(note.args[0], 10))) // gone with its process
		return name
	}
	maps, err := os.Open(proc + "/maps")
	if err != nil {
		return ""
	}
	defer maps.Close()
	start := fmt.Sprintf("%x-", note.args[0])
	for lines := bufio.NewScanner(maps); lines.Scan(); {
		if line := lines.Text(); strings.HasPrefix(strings.TrimLeft(line, "0"), start) {
			fields := strings.Fields(line)
			return fields[len(fields)-1]
		}
	}
	return ""
}
