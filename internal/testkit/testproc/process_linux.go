package testproc

import (
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// dieTogether makes the kernel kill a child when the thread ends that starts it.
func dieTogether(a *syscall.SysProcAttr) { a.Pdeathsig = syscall.SIGKILL }

// Pause stops a child and returns when all its threads have stopped.
func Pause(pid int) error {
	if err := unix.Kill(pid, unix.SIGSTOP); err != nil {
		return err
	}
	for {
		if err := unix.Waitid(unix.P_PID, pid, nil, unix.WSTOPPED, nil); err != unix.EINTR {
			return err
		}
	}
}

// CPU reads the clock that counts a process's time on processors; clock_getcpuclockid(3) makes its
// number like this.
func CPU(pid int) (time.Duration, error) {
	const scheduled = 2 // CPUCLOCK_SCHED: by the scheduler's own account, in nanoseconds
	var spent unix.Timespec
	err := unix.ClockGettime(int32(^pid)<<3|scheduled, &spent)
	return time.Duration(spent.Nano()), err
}
