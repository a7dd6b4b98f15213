//go:build unix

package testproc

import (
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Clock reads the monotonic clock, which is the same for all processes of this machine.
func Clock() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		panic(err)
	}
	return time.Duration(ts.Nano())
}

// attributes gives a child a process group of its own.
func attributes() *syscall.SysProcAttr {
	a := &syscall.SysProcAttr{Setpgid: true}
	dieTogether(a)
	return a
}

// keepCredential has a child run as another user.
func keepCredential(a, of *syscall.SysProcAttr) { a.Credential = of.Credential }

// Resume lets a paused child go on.
func Resume(p *os.Process) error { return p.Signal(syscall.SIGCONT) }

func signal(pid int, s syscall.Signal) error { return syscall.Kill(pid, s) }

// The signals of Pause and Resume.
const stop, cont = syscall.SIGSTOP, syscall.SIGCONT

// KillGroup kills the rest of a child's process group.
func KillGroup(pid int) { _ = syscall.Kill(-pid, syscall.SIGKILL) }

// lock waits until no other process holds the lock of a file. It is released with the file, or with
// the process.
func lock(f *os.File) error {
	for {
		if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != unix.EINTR {
			return err
		}
	}
}
