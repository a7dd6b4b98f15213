package shed

import (
	"fmt"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// kernelTimer is a timer of the kernel, which the runtime waits for as it does for connections.
type kernelTimer struct {
	f   *os.File
	raw syscall.RawConn
}

func newProbe() (probe, error) {
	fd, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("timerfd_create: %w", err)
	}
	f := os.NewFile(uintptr(fd), "timer")
	raw, err := f.SyscallConn()
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	return kernelTimer{f, raw}, nil
}

func (t kernelTimer) wait(d time.Duration) error {
	set := false
	var failed error
	err := t.raw.Read(func(fd uintptr) bool {
		if !set {
			// Here, and not before: a probe that finds it readable at once would not have stood in
			// line.
			set = true
			failed = unix.TimerfdSettime(int(fd), 0,
				&unix.ItimerSpec{Value: unix.NsecToTimespec(int64(max(d, 1)))}, nil)
			return failed != nil
		}
		var count [8]byte
		for failed = unix.EINTR; failed == unix.EINTR; {
			_, failed = unix.Read(int(fd), count[:])
		}
		return failed != unix.EAGAIN
	})
	if err != nil {
		return err
	}
	return failed
}

func (t kernelTimer) Close() error { return t.f.Close() }
