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
	var failed error
	if err := t.raw.Control(func(fd uintptr) {
		failed = unix.TimerfdSettime(int(fd), 0, &unix.ItimerSpec{Value: unix.NsecToTimespec(int64(max(d, 1)))}, nil)
	}); err != nil {
		return err
	}
	if failed != nil {
		return failed
	}
	var count [8]byte
	_, err := t.f.Read(count[:])
	return err
}

func (t kernelTimer) Close() error { return t.f.Close() }
