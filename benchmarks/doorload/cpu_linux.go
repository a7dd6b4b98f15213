package main

import (
	"time"

	"golang.org/x/sys/unix"
)

// cpuTime is the processor time of a process, see clock_getcpuclockid(3).
func cpuTime(pid int) (time.Duration, error) {
	const sched = 2 // CPUCLOCK_SCHED
	var t unix.Timespec
	if err := unix.ClockGettime(int32(^pid<<3|sched), &t); err != nil {
		return 0, err
	}
	return time.Duration(t.Nano()), nil
}
