package isolate

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

// Main is called first in a program's main. In the first process of new namespaces it does that process's work and never returns; else it does
// nothing.
func Main() {
	if len(os.Args) < 2 || os.Args[1] != firstWord || !Inside() {
		return
	}
	code, err := first(os.Args[2:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "in namespaces of its own:", err)
	}
	os.Exit(code)
}

// first is the work of the first process: it prepares the place, starts the command, and buries what others leave.
func first(command []string) (code int, err error) {
	if len(command) == 0 {
		return 1, errors.New("there is no command")
	}
	if err := prepare(); err != nil {
		return 1, err
	}
	path, err := exec.LookPath(command[0])
	if err != nil {
		return 1, fmt.Errorf("find the command: %w", err)
	}
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGTERM, os.Interrupt)
	child, err := os.StartProcess(path, command, &os.ProcAttr{
		Env: append(os.Environ(), "TMPDIR="+scratch), Files: []*os.File{os.Stdin, os.Stdout, os.Stderr},
	})
	if err != nil {
		return 1, fmt.Errorf("start the command: %w", err)
	}
	pid := child.Pid
	go func() { // ends with the process
		for range signals {
			_ = syscall.Kill(pid, syscall.SIGTERM) // it may be gone
		}
	}()
	for {
		var status syscall.WaitStatus
		got, err := syscall.Wait4(-1, &status, 0, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
		case err != nil:
			return 1, fmt.Errorf("wait for the command: %w", err)
		case got == pid && status.Signaled():
			return 128 + int(status.Signal()), nil
		case got == pid:
			return status.ExitStatus(), nil
		}
	}
}

// scratch is a directory in memory that goes with the namespaces.
const scratch = "/run/tmp"

// prepare makes the place: mounts that nobody else sees, and a network with nothing but a loopback.
func prepare() error {
	if err := syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("keep mounts to itself: %w", err)
	}
	if err := syscall.Mount("proc", "/proc", "proc", 0, ""); err != nil {
		return fmt.Errorf("mount /proc: %w", err)
	}
	if err := syscall.Mount("tmpfs", "/run", "tmpfs", 0, "mode=755"); err != nil {
		return fmt.Errorf("mount an empty /run: %w", err)
	}
	for _, dir := range []string{scratch, "/run/lock"} {
		if err := os.Mkdir(dir, 0o700); err != nil {
			return fmt.Errorf("make a place for temporary files: %w", err)
		}
	}
	for _, dir := range []string{"/var/lib", "/var/log"} {
		if err := cover(dir); err != nil {
			return err
		}
	}
	if err := syscall.Sethostname([]byte("isolated")); err != nil {
		return fmt.Errorf("set a host name: %w", err)
	}
	return AddAddress("lo", netip.MustParsePrefix("127.0.0.1/8"))
}

// cover lays a layer over a directory: what is written there goes with the namespaces.
func cover(dir string) error {
	upper, work := filepath.Join("/run/upper", dir), filepath.Join("/run/work", dir)
	for _, d := range []string{upper, work} {
		if err := os.MkdirAll(d, 0o755); err != nil { //nolint:gosec // as the directory below
			return fmt.Errorf("cover %s: %w", dir, err)
		}
	}
	if err := syscall.Mount("overlay", dir, "overlay", 0, "lowerdir="+dir+",upperdir="+upper+",workdir="+work); err != nil {
		return fmt.Errorf("lay a private layer over %s: %w", dir, err)
	}
	return nil
}

// AddAddress gives an interface an address and switches it on. Further addresses of one have names such as "lo:1".
func AddAddress(name string, address netip.Prefix) error {
	socket, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("set up the network: %w", err)
	}
	defer func() { _ = unix.Close(socket) }() // nothing was written
	ip := address.Addr().As4()
	mask := [4]byte{}
	for i := range address.Bits() {
		mask[i/8] |= 0x80 >> (i % 8)
	}
	for _, step := range []struct {
		call  uint
		value func(*unix.Ifreq) error
	}{
		{unix.SIOCSIFADDR, func(r *unix.Ifreq) error { return r.SetInet4Addr(ip[:]) }},
		{unix.SIOCSIFNETMASK, func(r *unix.Ifreq) error { return r.SetInet4Addr(mask[:]) }},
		{unix.SIOCSIFFLAGS, func(r *unix.Ifreq) error { r.SetUint16(unix.IFF_UP | unix.IFF_RUNNING); return nil }},
	} {
		request, err := unix.NewIfreq(name)
		if err == nil {
			err = step.value(request)
		}
		if err == nil {
			err = unix.IoctlIfreq(socket, step.call, request)
		}
		if err != nil {
			return fmt.Errorf("give %s the address %s: %w", name, address, err)
		}
	}
	return nil
}
