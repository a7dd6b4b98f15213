package server

import (
	"time"

	"golang.org/x/sys/unix"
)

// monotonic is the time of the system's monotonic clock.
func monotonic() time.Duration {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		return 0 // Linux has the clock
	}
	return time.Duration(now.Nano())
}
